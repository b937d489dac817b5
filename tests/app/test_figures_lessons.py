"""Lesson facts and figures: the numbers are derived by hand or checked against the engine's own accounting."""

import json

import numpy as np
import pandas as pd
import pytest

from app.figures import lesson_average, lesson_budget, lesson_forecast, lesson_refresh, lesson_rotation
from app.figures.grid import build
from app.lessons import average, budget, course, forecast, numbers, refresh, rotation, ruler, theory, tokens, turn
from app.lessons.material import Material, calibrated
from engine.policy import PRESETS
from engine.replay import replay
from engine.settings import Policy
from engine.trace import empty_trace
from tests.synthetic import probe_trace

WORDS = dict.fromkeys(
    ("empty", "step", "block", "share", "error", "gamma", "slope", "r2", "this", "drift", "spent", "limit", "axis_spent",
     "axis_budget", "skipped", "predictor", "with", "without", "axis_error", "axis_share"), "word",
)  # fmt: skip


@pytest.fixture(scope="module")
def probe():
    return probe_trace(blocks=6, steps=20)


@pytest.fixture(scope="module")
def grid(probe):
    return build(probe.blocks, probe.layers)


def test_average_equals_the_engines_own_accounting(probe):
    run = replay(probe, Policy(tdc_threshold=0.12))
    info = average.facts(build(run.blocks, run.layers))
    assert info.bits == pytest.approx(run.report.average_bits)
    assert info.bits_computed == pytest.approx(run.report.average_bits_computed)
    assert info.totals.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(info.shares.sum(1), 1.0)


def test_average_at_a_step_counts_blocks(probe):
    run = replay(probe, Policy(tdc_threshold=0.3))
    shown = build(run.blocks, run.layers)
    for step in range(shown.steps):
        skipped = int(run.blocks.loc[run.blocks["step"] == step, "skipped"].sum())
        assert average.at_step(shown, step) == {"skipped": skipped, "computed": 6 - skipped}


def test_ruler_leaves_the_recorded_token_alone_until_something_is_dragged():
    token = np.random.default_rng(3).normal(size=128).astype(np.float32)
    info = ruler.facts(token)
    assert (info.values == info.original).all()
    for form in info.formats.values():
        assert form.neighbours[0] == form.neighbours[1] and form.rest[0] == form.rest[1]


def test_ruler_dragging_one_value_hurts_whom_the_format_says():
    token = np.random.default_rng(3).normal(size=128).astype(np.float32)
    info = ruler.facts(token, value=30.0)
    four, eight = info.formats["nvfp4"], info.formats["int8"]
    assert four.neighbours[1] > 3 * four.neighbours[0] and four.rest[1] < 1.2 * four.rest[0]
    assert eight.neighbours[1] > 5 * eight.neighbours[0] and eight.rest[1] > 5 * eight.rest[0]
    assert info.ratio > 25 > info.ratio_before
    # The other blocks' errors in the strip are what the format gives them, not the dragged block's.
    assert int(four.blocks.argmax()) == info.block


def test_ruler_marks_are_the_formats_own_grid():
    token = np.linspace(-1, 1, 32, dtype=np.float32)
    lines = ruler.facts(token).formats["nvfp4"].lines
    assert len(lines) == 15 and lines[7] == 0.0 and lines[-1] == pytest.approx(12 * (lines[8] - lines[7]), rel=1e-5)


def test_rotation_helps_int8_on_a_channel_outlier_and_hardly_nvfp4():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(16, 256)).astype(np.float32)
    rows[:, 7] *= 40.0
    made = [tokens.Token(row, "down", 0, 0, tokens.CAPTURED) for row in rows]
    table = rotation.table(made)
    assert rotation.gain(table, "int8") > 2.0
    assert 0.5 < rotation.gain(table, "nvfp4") < 1.3
    info = rotation.facts(made, "down", table)
    assert info.ratio[1] < info.ratio[0] / 3
    np.testing.assert_allclose(np.linalg.norm(info.before), np.linalg.norm(info.after), rtol=1e-4)


