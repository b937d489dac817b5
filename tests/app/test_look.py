"""One look at a run: figures equal the engine's own, drafts are honest, and it is fast."""

import base64
import json
import re
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from app import look as looks
from app import take
from app.explain import explain, explain_in
from app.figures import grid as grids
from app.i18n import said, texts
from app.look_words import bits, closeness, estimate_seconds, pace, share, totals
from app.settings import ROOT
from engine import advice, cost
from engine.replay import replay
from engine.settings import BREAK_IT, PRESETS, RANGES, Policy, warnings
from kernels import target


def seen(source, policy=None, lang="en", rivals=None, **wish):
    return looks.look(source, looks.Wish(policy or source.policy, **wish), lang, rivals)


@pytest.mark.parametrize("preset", [*PRESETS, "break"])
def test_totals_equal_the_engines_report(source, preset):
    trace = replay(source.signals, looks.named(preset))
    ours, theirs = totals(trace), cost.report(trace)
    wanted = (theirs.average_bits, theirs.average_bits_computed, theirs.skipped_share, theirs.predictor_share)
    assert np.allclose(ours, wanted, equal_nan=True)


def test_estimates_equal_the_engines(source):
    speeds = cost.measure_speeds(source.trace)
    for trace in (source.trace, replay(source.signals, Policy(tdc_threshold=0.2))):
        assert np.isclose(estimate_seconds(trace, speeds), cost.estimate_seconds(trace, speeds), equal_nan=True)


def test_the_runs_own_policy_shows_what_happened(source):
    answer = seen(source)
    assert answer["draft"] is None and not answer["map"]["over"] and answer["preset"] == "sixbit"
    assert any(f["value"] == "31.2 dB" for f in answer["net"]["figures"])
    assert answer["net"]["lead"].startswith("Cheaper: ") and "31.2 dB to FP16 (higher is closer), hard to see" in answer["net"]["lead"]


@pytest.mark.parametrize("lang, words", [("en", "No FP16 run beside it"), ("zh-CN", "没有同时运行 FP16")])
def test_a_run_without_another_beside_it_says_what_it_did(source, lang, words):
    alone = type(source)(**{**vars(source), "seconds": {"run": 8.0}, "psnr": None, "key": "alone"})
    lead, now = seen(alone, lang=lang)["net"]["lead"], totals(source.trace)
    assert bits(now.bits) in lead and share(now.skipped) in lead and words in lead
    assert words not in seen(source, lang=lang)["net"]["lead"]
    measured = type(source)(**{**vars(alone), "psnr": 24.0, "key": "measured"})           # every signal beside it: not timed
    lead = seen(measured, lang=lang)["net"]["lead"]
    assert bits(now.bits) in lead and "24.0 dB" in lead and words not in lead
    same = type(source)(**{**vars(alone), "psnr": float("inf"), "key": "same"})
    assert "FP16" in seen(same, lang=lang)["net"]["lead"] and "dB" not in seen(same, lang=lang)["net"]["lead"]


@pytest.mark.parametrize("lang, words", [("en", "the machine was busy, so times do not compare"), ("zh-CN", "机器正忙，时间无法比较")])
def test_times_of_a_busy_machine_are_not_compared(source, lang, words):
    busy = replace(source, busy=True, key="busy")
    net, calm = seen(busy, lang=lang)["net"], seen(source, lang=lang)["net"]
    speeds = [figure for figure in calm["figures"] if figure not in net["figures"]]
    assert len(speeds) == 1
    faster = speeds[0]["value"].rstrip("×")
    assert faster in calm["lead"] and faster not in net["lead"]
    assert words in net["lead"] and "31.2 dB" in net["lead"] and words not in calm["lead"]
    assert words not in seen(replace(busy, seconds={"run": 8.0}, key="alone busy"), lang=lang)["net"]["lead"]


def test_a_draft_shows_changes_and_no_claims_about_quality(source):
    answer = seen(source, Policy(tdc_threshold=0.3))
    assert "would change" in answer["draft"] and "moves the next computation" in answer["draft"]
    assert answer["map"]["legend"][-1][0] == "lab.legend.same" and len(answer["map"]["over"]) == 3
    assert not any("dB" in f["value"] for f in answer["net"]["figures"])
    assert answer["net"]["lead"] == ""
    assert any(f["was"] for f in answer["net"]["figures"])
    assert "estimate" in answer["band"].lower()


