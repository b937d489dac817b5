"""Every cell can be explained, in both languages, with the numbers that decided."""

import re
from dataclasses import replace

import numpy as np
import pytest

from app.explain import explain, state
from app.figures import grid as grids
from app.look import grid_of
from app.why import MARKS, digits_above, listed, overspent, percent, span
from engine.replay import replay
from engine.settings import BREAK_IT, PRESETS, Policy


def at(source, block, step, policy=None, lang="en"):
    policy = policy or source.policy
    trace = source.trace if policy == source.policy else replay(source.signals, policy)
    return explain(grid_of(trace), grid_of(source.signals), source.signals, policy, block, step, lang)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_all_cells_of_all_presets_have_sentences(source, lang):
    for policy in (*PRESETS.values(), BREAK_IT, Policy(resume="last_gamma", max_skips=0)):
        for block, step in [(0, 0), (3, 1), (5, 7), (7, 15), (11, 29), (2, 20)]:
            told = at(source, block, step, policy, lang)
            assert told["title"] and len(told["sentences"]) >= 2 and len(told["layers"]) == 4
            assert all("{" not in s for s in told["sentences"])


@pytest.mark.parametrize("lang, said", [("en", "computed at 4, 8 and 16 bits"), ("zh-CN", "以 4、8 和 16 比特计算")])
def test_three_numbers_of_bits_are_one_list(lang, said):
    assert state(np.array([grids.INT8, grids.NVFP4, grids.PURIFIED, grids.INT8]), lang) == said
    assert listed(["50 ×"], lang) == "50 ×"


def test_a_skipped_cell_says_how_much_of_the_budget_is_spent(source):
    grid = grid_of(source.trace)
    block, step = np.argwhere(grid.skipped)[0]
    told = at(source, int(block), int(step))
    assert "skipped" in told["title"] and f"{100 * grid.accumulated[block, step]:.1f} %" in told["sentences"][0]


def test_a_cell_that_computes_again_shows_its_sum(source):
    grid = grid_of(source.trace)
    block, step = (int(v) for v in np.argwhere(grid.block_reason == grid.block_reasons.index("budget spent"))[-1])
    spent, drift = grid.accumulated[block, step - 1], grid.weighed[block, step]
    assert spent + drift > source.policy.tdc_threshold
    told = at(source, block, step)["sentences"][-1]
    assert told.startswith(f"Computed, not reused: {100 * spent:.1f} % drift spent so far + {100 * drift:.1f} % for one more skip = {100 * (spent + drift):.1f} %")
    assert overspent(0.1, 0.08004, 0.18)["sum"] == "18.004 %"


def test_a_purified_layer_is_named_with_its_ratio(source):
    from app.figures.grid import PURIFIED

    grid = grid_of(source.trace)
    block, step, group = np.argwhere(grid.decision == PURIFIED)[0]
    told = at(source, int(block), int(step))
    ratio = grid.outlier[block, step, group]
    shown = f"{ratio:.0f} ×" if round(ratio) > source.policy.outlier_threshold else f"{ratio:.1f} ×"
    assert any("16 bits" in s and shown in s for s in told["sentences"])


def test_a_layer_that_took_more_bits_is_left_out_of_what_all_took(source):
    from app.figures.grid import PURIFIED

    grid = grid_of(source.trace)
    seen = 0
    for block, step in np.argwhere((grid.decision == PURIFIED).sum(axis=2) == 1):
        told = at(source, int(block), int(step))["sentences"]
        lifted = [s.split(":")[0].removeprefix("16 bits in ") for s in told if s.startswith("16 bits in")]
        assert len(lifted) == 1 and not any(lifted[0] in s.split(":")[0] for s in told if not s.startswith("16 bits in") and "every layer but" not in s)
        if "every layer but" in told[0]:
            seen += 1
            assert told[0].startswith(f"8 bits in every layer but {lifted[0]}: ") or told[0].startswith(f"4 bits in every layer but {lifted[0]}: ")
    assert seen


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_the_first_sentences_answer_for_every_colour_of_a_cell(source, lang):
    for policy in (source.policy, Policy.preset("w4a8"), Policy.preset("fp16"), Policy(tdc=False, pdr=False)):
        trace = source.trace if policy == source.policy else replay(source.signals, policy)
        grid = grid_of(trace)
        for block, step in [(b, s) for b in range(12) for s in range(0, 30, 3)]:
            told = at(source, block, step, policy, lang)
            colours = {MARKS[code] for code in grid.decision[block, step]}
            assert set(told["marks"]) == colours | {""} and told["marks"].index("") >= len(colours) and len(told["marks"]) == len(told["sentences"])


