"""Compare: points, intervals, tables and links from measured rows; sentences where nothing was measured."""

import json

import numpy as np
import pandas as pd
import pytest

from app.comparison import page, points, speed
from app.figures import compare_frontier
from engine.settings import PRESETS, Policy

HOSTILE = "<script>alert('x')</script>"


def row(method, setting="{}", prompt="p", seed=0, **values):
    base = dict(psnr=30.0, ssim=0.9, flicker=0.02, prompt_accuracy=0.9, seconds=10.0, bits=6.0, bits_computed=6.0, skipped=0.0)
    return {"method": method, "setting": setting, "prompt": prompt, "seed": seed, **base, **values}


@pytest.fixture(scope="module")
def rows():
    made = []
    for prompt in "abcdefgh":
        off = (ord(prompt) - 100) * 0.5
        made += [
            row("fp16", prompt=prompt, psnr=np.inf, ssim=1.0, seconds=13.0, bits=16.0, bits_computed=16.0),
            row("sixbit", prompt=prompt, psnr=33 + off, seconds=7.0),
            row("sixbit", '{"tdc_threshold":0.2}', prompt, psnr=29 + off, seconds=6.0, skipped=0.5),
            row("first_block_cache", '{"threshold":0.1}', prompt, psnr=31 + off, seconds=8.0, bits=16.0),
            row("first_block_cache", '{"threshold":0.2}', prompt, psnr=30 + off, seconds=5.5, bits=16.0),
        ]
    return pd.DataFrame(made)


@pytest.fixture(scope="module")
def sweep(rows):
    return points.Sweep(rows)


def test_points_are_means_with_intervals_over_prompts(rows):
    found = points.points(points.Sweep(rows), "psnr", "seconds")
    sixbit = found.table[(found.table["method"] == "sixbit") & (found.table["setting"] == "{}")].iloc[0]
    expected = rows[(rows["method"] == "sixbit") & (rows["setting"] == "{}")]["psnr"].mean()
    assert sixbit["mean"] == pytest.approx(expected) and sixbit["low"] < expected < sixbit["high"]
    assert sixbit["cost"] == 7.0 and sixbit["runs"] == 8 and sixbit["ours"]
    assert "fp16" not in set(found.table["method"]) and found.reference[0] == 13.0


def test_unbeaten_looks_at_peers_only(rows):
    found = points.points(points.Sweep(rows), "psnr", "seconds")
    good = dict(zip(found.table["method"] + found.table["setting"], points.unbeaten(found), strict=True))
    assert good["sixbit{}"]
    # 29 dB in 6 s: a peer reaches 30 dB in 5.5 s.
    assert not good['sixbit{"tdc_threshold":0.2}']


def test_unbeaten_knows_which_way_is_better(rows):
    better_by_skipping = points.points(points.Sweep(rows), "psnr", "skipped")
    table = better_by_skipping.table
    best = table[table["skipped" if "skipped" in table else "cost"] == 0.5].index[0]
    assert points.unbeaten(better_by_skipping)[best]


def test_ablation_shows_each_preset_at_its_own_thresholds(rows):
    table = points.Sweep(rows).ablation
    assert table["method"].tolist() == ["fp16", "sixbit"] and table["setting"].tolist() == ["{}", "{}"]


def test_policy_of_a_point_is_its_preset_with_its_changes():
    assert points.policy_of("sixbit", '{"tdc_threshold":0.2}') == Policy.from_dict(
        {**PRESETS["sixbit"].to_dict(), "tdc_threshold": 0.2}
    )
    assert points.policy_of("taylorseer", "{}") is None
    assert points.policy_of("sixbit", '{"tdc_threshold":"x"}') is None and points.policy_of("sixbit", "{") is None


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
@pytest.mark.parametrize("quality", points.QUALITIES)
@pytest.mark.parametrize("cost", points.COSTS)
def test_the_page_is_whole_for_every_choice(sweep, lang, quality, cost):
    view = page.page(sweep, [], lang, {"quality": quality, "cost": cost})
    json.dumps(view, allow_nan=False)
    assert len(view["frontier"]["figure"]["data"]) == 2
    assert len(view["frontier"]["dots"]) == len(view["frontier"]["table"]["rows"]) == 4