def test_a_draft_on_a_run_without_a_probe_says_what_it_cannot_know(source):
    bare = type(source)(**{**vars(source), "signals": None, "key": "bare"})
    answer = seen(bare, Policy(tdc=False, pdr=False))
    assert "unknown" in answer["band"].lower()
    assert ["lab.legend.unknown"] == [row[0] for row in answer["map"]["legend"] if row[0] == "lab.legend.unknown"]


def test_no_skips_is_said_aloud(source):
    trace = replay(source.signals, Policy(tdc_threshold=0.0))
    still = type(source)(**{**vars(source), "trace": trace.with_meta(replay=None), "policy": Policy(tdc_threshold=0.0), "key": "still"})
    answer = seen(still)
    assert "no gain" in answer["net"]["note"] and "no gain" in answer["knobs"][1]["says"]


@pytest.mark.parametrize("view", looks.VIEWS)
@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_every_view_in_every_language_is_json(source, view, lang):
    for policy in (source.policy, BREAK_IT, Policy.preset("fp16")):
        text = json.dumps(seen(source, policy, lang, view=view), allow_nan=False)
        assert len(text) < 120_000


def test_the_verdict_is_led_by_its_score(source):
    found = re.match(r"(\d+) of (\d+) choices right\. Each", seen(source, view="verdict")["map"]["note"])
    right, total = map(int, found.groups())
    chosen = grids.build(source.trace.blocks, source.trace.layers, None, source.trace.meta.steps)
    assert 0 < right <= total == int((chosen.decided_by == chosen.deciders.index("predictor")).sum())


def test_knobs_that_do_nothing_say_so(source):
    words = {k["name"]: k for k in seen(source, Policy.preset("w4a8"))["knobs"]}
    assert words["error_threshold"]["off"] and words["tdc_threshold"]["off"] and words["outlier_threshold"]["off"]


def test_comparing_with_a_previous_run_outlines_what_differs(source):
    other = type(source)(**{**vars(source), "trace": replay(source.signals, Policy(tdc_threshold=0.2)), "key": "other"})
    answer = seen(source, against="previous", rivals={"previous": other})
    assert len(answer["map"]["over"]) == 2 + 1 and "previous" in answer["map"]["versus"]


def test_runs_of_different_shape_are_not_compared(source, large):
    answer = seen(source, against="previous", rivals={"previous": large})
    assert not answer["map"]["over"] and "different" in answer["map"]["note"]


def test_a_drafts_sentence_is_about_this_run_whatever_the_outlines_show(source, large):
    other = type(source)(**{**vars(source), "trace": replay(source.signals, Policy(tdc_threshold=0.02)), "key": "other"})
    policy = Policy(tdc_threshold=0.3)
    plainly = seen(source, policy)
    assert "would change" in plainly["draft"]
    for rival in (other, large):
        beside = seen(source, policy, against="previous", rivals={"previous": rival})
        assert beside["draft"] == plainly["draft"] and beside["map"]["over"] != plainly["map"]["over"]


def test_how_two_runs_differ_is_no_forecast(source):
    other = type(source)(**{**vars(source), "trace": replay(source.signals, Policy(tdc_threshold=0.2)), "key": "other"})
    legend = [row[0] for row in seen(source, against="previous", rivals={"previous": other})["map"]["legend"]]
    assert "lab.legend.differs" in legend and "lab.legend.first" not in legend
    assert "lab.legend.first" in [row[0] for row in seen(source, Policy(tdc_threshold=0.3))["map"]["legend"]]


def test_a_scale_stays_where_it_is_while_its_knob_moves(source):
    for place in (0, 1, 2):
        name = seen(source)["knobs"][place]["name"]
        high = seen(source)["knobs"][place]["high"]
        for part in (0.02, 0.5, 0.9, 1.0):
            knob = seen(source, replace(source.policy, **{name: max(1.0, part * high) if place == 2 else part * high}))["knobs"][place]
            assert knob["high"] == high and knob["value"] <= high
        low, most = RANGES[name]
        assert seen(source)["knobs"][place]["low"] == low
        far = seen(source, replace(source.policy, **{name: most}))["knobs"][place]
        assert far["high"] == most == far["value"]


