"""How long a run would take here: from runs of the same model and size, and what the replay says about another
policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from app import look as looks
from app.lanes import LaneWish, RunWish
from app.look_words import estimate_seconds, fixed
from app.session import Source
from app.settings import EMBEDDED_NAME
from app.views.lab_memory import Gone, Lab
from app.views.lab_wish import read_wish
from engine import cost
from engine.settings import Policy

STOCK = Policy.preset("fp16")


class Shape(NamedTuple):
    """What decides a step's time besides the policy: the model, the size in pixels, the frames. None: the model's
    own."""

    model: str
    height: int | None = None
    width: int | None = None
    frames: int | None = None


@dataclass
class Timing:
    """Compute seconds of one shape. policies: seconds a step by policy, the latest last; probe: of a measuring run;
    fixed: what a run takes before and after its steps; steps: the model's own number, None while unknown."""

    policies: dict[Policy, float] = field(default_factory=dict)
    probe: float | None = None
    fixed: float = 0.0
    steps: int | None = None

    def take(self, policy: Policy, probe: bool, times: list[float], whole: float) -> None:
        """Add a run: `times` at the end of each step, `whole` at its end."""
        if not times:
            return
        each = times[-1] / len(times)
        if probe:
            self.probe = each
        else:
            self.policies.pop(policy, None)
            self.policies[policy] = each
        self.fixed = max(0.0, whole - times[-1])


def remember(lab: Lab, progress) -> None:
    """Keep the times of a finished run (`app.views.lab_progress.Progress`) for the next estimates."""
    wish, started = progress.wish, progress.started
    asked = Shape(wish.model, wish.height, wish.width, wish.frames)
    timing = lab.timing.get(asked) or Timing()
    for lane in wish.lanes:
        pane = progress.panes[lane.pane]
        timing.take(lane.policy, lane.probe, pane.times, pane.seconds)
    if wish.steps is None and started is not None:
        timing.steps = started.steps
    found = {asked: timing}
    if started is not None:
        found[Shape(wish.model, started.height, started.width, started.frames)] = timing
    lab.timing = {**lab.timing, **found}


def estimate(lab: Lab, ask: dict, lang: str) -> float | None:
    """Seconds of compute that the run which the page would ask for takes; None where that is unknown."""
    try:
        wish = read_wish(lab, ask, lang)
    except ValueError:
        return None                      # it would be refused; the sentence comes with the click
    try:
        source = lab.source(lab.session(ask), ask.get("source"))
    except Gone:
        source = lab.default()
    shape = Shape(wish.model, wish.height, wish.width, wish.frames)
    shipped = recorded(lab.default(), shape)
    timing = lab.timing.get(shape) or shipped
    steps = wish.steps or (timing and timing.steps) or (shipped and shipped.steps)
    if timing is None or not steps:
        return None
    loaded = lab.models.kept(wish.model, lang)
    if loaded is not None and wish.needs_measuring(loaded.handle.calibration):
        wish = wish.measuring()
    elif ask.get("mode") == "cached" and not wish.first_alone and lab.references.get(wish) is not None:
        wish = alone(wish)
    told = [
        seconds(timing, lane, source if source is not None and source.model == wish.model else None)
        for lane in wish.lanes
    ]
    if None in told:
        return None
    return round(sum(steps * each + timing.fixed for each in told), 1)


def alone(wish: RunWish) -> RunWish:
    """The same without the lane beside it."""
    return RunWish(**{**vars(wish), "lanes": wish.lanes[-1:]})


def seconds(timing: Timing, lane: LaneWish, source: Source | None) -> float | None:
    """Seconds a step of one lane: as measured, else as the replay on `source` foresees it from the policy timed
    last."""
    if lane.probe:
        return timing.probe
    measured = timing.policies.get(lane.policy)
    if measured is not None or not timing.policies:
        return measured
    if lane.is_reference:
        return max(timing.policies.values())
    known = list(timing.policies)[-1]
    change = ratio(source, known, lane.policy) if source is not None else math.nan
    return timing.policies[known] * (change if math.isfinite(change) else 1.0)


def ratio(source: Source, known: Policy, wished: Policy) -> float:
    """The time of all blocks under one policy against another, on the same recorded signals; NaN where those do not
    tell."""
    speeds = cost.measure_speeds(*[t for t in (source.trace, source.reference) if t is not None])
    # What a policy settles by itself is set against what was measured, an estimate against an estimate.
    own = source.trace if fixed(wished) or fixed(known) else looks.own_replay(source)
    traces = [
        own if policy == source.policy else looks.drawn(source, policy, {}, "draft").shown for policy in (known, wished)
    ]
    if any(trace.meta.replay == "partial" for trace in traces):
        return math.nan
    before, after = (estimate_seconds(trace, speeds) for trace in traces)
    return after / before if before else math.nan


def recorded(source: Source | None, shape: Shape) -> Timing | None:
    """The times of a recorded race, until this machine has its own; None for another model or size."""
    if source is None or not source.race or shape.model != EMBEDDED_NAME:
        return None
    meta = source.trace.meta
    if any(given not in (None, own) for given, own in zip(shape[1:], (meta.height, meta.width, meta.frames))):
        return None
    timing = Timing()
    for pane, policy in (("a", STOCK), ("b", source.policy)):
        times = source.race["panes"][pane]["times"]
        timing.take(policy, False, times, source.race["panes"][pane]["seconds"])
        timing.steps = len(times)
    return timing
