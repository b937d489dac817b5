"""The state of one run, and how it is told to the page: one event that says everything but old previews."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from app import sprites
from app.figures import grid as grids
from app.i18n import plain, said, sentences
from app.lanes import Beat, RunWish
from app.look import label_of, payload
from app.look_words import brief
from app.readback import ticks as read_ticks
from app.reels import Reel
from app.references import Reference
from app.session import Source
from engine.compare import crowded
from engine.trace import Trace, TraceMeta


@dataclass
class Pane:
    """One pane of the race."""

    label: tuple[str, dict]
    policy: Any
    step: int = 0
    total: int = 0
    seconds: float = 0.0
    state: str = "waiting"
    sheet: dict | None = None          # the newest preview, until it is sent
    final: dict | None = None
    ticks: list = field(default_factory=list)
    frames: np.ndarray | None = None
    trace: Trace | None = None
    sent: bool = False
    note: str = ""
    times: list[float] = field(default_factory=list)
    clips: list[np.ndarray | None] = field(default_factory=list)
    reel: Reel | None = None           # what was kept of a pane that does not run now
    busy: bool = False                 # other programs had the cores: its seconds do not compare

    def told(self) -> Reel:
        """What plays this pane again."""
        return self.reel or Reel(
            self.label, tuple(self.times), tuple(self.clips), self.seconds, self.frames, tuple(self.ticks)
        )


class Progress:
    """Takes beats, gives events."""

    def __init__(self, wish: RunWish, run_id: str, lang: str, held: Reference | None = None, calibration=None):
        self.wish, self.run_id, self.lang = wish, run_id, lang
        self.panes = {lane.pane: Pane(_label(lane.policy), lane.policy) for lane in wish.lanes}
        self.fps, self.started, self.urgent = 8.0, None, True
        self._blocks: list[pd.DataFrame] = []
        self._layers: list[pd.DataFrame] = []
        self._grid_steps, self._calibration, self.live = 0, calibration, None
        self.held = held
        if held is not None:
            self.panes = {
                "a": Pane(
                    _label(None),
                    None,
                    held.steps,
                    held.steps,
                    held.seconds,
                    "done",
                    final=sprites.sheet(held.frames, 90),
                    ticks=held.ticks,
                    frames=held.frames,
                    trace=held.trace,
                    note=plain(lang, "lab.race.cached"),
                    reel=held.reel,
                    busy=held.busy,
                ),
                **self.panes,
            }

    @property
    def main(self) -> Pane:
        """The pane whose decisions the map shows."""
        return self.panes["b"]

    @property
    def step(self) -> int:
        return self.main.step

    @property
    def busy(self) -> bool:
        """Other programs had the cores during one of the runs."""
        return any(pane.busy for pane in self.panes.values())

    @property
    def finished(self) -> bool:
        return self.main.frames is not None

    @property
    def complete(self) -> bool:
        """Every pane has its clip."""
        return all(pane.frames is not None for pane in self.panes.values())

    @property
    def beside_reference(self) -> bool:
        """Pane "a" is the model as it is (made now or before), so closeness and speed-up mean something."""
        return "a" in self.panes and (self.held is not None or self.wish.lanes[0].is_reference)

    @property
    def reference_done(self) -> bool:
        return self.held is None and self.beside_reference and self.panes["a"].frames is not None

    def take(self, beat: Beat) -> None:
        """Fold one beat into the state. `urgent` marks what must not wait for the next tick."""
        pane, event, kind = self.panes[beat.pane], beat.event, type(beat.event).__name__
        pane.seconds, self.urgent = beat.used, kind != "Step"
        pane.busy = crowded(beat.cpu, beat.used)
        if kind == "Started":
            pane.total, pane.state, self.fps = event.steps, "running", float(event.fps or 8)
            if beat.pane == "b":
                self.started, self._grid_steps = event, event.steps
        elif kind == "Step":
            first = pane.step == 0
            pane.step, pane.total = event.step + 1, event.steps
            pane.times.append(beat.used)
            pane.clips.append(event.preview)
            if event.preview is not None:
                pane.sheet = {**sprites.sheet(event.preview), "step": pane.step}
            if beat.pane == "b":
                self._blocks.append(event.blocks)
                self._layers.append(event.layers)
            self.urgent = first
        elif kind == "Decoding":
            pane.state = "decoding"
        elif kind == "Finished":
            pane.state, pane.frames, pane.trace = "done", event.frames, event.trace
            pane.final, pane.ticks = sprites.sheet(event.frames, 90), read_ticks(event.frames, self.wish.prompt)

    def event(self) -> dict[str, Any]:
        """The state as the page takes it."""
        panes = {}
        for key, pane in self.panes.items():
            told: dict[str, Any] = {"step": pane.step, "total": pane.total, "seconds": round(pane.seconds, 3),
                                    "state": pane.state, "label": pane.label, "note": pane.note}
            if pane.sheet is not None:
                told["sheet"], pane.sheet = pane.sheet, None
            if pane.final is not None:
                told["ticks"] = pane.ticks
                told["final"] = pane.final if not pane.sent or self.finished else None
                pane.sent = True
            panes[key] = told
        out: dict[str, Any] = {
            "id": self.run_id,
            "race": {
                "run": self.run_id,
                "fps": self.fps,
                "panes": panes,
                "fair": not any(lane.probe for lane in self.wish.lanes),
                "busy": self.busy,
            },
        }
        if self._blocks:
            trace = self._so_far()
            grid = grids.build(trace.blocks, trace.layers, None, self._grid_steps)
            self.live = grid, self.main.policy, trace
            out["net"] = brief(grid, self.lang)
            out["map"] = {**payload(grid, None, "decision", self.lang), "versus": ["draft"], "against": "draft",
                          "whiches": [], "which": "", "note": ""}
        if any(p.state == "decoding" for p in self.panes.values()):
            out["status"] = {"sentence": plain(self.lang, "lab.status.decoding"), "tone": "info"}
        elif self.started is not None:
            out["status"] = {"tone": "info", "sentence": plain(
                self.lang, "lab.status.running", name=plain(self.lang, self.main.label[0]), step=self.main.step,
                steps=self.main.total, seconds=f"{self.main.seconds:.1f}")}
        return out

    def done(self) -> dict[str, str]:
        """The last status of a finished run."""
        seconds = sum(p.seconds for p in self.panes.values() if p.policy is not None)
        words = plain(self.lang, "lab.status.done", seconds=f"{seconds:.1f}", seed=self.wish.seed)
        warned = self.started is not None and self.started.warnings
        if (
            not warned
            and self.main.trace is not None
            and self.main.policy.tdc
            and not self.main.trace.blocks["skipped"].any()
        ):
            words = sentences(self.lang, words, plain(self.lang, "lab.status.stock_slower"))
        warnings = self.started.warnings if self.started else ()
        return {"sentence": sentences(self.lang, words, *(said(self.lang, told) for told in warnings)), "tone": "info"}

    def stopped(self) -> dict[str, Any]:
        """The last event of a run that ended before its time: what was made so far stays."""
        for pane in self.panes.values():
            if pane.state != "done":
                pane.state = "stopped"
        step = max((p.step for p in self.panes.values()), default=0)
        words = (
            plain(self.lang, "lab.status.stopped", step=step) if step else plain(self.lang, "lab.status.stopped_early")
        )
        return {**self.event(), "status": {"sentence": words, "tone": "info"}}

    def reference(self) -> Reference:
        """The finished FP16 run, for later."""
        pane = self.panes["a"]
        return Reference(pane.frames, pane.trace, pane.seconds, pane.ticks, pane.total, pane.told(), pane.busy)

    def source(self, machine: str) -> Source:
        """What the page looks at after the run."""
        a, b = self.panes.get("a"), self.main
        psnr, seconds = None, {"run": b.seconds}
        if self.beside_reference and a.frames is not None:
            from engine.metrics import psnr as closeness

            seconds["reference"] = a.seconds
            psnr = float(closeness(b.frames, a.frames)) if a.frames.shape == b.frames.shape else None
        probe = a.trace if a is not None and a.trace is not None and a.trace.meta.probe else None
        if probe is not None:
            seconds.pop("reference", None)       # measuring costs more than running: no fair time
        return Source(
            key=f"run:{self.run_id}",
            title=f"{self.wish.prompt} · {self.wish.seed}",
            prompt=self.wish.prompt,
            policy=b.policy,
            beside=a.policy if a is not None else None,
            trace=b.trace,
            signals=probe,
            reference=a.trace if "reference" in seconds else None,
            seconds=seconds,
            psnr=psnr,
            machine=machine,
            model=self.wish.model,
            seed=self.wish.seed,
            busy=self.busy,
            video={k: p.frames for k, p in self.panes.items() if p.frames is not None},
            reels={k: p.told() for k, p in self.panes.items() if p.frames is not None},
        )

    def partial(self) -> Source:
        """What a stopped run leaves: its decisions so far."""
        trace = self._so_far()
        return Source(key=f"run:{self.run_id}", title=f"{self.wish.prompt} · {self.wish.seed}", prompt=self.wish.prompt,
                      policy=self.main.policy, trace=trace, model=self.wish.model, seed=self.wish.seed)

    def _so_far(self) -> Trace:
        run = self.started
        meta = TraceMeta(policy=self.main.policy.to_dict(), steps=self._grid_steps, seed=self.wish.seed,
                         prompt=self.wish.prompt, negative_prompt=self.wish.negative, calibration=self._calibration,
                         guidance=run.guidance, height=run.height, width=run.width, frames=run.frames, fps=run.fps)
        return Trace(pd.concat(self._blocks, ignore_index=True), pd.concat(self._layers, ignore_index=True), meta)


def _label(policy) -> tuple[str, dict]:
    return label_of(policy), {}