def test_a_video_is_named_by_what_made_it(source):
    def names(**changed):
        run = type(source)(**{**vars(source), "key": "named", **changed})
        return [take.package(run, kind, run.policy)[0] for kind in ("reference", "video")], seen(run)["about"]["videos"]

    assert names() == (["fp16.mp4", "sixbit.mp4"], {"a": "lab.race.fp16", "b": "lab.race.policy"})
    assert names(policy=BREAK_IT, beside=Policy()) == (["sixbit.mp4", "break.mp4"], {"a": "lab.race.policy", "b": "lab.race.broken_policy"})
    assert names(policy=Policy.preset("w4a8"))[0][1] == "w4a8.mp4" and names(policy=Policy(max_skips=1))[0][1] == "own.mp4"
    assert all(looks.label_of(looks.named(name)) in texts()["zh-CN"] for name in looks.PRESET_ORDER)


def test_peak_memory_is_of_a_run_alone(source):
    def quoted(**changed):
        run = type(source)(**{**vars(source), "seconds": {"run": 3.0}, "key": "alone", **changed})
        return any("peak" in row["label"] for row in seen(run)["net"]["figures"])

    clip = np.zeros((2, 8, 8, 3), np.uint8)
    assert source.trace.meta.memory["peak"] and quoted(video={"b": clip}) and not quoted(video={"a": clip, "b": clip})


@pytest.mark.parametrize("which", ["source", "large"])
def test_a_knob_answers_in_time(which, request):
    """The whole answer, in processor time (the machine may be busy): half of what a redraw may take."""
    run, spent = request.getfixturevalue(which), []
    seen(run, Policy(tdc_threshold=0.11))
    for i in range(12):
        began = time.process_time()
        json.dumps(seen(run, Policy(tdc_threshold=0.12 + 0.01 * i)))
        spent.append(time.process_time() - began)
    assert np.percentile(spent, 90) < 0.15


def test_the_band_beside_the_knobs_is_read_from_its_file(tmp_path, monkeypatch):
    path = tmp_path / "agreement.json"
    monkeypatch.setattr(looks, "AGREEMENT", path)
    assert looks.agreement("en") == ""
    close = {"runs": 52, "policies": 26, "skips": [0.614, 0.7, 0.87], "bits_error": [0.1, 0.42], "skipped_error": [0.01, 0.036]}
    rough = {"runs": 12, "policies": 6, "skips": [0.5, 0.6, 0.7], "bits_error": [1, 1.8], "skipped_error": [0.2, 0.27]}
    path.write_text(json.dumps({"probe": close, "run": rough}))
    said = looks.agreement("en")
    assert said.startswith("Estimate: the totals are close, single cells less so. In 52 real re-runs of 26") and "61–87 %" in said
    assert "52" in looks.agreement("zh-CN") and "0.4 比特" in looks.agreement("zh-CN")
    assert looks.agreement("en", False).startswith("Rough estimate: only a run tells. In 12 real re-runs of 6 random policies, nine totals of ten came within 1.8 bits and 27 points")
    path.write_text('{"runs": 52}')
    assert looks.agreement("en") == ""


def test_every_figure_of_a_draft_that_is_an_estimate_says_so(source):
    run, draft, forced = (looks.look(source, looks.Wish(policy), "en") for policy in (
        source.policy, replace(source.policy, tdc_threshold=0.3), Policy.preset("w4a8")))
    assert "≈" not in json.dumps([run["net"], run["knobs"]], ensure_ascii=False)
    told = {row["label"].split(",")[0].split("(")[0].strip(): row["value"] for row in draft["net"]["figures"]}
    measured = [value for label, value in told.items() if "weights" in label or "cache" in label]
    assert [value for value in told.values() if not value.startswith("≈ ")] == measured
    assert all(knob["says"].count("≈") >= 1 for knob in draft["knobs"])
    assert forced["net"]["figures"][0]["value"] == "8.0"              # settled by the policy alone