def test_rotation_without_tokens_is_nothing():
    assert rotation.table([]).empty and rotation.facts([], "qkv", rotation.table([])) is None


def test_tokens_are_built_from_samples_of_one_layer(probe):
    made = tokens.from_samples(probe.layers)
    assert len(made) == 6 * 4 and all(len(t.values) == 128 and t.source == "samples" for t in made)
    first = made[0]
    rows = probe.layers[(probe.layers["layer"] == first.group) & (probe.layers["block"] == first.block)].sort_values("step")
    assert first.values[:16].tolist() == pytest.approx(rows["sample"].iloc[0])


def test_tokens_file_that_is_absent_or_foreign_gives_none(tmp_path):
    assert tokens.read_tokens(tmp_path / "no.parquet") == []
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    assert tokens.read_tokens(tmp_path / "bad.parquet") == []
    pd.DataFrame({"other": [1]}).to_parquet(tmp_path / "foreign.parquet")
    assert tokens.read_tokens(tmp_path / "foreign.parquet") == []


def test_forecast_line_is_least_squares():
    gamma, error = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 3.0, 3.0, 1.0])
    # slope = Σ(dx·dy)/Σdx² = -6/5, mean error 3 at mean Γ 2.5; residuals .2 -.6 .6 -.2 -> R² = 1 - .8/8.
    assert forecast.line(gamma, error) == pytest.approx((-1.2, 6.0, 0.9))


def test_forecast_a_flat_past_predicts_the_mean():
    assert forecast.line(np.full(5, 0.3), np.arange(5.0)) == (0.0, 2.0, 0.0)
    assert forecast.line(np.array([0.1]), np.array([0.2])) == (0.0, 0.2, 0.0)


def test_forecast_verdicts_add_up_and_totals_agree(grid):
    fits = forecast.fits(grid)
    total = forecast.totals(grid, fits, 0.12)
    by_hand = dict.fromkeys(forecast.VERDICTS, 0)
    for block in range(len(grid.blocks)):
        for group in range(len(grid.groups)):
            info = forecast.facts(grid, block, group, 0.12)
            assert sum(info.counts.values()) == len(info.points) == grid.steps - 1
            for name, count in info.counts.items():
                by_hand[name] += count
    assert total == by_hand


def test_forecast_shading_is_where_the_line_lies_below_the_tolerance():
    def info(alpha, beta):
        return forecast.Forecast(pd.DataFrame(), alpha, beta, 1.0, {})

    assert lesson_forecast.four_bit_side(info(1.0, 0.0), 0.3, 0.0, 1.0) == [(0.0, 0.3)]
    assert lesson_forecast.four_bit_side(info(-1.0, 1.0), 0.3, 0.0, 1.0) == [(0.7, 1.0)]
    assert lesson_forecast.four_bit_side(info(0.0, 0.5), 0.3, 0.0, 1.0) == []
    assert lesson_forecast.four_bit_side(info(0.0, 0.2), 0.3, 0.0, 1.0) == [(0.0, 1.0)]


def test_budget_follows_the_policy_cell_by_cell(probe):
    policy = budget.with_budget(Policy(), 0.2)
    info = budget.facts(probe, policy, 3)
    done = replay(probe, policy)
    rows = done.blocks[done.blocks["block"] == 3]
    assert info.rows["skipped"].tolist() == rows["skipped"].tolist()
    assert (info.rows["accumulated"] <= 0.2 + 1e-12).all()
    assert info.skipped == done.report.skipped_share and info.predictor == done.report.predictor_share


def test_budget_more_of_it_skips_more_and_takes_from_the_predictor(probe):
    curve = budget.curve(probe, Policy())
    assert curve["skipped"].iloc[0] == 0.0
    assert curve["skipped"].iloc[-1] > 0.3 and curve["predictor"].iloc[-1] < curve["predictor"].iloc[0]


