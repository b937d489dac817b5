"""Which layers mind being quantized? One group at a time, everything else in 16 bits, at the model's own output.

`sensitivity` replays single transformer evaluations that a stock run came through: the local error e₄ that the
predictor forecasts is measured at the layer, this one at the end of the network, where it counts. `output_errors` does
the same on an attached pipeline, at `Moments` of a recorded call. `rotation` measures at the layers what the Hadamard
rotation does, with weights packed with and without it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from engine.families import family_of, find, transformers_of
from engine.position import Position
from engine.records import BlockDecision, GroupDecision
from engine.settings import PRESETS
from kernels import PackedWeight, Workspace, concat_packed, pack_weight, quantized_linear

PRECISIONS = ("nvfp4", "int8", "w4a16")
WEIGHING = ("nvfp4", "w4a16")
"""What weights follow from (`engine.probes.sensitive_lines`): a group at 4 bits, less its packed weight alone."""
MOMENTS = 3


def groups_of(pipe) -> Iterable[tuple[int, str, list[nn.Linear]]]:
    """(block, group, member linears) of the pipeline's first transformer, in the order in which they run."""
    family = family_of(pipe)
    for index, block in enumerate(getattr(pipe.transformer, family.blocks)):
        for name, paths in family.groups.items():
            yield index, name, [find(block, path) for path in paths]


@contextmanager
def _capture(pipe, steps: Sequence[int], taken: list):
    """Keep the transformer's arguments at these evaluations of the calls made inside."""
    count = [0]

    def keep(module, args, kwargs):
        if count[0] in steps:
            taken.append((count[0], args, dict(kwargs)))
        count[0] += 1

    handle = pipe.transformer.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield taken
    finally:
        handle.remove()


@torch.no_grad()
def sensitivity(pipe, call, steps: Sequence[int], precisions: Sequence[str] = PRECISIONS) -> pd.DataFrame:
    """Relative output error of the whole transformer with one group quantized.

    Args:
        pipe: a stock pipeline (not attached).
        call: a function that runs the pipeline once.
        steps: model evaluations to look at, from 0.
        precisions: of the group's activations; its weights are packed NVFP4 in all of them.

    Returns columns model, block, layer, step, precision, output_error: ‖f_q − f‖ / ‖f‖ of the predicted noise.
    """
    taken: list = []
    with _capture(pipe, set(steps), taken):
        call()
    rows, workspace = [], Workspace()

    def output(args, kwargs):
        found = pipe.transformer(*args, **kwargs)
        return (found[0] if isinstance(found, tuple) else found.sample).float()

    exact = [output(args, kwargs) for _, args, kwargs in taken]
    for block, name, members in groups_of(pipe):
        packed = [pack_weight(member.weight.detach()) for member in members]
        for precision in precisions:
            with _quantized(members, packed, precision, workspace):
                for (step, args, kwargs), target in zip(taken, exact, strict=True):
                    error = (output(args, kwargs) - target).norm() / target.norm().clamp_min(1e-20)
                    rows.append(("transformer", block, name, step, precision, error))
        workspace.clear()
    table = pd.DataFrame(rows, columns=["model", "block", "layer", "step", "precision", "output_error"])
    table["output_error"] = torch.stack(list(table["output_error"])).tolist()
    return table


class Moments:
    """A few evaluations of each transformer in the first call of a recorded run, with their arguments, to be run again.

    Evenly spread over the steps; of a step that evaluates more than once (guidance in two forwards) the first. A
    transformer that has none of those steps (one of Wan 2.2) gives its first evaluation.

        moments = Moments(pipe)
        with moments.watched() as follow, record(pipe, PRESETS["fp16"], overrule=follow):
            pipe(...)
    """

    def __init__(self, pipe, count: int = MOMENTS):
        self._pipe, self._count = pipe, count
        self._position: Position | None = None
        self._thread: int | None = None
        self._spread: dict[str, dict[int, tuple]] = {}
        self._first: dict[str, dict[int, tuple]] = {}

    @contextmanager
    def watched(self) -> Iterator[Callable[[Position, list[BlockDecision]], list[BlockDecision]]]:
        """Keep arguments of the calls made inside. Yields the `overrule` to record them with, which changes nothing."""
        handles = [
            model.register_forward_pre_hook(self._keep, with_kwargs=True)
            for model in transformers_of(self._pipe).values()
        ]
        try:
            yield self._follow
        finally:
            for handle in handles:
                handle.remove()

    @property
    def taken(self) -> dict[str, dict[int, tuple]]:
        """Transformer slot -> step -> (args, kwargs)."""
        return {slot: self._spread.get(slot, first) for slot, first in self._first.items()}

    def evaluations(self, groups: Sequence, precisions: Sequence[str] = WEIGHING) -> int:
        """How many evaluations `output_errors` makes for these dynamic `Group`s at these precisions."""
        share = {slot: 1 + len(precisions) * sum(group.model == slot for group in groups) for slot in self.taken}
        return sum(len(steps) * share[slot] for slot, steps in self.taken.items())

    def _follow(self, position: Position, plan: list[BlockDecision]) -> list[BlockDecision]:
        self._position, self._thread = position, threading.get_ident()
        return plan

    def _keep(self, module, args, kwargs) -> None:
        if threading.get_ident() != self._thread:          # another run's call of the same model
            return
        position, self._position = self._position, None
        if position is None or position.call:
            return
        wanted = {round((n + 0.5) * position.steps / self._count - 0.5) for n in range(self._count)}
        if position.step in wanted:
            self._spread.setdefault(position.model, {}).setdefault(position.step, (args, dict(kwargs)))
        self._first.setdefault(position.model, {position.step: (args, dict(kwargs))})


