"""The map's figures: right tiles, valid plotly, small, and empty where there is nothing."""

import base64
import json

import numpy as np
import plotly.graph_objects as go
import pytest

from app.figures import decision_map as maps
from app.figures import grid as grids
from app.figures import palette
from app.settings import ROOT
from engine.replay import replay
from engine.settings import Policy
from engine.trace import empty_trace


@pytest.fixture(scope="module")
def grid(source):
    return grids.build(source.trace.blocks, source.trace.layers)


def decoded(z):
    shape = tuple(int(n) for n in z["shape"].split(","))
    return np.frombuffer(base64.b64decode(z["bdata"]), {"u1": np.uint8, "f4": np.float32}[z["dtype"]]).reshape(shape)


@pytest.mark.parametrize("groups, size", [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (6, (2, 3)), (5, (2, 3))])
def test_tiles(groups, size):
    assert maps.tiles(groups) == size


def test_a_cell_is_a_mosaic_of_its_groups(grid):
    z = decoded(maps.decision_map(grid)["fine"][0]["z"])
    assert z.shape == (12 * 3, 30 * 3)
    b, s = 4, 9
    shown = np.where(grid.decision[b, s] == grids.PURIFIED, grids.W4A16, grid.decision[b, s])
    assert z[3 * b : 3 * b + 2, 3 * s : 3 * s + 2].ravel().tolist() == shown.tolist()
    assert (z[2::3] == grids.NOTHING).all() and (z[:, 2::3] == grids.NOTHING).all()


def test_the_borders_fit_the_tiles(grid):
    for level in ("fine", "coarse"):
        heat = maps.decision_map(grid)[level][0]
        rows, columns = decoded(heat["z"]).shape
        for name, count, cells in (("x", columns, 30), ("y", rows, 12)):
            edge = np.frombuffer(base64.b64decode(heat[name]["bdata"]), np.float32)
            assert len(edge) == count + 1 and (np.diff(edge) > 0).all()
            assert -0.5 < edge[0] and edge[-1] < cells - 0.4


@pytest.mark.parametrize("level", ["fine", "coarse"])
def test_plotly_accepts_every_figure(grid, source, level):
    other = replay(source.signals, Policy(tdc_threshold=0.3))
    after = grids.build(other.blocks, other.layers)
    change = maps.changes(grid, after)
    verdict = maps.verdicts(grid, grids.build(source.signals.blocks, source.signals.layers), 0.12)
    for drawn in (maps.decision_map(after, change), maps.signal_map(grid, grid.gamma), maps.signal_map(grid, grid.outlier, change),
                  maps.verdict_map(grid, verdict)):
        figure = go.Figure(json.loads(json.dumps(maps.figure(drawn, level))))
        assert len(figure.data) >= 1


def test_empty_data_gives_an_empty_figure():
    nothing = grids.build(empty_trace().blocks, empty_trace().layers)
    for drawn in (maps.decision_map(nothing), maps.signal_map(nothing, nothing.gamma), maps.verdict_map(nothing, nothing.decision)):
        assert not go.Figure(maps.figure(drawn, "fine")).data


def test_what_follows_from_another_skip_is_told_from_what_changes_by_itself(grid):
    after = grid._replace(decision=grid.decision.copy())
    after.decision[2, [10, 15]] = grids.STOCK
    free = ~grid.skipped[3]
    parted = int(np.flatnonzero(free)[5])
    after.decision[3, parted] = grids.SKIPPED
    after.decision[3, 29] = grids.STOCK
    change = maps.changes(grid, after)
    assert change.first[2, 10] and change.first[3, parted] and change.later[3, 29] and not change.later[3, parted]
    assert change.later.sum() == 1 + (0 if not grid.skipped[2, 10] else 1)


def test_verdicts_follow_the_measured_error():
    """Golden by hand: threshold .10; chose 4 with .08 (right), 4 with .12 (miss), 8 with .12 (right), 8 with .08 (waste)."""
    shape = (1, 4, 1)
    base = grids.build(empty_trace().blocks, empty_trace().layers)
    grid = base._replace(blocks=(0,), steps=4, groups=("qkv",), deciders=("predictor",),
                         decision=np.array([2, 2, 3, 3], np.uint8).reshape(shape), decided_by=np.zeros(shape, np.uint8))
    truth = grid._replace(error_nvfp4=np.array([0.08, 0.12, 0.12, 0.08]).reshape(shape))
    assert maps.verdicts(grid, truth, 0.10).ravel().tolist() == [maps.V_RIGHT, maps.V_MISS, maps.V_RIGHT, maps.V_WASTE]


def test_a_large_map_stays_small_on_the_wire(large):
    grid = grids.build(large.trace.blocks, large.trace.layers)
    assert len(json.dumps(maps.decision_map(grid))) < 80_000


STATES = {grids.SKIPPED: palette.SKIPPED, grids.NVFP4: palette.NVFP4, grids.INT8: palette.INT8, grids.W4A16: palette.W4A16,
          grids.STOCK: palette.STOCK, grids.UNKNOWN: palette.UNKNOWN, grids.NOTHING: palette.CLEAR}


@pytest.mark.parametrize("code", STATES)
def test_a_coarse_cell_has_the_colour_that_the_legend_gives_its_state(grid, code):
    """Painted as `chart.js` does: 96 shades, and the colour where a shade falls between two stops."""
    heat = maps.decision_map(grid._replace(decision=np.full_like(grid.decision, code)))["coarse"][0]
    shade = round(96 * int(decoded(heat["z"])[0, 0]) / heat["zmax"]) / 96
    scale = heat["colorscale"]
    i = next(i for i, (end, _) in enumerate(scale) if i and shade <= end)
    part = (shade - scale[i - 1][0]) / ((scale[i][0] - scale[i - 1][0]) or 1)
    assert (scale[i - 1] if part < 0.2 else scale[i])[1] == STATES[code] and (part < 0.2 or part > 0.8 or scale[i - 1][1] == scale[i][1])


def test_a_cell_with_an_unknown_part_is_unknown_at_every_size(grid):
    decision = np.full_like(grid.decision, grids.INT8)
    decision[..., 1] = grids.UNKNOWN
    drawn = [decoded(maps.decision_map(grid._replace(decision=cells))["coarse"][0]["z"])[0, 0]
             for cells in (decision, np.full_like(decision, grids.UNKNOWN))]
    assert drawn[0] == drawn[1]


def test_skipped_and_unseen_cells_are_no_zeros(grid):
    values = decoded(maps.signal_map(grid, grid.gamma)["coarse"][-1]["z"])[::2, ::2]
    assert np.isnan(values[grid.skipped]).all() and np.isfinite(values[~grid.skipped]).all()


def test_on_a_dark_page_16_bits_stand_out():
    def light(colour):
        parts = (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    sixteen = light(palette.DARK[palette.W4A16])
    assert all((sixteen + 0.05) / (light(palette.DARK[name]) + 0.05) > 4.5 for name in (palette.PAPER, palette.SKIPPED))
    assert f"--sixteen: {palette.DARK[palette.W4A16].lower()}" in (ROOT / "app" / "static" / "lab.css").read_text(encoding="utf-8")
