"""One run: the only place where anything mutable lives while a pipeline is called.

    with record(pipe, Policy.preset("sixbit")) as run:
        pipe("a large red circle moves right on a black background")
    run.trace, run.report

The attached modules are shared by everybody and never change; they look up the active run of
their own thread and ask it. So two threads with two runs on one model do not meet, and a run
that ended, failed or was cancelled leaves nothing behind. Two *stock* calls on one pipeline
already disturb each other through its scheduler: `shell(pipe)` gives each run a pipeline of its
own around the same weights.
"""

from __future__ import annotations

import copy
import datetime
import functools
import inspect
import platform
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Callable, Iterator, NamedTuple

import torch

from . import policy as rules
from .deltas import DeviceDeltas, HostDeltas
from .evaluation import Evaluation, Track
from .families import transformers_of
from .position import Position, Tracker
from .records import BlockDecision, Calibration, check_calibration
from .settings import check_policy
from .trace import Recorder, Trace, TraceMeta

_ACTIVE = threading.local()
_ENCODING = threading.Lock()
OWNER = "_sixbit_attachment"


class StepRecord(NamedTuple):
    """One model evaluation, as `on_step` receives it: position, its trace rows, wall seconds, the process's CPU
    seconds meanwhile."""

    model: str
    branch: str
    step: int
    steps: int
    timestep: float
    blocks: "pandas.DataFrame"  # noqa: F821
    layers: "pandas.DataFrame"  # noqa: F821
    seconds: float
    cpu_seconds: float


class Run:
    """The state of one run: block histories, cached deltas, the evaluation in progress.

    owner: the attachment of the transformers. policy, calibration: what decides.
    probe: also measure what the decisions would have needed and would have cost.
    recorder: collects the trace, or None for plain calls of an attached pipeline, whose `tracker` their thread keeps.
    on_step: called with a StepRecord after every model evaluation, on the run's own thread.
    overrule: see `record`.
    """

    def __init__(
        self, owner, pipe, policy, calibration=None, *, probe=False, recorder=None, on_step=None, overrule=None,
        tracker=None,
    ):  # fmt: skip
        self.owner, self.policy, self.calibration, self.probe = owner, policy, calibration, probe
        self._recorder, self._on_step, self._overrule = recorder, on_step, overrule
        self._tracker = Tracker(pipe, owner.family) if tracker is None else tracker
        self._tracks: dict[tuple[str, str], Track] = {}
        self._evaluation: Evaluation | None = None
        self._workspace = owner.workspace()
        self._known_lines: dict[str, list[dict]] = {}
        self._mark, self._steps = (0, 0), 0
        self._cache_bytes = self._host_bytes = 0

    @property
    def calls(self) -> int:
        """How many pipeline calls this run has seen."""
        return self._tracker.calls

    @property
    def under_way(self) -> bool:
        """Whether a pipeline call has begun and neither ended nor let go of its prompt."""
        return bool(self._tracks)

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""
        return self._recorder.trace(steps=self._steps)

    @property
    def report(self):
        """The trace's summary (`engine.cost.Report`)."""
        return self.trace.report

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by part: "packed" and "originals" of the weights, the largest delta "cache" so far, what of
        it waited in host memory ("cache_host"), and the unpacked weights of the "workspace"."""
        cache = {"cache": self._cache_bytes, "cache_host": self._host_bytes}
        return {**self.owner.nbytes, **cache, "workspace": self._workspace.nbytes}

    def describe(self, **meta) -> None:
        """Put what only the caller knows (seed, prompt, guidance, seconds…) into the trace's meta."""
        self._recorder.meta = replace(self._recorder.meta, **meta)

    def announce(self, branch: str | None) -> None:
        """The branch name that the pipeline gives to its next forwards."""
        self._tracker.announce(branch)

    def enter(self, model: str, arguments: dict, position: Position | None = None) -> None:
        """A transformer forward begins: find the position where it is not given, plan every block of it at once."""
        if position is None:
            position = self._tracker.enter(model, arguments)
        self._steps = position.steps
        if position.new_call:
            self._tracks.clear()
        # Wan 2.2 never comes back to its first transformer: its deltas are dead weight.
        for key in [key for key in self._tracks if key[1] == position.branch and key[0] != model]:
            del self._tracks[key]
        sample = arguments["hidden_states"]
        signature = (tuple(sample.shape), sample.dtype, sample.device)
        track = self._tracks.get((model, position.branch))
        if track is None or track.signature != signature:
            track = self._tracks[model, position.branch] = self._new_track(signature, self.owner.blocks(model))
        plan = rules.plan(self.policy, track.states, position.step, position.steps, self._lines(model))
        if self._overrule is not None:
            plan = self._overrule(position, plan)
        self._evaluation = Evaluation(self, position, plan, track, self._workspace)

    def leave(self) -> None:
        """A transformer forward is over: read its signals, advance the states, record.

        Raises RuntimeError if a block's numbers are not finite.
        """
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None:  # a run that began while the forward was under way
            return
        position = evaluation.position
        evaluation.finish(self._recorder)
        self._cache_bytes = max(self._cache_bytes, sum(track.deltas.nbytes for track in self._tracks.values()))
        self._host_bytes = max(self._host_bytes, sum(track.deltas.host_nbytes for track in self._tracks.values()))
        if position.step + 1 >= position.steps:
            self._tracks.pop((position.model, position.branch), None)
        if self._on_step is not None:
            blocks, layers, self._mark = self._recorder.since(self._mark)
            timestep = float(blocks["timestep"].iloc[-1]) if len(blocks) else float("nan")
            self._on_step(
                StepRecord(
                    position.model, position.branch, position.step, position.steps, timestep, blocks,
                    layers, time.perf_counter() - evaluation.started, time.process_time() - evaluation.started_cpu,
                )
            )

    def block(self, place, forward, args, kwargs):
        """A block's forward: skip it or compute it, as planned."""
        if self._evaluation is None:
            return forward()
        return self._evaluation.block(place, forward, args, kwargs)

    def linear(self, group, member: int, x: torch.Tensor) -> torch.Tensor:
        """A linear's forward, (…, K) -> (…, N), in the precision decided for its group."""
        if self._evaluation is None:
            return group.members[member].stock(x)
        return self._evaluation.linear(group, member, x)

    def _new_track(self, signature: tuple, blocks: int) -> Track:
        device = signature[-1]
        on_host = self.owner.cache == "host" and device.type == "cuda" and not self.probe
        return Track(signature, blocks, HostDeltas(blocks, device) if on_host else DeviceDeltas(blocks))

    def forget(self) -> None:
        """Drop all state: histories, deltas, an evaluation that did not end."""
        self._tracks.clear()
        self._evaluation = None
        self._tracker.announce(None)

    def _lines(self, model: str) -> list[dict]:
        if model not in self._known_lines:
            names = self.owner.family.groups
            fitted = self.calibration.for_block if self.calibration is not None else lambda *_: {}
            found = [fitted(model, block) for block in range(self.owner.blocks(model))]
            self._known_lines[model] = [{name: lines.get(name) for name in names} for lines in found]
        return self._known_lines[model]