def test_the_engines_warnings_speak_the_pages_language(source):
    loose = replace(source.policy, tdc_threshold=2.5 * Policy.tdc_threshold)
    warned = warnings(loose, 30)
    assert [w.key for w in warned] == ["loose_reuse"] and "more than twice" in warned[0]
    for w in warned:
        assert re.search("[\u4e00-\u9fff]", said("zh-CN", w)) and "more than twice" in said("en", w)
    assert said("zh-CN", "Something new.") == "Something new."
    assert re.search("[\u4e00-\u9fff]", looks.look(source, looks.Wish(loose), "zh-CN")["warning"])


def test_every_warning_of_the_engine_has_words_in_the_page():
    code = "".join((ROOT / "engine" / name).read_text(encoding="utf-8") for name in ("settings.py", "request.py", "vocabulary.py"))
    keys = set(re.findall(r'notice\(\s*"(\w+)"', code)) | {"alarm_without_reuse", "alarm_at_16_bits", "alarm_at_8_bits"}
    assert len(keys) >= 12 and all(f"lab.notice.{key}" in texts()["en"] for key in keys)


def test_what_is_said_about_simulated_4_bits_is_what_was_measured(monkeypatch):
    steps = pd.read_csv(ROOT / "assets" / "benchmarks" / "cogvideox-5b.csv").set_index("method")["seconds_per_step"]
    slow, fast = (f"{steps[name]:.2f}" for name in ("sixbit", "int8_tdc"))
    hopper = target.Target("cuda", (9, 0), True, False, True, True, "no FP4")
    monkeypatch.setattr(target, "probe", lambda device: hopper)
    (sentence,) = advice.about(Policy.preset("sixbit"), "cuda")
    told = [sentence, said("en", sentence), said("zh-CN", sentence)]
    assert all(re.findall(r"\d\.\d\d", words) == [fast, slow] for words in told)


def test_a_purified_call_that_takes_8_bits_is_drawn_counted_and_called_8_bits(source):
    policy = replace(source.policy, purify_to="int8", outlier_threshold=8.0)
    shown, trace = seen(source, policy), replay(source.signals, policy)
    assert np.frombuffer(base64.b64decode(shown["map"]["cells"]), np.uint8).max() <= grids.INT8
    says, alarms = shown["knobs"][2]["says"], int(trace.layers["purified"].sum())
    assert alarms and says.startswith("8 bits where") and f" {alarms} of " in says
    row = trace.layers[trace.layers["purified"]].iloc[0]
    told = explain(looks.grid_of(trace), looks.grid_of(source.signals), source.signals, policy, int(row["block"]), int(row["step"]), "en")
    assert any(s.startswith("8 bits in") and "an outlier, the largest value is" in s for s in told["sentences"])
    assert not any("16" in texts()["en"][f"lab.ends.outlier_threshold.{end}"] for end in ("low", "high"))


def test_figures_belong_to_what_is_shown(source):
    labels = [row["label"] for row in seen(source, Policy.preset("fp16"))["net"]["figures"]]
    assert not any("weights" in label or "cache" in label for label in labels)
    assert "no gain" not in seen(source, Policy.preset("fp16"))["net"]["note"]
    assert "no gain" in seen(source, replace(source.policy, tdc_threshold=0.0))["net"]["note"]


@pytest.mark.parametrize("dtype, device, said_of_it", [
    ("float32", "cpu", "took 32 in this run, which was on a CPU in float32; in bfloat16 it takes 16"), ("bfloat16", "cuda", "takes 16"), ("float32", "cuda:0", "takes 32")])
def test_the_bits_of_the_original_weights_are_told_with_where_they_are_so_many(source, dtype, device, said_of_it):
    run = type(source)(**{**vars(source), "trace": source.trace.with_meta(dtype=dtype, device=device), "key": dtype + device})
    (label,) = (row["label"] for row in seen(run)["net"]["figures"] if row["label"].startswith("weights"))
    assert label == f"weights: 4 bits each in every layer, whatever it calculates with; the original {said_of_it}"


def test_a_draft_strikes_out_what_was_measured_and_moves_it_by_the_estimated_change(source):
    off = type(source)(**{**vars(source), "trace": replay(source.signals, Policy(tdc_threshold=0.12)).with_meta(replay=None), "key": "off"})
    measured, before = totals(off.trace), totals(looks.own_replay(off))
    policy = replace(off.policy, tdc_threshold=0.25)
    after, rows = totals(replay(off.signals, policy)), seen(off, policy)["net"]["figures"]
    assert abs(measured.bits - before.bits) > 0.05 and [row["was"] for row in rows[:2]] == [bits(measured.bits), share(measured.skipped)]
    assert rows[0]["value"] == f"≈ {bits(measured.bits + after.bits - before.bits)}"
    assert rows[1]["value"] == f"≈ {share(measured.skipped + after.skipped - before.skipped)}"
    assert seen(off, Policy.preset("w4a8"))["net"]["figures"][0]["value"] == "8.0"     # settled by the policy: no estimate


