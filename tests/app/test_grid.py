"""A trace as arrays: nothing invented, nothing lost."""

import numpy as np
import pandas as pd

from app.figures import grid as grids
from engine.replay import replay
from engine.settings import Policy
from engine.trace import empty_trace
from tests.synthetic import probe_trace


def test_every_row_of_the_trace_is_in_its_place(source):
    grid = grids.build(source.trace.blocks, source.trace.layers)
    assert grid.shape == (12, 30, 4) and grid.groups == ("qkv", "out", "up", "down")
    row = source.trace.layers.sample(1, random_state=3).iloc[0]
    cell = grid.blocks.index(row["block"]), row["step"], grid.groups.index(row["layer"])
    expected = grids.PURIFIED if row["purified"] else grids.CODES[row["precision"]]
    assert grid.decision[cell] == expected
    assert grid.group_reasons[grid.group_reason[cell]] == row["reason"]
    assert grid.skipped.sum() == source.trace.blocks["skipped"].sum()


def test_a_run_in_progress_has_empty_cells_up_to_its_planned_steps(source):
    blocks, layers = source.trace.blocks, source.trace.layers
    grid = grids.build(blocks[blocks["step"] < 7], layers[layers["step"] < 7], None, 30)
    assert grid.steps == 30
    assert (grid.decision[:, 7:] == grids.NOTHING).all() and (grid.decision[:, :7] != grids.NOTHING).all()
    assert np.isnan(grid.gamma[:, 7:]).all()


def test_branches_are_separate_views():
    trace = probe_trace(blocks=3, steps=5, branches=("cond", "uncond"))
    pairs = grids.views(trace.blocks)
    assert [v.branch for v in pairs] == ["cond", "uncond"]
    first, second = (grids.build(trace.blocks, trace.layers, view) for view in pairs)
    assert first.shape == second.shape == (3, 5, 4)
    assert not np.array_equal(first.gamma, second.gamma)


def test_an_unknown_cell_of_a_what_if_is_marked(source):
    partial = replay(source.trace, Policy(tdc=False, pdr=False))
    grid = grids.build(partial.blocks, partial.layers)
    assert partial.meta.replay == "partial"
    assert (grid.decision == grids.UNKNOWN).sum() == (~partial.layers["known"]).sum()


def test_empty_trace_gives_an_empty_grid():
    grid = grids.build(empty_trace().blocks, empty_trace().layers, None, 10)
    assert grid.shape == (0, 10, 0) and grid.steps == 10


def test_only_the_last_call_is_shown(source):
    again = source.trace.blocks.assign(call=1, gamma=0.5), source.trace.layers.assign(call=1)
    blocks = pd.concat([source.trace.blocks, again[0]], ignore_index=True)
    layers = pd.concat([source.trace.layers, again[1]], ignore_index=True)
    assert np.nanmax(grids.build(blocks, layers).gamma) == 0.5


def test_block_bits_are_weighted_by_work(source):
    grid = grids.build(source.trace.blocks, source.trace.layers)
    bits = grids.block_bits(grid)
    b, s = np.argwhere(~grid.skipped)[5]
    expected = np.average(grids.BITS[grid.decision[b, s]], weights=grid.macs[b, s])
    assert bits[b, s] == expected and (bits[grid.skipped] == 0).all()
