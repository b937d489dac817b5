"""One forward of a transformer: obeys a plan that was made before it began, and measures.

The plan names every block's decision, so nothing waits for the device on the way. Only the
outlier rule is of the moment: it looks at the input that a layer is about to read. On a CPU that
is a branch. On a GPU a fused block settles it on the device (`engine.fused`); the plain path waits
for the device once per group of a refreshing block.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, Sequence

import torch

from kernels import quantized_linear
from kernels.residual import apply_delta, extrapolate_delta, residual_delta

from . import fused, fused_cpu, measure
from . import policy as rules
from .block import Place, streams_in
from .deltas import DeviceDeltas, HostDeltas
from .linear import Group
from .position import Position
from .records import BlockState, GroupDecision

PROBE_DRIFTS = 3
_QUANTIZED = ("nvfp4", "int8")


class Track:
    """What one branch of one transformer remembers from step to step.

    signature: shape, dtype and device of its input; another one means another track.
    deltas: one cached delta per residual stream of each block.
    """

    def __init__(self, signature: tuple, blocks: int, deltas: DeviceDeltas | HostDeltas):
        self.signature, self.deltas = signature, deltas
        self.states = [BlockState() for _ in range(blocks)]
        self.macs: dict[tuple[int, str], int] = {}


class _Pending:
    """Outputs of a group's other members, computed with the first one, until they are asked for."""

    def __init__(self, group: Group, x: torch.Tensor, outputs: dict[int, torch.Tensor]):
        self.group, self.x, self.outputs = group, x, outputs