def apart(source, tdc_threshold=0.12):
    """A run that went another way than its probe: what is recorded differs from the replay of its own policy."""
    trace = replay(source.signals, Policy(tdc_threshold=tdc_threshold)).with_meta(replay=None)
    return type(source)(**{**vars(source), "trace": trace, "key": f"apart {tdc_threshold}"})


def map_under(source, policy):
    shown = looks.drawn(source, policy, {}, "draft").shown
    return grids_of(source, policy)[0], looks.map_of(source, shown, policy)


def grids_of(source, policy):
    return looks.grid_of(source.trace), looks.grid_of(looks.own_replay(source)), looks.grid_of(replay(source.signals, policy))


DRAFTS = [Policy(error_threshold=0.12), Policy(error_threshold=0.02), Policy(tdc_threshold=0.3), Policy(outlier_threshold=60),
          Policy(max_skips=1), Policy(warmup_steps=14), Policy(tdc=False, pdr=False), BREAK_IT, *(policy for policy in PRESETS.values() if policy != Policy())]


@pytest.mark.parametrize("policy", DRAFTS)
def test_no_cell_of_a_draft_differs_from_the_run_without_an_outline(source, policy):
    off = apart(source)
    was, shown = map_under(off, policy)
    answer = seen(off, policy)
    drawn_cells = np.frombuffer(base64.b64decode(answer["map"]["cells"]), np.uint8).reshape(was.shape)
    assert np.array_equal(drawn_cells, shown.decision)
    differs = (drawn_cells != was.decision).any(axis=2)
    solid, dotted = (np.frombuffer(base64.b64decode(trace["x"]["bdata"]), np.float32) for trace in answer["map"]["over"][1:]) if differs.any() else ((), ())
    assert (len(solid) + len(dotted)) // 6 == differs.sum()
    told = re.search(r"(\d+) cells would change", answer["draft"])
    assert (int(told.group(1)) if told else 0) == differs.sum()


@pytest.mark.parametrize("policy", DRAFTS[:4])
def test_a_cell_on_which_both_estimates_agree_stays_as_recorded_with_its_signals(source, policy):
    off = apart(source)
    was, own, draft = grids_of(off, policy)
    _, shown = map_under(off, policy)
    same = (own.decision == draft.decision).all(axis=2)
    assert (was.decision != own.decision).any()
    strays = same & (shown.decision != was.decision).any(axis=2)
    assert not strays[np.isin(was.decision, np.unique(draft.decision)).all(axis=2) & ~was.skipped].any()
    faded = (shown.decision == was.decision).all(axis=2) & same
    for name in ("weighed", "accumulated", "gamma"):
        assert np.array_equal(getattr(shown, name)[faded], getattr(was, name)[faded], equal_nan=True)


def test_a_draft_keeps_nothing_that_its_policy_forbids(source):
    off = apart(source)
    for policy in PRESETS.values():
        _, shown = map_under(off, policy)
        draft = grids_of(off, policy)[2]
        assert set(np.unique(shown.decision)) <= set(np.unique(draft.decision))
    _, shown = map_under(off, Policy(warmup_steps=14, protect_last=6))
    assert not shown.skipped[:, :14].any() and not shown.skipped[:, -6:].any()


def test_the_counts_beside_the_knobs_are_the_net_figures(source):
    off = apart(source)
    for policy in (off.policy, *DRAFTS[:6]):
        answer = seen(off, policy)
        skipped, cells = map(int, re.search(r"(?:≈ )?(\d+) of (\d+) cells", answer["knobs"][1]["says"]).groups())
        decided, calls = map(int, re.search(r"Decides (?:≈ )?(\d+) of (\d+)", answer["knobs"][0]["says"]).groups())
        values = [row["value"].removeprefix("≈ ") for row in answer["net"]["figures"]]
        assert values[1:3] == [share(skipped / cells), share(decided / calls)]