def recorded(owner) -> Run | None:
    """The run that is recorded on this thread, if it is one of `owner`."""
    run = getattr(_ACTIVE, "run", None)
    return run if run is not None and run.owner is owner else None


def attachment_of(pipe):
    """The attachment of a pipeline's transformers (shared by all pipelines around them), or None."""
    for model in transformers_of(pipe).values():
        found = getattr(model, OWNER, None)
        if found is not None:
            return found
    return None


@contextmanager
def record(
    pipe,
    policy,
    *,
    probe: bool = False,
    calibration: Calibration | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    overrule: Callable[[Position, list[BlockDecision]], list[BlockDecision]] | None = None,
) -> Iterator[Run]:
    """Run `pipe(...)` calls under `policy` and keep a trace of every decision.

    pipe: an attached diffusers pipeline. probe: measure e₄, e₈, r, real samples and drifts too;
    several times slower, outputs unchanged. calibration: instead of the attachment's own.
    on_step: called after every model evaluation with a `StepRecord`.
    overrule: given the position and the policy's decisions for all blocks, returns the decisions to
        follow: for sensitivity studies and for timing a schedule on weights whose signals mean nothing.

    Yields the `Run`, whose `trace` and `report` stay readable afterwards. Only calls on the same
    thread take part. Raises ValueError for a policy or calibration that is none, RuntimeError if the
    pipeline is not attached, if a run is recorded on this thread already, or if the policy needs
    16-bit weights that were dropped.
    """
    owner = attachment_of(pipe)
    if owner is None:
        raise RuntimeError(f"This {type(pipe).__name__} is not attached; call attach(pipe) once, then record.")
    if getattr(_ACTIVE, "run", None) is not None:
        raise RuntimeError("A run is being recorded on this thread already; end it before the next one starts.")
    check_policy(policy)
    if calibration is None:
        calibration = owner.calibration
    else:
        check_calibration(calibration)
    owner.check(policy)
    meta = _meta(pipe, owner, policy, calibration, probe)
    run = Run(
        owner, pipe, policy, calibration, probe=probe, recorder=Recorder(meta), on_step=on_step, overrule=overrule
    )
    with owner.held():
        _ACTIVE.run = run
        try:
            yield run
        finally:
            _ACTIVE.run = None
            run.forget()


def shell(pipe):
    """A pipeline of the same class around the same weights, with a scheduler of its own.

    Costs about a millisecond and no memory. Give every concurrent run one, call it inside
    `record(shell, …)`, and let it go afterwards.
    """
    parts = {**pipe.components, "scheduler": copy.deepcopy(pipe.scheduler)}
    if "vae" in parts and "_hf_hook" not in parts["vae"].__dict__:
        # Wan's autoencoder keeps feature maps on itself while it works; a shallow copy has its own.
        parts["vae"] = copy.copy(parts["vae"])
    names = inspect.signature(type(pipe).__init__).parameters
    options = {name: pipe.config[name] for name in names if name in pipe.config and name not in parts}
    other = type(pipe)(**parts, **options)
    other.set_progress_bar_config(**getattr(pipe, "_progress_bar_config", {}))
    if hasattr(other, "encode_prompt"):
        other.__dict__["encode_prompt"] = _one_at_a_time(other)
    return other


def _one_at_a_time(pipe):
    """The pipeline's `encode_prompt` for shells: a tokenizer keeps the padding of the call before on itself, so that
    two threads in it get each other's lengths."""
    this, encode = weakref.ref(pipe), type(pipe).encode_prompt

    @functools.wraps(encode)
    def encode_prompt(*args, **kwargs):
        with _ENCODING:
            return encode(this(), *args, **kwargs)

    return encode_prompt


def _meta(pipe, owner, policy, calibration, probe: bool) -> TraceMeta:
    transformer = next(iter(transformers_of(pipe).values()))
    libraries = ("torch", "diffusers", "transformers")
    return TraceMeta(
        model=owner.name, family=owner.family.name, policy=policy.to_dict(), calibration=calibration,
        dtype=str(transformer.dtype).removeprefix("torch."), device=str(transformer.device),
        versions={"python": platform.python_version(), **{name: version(name) for name in libraries}},
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), probe=probe,
    )
