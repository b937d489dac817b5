"""Products of layer groups whose input is quantized on the way, for fused blocks.

The plain path quantizes inside a linear layer; a fused block quantizes where the input is made, so the decision comes
first and the activation is made to fit. PDR's verdict depends on that very activation. Asking for it on the host would
stall every block, so it stays on the device: both routes are launched, the one that is not meant returns at once, and
`Evaluation.finish` reads the outlier ratios with all other signals and lets `policy.purify` name what happened.
"""

from __future__ import annotations

import math

import torch

from kernels import linear_w4a4, linear_w4a8, quantized_linear, target
from kernels.outlier_predicate import outlier_predicate

_LINEAR = {"int8": linear_w4a8, "nvfp4": linear_w4a4}
# The product kernel's output tile on a large GPU, and about how many tokens of the hidden layer live at once.
_TILE_ROWS, _TILE_COLUMNS, _STRIP_ROWS = 128, 256, 8192


def product(evaluation, group, make, dtype: torch.dtype) -> torch.Tensor:
    """x Ŵᵀ + bias of all members of `group`, (batch, tokens, ΣN) in `dtype`.

    make: called with "int8" or "nvfp4" for the group's input (batch, tokens, K) as an activation, with None for the
    input itself. A `make` with a method `strip(rows)` makes some tokens of the flattened input, 16-bit, on its own.
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
    if not target.probe(act.codes.device).triton:
        if int(verdict.flag):
            return quantized_linear(make(None), group.packed, group.bias, "w4a16", workspace=evaluation.workspace)
        return linear(act, group.packed, group.bias, dtype, evaluation.workspace)
    from kernels.linear_w4a4_triton import linear_w4a4_triton
    from kernels.linear_w4a8_triton import linear_w4a8_triton

    out = torch.empty((rows, sum(group.sizes)), dtype=dtype, device=act.codes.device)
    low = linear_w4a8_triton if decision.precision == "int8" else linear_w4a4_triton
    low(act, group.packed, group.bias, dtype, evaluation.workspace, when=(verdict.flag, 0), out=out)
    shape = act.shape
    del act
    _purified(group, make, verdict.flag, evaluation.workspace, out)
    return out.view(*shape[:-1], -1)


def _purified(group, make, flag: torch.Tensor, workspace, out: torch.Tensor) -> None:
    """The 16-bit route into `out` (rows, ΣN), for the case that the device's `flag` is 1; strip by strip where `make`
    can, since the input itself is needed in that case only."""
    from kernels.scaled_matmul_triton import scaled_matmul
    from kernels.unpack_triton import dequantize_weight_triton

    weight = dequantize_weight_triton(group.packed, torch.bfloat16, workspace)
    strip = getattr(make, "strip", None)
    whole = None if strip is not None else make(None).reshape(len(out), -1)
    for rows in _strips(len(out), out.shape[1], out.device):
        tokens = (whole[rows] if strip is None else strip(rows)).to(torch.bfloat16)
        scaled_matmul(tokens.contiguous(), weight, None, None, group.bias, out[rows], (flag, 1))


def feed_forward(evaluation, up, down, make, activate, dtype: torch.dtype) -> torch.Tensor:
    """down(activate(up(x))), (batch, tokens, N) in `dtype`.

    activate: (tensor, precision or None, group) → the down projection's input, as `make` gives the up projection's;
    token by token, whatever the shape before the channels.
    The hidden layer, four times the model's width, is by far the largest tensor of a block: where no verdict spans it,
    only a strip of tokens of it exists at a time.
    """
    if evaluation.purifiable(down) or evaluation.purifiable(up):
        hidden = product(evaluation, up, make, dtype)
        return product(evaluation, down, _Activated(hidden, activate, down), dtype)
    first, second = evaluation.planned(up), evaluation.planned(down)
    whole = make(None if first.precision == "w4a16" else first.precision)
    shape = tuple(whole.shape)
    rows = shape[0] * shape[1]
    evaluation.settle(up, first, rows)
    evaluation.settle(down, second, rows)
    device = (whole if isinstance(whole, torch.Tensor) else whole.codes).device
    out = torch.empty((rows, sum(down.sizes)), dtype=dtype, device=device)
    spread, gather = _ready(up, first, dtype, evaluation.workspace), _ready(down, second, dtype, None)
    precision = None if second.precision == "w4a16" else second.precision
    for strip in _strips(rows, out.shape[1], device):
        hidden = spread(_rows(whole, strip, (1, strip.stop - strip.start, shape[2])))
        gather(activate(hidden, precision, down), out[strip])
    return out.view(shape[0], shape[1], -1)


class _Activated:
    """A `make` (see `product`) for the down projection, from the hidden layer before its activation."""

    def __init__(self, hidden: torch.Tensor, activate, group):
        self._hidden, self._activate, self._group = hidden, activate, group

    def __call__(self, precision: str | None):
        return self._activate(self._hidden, precision, self._group)

    def strip(self, rows: slice) -> torch.Tensor:
        """The activated 16-bit tokens (rows, K) of a slice of all tokens."""
        return self._activate(self._hidden.flatten(0, -2)[rows], None, self._group)


def _ready(group, decision, dtype: torch.dtype, workspace):
    """A product of `group` for many strips of tokens: (activation, out or None) → (…, ΣN).

    workspace: None where another product's unpacked weight must live at the same time.
    """
    if target.probe(group.packed.codes.device).triton:
        return _ready_triton(group, decision.precision, dtype, workspace)

    def run(act, out=None):
        if isinstance(act, torch.Tensor):
            made = quantized_linear(act, group.packed, group.bias, "w4a16", workspace=workspace)
        else:
            made = _LINEAR[decision.precision](act, group.packed, group.bias, dtype, workspace)
        return made if out is None else out.copy_(made.reshape(out.shape))

    return run


def _ready_triton(group, precision: str, dtype: torch.dtype, workspace):
    """`_ready` with the weight unpacked once for all strips."""
    from kernels import unpack_triton as unpack
    from kernels.linear_w4a4_triton import linear_w4a4_triton
    from kernels.scaled_matmul_triton import scaled_matmul

    packed, bias = group.packed, group.bias
    native = target.probe(packed.codes.device).native_fp4
    if precision == "int8":
        weight = unpack.int8_weight_triton(packed, workspace)
    elif precision == "w4a16":
        weight = unpack.dequantize_weight_triton(packed, dtype, workspace).T
    elif not native:
        weight = unpack.unpack_weight_triton(packed, torch.bfloat16, workspace)

    def run(act, out=None):
        tokens = act.flatten(0, -2) if precision == "w4a16" else act.codes
        if out is None:
            out = torch.empty((len(tokens), packed.shape[0]), dtype=dtype, device=tokens.device)
        if precision == "int8":
            scaled_matmul(tokens, weight, act.token_scale, packed.int8_scale, bias, out)
        elif precision == "w4a16":
            torch.mm(tokens, weight, out=out) if bias is None else torch.addmm(bias.to(dtype), tokens, weight, out=out)
        elif native:
            linear_w4a4_triton(act, packed, bias, dtype, workspace, out=out)
        else:
            values = torch.empty((len(tokens), packed.shape[1]), dtype=torch.bfloat16, device=tokens.device)
            unpack.unpack_values_triton(tokens, act.scales, values)
            scaled_matmul(values, weight, act.token_scale, packed.tensor_scale, bias, out)
        return out.view(*act.shape[:-1], -1)

    return run


def _strips(rows: int, columns: int, device: torch.device) -> list[slice]:
    """Slices of the tokens, so long that each product of `columns` outputs fills whole waves of the multiprocessors."""
    tiles = _STRIP_ROWS // _TILE_ROWS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        wave = processors // math.gcd(processors, -(-columns // _TILE_COLUMNS))
        tiles = wave * max(1, tiles // wave)
    step = tiles * _TILE_ROWS
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _rows(act, rows: slice, shape: tuple[int, ...]):
    """The part of an activation, or of a plain tensor, that belongs to these tokens."""
    if isinstance(act, torch.Tensor):
        return act.reshape(-1, act.shape[-1])[rows].view(shape)
    tensors = {
        name: value[rows] for name, value in act._asdict().items() if isinstance(value, torch.Tensor)
    }
    return act._replace(**tensors, shape=torch.Size(shape) if isinstance(act.shape, torch.Size) else shape)