def test_refresh_keeps_the_error_while_a_step_is_skipped(probe):
    policy = Policy(tdc_threshold=0.2)
    done = replay(probe, policy)
    run, source = build(done.blocks, done.layers), build(probe.blocks, probe.layers)
    kept = refresh.kept_error(run, source)
    for block, step in np.argwhere(run.skipped):
        np.testing.assert_array_equal(kept[block, step], kept[block, step - 1])
    purified = run.decision == 6
    assert purified.any() and (kept[purified] == 0.0).all()


def test_refresh_purifying_removes_error_and_costs_bits(probe):
    info = refresh.facts(probe, Policy(tdc_threshold=0.2))
    assert 0 < info.share < 1 and info.bits[1] > info.bits[0] and 0 < info.removed < 1
    rings = info.alarm.set_index("group")["rings"]
    assert rings.idxmax() == "down"


def test_refresh_measured_pairs_the_same_prompts():
    rows = [("dmpq_tdc", "a", 1, 30.0), ("dmpq_tdc", "b", 1, 32.0), ("sixbit", "a", 1, 31.0), ("sixbit", "c", 1, 99.0)]
    table = pd.DataFrame(rows, columns=["method", "prompt", "seed", "psnr"]).assign(setting="{}")
    assert refresh.measured(table) == refresh.Measured(30.0, 31.0, 1)
    assert refresh.measured(table[table["method"] == "sixbit"]) is None and refresh.measured(None) is None


def test_turn_reports_what_the_replay_says(probe):
    info = turn.facts(probe, Policy(), 0.2, 0.2)
    report = replay(probe, info.policy).report
    assert (info.bits, info.skipped) == (report.average_bits, report.skipped_share)
    assert info.policy.error_threshold == 0.2 and info.policy.tdc_threshold == 0.2


def test_turn_best_needs_the_reference():
    rows = pd.DataFrame({"method": ["fp16", "sixbit", "w4a8"], "setting": ["{}"] * 3, "bits": [16.0, 4.5, 8.0],
                         "prompt_accuracy": [0.9, 0.8, 0.85]})  # fmt: skip
    assert turn.best(rows) == turn.Best(1, 0.8, 0.9)
    assert turn.best(rows[rows["method"] != "fp16"]) is None and turn.best(None) is None


def test_a_probe_without_calibration_gets_its_own_lines(probe):
    bare = probe.with_meta(calibration=None)
    made = calibrated(bare).meta.calibration
    assert len(made.rows) == 24
    report = replay(calibrated(bare), PRESETS["dmpq"]).report
    assert report.predictor_share > 0.5


def test_empty_data_gives_empty_titled_figures():
    nothing = build(empty_trace().blocks, empty_trace().layers)
    none = pd.DataFrame()
    info = average.facts(nothing)
    points = pd.DataFrame({name: [] for name in ("step", "gamma", "error", "predicted", "verdict")})
    nan = np.full(0, np.nan)
    shown = [
        lesson_average.shares(info, 0, {}, WORDS), lesson_average.marked_map(nothing, 0, WORDS),
        lesson_rotation.values(None, True, WORDS), lesson_rotation.errors(None, True, "qkv", {}, WORDS),
        lesson_forecast.dots(forecast.Forecast(points, 0, 0, 0, {}), 0.1, {}, WORDS),
        lesson_forecast.lines(none, (0, 0), [], WORDS), lesson_budget.shares(none, 0.1, WORDS),
        lesson_budget.sawtooth(budget.Budget(none, 0, 0, 0, 0, "exact"), 0.1, WORDS),
        lesson_refresh.alarm(none, {}, WORDS),
        lesson_refresh.kept(refresh.Refresh(0, (0, 0), (0, 0), none, 0, 0, (nan, nan)), True, WORDS),
    ]  # fmt: skip
    shown.append(lesson_refresh.gains(None, WORDS))
    for figure in shown:
        assert figure["data"] == [] and figure["layout"]["annotations"][0]["text"] == "word"


