"""Runs side by side: each lane is one `engine.generate`, and whoever has used less compute time goes next.

So two runs on one machine race fairly without threads of their own, and the faster one visibly pulls ahead. This is
the only place of the app that computes; on a ZeroGPU Space it is what enters the GPU worker, so everything that
goes in or comes out is plain data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.i18n import plain
from app.models import shared
from app.zero import on_gpu
from engine.settings import BREAK_IT, Policy, needs_calibration


class Limits(NamedTuple):
    """The most that a run may take here. Defaults that only the model knows are held to them too, once it tells
    them."""

    steps: int
    pixels: int
    frames: int

    def check(self, started, lang: str) -> None:
        """Raise ValueError for a run (`engine.stream.Started`) beyond a limit."""
        if started.height * started.width > self.pixels:
            raise ValueError(
                plain(lang, "lab.refuse.pixels", most=f"{self.pixels:,}", width=started.width, height=started.height)
            )
        for name, most in (("steps", self.steps), ("frames", self.frames)):
            given = getattr(started, name)
            if given > most:
                raise ValueError(plain(lang, "lab.refuse.whole", name=plain(lang, f"lab.field.{name}").lower(), low=1,
                                       high=f"{most:,}", given=given))


@dataclass(frozen=True)
class LaneWish:
    """One lane: its pane ("a" what to compare with, "b" the policy), what decides, and whether every signal is
    measured."""

    pane: str
    policy: Policy
    probe: bool = False

    @property
    def is_reference(self) -> bool:
        """The model as it is: stock weights, nothing reused."""
        return self.policy.precision == "stock" and not self.policy.tdc


@dataclass(frozen=True)
class RunWish:
    """What to run. None leaves a value to the model's default; `seed` is always given.

    first_alone: run the first lane to its end before the others begin (a probe that calibrates the next lane).
    """

    model: str
    prompt: str
    seed: int
    lanes: tuple[LaneWish, ...]
    negative: str = ""
    steps: int | None = None
    guidance: float | None = None
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    first_alone: bool = False
    lang: str = "en"
    limits: Limits | None = None

    def measuring(self) -> RunWish:
        """The same, its reference run first and with every signal measured, so that the policy can be calibrated by
        it."""
        return replace(self, lanes=(replace(self.lanes[0], probe=True), *self.lanes[1:]), first_alone=True)

    def needs_measuring(self, calibration) -> bool:
        """The policy asks a predictor that the model does not have yet, and a reference run beside it can give it
        one."""
        beside = len(self.lanes) == 2 and self.lanes[0].is_reference
        return calibration is None and beside and needs_calibration(self.lanes[-1].policy)

    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `engine.generate` that are not per lane."""
        given = {"seed": self.seed, "steps": self.steps, "guidance": self.guidance, "height": self.height,
                 "width": self.width, "frames": self.frames, "negative_prompt": self.negative or None}
        return {name: value for name, value in given.items() if value is not None}


def lanes_for(policy: Policy, mode: str, probe: bool) -> tuple[LaneWish, ...]:
    """The lanes of a run in the page's mode "race", "cached" or "sixbit". "Break it" is shown beside the sound setting;
    everything else beside the model as it is."""
    if mode == "sixbit" and not probe:
        return (LaneWish("b", policy),)
    beside = "sixbit" if policy == BREAK_IT and mode == "race" and not probe else "fp16"
    return LaneWish("a", Policy.preset(beside), probe=probe), LaneWish("b", policy)


@dataclass(frozen=True)
class Beat:
    """One event of one lane, the compute seconds that lane has used so far, and what this process got of the CPU
    meanwhile, in seconds; NaN where no CPU computes."""

    pane: str
    event: Any
    used: float
    cpu: float = math.nan


def duration(wish: RunWish) -> int:
    """Seconds of GPU time to ask for on ZeroGPU: short runs wait less and cost visitors less of their quota."""
    steps = wish.steps or 30
    return int(min(110, 15 + 0.35 * steps * len(wish.lanes)))


@on_gpu(duration)
def drive(wish: RunWish) -> Iterator[Beat]:
    """Run all lanes, one event at a time. Closing it stops every lane within one step.

    Raises ValueError (one sentence) before any work for what cannot be run, RuntimeError for what broke on the way.
    """
    from engine.stream import Finished, Started, generate

    loaded = shared().get(wish.model, wish.lang)
    used = {lane.pane: 0.0 for lane in wish.lanes}
    cpu = dict.fromkeys(used, 0.0 if loaded.pipe._execution_device.type == "cpu" else math.nan)
    running: dict[str, Any] = {}
    try:
        waiting = list(wish.lanes)
        while waiting or running:
            while waiting and not (wish.first_alone and running):
                lane = waiting.pop(0)
                running[lane.pane] = generate(
                    loaded.pipe, wish.prompt, policy=lane.policy, probe=lane.probe, **wish.settings()
                )
            order = sorted(running, key=lambda pane: (used[pane], pane))
            pane = order[0]
            began, began_cpu = time.perf_counter(), time.process_time()
            event = next(running[pane], None)
            used[pane] += time.perf_counter() - began
            cpu[pane] += time.process_time() - began_cpu
            if event is None:
                running.pop(pane).close()
                continue
            if wish.limits is not None and isinstance(event, Started):
                wish.limits.check(event, wish.lang)
            yield Beat(pane, event, used[pane], cpu[pane])
            if isinstance(event, Finished) and event.trace.meta.probe:
                _calibrate(loaded, event.trace)
    finally:
        for events in running.values():
            events.close()


def _calibrate(loaded, trace) -> None:
    """A probe of a model without calibration becomes its calibration, if it has two steps in a row to fit."""
    if loaded.handle.calibration is not None:
        return
    from engine.calibrate import adopt, fit

    try:
        found = fit([trace], loaded.handle.model_hash)
    except ValueError:
        # The run beside it says of itself that the model is not calibrated.
        return
    adopt(loaded.handle, found)