def test_every_dot_of_ours_opens_in_the_lab_and_a_peers_does_not(rows):
    view = page.page(points.Sweep(rows), [], "en", {})
    found = points.points(points.Sweep(rows), "psnr", "seconds").table
    for method, dot in zip(found["method"], view["frontier"]["dots"], strict=True):
        assert (dot is not None) == (method in PRESETS)
    figure = view["frontier"]["figure"]
    for trace in figure["data"]:
        for index, y in zip(trace["customdata"], trace["y"], strict=True):
            assert found.loc[index, "mean"] == pytest.approx(y, abs=1e-4)


def test_without_measurements_there_are_titles_and_sentences(tmp_path):
    sweep = points.Sweep(points.read(tmp_path / "no.parquet"))
    view = page.page(sweep, speed.read(tmp_path), "en", {})
    assert "not been run yet" in view["frontier"]["lead"] and view["frontier"]["figure"]["data"] == []
    assert view["frontier"]["figure"]["layout"]["annotations"][0]["text"] == "Not measured yet"
    assert view["ablation"]["rows"] == [] and view["speed_missing"] and view["frontier"]["verdict"] == ""


def test_a_foreign_file_is_no_sweep(tmp_path):
    (tmp_path / "frontier.parquet").write_bytes(b"no")
    assert points.read(tmp_path / "frontier.parquet").empty
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "frontier.parquet")
    assert points.read(tmp_path / "frontier.parquet").empty


def test_a_sweep_survives_the_round_trip(rows, tmp_path):
    rows.to_parquet(tmp_path / "frontier.parquet")
    assert len(points.read(tmp_path / "frontier.parquet")) == len(rows)


def test_names_from_a_file_show_as_text(rows):
    rows = pd.concat([rows, pd.DataFrame([row(HOSTILE, json.dumps({HOSTILE: HOSTILE}))])])
    view = page.page(points.Sweep(rows), [], "en", {})
    assert "<script" not in json.dumps({**view, "notes": []}).replace("\\u003c", "<")


def test_benchmarks_are_read_with_their_speedup(tmp_path):
    (tmp_path / "cogvideox-5b.csv").write_text(
        "method,skipped,seconds_per_step,peak_gb,weights_gb,cache_gb,bits,bits_computed,device,commit\n"
        "stock,0,1.8,14.3,11.5,0,16,16,H200,abc\nint8_tdc,0.38,0.9,5.4,3.3,4.6,5,8,H200,abc\n"
    )
    (tmp_path / "broken.csv").write_text("a,b\n1,2\n")
    (found,) = speed.read(tmp_path)
    assert found.model == "cogvideox-5b" and found.device == "H200" and found.rows["faster"].tolist() == [1.0, 2.0]
    view = page.page(points.Sweep(points.read(tmp_path / "x")), [found], "zh-CN", {})
    assert view["speed"][0]["rows"][1][3]["text"].startswith("2.00") and not view["speed_missing"]


def test_benchmarks_without_a_baseline_claim_no_speedup(tmp_path):
    (tmp_path / "m.csv").write_text("method,seconds_per_step\nint8_tdc,0.9\n")
    (found,) = speed.read(tmp_path)
    view = page.page(points.Sweep(points.read(tmp_path / "x")), [found], "en", {})
    assert [cell["text"] for cell in view["speed"][0]["rows"][0]][2:5] == ["0.900", "–", "–"]