def test_cells_of_a_draft_are_explained_by_what_they_show(source):
    off, policy = apart(source), Policy(error_threshold=0.12)
    was, shown = map_under(off, policy)
    differs = (shown.decision != was.decision).any(axis=2)
    own = grids_of(off, policy)[1]
    stray = np.argwhere(~differs & (own.decision != was.decision).any(axis=2))[0]
    recorded = explain_in(off, looks.Wish(off.policy), *map(int, stray), "en")
    told = explain_in(off, looks.Wish(policy), *map(int, stray), "en")
    assert told["title"] == recorded["title"] and told["numbers"] == recorded["numbers"]
    assert told["sentences"] == [*recorded["sentences"], "The draft leaves it as it is."]
    changed = explain_in(off, looks.Wish(policy), *map(int, np.argwhere(differs)[0]), "en")
    assert changed["sentences"][-1].startswith("That is estimated for the draft; in this run: ")


def test_a_partly_unknown_draft_keeps_its_unknown_cells(source):
    sparse = replay(source.signals, source.policy).with_meta(replay=None, probe=False)
    blind = type(source)(**{**vars(apart(source)), "signals": sparse, "key": "blind"})
    answer = seen(blind, Policy(tdc=False, pdr=False))
    cells = np.frombuffer(base64.b64decode(answer["map"]["cells"]), np.uint8)
    assert (cells == grids.UNKNOWN).any() and answer["measure"]


def test_the_score_of_a_draft_is_an_estimate(source):
    assert re.match(r"≈ \d+ of ≈ \d+ choices right\.", seen(source, Policy(error_threshold=0.12), view="verdict")["map"]["note"])


@pytest.mark.parametrize("policy", DRAFTS[:6])
def test_a_drafts_choices_are_counted_alike_beside_the_knob_and_below_the_map(source, policy):
    off = apart(source)
    for run, wish in ((off, policy), (off, off.policy), (source, policy)):
        answer = seen(run, wish, view="verdict")
        decided = int(re.search(r"Decides (?:≈ )?(\d+) of", answer["knobs"][0]["says"]).group(1))
        right, total = (int(n) for n in re.match(r"(?:≈ )?(\d+) of (?:≈ )?(\d+) choices right", answer["map"]["note"]).groups())
        assert total == decided and 0 <= right <= total


def test_without_skips_the_predictor_decides_all_but_the_first_step(source):
    off = apart(source)
    says = seen(off, Policy.preset("dmpq"))["knobs"][0]["says"]
    decided, calls = map(int, re.search(r"Decides ≈ (\d+) of (\d+)", says).groups())
    assert decided == calls * 29 // 30
    figures = {row["label"]: row["value"] for row in seen(off, Policy.preset("dmpq"))["net"]["figures"]}
    assert figures["of layer calls chosen by the predictor"] == f"≈ {share(29 / 30)}"


def test_a_slower_policy_is_called_slower_and_the_original_is_not_raced_against_itself(source):
    assert pace(1.4) == ("faster", "1.40×", "") and pace(0.92) == ("slower", "1.09×", "warn") and pace(1.001)[1] == "1.00×"
    slow = type(source)(**{**vars(source), "seconds": {"reference": 9.2, "run": 10.0}, "key": "slow"})
    row = next(row for row in seen(slow)["net"]["figures"] if row["label"] == "the time of FP16: slower")
    assert row["value"] == "1.09×" and row["tone"] == "warn"
    assert not any(word in row["label"] for row in seen(source, Policy.preset("fp16"))["net"]["figures"] for word in ("speed", "slower"))
    assert any("speed" in row["label"] for row in seen(source)["net"]["figures"])
    assert closeness(32.9)[0] == "psnr" and closeness(24.0)[0] == "psnr_seen" and closeness(12.0) == ("psnr_far", "warn")


def test_a_partly_unknown_draft_gives_no_figures(source):
    shown = seen(source, replace(source.policy, max_skips=6, tdc_threshold=0.9))
    assert shown["measure"] and [row["value"] for row in shown["net"]["figures"][:3]] == ["–", "–", "–"]
    assert not any("speed" in row["label"] for row in shown["net"]["figures"]) and "cannot be estimated" in shown["net"]["note"]