def test_figures_are_figures(probe, grid):
    go = pytest.importorskip("plotly.graph_objects")
    material = Material(probe=probe)
    info = forecast.facts(grid, 0, 0, 0.12)
    names = dict.fromkeys(grid.groups, "g") | dict.fromkeys(forecast.VERDICTS, "v")
    sizes = dict.fromkeys(average.SIZES, "s")
    made = rotation.facts(material.tokens, "qkv", material.rotation)
    shown = [
        lesson_average.shares(average.facts(material.run_grid), 3, sizes, WORDS),
        lesson_average.marked_map(material.run_grid, 3, WORDS),
        lesson_rotation.values(made, True, WORDS), lesson_rotation.errors(made, False, "qkv", names, WORDS),
        lesson_forecast.dots(info, 0.12, names, WORDS),
        lesson_forecast.lines(material.fits, (0, 0), ["n"] * len(material.fits), WORDS),
        lesson_budget.sawtooth(budget.facts(probe, Policy(), 0), 0.1, WORDS), lesson_budget.shares(material.curve, 0.1, WORDS),
        lesson_refresh.kept(material.refresh, True, WORDS),
        lesson_refresh.alarm(material.refresh.alarm, names, {**WORDS, "percent": names}),
    ]  # fmt: skip
    for figure in shown:
        assert len(go.Figure(figure).data) == len(figure["data"]) > 0
        json.dumps(figure, allow_nan=False)


def test_hadamard_width_follows_the_token():
    assert [numbers.hadamard_block(n) for n in (1536, 192, 96, 48, 20)] == [128, 64, 32, 16, 1]


def test_theory_tables_feed_the_lessons(tmp_path, probe):
    rotation_rows = [
        ("activations", precision, block, layer, 3, rotated, error * (0.5 if rotated and precision == "int8" else 1.0))
        for layer, error in (("qkv", 0.02), ("down", 0.04)) for precision in ("int8", "nvfp4")
        for block in range(2) for rotated in (False, True)
    ]  # fmt: skip
    columns = ["quantized", "precision", "block", "layer", "step", "rotated", "error"]
    pd.DataFrame(rotation_rows, columns=columns).to_parquet(tmp_path / "theory_rotation.parquet")
    pd.DataFrame({"alpha": [-1.0], "r2": [0.9], "r2_held_out": [-0.2]}).to_parquet(tmp_path / "theory_predictor.parquet")
    pd.DataFrame({"tdc_threshold": [0.1, 0.2], "psnr": [0.2, 0.4], "psnr_low": [0.1, 0.2], "psnr_high": [0.3, 0.6],
                  "prompts": [8, 8]}).to_parquet(tmp_path / "theory_reuse.parquet")  # fmt: skip
    (tmp_path / "foreign").mkdir()
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "foreign" / "theory_rotation.parquet")
    assert theory.read(tmp_path / "foreign") == theory.Theory()
    found = theory.read(tmp_path)
    table = theory.rotation_errors(found.rotation)
    assert rotation.gain(table, "int8") == pytest.approx(2.0) and rotation.gain(table, "nvfp4") == pytest.approx(1.0)
    assert table["tokens"].tolist() == [2, 2, 2, 2]
    material = Material(probe=probe, theory=found)
    said = course.open_lesson(material, 3, "en", {"rotated": "on", "group": "qkv"})
    assert "from 2.0" in said["aha"] and "whole layers" in said["note"]
    assert "do worse than simply guessing" in course.open_lesson(material, 4, "en", {})["aha"]
    last = course.open_lesson(material, 6, "zh-CN", {})["figures"][-1]
    assert last["id"] == "gains" and last["spec"]["data"][0]["y"] == [0.2, 0.4]