def test_the_figure_is_a_figure(rows):
    go = pytest.importorskip("plotly.graph_objects")
    found = points.points(points.Sweep(rows), "prompt_accuracy", "skipped")
    words = dict.fromkeys(("quality", "cost", "better", "empty", "reference"), "w")
    figure = compare_frontier.frontier(found, dict.fromkeys(found.table["method"], "m"), words)
    assert len(go.Figure(figure).data) == 2 and figure["layout"]["shapes"]


def sensitivities(layers=("qkv", "down"), blocks=2, steps=(3, 9)):
    # Block 0's cells are harmless, block 1's are touchy; INT8 rows must be left out.
    made = [
        (block, layer, step, precision, 0.01 + 0.1 * block + 0.001 * step)
        for block in range(blocks) for layer in layers for step in steps for precision in ("nvfp4", "int8")
    ]  # fmt: skip
    return pd.DataFrame(made, columns=["block", "layer", "step", "precision", "output_error"])


def test_sensitivity_is_held_against_what_the_run_chose():
    from app.comparison import sensitivity
    from engine.replay import replay
    from tests.synthetic import probe_trace

    probe = probe_trace(blocks=2, steps=12, groups=("qkv", "down"))
    run = replay(probe, PRESETS["w4a4"])
    info = sensitivity.facts(sensitivities(), run)
    assert info.rows == [(0, "qkv"), (0, "down"), (1, "qkv"), (1, "down")] and info.steps == [3, 9]
    assert info.errors[3, 1] == pytest.approx(0.119) and info.four.all()
    assert (info.touchy, info.robust) == (1.0, 0.0)
    none = sensitivity.facts(sensitivities(), None)
    assert not none.four.any() and np.isnan(none.touchy)


def test_findings_show_where_they_were_measured(rows, tmp_path):
    from app.comparison import sensitivity
    from app.comparison.findings import read_settings

    table = pd.DataFrame([{"method": "int8_tdc", "base": '{"tdc_threshold":0.1}', "change": '{"gap":"none"}', "psnr": -0.3,
                           "psnr_low": -0.5, "psnr_high": -0.1, "skipped": 0.04, "prompts": 12}])  # fmt: skip
    table.to_parquet(tmp_path / "theory_settings.parquet")
    sensitivities().to_parquet(tmp_path / "sensitivity.parquet")
    found = page.Findings(sensitivity.read(tmp_path / "sensitivity.parquet"), read_settings(tmp_path / "theory_settings.parquet"))
    view = page.page(points.Sweep(rows), [], "en", {}, found)
    json.dumps(view, allow_nan=False)
    assert view["settings"]["rows"][0][2] == {"text": "-0.30", "small": "-0.50 … -0.10"}
    assert view["sensitivity"]["verdict"] == "" and len(view["sensitivity"]["figure"]["data"]) == 1
    empty = page.page(points.Sweep(rows), [], "en", {})
    assert empty["settings"] is None and empty["sensitivity"] is None
    (tmp_path / "bad.parquet").write_bytes(b"x")
    assert sensitivity.read(tmp_path / "bad.parquet") is None and read_settings(tmp_path / "bad.parquet") is None


def test_simulated_arithmetic_is_never_a_speedup(rows, tmp_path):
    assert points.simulated("sixbit_host", "NVIDIA H200") and points.simulated("w4a4", "cpu") and points.simulated("w4a8", "cpu")
    assert not any(points.simulated(name, "cpu") for name in ("fp16", "tdc", "w4a16", "mag_cache", "<x>"))
    assert not points.simulated("int8_tdc", "cuda")
    (tmp_path / "m.csv").write_text(
        "method,seconds_per_step,device\nstock,2.0,H200\nsixbit,1.0,H200\nint8_tdc,0.5,H200\n"
    )
    timed = rows.assign(seconds_device="cpu", threads=1.0)
    view = page.page(points.Sweep(timed), speed.read(tmp_path), "en", {})
    _, sixbit, int8 = view["speed"][0]["rows"]
    assert sixbit[2] == {"text": "1.000", "small": "simulated", "quiet": True} and sixbit[3]["text"] == "–"
    assert "quiet" not in int8[2] and int8[3]["text"].startswith("4.00")
    fp16, own = view["ablation"]["rows"]
    assert not any("quiet" in cell for cell in fp16) and [cell.get("quiet") for cell in own].count(True) == 1
    assert "1 thread in each process" in view["frontier"]["lead"]


