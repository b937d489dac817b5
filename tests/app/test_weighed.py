"""A policy that weighs errors by how much each layer matters is told as it decides, in every place that sets one against
the tolerance."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from app import look as looks
from app import take
from app.explain import explain, explain_in
from app.i18n import plain
from app.links import into_lab
from app.recordings import find
from app.settings import EMBEDDED, RECORDINGS
from engine.records import Calibration
from engine.replay import replay
from engine.settings import PRESETS, Policy
from tests.app.standin import run_trace

OURS = PRESETS["dmpq_sensitive"]


@pytest.fixture(scope="module")
def recorded():
    """A recording of the embedded model, made before there were weights."""
    return find(RECORDINGS)[0].load()


@pytest.fixture(scope="module")
def weighed_run(source):
    """A run of a policy that weighs, as it would be kept."""
    policy = replace(Policy(), weighting="sensitivity", error_threshold=0.12)
    return replace(source, key="weighed", policy=policy, trace=run_trace(source.signals, policy))


def look(source, policy, lang="en", **wish):
    return looks.look(source, looks.Wish(policy, **wish), lang)


def chosen(source, policy):
    """(layers that the predictor decided under `policy`, their weights) by the engine's own replay."""
    lines = looks.calibration_of(source)
    layers = replay(source.signals, policy, lines).layers
    layers = layers[layers["decided_by"] == "predictor"]
    weight = [lines.rows[key].weight for key in zip(layers["model"], layers["block"], layers["layer"], strict=True)]
    return layers, np.array(weight)


def test_an_older_recording_is_drafted_with_the_models_weights_of_today(recorded):
    assert not recorded.trace.meta.calibration.weighed and looks.calibration_of(recorded).weighed
    known = Calibration.load(EMBEDDED / "calibration.json")
    draft = looks.drawn(recorded, OURS, {}, "draft").shown
    assert (draft.layers["precision"] == replay(recorded.signals, OURS, known).layers["precision"]).all()
    plain = looks.drawn(recorded, replace(OURS, weighting="none"), {}, "draft").shown
    assert (draft.layers["precision"] != plain.layers["precision"]).mean() > 0.05
    answer = look(recorded, OURS)
    assert answer["preset"] == "dmpq_sensitive" in answer["presets"] and answer["warning"] == ""
    # What the run did is told as before.
    assert looks.own_replay(recorded).meta.replay == "open loop" and look(recorded, recorded.policy)["draft"] is None


def test_a_run_that_weighed_by_ones_is_told_as_it_decided(recorded):
    """Its policy weighs, its lines had no weights: today's would contradict what it did."""
    bare = recorded.trace.meta.calibration
    made = replay(recorded.signals, OURS, bare).with_meta(replay=None, policy=OURS.to_dict(), calibration=bare)
    run = replace(recorded, key="file", policy=OURS, trace=made, signals=None)
    assert looks.calibration_of(run) == bare and (looks.weights_of(run, OURS, looks.grid_of(made)) == 1).all()
    assert "--sensitivity" in look(run, OURS)["warning"]
    told = [row[2] for step in (5, 20) for row in explain_in(run, looks.Wish(OURS), 3, step, "en")["layers"]]
    assert len(told) == 8 and all("weighed 1.0×" in words for words in told)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_explanation_of_a_cell_multiplies_as_the_decision_did(recorded, lang):
    layers, weight = chosen(recorded, OURS)
    draft = looks.drawn(recorded, OURS, {}, "draft").shown
    grid, shown, changed = looks.grid_of(draft), 0, 0
    factors = looks.weights_of(recorded, OURS, grid)
    for block in range(0, 12, 2):
        for step in range(1, 30, 4):
            told = explain(grid, looks.grid_of(recorded.signals), recorded.signals, OURS, block, step, lang, factors)
            on_page = explain_in(recorded, looks.Wish(OURS), block, step, lang)
            changed += plain(lang, "lab.explain.kept") not in on_page["sentences"]
            assert on_page["layers"] == told["layers"] or plain(lang, "lab.explain.kept") in on_page["sentences"]
            assert not any("{" in sentence for sentence in told["sentences"])
            for row, group in zip(told["layers"], grid.groups, strict=True):
                here = ((layers["block"] == block) & (layers["step"] == step) & (layers["layer"] == group)).to_numpy()
                assert here.sum() == 1
                error, factor = layers["predicted_error"].to_numpy()[here][0], weight[here][0]
                assert f"{100 * error:.1f} %" in row[2] and f"{100 * error * factor:.1f} %" in row[2] and "×" in row[2]
                assert row[1] == ("8" if error * factor > OURS.error_threshold else "4")
                shown += 1
            limits = [f"{100 * OURS.error_threshold:.{digits}f} %" for digits in (1, 2, 3, 4)]
            assert all(any(limit in s for limit in limits) and "×" in s for s, mark in zip(told["sentences"], told["marks"], strict=True) if mark)
    assert shown == 6 * 8 * 4 and changed > 20