@torch.no_grad()
def output_errors(
    pipe, moments: Moments, precisions: Sequence[str] = WEIGHING, progress: Callable[[int, int], None] | None = None
) -> pd.DataFrame:
    """`sensitivity` of an attached pipeline, of all its transformers, at the moments kept from a run.

    progress: called as progress(done, total) after each evaluation. Other threads' runs of the same model go on
    undisturbed. Returns the columns of `sensitivity`. Raises RuntimeError where the 16-bit weights were dropped, or if
    numbers come out that are not finite.
    """
    from engine.run import attachment_of, record

    groups = [group for _, group in attachment_of(pipe).groups if not group.static]
    total, rows = moments.evaluations(groups, precisions), []

    def outputs(slot: str, overrule=None) -> list[torch.Tensor]:
        found = []
        with record(pipe, PRESETS["fp16"], overrule=overrule) as run:
            run.announce("sensitivity")  # outside a pipeline's call nobody else names the branch
            for args, kwargs in moments.taken[slot].values():
                made = getattr(pipe, slot)(*args, **kwargs)
                found.append((made[0] if isinstance(made, tuple) else made.sample).float())
                progressed[0] += 1
                if progress is not None:
                    progress(progressed[0], total)
        return found

    progressed = [0]
    for slot, steps in moments.taken.items():
        exact = outputs(slot)
        for group in (group for group in groups if group.model == slot):
            for precision in precisions:
                for step, made, target in zip(steps, outputs(slot, _only(group, precision)), exact, strict=True):
                    error = (made - target).norm() / target.norm().clamp_min(1e-20)
                    rows.append((slot, group.block, group.name, step, precision, error))
    table = pd.DataFrame(rows, columns=["model", "block", "layer", "step", "precision", "output_error"])
    table["output_error"] = torch.stack(list(table["output_error"])).tolist() if rows else []
    return table


def _only(group, precision: str) -> Callable[[Position, list[BlockDecision]], list[BlockDecision]]:
    """An overrule that quantizes one group and leaves all else to the policy."""
    chosen = GroupDecision(precision, "policy", "forced precision")

    def overrule(position: Position, plan: list[BlockDecision]) -> list[BlockDecision]:
        block = plan[group.block]
        changed = replace(block, groups={**block.groups, group.name: chosen})
        return [*plan[: group.block], changed, *plan[group.block + 1 :]]

    return overrule


@torch.no_grad()
def rotation(pipe, call, steps: Sequence[int]) -> pd.DataFrame:
    """What the rotation does at each group: relative error of the product with the 16-bit weights.

    Returns columns model, block, layer, step, quantized ("activations", "weights", "both"), precision, rotated,
    error; the worst member of a group speaks for it. "weights" is what packing alone costs (precision "w4a16").
    """
    inputs: dict[tuple[int, str], list[torch.Tensor]] = {}
    handles, count = [], [-1]
    found = list(groups_of(pipe))

    def evaluation(module, args, kwargs):
        count[0] += 1

    def keep(key):
        def hook(module, args):
            if count[0] in set(steps):
                inputs.setdefault(key, []).append(args[0].detach())

        return hook

    handles.append(pipe.transformer.register_forward_pre_hook(evaluation, with_kwargs=True))
    for block, name, members in found:
        handles.append(members[0].register_forward_pre_hook(keep((block, name))))
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    rows = []
    for block, name, members in found:
        weight = torch.cat([member.weight.detach() for member in members])
        sizes = [member.out_features for member in members]
        versions = {
            rotated: concat_packed(
                [pack_weight(member.weight.detach(), hadamard=None if rotated else 1) for member in members]
            )
            for rotated in (True, False)
        }
        for step, x in zip(sorted(set(steps)), inputs.get((block, name), [])):
            exact = F.linear(x, weight).float()
            for rotated, packed in versions.items():
                clean = quantized_linear(x, packed, None, "w4a16").float()
                rows.append(("weights", "w4a16", block, name, step, rotated, _error(clean, exact, sizes)))
                for precision in ("nvfp4", "int8"):
                    noisy = quantized_linear(x, packed, None, precision).float()
                    rows.append(("activations", precision, block, name, step, rotated, _error(noisy, clean, sizes)))
                    rows.append(("both", precision, block, name, step, rotated, _error(noisy, exact, sizes)))
    table = pd.DataFrame(rows, columns=["quantized", "precision", "block", "layer", "step", "rotated", "error"])
    table["error"] = torch.stack(list(table["error"])).tolist() if rows else []
    return table.assign(model="transformer")


@contextmanager
def _quantized(members: Sequence[nn.Linear], packed: Sequence[PackedWeight], precision: str, workspace: Workspace):
    def replacement(weight, bias):
        return lambda x: quantized_linear(x, weight, bias, precision, workspace=workspace)

    try:
        for member, weight in zip(members, packed, strict=True):
            member.forward = replacement(weight, member.bias)
        yield
    finally:
        for member in members:
            member.__dict__.pop("forward", None)


def _error(value: torch.Tensor, target: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    parts = zip(value.split(list(sizes), -1), target.split(list(sizes), -1))
    return torch.stack([(a - b).norm() / b.norm().clamp_min(1e-20) for a, b in parts]).max()