def test_the_verdict_on_top_is_computed_from_the_rows():
    made = [row("fp16", prompt=p, psnr=np.inf, bits=16.0, weights="16-bit") for p in "abc"]
    for prompt in "abc":
        made += [
            row("tdc", prompt=prompt, psnr=41.0, skipped=0.46, weights="16-bit"),
            row("mag_cache", prompt=prompt, psnr=43.5, skipped=0.44, weights="16-bit"),
            row("taylorseer", prompt=prompt, psnr=49.0, skipped=0.1, weights="16-bit"),
            row("int8_tdc", prompt=prompt, psnr=31.0, skipped=0.47, bits=4.2, weights="nvfp4"),
            row("sixbit", prompt=prompt, psnr=29.0, skipped=0.42, bits=5.6, weights="nvfp4"),
            row("w4a8", prompt=prompt, psnr=32.0, skipped=0.0, bits=8.0, weights="nvfp4"),
        ]
    first, second = page.page(points.Sweep(pd.DataFrame(made)), [], "en", {})["headline"]
    assert "MagCache" in first and "43.5 dB" in first and "41.0 dB" in first and "49" not in first
    assert "<b>8 bits + reuse</b> leads with 31.0 dB;" in second and "29.0 dB at 5.6" in second and "1 of the 2 other" in second
    none = [r for r in made if r["method"] != "sixbit"]
    assert len(page.page(points.Sweep(pd.DataFrame(none)), [], "zh-CN", {})["headline"]) == 1


def test_a_sweep_without_classes_has_no_verdict(sweep):
    assert page.page(sweep, [], "en", {})["headline"] == []


def test_notes_are_said_in_the_visitors_language():
    from app.comparison.notes import spoken

    note = "random weights; skips of x (embedded model), replayed at reuse tolerance 0.1, stretched; new " + HOSTILE
    said = spoken(note, "zh-CN")
    assert said.startswith("随机权重；") and "0.1" in said and "&lt;script" in said and "<script" not in said
    assert "time is valid" in spoken("the rotation kernel of this commit was faulty, which changes numbers, hardly time", "en")


def test_every_note_of_the_shipped_tables_is_known():
    import re

    from app.comparison.notes import KNOWN
    from app.views.learn import ASSETS

    for benchmark in speed.read(ASSETS / "benchmarks"):
        for note in benchmark.rows.get("notes", pd.Series(dtype=str)).dropna():
            for part in note.split(";"):
                assert any(re.fullmatch(pattern, part.strip()) for pattern, _ in KNOWN), part


def test_the_heat_map_names_each_block_once_and_cuts_no_row():
    from app.comparison import sensitivity
    from app.figures import compare_sensitivity

    info = sensitivity.facts(sensitivities(), None)
    axis = compare_sensitivity.heat(info, {"qkv": "q", "down": "d"}, {"step": "step", "block": "block", "empty": "-"})["layout"]["yaxis"]
    assert axis["ticktext"] == ["block 0", "block 1"] and axis["tickvals"] == [0.5, 2.5] and axis["range"] == [3.5, -0.5]


def test_every_method_has_a_mark_of_its_own(sweep):
    assert len(set(compare_frontier.OURS.values())) == len(compare_frontier.OURS)
    figure = page.page(sweep, [], "en", {})["frontier"]["figure"]
    assert "FP16, untouched" in [note["text"] for note in figure["layout"]["annotations"]]


def test_every_method_that_is_measured_has_a_name_in_both_languages():
    from app.i18n import texts
    from engine.methods import FRONTIER

    assert not {f"method.{name}" for name in FRONTIER} - texts()["en"].keys()
