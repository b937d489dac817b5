"""What the lessons are made of: one recorded run with its probe, tokens, previews and the quality sweep.

Everything a lesson needs more than once is computed on first use and kept, so that moving a control
costs one small calculation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import pandas as pd

from app.figures.grid import Grid, build
from app.lessons import budget, forecast, refresh, rotation, theory, tokens
from engine.records import Calibration, Coefficient
from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace


@dataclass(frozen=True)
class Film:
    """All previews of a run in one picture: a row per step, a column per frame (the recordings' sprite book).

    path: the picture's file; steps, frames: its rows and columns; aspect: width / height of one frame.
    """

    path: str
    steps: int
    frames: int
    aspect: float


@dataclass(eq=False)
class Material:
    """One recording, ready for lessons. `probe` and `run` may be None: the lessons then say what is missing."""

    probe: Trace | None = None
    run: Trace | None = None
    policy: Policy = field(default_factory=Policy)
    tokens: list[tokens.Token] = field(default_factory=list)
    film: Film | None = None
    frontier: pd.DataFrame | None = None
    theory: theory.Theory = theory.Theory()
    source: str = ""

    def __post_init__(self) -> None:
        if self.probe is not None:
            self.probe = calibrated(self.probe)
            if not self.tokens:
                self.tokens = tokens.from_samples(self.probe.layers)
            if self.run is None:
                self.run = replay(self.probe, self.policy)

    @cached_property
    def run_grid(self) -> Grid | None:
        """The run that people saw (or its replay)."""
        return None if self.run is None else grid_of(self.run)

    @cached_property
    def probe_grid(self) -> Grid | None:
        """All signals of the recorded prompt."""
        return None if self.probe is None else grid_of(self.probe)

    @cached_property
    def fits(self) -> pd.DataFrame:
        """The line of every layer (lesson 4)."""
        return forecast.fits(self.probe_grid) if self.probe_grid else pd.DataFrame()

    @cached_property
    def rotation(self) -> pd.DataFrame:
        """Errors without and with rotation (lesson 3): of whole layers where measured, else of the tokens."""
        measured = self.theory.rotation
        return rotation.table(self.tokens) if measured is None else theory.rotation_errors(measured)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """What every budget does (lesson 5)."""
        return budget.curve(self.probe, self.policy) if self.probe else pd.DataFrame()

    @cached_property
    def refresh(self) -> refresh.Refresh | None:
        """With and without purifying (lesson 6)."""
        return refresh.facts(self.probe, self.policy) if self.probe else None

    @cached_property
    def start_block(self) -> int:
        """Position of the block that lesson 5 opens with."""
        if self.probe is None or not self.probe_grid.blocks:
            return 0
        blocks = list(self.probe_grid.blocks)
        return blocks.index(budget.typical(self.probe, self.policy, blocks))


def grid_of(trace: Trace) -> Grid:
    """The dense form of a trace's first branch."""
    return build(trace.blocks, trace.layers, None, trace.meta.steps or None)


def calibrated(probe: Trace) -> Trace:
    """The probe itself where it carries lines, else with lines fitted to this one run."""
    if probe.meta.calibration is not None:
        return probe
    grid = grid_of(probe)
    model = str(probe.blocks["model"].iloc[0]) if len(probe.blocks) else ""
    rows = {
        (model, grid.blocks[row.block], grid.groups[row.group]):
            Coefficient(float(row.alpha), float(row.beta), float(row.r2), int(row.samples))
        for row in forecast.fits(grid).itertuples()
    }  # fmt: skip
    made = Calibration(model_hash="", steps=probe.meta.steps, guidance=probe.meta.guidance or 0.0, rows=rows, prompts=1)
    return probe.with_meta(calibration=made)


def read_frontier(path: Path) -> pd.DataFrame | None:
    """The quality sweep's rows, or None where there are none or the file is no such table."""
    if not path.is_file():
        return None
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError):
        return None
    wanted = {"method", "setting", "prompt", "seed", "psnr", "bits", "prompt_accuracy"}
    return table if wanted <= set(table.columns) else None


def furnish(material: Material, assets: Path) -> Material:
    """Add what is the same for every recording: captured tokens and the quality lab's tables, each read once."""
    if material.frontier is None:
        material.frontier = _frontier(assets / "quality" / "frontier.parquet")
    if all(table is None for table in material.theory):
        material.theory = _theory(assets / "quality")
        material.__dict__.pop("rotation", None)
    captured = _captured(assets / "lessons" / "tokens.parquet")
    if captured and material.tokens is not captured:
        material.tokens = captured
        material.__dict__.pop("rotation", None)
    return material


@cache
def _frontier(path: Path) -> pd.DataFrame | None:
    return read_frontier(path)


@cache
def _theory(folder: Path) -> theory.Theory:
    return theory.read(folder)


@cache
def _captured(path: Path) -> list[tokens.Token]:
    return tokens.read_tokens(path)