class Evaluation:
    """run: whose policy and options hold. plan: one BlockDecision per block. track: the history."""

    def __init__(self, run, position: Position, plan: Sequence, track: Track, workspace):
        self.position, self.started, self.started_cpu = position, time.perf_counter(), time.process_time()
        self._run, self._policy, self._probe = run, run.policy, run.probe
        self._plan, self._track, self._workspace = plan, track, workspace
        self._gather = measure.Gather()
        self._groups: dict[tuple[int, str], GroupDecision] = {}
        self._clocks: dict[int, Callable[[], float]] = {}
        self._pending: _Pending | None = None
        self._undecided: list[tuple[int, str]] = []

    def block(self, place: Place, forward: Callable, args: tuple, kwargs: dict):
        """Y of one block: X + Δ_cached once per stream if it is skipped, else its own forward."""
        index, decision = place.index, self._plan[place.index]
        inputs = streams_in(place, args, kwargs)
        clock = _Clock(inputs[0].device)
        if decision.skipped:
            outputs = self._reuse(index, inputs)
            result = tuple(outputs) if len(outputs) > 1 else outputs[0]
        else:
            result = self._compute(place, forward, args, kwargs)
            self._pending = None
            outputs = result if isinstance(result, tuple) else (result,)
            self._measure(
                index, decision.refreshed, [x.detach() for x in inputs], [y.detach() for y in outputs]
            )
        self._clocks[index] = clock.stop()
        return result

    def _reuse(self, index: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._policy.extrapolation == 0.0:
            _, deltas = self._track.deltas.latest(index)
            return [apply_delta(x, delta) for x, delta in zip(inputs, deltas)]
        (step, newest), (before, older) = self._track.deltas.history(index)[:2]
        weight = rules.extrapolation_weight(self._policy, self.position.step - step, step - before)
        return [extrapolate_delta(x, *pair, weight) for x, *pair in zip(inputs, newest, older)]

    def _compute(self, place: Place, forward: Callable, args: tuple, kwargs: dict):
        if self._probe or self._policy.precision == "stock":
            return forward()
        module, groups, names = self._run.owner.anatomy(place.model, place.index)
        kwargs = {**dict(zip(names, args)), **kwargs}
        for way in (fused, fused_cpu):
            if way.applies(module, groups, kwargs, kwargs[place.streams[0][0]]):
                return way.cogvideox_block(self, module, groups, **kwargs)
        return forward()

    @property
    def policy(self):
        """The policy that decides."""
        return self._policy

    @property
    def workspace(self):
        """Memory for unpacked weights."""
        return self._workspace

    def planned(self, group: Group) -> GroupDecision:
        """What was decided for a group before the step began; PDR may still purify it."""
        return self._plan[group.block].groups[group.name]

    def purifiable(self, group: Group) -> bool:
        """Whether PDR has a say in this group at this step: r is measured, and lifts what `rules.purifiable` names."""
        planned = self.planned(group)
        return self._policy.pdr and self._plan[group.block].refreshed and planned.precision in _QUANTIZED

    def settle(
        self, group: Group, decision: GroupDecision | None, rows: int, ratio: torch.Tensor | None = None
    ) -> None:
        """Note what a fused block did with a group: its decision, or None while the verdict that hangs on `ratio`
        (r, 0-dim, on the device) is not on the host yet. rows: tokens of all samples."""
        key = (group.block, group.name)
        self._track.macs[key] = rows * group.macs_per_token
        if decision is not None:
            self._groups[key] = decision
        if ratio is not None:
            self._gather.add((*key, "ratio"), ratio)
            self._undecided.append(key)

    def linear(self, group: Group, member: int, x: torch.Tensor) -> torch.Tensor:
        """One member's product (…, K) -> (…, N); the first of a group computes for all."""
        if group.static:
            if self._policy.precision == "stock":
                return group.members[member].stock(x)
            return quantized_linear(x.detach(), group.packed, group.bias, "w4a16", workspace=self._workspace)
        pending = self._pending
        if pending is not None and pending.group is group and pending.x is x and member in pending.outputs:
            return pending.outputs.pop(member)
        decision = self._decide(group, x)
        if decision.precision == "stock":
            return group.members[member].stock(x)
        # Quantization has no gradient: a call without no_grad gets numbers, not a graph.
        products = quantized_linear(
            x.detach(), group.packed, group.bias, decision.precision, workspace=self._workspace
        )
        if len(group.members) == 1:
            return products
        outputs = dict(enumerate(products.split(group.sizes, dim=-1)))
        mine = outputs.pop(member)
        self._pending = _Pending(group, x, outputs)
        return mine

    def finish(self, recorder) -> None:
        """Read all signals in one transfer, advance every block's state, write the trace rows.

        Raises RuntimeError naming the step and the block if a block's numbers are not finite.
        """
        timestep = self.position.timestep
        if isinstance(timestep, torch.Tensor):
            self._gather.add("timestep", timestep.max())
            timestep = None
        signals = self._gather.read()
        timestep = signals["timestep"][0] if timestep is None else float(timestep or 0.0)
        self._check(signals)
        for index, name in self._undecided:
            ratio = signals[index, name, "ratio"][0]
            self._groups[index, name] = rules.purify(self._policy, self._plan[index], name, ratio)
        for index, decision in enumerate(self._plan):
            gamma = signals.get((index, "gamma"), [None])[0]
            change = signals.get((index, "drift"), [None])[0]
            if recorder is not None:
                self._record(recorder, index, decision, signals, timestep)
            self._track.states[index] = rules.advance(
                self._policy, self._track.states[index], decision, gamma, change
            )

    def _decide(self, group: Group, x: torch.Tensor) -> GroupDecision:
        key, x = (group.block, group.name), x.detach()
        known = self._groups.get(key)
        if known is not None:
            return known
        block = self._plan[group.block]
        decision = block.groups[group.name]
        self._track.macs[key] = x.numel() // x.shape[-1] * group.macs_per_token
        purifiable = self.purifiable(group)
        if purifiable or self._probe:
            ratio = measure.worst_outlier_ratio(x)
            self._gather.add((*key, "ratio"), ratio)
            if purifiable:
                decision = rules.purify(self._policy, block, group.name, float(ratio))
        if self._probe:
            self._gather.add(
                (*key, "errors"),
                measure.activation_errors(x, group.packed, group.sizes, self._workspace),
            )
            self._gather.add((*key, "sample"), measure.worst_block(x))
        self._groups[key] = decision
        return decision

    def _measure(self, index: int, refreshed: bool, inputs, outputs) -> None:
        if not (refreshed or self._probe):
            stats = [measure.stream_change(x, y) for x, y in zip(inputs, outputs)]
            self._gather.add((index, "gamma"), measure.gamma(stats))
            return
        newest = self._track.deltas.latest(index)
        previous = newest[1] if newest else [None] * len(inputs)
        fresh, stats = [], []
        for x, y, cached in zip(inputs, outputs, previous):
            delta, sums = residual_delta(x, y, cached)
            fresh.append(delta)
            stats.append(sums)
        self._gather.add((index, "gamma"), measure.gamma(stats))
        if newest:
            self._gather.add((index, "drift"), measure.drift(stats))
        step = self.position.step
        if self._probe:
            for age, deltas in ((step - then, deltas) for then, deltas in self._track.deltas.history(index)):
                if age <= PROBE_DRIFTS:
                    sums = [residual_delta(x, y, d)[1] for x, y, d in zip(inputs, outputs, deltas)]
                    self._gather.add((index, f"drift_{age}"), measure.drift(sums))
        kept = PROBE_DRIFTS if self._probe else 2 if self._policy.extrapolation > 0.0 else 1
        self._track.deltas.push(index, step, fresh, kept)

    def _check(self, signals: dict) -> None:
        for index in range(len(self._plan)):
            gamma = signals.get((index, "gamma"), [0.0])[0]
            if gamma - gamma != 0.0:
                position = self.position
                dtype = str(self._track.signature[1]).removeprefix("torch.")
                cause = "check what goes in (the image, the latents) and the weights"
                if dtype == "float16":
                    cause = "the numbers overflowed; run this model in bfloat16 or float32"
                raise RuntimeError(
                    f"NaN at step {position.step}, block {index} of the {position.model}, in {dtype}: {cause}."
                )

    def _record(self, recorder, index: int, decision, signals: dict, timestep: float) -> None:
        position = self.position
        where = {
            "call": position.call, "model": position.model, "branch": position.branch,
            "step": position.step, "block": index,
        }
        signal = {name: signals[index, name][0] for name in _BLOCK_SIGNALS if (index, name) in signals}
        if "drift" in signal:
            signal["delta_change"] = signal.pop("drift")
        recorder.block(
            **where, steps=position.steps, timestep=timestep, milliseconds=self._clocks[index](),
            **{**decision.row(), **signal},
        )
        for name, planned in decision.groups.items():
            taken = self._groups.get((index, name), planned)
            ratio = signals.get((index, name, "ratio"))
            if ratio is not None:
                taken = replace(taken, outlier_ratio=ratio[0])
            row = {"macs": float(self._track.macs.get((index, name), float("nan")))}
            errors = signals.get((index, name, "errors"))
            if errors is not None:
                row.update(error_nvfp4=errors[0], error_int8=errors[1])
            sample = signals.get((index, name, "sample"))
            if sample is not None:
                row.update(sample=sample, sample_absmax=max(abs(value) for value in sample))
            recorder.layer(**where, layer=name, **taken.row(), **row)


_BLOCK_SIGNALS = ("gamma", "drift", *(f"drift_{age}" for age in range(1, PROBE_DRIFTS + 1)))


class _Clock:
    """Milliseconds of a stretch of work: wall time on a CPU, device events on a GPU, read later."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        if self._cuda:
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._begin.record()
        else:
            self._begin = time.perf_counter()

    def stop(self) -> Callable[[], float]:
        """End the stretch; the returned function tells its length once the device got there."""
        if self._cuda:
            self._end.record()
            return self._elapsed
        elapsed = (time.perf_counter() - self._begin) * 1000.0
        return lambda: elapsed

    def _elapsed(self) -> float:
        self._end.synchronize()
        return self._begin.elapsed_time(self._end)