def test_one_layers_sentence_reads_as_a_sum_that_is_right(recorded):
    draft = looks.drawn(recorded, OURS, {}, "draft").shown
    grid = looks.grid_of(draft)
    pattern = (r"^8 bits in .*: 4 bits would cost an error of ([\d.]+) %, predicted; weighed ([\d.]+)× for how much the layer "
               r"matters it counts ([\d.]+) %, above the 4-bit tolerance of 5.5 %\.$")  # fmt: skip
    sums = [re.match(pattern, sentence) for block in range(12) for step in (5, 20)
            for sentence in explain_in(recorded, looks.Wish(OURS), block, step, "en")["sentences"]]  # fmt: skip
    found = [[float(number) for number in match.groups()] for match in sums if match]
    assert len(found) >= 3 and grid.steps == 30
    assert all(abs(predicted * weight - counts) < 0.06 * weight + 0.06 * predicted for predicted, weight, counts in found)
    assert all(counts >= 5.5 for _, _, counts in found)


def test_the_knob_cuts_what_is_compared_with_it(recorded):
    lines, signals = looks.calibration_of(recorded), looks.grid_of(recorded.signals)
    for policy in (OURS, replace(OURS, weighting="none")):
        knob = look(recorded, policy)["knobs"][0]
        values = np.stack([
            (lines.rows["transformer", block, group].alpha * signals.gamma[b, :-1] + lines.rows["transformer", block, group].beta)
            * (lines.rows["transformer", block, group].weight if policy is OURS else 1.0)
            for b, block in enumerate(signals.blocks) for group in signals.groups
        ])  # fmt: skip
        counts, _ = np.histogram(values, bins=len(knob["heights"]), range=(knob["low"], knob["high"]))
        assert knob["heights"] == np.round(np.sqrt(counts / counts.max()), 3).tolist()
        assert knob["beyond"] == (values > knob["high"]).sum() and knob["count"] == values.size
        assert ("weighed by how much" in knob["says"]) == (policy is OURS)
    assert "加权" in look(recorded, OURS, "zh-CN")["knobs"][0]["says"]


def test_was_it_right_judges_by_the_weighed_error(weighed_run):
    layers, weight = chosen(weighed_run, weighed_run.policy)
    within = layers["error_nvfp4"].to_numpy() * weight <= weighed_run.policy.error_threshold
    right = int(((layers["precision"] == "nvfp4").to_numpy() == within).sum())
    note = look(weighed_run, weighed_run.policy, view="verdict")["map"]["note"]
    assert note.startswith(f"{right} of {len(layers)} choices right. ") and "weighed by how much the layer matters" in note
    unweighed = (layers["precision"] == "nvfp4").to_numpy() == (layers["error_nvfp4"] <= weighed_run.policy.error_threshold)
    assert right > int(unweighed.sum())
    assert "加权" in look(weighed_run, weighed_run.policy, "zh-CN", view="verdict")["map"]["note"]
    # A draft that does not weigh is judged as it decides.
    assert "weighed" not in look(weighed_run, Policy(), view="verdict")["map"]["note"]


def test_a_run_in_progress_is_explained_by_its_own_calibration(weighed_run):
    grid = looks.grid_of(weighed_run.trace)
    block, step, _ = np.argwhere(np.isfinite(grid.predicted))[0]
    live = explain(grid, grid, weighed_run.trace, weighed_run.policy, int(block), int(step), "en")
    assert live == explain_in(weighed_run, looks.Wish(weighed_run.policy), int(block), int(step), "en") | {"sample": live["sample"]}
    assert any("weighed" in row[2] for row in live["layers"])


@pytest.mark.parametrize("lang, words", [("en", "--sensitivity"), ("zh-CN", "从未测量")])
def test_weighing_by_weights_that_nobody_measured_is_said(source, lang, words):
    lines = source.trace.meta.calibration
    bare = replace(lines, model_hash="another", rows={key: line._replace(weight=1.0) for key, line in lines.rows.items()})
    run = replace(source, key="bare", trace=source.trace.with_meta(calibration=bare))
    assert words in look(run, OURS, lang)["warning"] and words not in look(run, PRESETS["dmpq"], lang)["warning"]
    assert words not in look(source, OURS, lang)["warning"]


def test_code_links_and_files_carry_it(source):
    assert 'policy = Policy.preset("dmpq_sensitive")' in take.python_code(OURS, source)
    own = replace(Policy(), weighting="sensitivity")
    assert "policy = Policy(weighting='sensitivity')" in take.python_code(own, source)
    assert Policy.from_dict(into_lab(own, "en")["cfg"]["policy"]) == own
    assert Policy.from_json(take.package(source, "policy", own)[2]) == own
    older = {name: value for name, value in json.loads(Policy().to_json()).items() if name != "weighting"}
    assert Policy.from_dict(older) == Policy()  # a link from before there was a choice