def test_a_choice_of_the_predictor_is_told_with_its_number_and_limit(source):
    grid = grid_of(source.trace)
    block, step, group = np.argwhere(np.isfinite(grid.predicted) & (grid.decision == 2))[0]
    told = at(source, int(block), int(step))["sentences"]
    said = next(s for s in told if s.startswith("4 bits"))
    assert f"within the 4-bit tolerance of {100 * source.policy.error_threshold:.1f} %" in said
    low = np.nanmin(grid.predicted[block, step][grid.decision[block, step] == 2])
    assert f"{100 * low:.1f}" in said


def test_sixteen_real_values_with_codes(source):
    told = at(source, 4, 6)["sample"]
    assert len(told["values"]) == len(told["nvfp4"]) == 16 and len(told["rows"]) == 5
    worst = max(abs(a - b) for a, b in zip(told["values"], told["int8"]))
    assert worst <= max(map(abs, told["values"])) / 100


@pytest.mark.parametrize("cell", [(-1, 0), (0, 30), (12, 0)])
def test_a_cell_outside_is_refused_in_a_sentence(source, cell):
    with pytest.raises(ValueError, match="Expected a block below 12"):
        at(source, *cell)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_every_cell_of_a_draft_that_a_run_cannot_answer_has_its_sentences(source, lang):
    """Without a probe a replay leaves cells open: that is said, and nothing else of them."""
    policy = Policy(max_skips=6, tdc_threshold=0.9)
    draft = replay(source.trace, policy)
    assert draft.meta.replay == "partial"
    grid, open_cells = grid_of(draft), 0
    for block in range(12):
        for step in range(30):
            told = explain(grid, grid_of(source.trace), source.trace, policy, block, step, lang)
            assert len(told["sentences"]) >= 2 and not any("{" in s for s in told["sentences"])
            if grid.block_reasons[grid.block_reason[block, step]] == "signal not observed":
                open_cells += 1
                assert told["marks"] == ["unknown", ""]
    assert open_cells > 20


def test_what_is_above_a_limit_is_seen_to_be():
    assert digits_above(np.array([0.0921, 0.2]), 0.092) == 2
    assert digits_above(np.array([0.1, np.nan, 0.05]), 0.092) == 1


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
@pytest.mark.parametrize("value, shown", [(np.inf, "∞"), (1e308, "1.0e+308")])
def test_a_file_with_absurd_signals_is_explained_all_the_same(source, lang, value, shown):
    """An uploaded trace may hold anything that is a number."""
    blocks, layers = source.trace.blocks.copy(), source.trace.layers.copy()
    for table, names in ((layers, ("outlier_ratio", "error_nvfp4", "predicted_error")), (blocks, ("gamma", "drift"))):
        for name in names:
            table[name] = table[name].where(table[name].isna(), value)
    odd = replace(source.trace, blocks=blocks, layers=layers)
    grid, told = grid_of(odd), []
    for block, step in [(block, step) for block in range(12) for step in range(30)]:
        answer = explain(grid, grid, odd, source.policy, block, step, lang)
        told += [*answer["sentences"], *(text for row in (*answer["numbers"], *answer["layers"]) for text in row)]
    assert any(f"{shown} ×" in text for text in told)
    assert not any(re.search(r"inf|nan|\d{20}", text) for text in told)


def test_a_share_beyond_all_numbers_is_no_word():
    assert percent(1e308) == "∞ %" and span(np.array([0.05, 1e308])) == "5.0–∞ %" and percent(np.nan) == "–"
    assert percent(0.0734) == "7.3 %" and span(np.array([0.05, np.nan, 0.0501])) == "5.0 %"
