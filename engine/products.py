"""Products of layer groups whose input is quantized on the way, for fused blocks.

The plain path quantizes inside a linear layer; a fused block quantizes where the input is made, so the decision comes
first and the activation is made to fit. PDR's verdict depends on that very activation. Asking for it on the host would
stall every block, so it stays on the device: both routes are launched, the one that is not meant returns at once, and
`Evaluation.finish` reads the outlier ratios with all other signals and lets `policy.purify` name what happened.
"""

from __future__ import annotations

import torch

from kernels import linear_w4a4, linear_w4a8, quantized_linear, target
from kernels.outlier_predicate import outlier_predicate

from . import policy as rules

_LINEAR = {"int8": linear_w4a8, "nvfp4": linear_w4a4}


def product(evaluation, group, make, dtype: torch.dtype) -> torch.Tensor:
    """x Ŵᵀ + bias of all members of `group`, (batch, tokens, ΣN) in `dtype`.

    make: called with "int8" or "nvfp4" for the group's input (batch, tokens, K) as an activation, with None for the
    input itself.
    """
    decision = evaluation.planned(group)
    if decision.precision == "w4a16":
        x = make(None)
        evaluation.settle(group, decision, x.numel() // x.shape[-1])
        return quantized_linear(x, group.packed, group.bias, "w4a16", workspace=evaluation.workspace)
    act = make(decision.precision)
    rows = act.codes.shape[0]
    linear = _LINEAR[decision.precision]
    if not evaluation.purifiable(group):
        evaluation.settle(group, decision, rows)
        return linear(act, group.packed, group.bias, dtype, evaluation.workspace)
    verdict = outlier_predicate(
        act.absmax, act.abssum, act.shape[0], group.in_features, evaluation.policy.outlier_threshold
    )
    evaluation.settle(group, None, rows, ratio=verdict.ratio.max())
    if decision.precision not in rules.purifiable(evaluation.policy):
        return linear(act, group.packed, group.bias, dtype, evaluation.workspace)
    lifted = evaluation.policy.purify_to
    if not target.probe(act.codes.device).triton:
        if int(verdict.flag):
            if lifted == "int8":
                return linear_w4a8(make("int8"), group.packed, group.bias, dtype, evaluation.workspace)
            return quantized_linear(make(None), group.packed, group.bias, "w4a16", workspace=evaluation.workspace)
        return linear(act, group.packed, group.bias, dtype, evaluation.workspace)
    from kernels.linear_w4a4_triton import linear_w4a4_triton
    from kernels.linear_w4a8_triton import linear_w4a8_triton
    from kernels.linear_w4a16_triton import linear_w4a16_triton

    out = torch.empty((rows, sum(group.sizes)), dtype=dtype, device=act.codes.device)
    low = linear_w4a8_triton if decision.precision == "int8" else linear_w4a4_triton
    low(act, group.packed, group.bias, dtype, evaluation.workspace, when=(verdict.flag, 0), out=out)
    when = (verdict.flag, 1)
    if lifted == "int8":
        linear_w4a8_triton(make("int8"), group.packed, group.bias, dtype, evaluation.workspace, when=when, out=out)
    else:
        linear_w4a16_triton(make(None), group.packed, group.bias, evaluation.workspace, when=when, out=out)
    return out.view(*act.shape[:-1], -1)


def feed_forward(evaluation, up, down, make, activate, dtype: torch.dtype) -> torch.Tensor:
    """down(activate(up(x))), (batch, tokens, N) in `dtype`.

    activate: (tensor, precision or None, group) → the down projection's input, as `make` gives the up projection's.
    The hidden layer, four times the model's width, is by far the largest tensor of a block: where no verdict spans it,
    it is made for one sample after the other.
    """
    if evaluation.purifiable(down) or evaluation.purifiable(up):
        hidden = product(evaluation, up, make, dtype)
        return product(evaluation, down, lambda precision: activate(hidden, precision, down), dtype)
    first, second = evaluation.planned(up), evaluation.planned(down)
    whole = make(None if first.precision == "w4a16" else first.precision)
    shape = tuple(whole.shape)
    tokens = shape[1]
    rows = shape[0] * tokens
    evaluation.settle(up, first, rows)
    evaluation.settle(down, second, rows)
    device = (whole if isinstance(whole, torch.Tensor) else whole.codes).device
    out = torch.empty((shape[0], tokens, sum(down.sizes)), dtype=dtype, device=device)
    for sample in range(shape[0]):
        part = _rows(whole, slice(sample * tokens, (sample + 1) * tokens), (1, *shape[1:]))
        hidden = _low(part, up, first, dtype, evaluation.workspace)
        precision = None if second.precision == "w4a16" else second.precision
        out[sample] = _low(activate(hidden, precision, down), down, second, dtype, evaluation.workspace)[0]
    return out


def _low(act, group, decision, dtype, workspace):
    if isinstance(act, torch.Tensor):
        return quantized_linear(act, group.packed, group.bias, "w4a16", workspace=workspace)
    return _LINEAR[decision.precision](act, group.packed, group.bias, dtype, workspace)


def _rows(act, rows: slice, shape: tuple[int, ...]):
    """The part of an activation, or of a plain tensor, that belongs to these tokens."""
    if isinstance(act, torch.Tensor):
        return act.reshape(-1, act.shape[-1])[rows].view(shape)
    tensors = {
        name: value[rows] for name, value in act._asdict().items() if isinstance(value, torch.Tensor)
    }
    return act._replace(**tensors, shape=torch.Size(shape) if isinstance(act.shape, torch.Size) else shape)
