"""Products of layer groups whose input is quantized on the way, for fused blocks.

The plain path quantizes inside a linear layer; a fused block quantizes where the input is made, so the decision comes
first and the activation is made to fit. PDR's verdict depends on that very activation. Asking for it on the host would
stall every block, so it stays on the device: both routes are launched, the one that is not meant returns at once, and
`Evaluation.finish` reads the outlier ratios with all other signals and lets `policy.purify` name what happened.

Memory is what the parts are for: an input is made and multiplied for some samples, the hidden layer of the
feed-forward for some tokens at a time, and what is done with is let go before the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kernels import linear_w4a4, linear_w4a8, quantized_linear, target
from kernels.outlier_predicate import outlier_predicate

from . import policy as rules

_LINEAR = {"int8": linear_w4a8, "nvfp4": linear_w4a4}
# The product kernel's output tile on a large GPU, and about how many tokens of the hidden layer live at once.
_TILE_ROWS, _TILE_COLUMNS, _STRIP_ROWS = 128, 256, 6144


class Quantized:
    """A group's input as its decision wants it, and the products of its parts.

    make: (precision or None, samples) → the input of these samples (a slice of the batch), shape (samples, tokens, K),
        quantized to "int8" or "nvfp4", or as it is. A `make` with a method `strip(samples, rows)` makes some of the
        flattened tokens, 16-bit, alone.
    parts: slices of the batch that are made one at a time. rows: tokens of all samples.

    Where PDR has a say all parts are made at once, since the worst sample of the batch speaks for it.
    """

    def __init__(self, evaluation, group, make, parts: Sequence[slice], rows: int, dtype: torch.dtype):
        self._group, self._make, self._parts, self._dtype = group, make, parts, dtype
        self._precision = evaluation.planned(group).precision
        self._made: dict[int, object] = {}
        self._lifted: tuple[int, object] | None = None
        self._purify_to, self._flag = evaluation.policy.purify_to, None
        self._kept = evaluation.purifiable(group)
        if self._kept:
            self._judge(evaluation, rows)
        else:
            evaluation.settle(group, evaluation.planned(group), rows)
        self._low = _ready(group, self._precision, dtype)
        if self._flag is not None:
            self._high = _ready_triton(group, self._purify_to, dtype, predicated=True)

    def _judge(self, evaluation, rows: int) -> None:
        self._made = {index: self._make(self._precision, part) for index, part in enumerate(self._parts)}
        acts = list(self._made.values())
        absmax, abssum = (torch.cat([getattr(act, name) for act in acts]) for name in ("absmax", "abssum"))
        batch = sum(act.shape[0] for act in acts)
        threshold = evaluation.policy.outlier_threshold
        verdict = outlier_predicate(absmax, abssum, batch, self._group.in_features, threshold)
        evaluation.settle(self._group, None, rows, ratio=verdict.ratio.max())
        if self._precision not in rules.purifiable(evaluation.policy):
            return
        if target.probe(absmax.device).triton:
            self._flag = verdict.flag
        elif int(verdict.flag):
            self._precision, self._kept, self._made = self._purify_to, False, {}

    def __call__(self, index: int, rows: slice | None = None) -> torch.Tensor:
        """x Ŵᵀ + bias of part `index`, (samples, tokens, ΣN); with `rows`, of these of its tokens, (1, rows, ΣN)."""
        act = self._part(index, rows is not None)
        shape = tuple(act.shape)
        if rows is None:
            rows = slice(0, shape[0] * shape[1])
        else:
            shape = (1, rows.stop - rows.start, shape[2])
            act = _rows(act, rows, shape)
        if self._flag is None:
            return self._low(act)
        out = torch.empty((shape[0] * shape[1], sum(self._group.sizes)), dtype=self._dtype, device=self._flag.device)
        self._low(act, out, (self._flag, 0))
        del act
        for strip in _strips(rows, out.shape[1], out.device):
            place = slice(strip.start - rows.start, strip.stop - rows.start)
            self._high(self._lift(index, strip, shape[2]), out[place], (self._flag, 1))
        return out.view(*shape[:-1], -1)

    def _part(self, index: int, again: bool):
        """The input of a part; kept while it is asked for strip by strip."""
        found = self._made.get(index)
        if found is None:
            if not self._kept:
                self._made.clear()
            found = self._make(None if self._precision == "w4a16" else self._precision, self._parts[index])
            if again:
                self._made[index] = found
        return found

    def _lift(self, index: int, rows: slice, size: int):
        """These tokens of a part as PDR wants them, (1, rows, K); made in any case, since only the device knows."""
        part, count = self._parts[index], rows.stop - rows.start
        if self._purify_to == "w4a16" and hasattr(self._make, "strip"):
            return self._make.strip(part, rows).view(1, count, size)
        if self._lifted is None or self._lifted[0] != index:
            self._lifted = None
            self._lifted = index, self._make(None if self._purify_to == "w4a16" else self._purify_to, part)
        return _rows(self._lifted[1], rows, (1, count, size))


def feed_forward(evaluation, up, down, make, activate, dtype: torch.dtype, samples: int, tokens: int, into) -> None:
    """down(activate(up(x))), handed over a strip of tokens at a time.

    make: as in `Quantized`, for the up projection's input. activate: (tensor, precision or None, group) → the down
    projection's input, token by token, whatever the shape before the channels. into: called with a sample's number,
    its first token and the result of the tokens from there on, (1, rows, N) in `dtype`; it may overwrite what `make`
    reads of that sample. The hidden layer, four times the model's width, is by far the largest tensor of a block:
    unless PDR's verdict on the down projection spans it, only a strip of it exists at a time.
    """
    parts = [slice(sample, sample + 1) for sample in range(samples)]
    device = up.packed.codes.device
    spread = Quantized(evaluation, up, make, parts, samples * tokens, dtype)
    strips = _strips(slice(0, tokens), sum(down.sizes), device)
    if evaluation.purifiable(down):
        hidden = [spread(sample) for sample in range(samples)]
        del spread
        gather = Quantized(evaluation, down, _Activated(hidden, activate, down), parts, samples * tokens, dtype)
        for sample in range(samples):
            for strip in strips:
                into(sample, strip.start, gather(sample, strip))
        return
    decision = evaluation.planned(down)
    evaluation.settle(down, decision, samples * tokens)
    gather = _ready(down, decision.precision, dtype)
    precision = None if decision.precision == "w4a16" else decision.precision
    for sample in range(samples):
        for strip in strips:
            # Nested, so that no name holds a strip of the hidden layer while the next one is made.
            into(sample, strip.start, gather(activate(spread(sample, strip), precision, down)))


class _Activated:
    """A `make` (see `Quantized`) for the down projection, from each sample's hidden layer before its activation."""

    def __init__(self, hidden: Sequence[torch.Tensor], activate, group):
        self._hidden, self._activate, self._group = hidden, activate, group

    def __call__(self, precision: str | None, samples: slice):
        return self._activate(self._hidden[samples.start], precision, self._group)

    def strip(self, samples: slice, rows: slice) -> torch.Tensor:
        """The activated 16-bit tokens (rows, K)."""
        return self._activate(self._hidden[samples.start].flatten(0, -2)[rows], None, self._group)


def _ready(group, precision: str, dtype: torch.dtype):
    """A product of `group` for many inputs: activation → (…, ΣN)."""
    if target.probe(group.packed.codes.device).triton:
        return _ready_triton(group, precision, dtype)

    def run(act):
        if isinstance(act, torch.Tensor):
            return quantized_linear(act, group.packed, group.bias, "w4a16")
        return _LINEAR[precision](act, group.packed, group.bias, dtype)

    return run


def _ready_triton(group, precision: str, dtype: torch.dtype, predicated: bool = False):
    """`_ready`, the weight unpacked once: (activation, out or None, when or None) → (…, ΣN).

    when: as in `kernels.scaled_matmul_triton`; 16-bit activations take it only if `predicated`.
    """
    from kernels import unpack_triton as unpack
    from kernels.linear_w4a4_triton import linear_w4a4_triton
    from kernels.scaled_matmul_triton import scaled_matmul

    packed, bias = group.packed, group.bias
    native = target.probe(packed.codes.device).native_fp4
    if precision == "int8":
        weight = unpack.int8_weight_triton(packed)
    elif precision == "w4a16":
        weight = unpack.dequantize_weight_triton(packed, torch.bfloat16 if predicated else dtype)
    elif not native:
        weight = unpack.unpack_weight_triton(packed, torch.bfloat16)

    def run(act, out=None, when=None):
        tokens = act.flatten(0, -2) if precision == "w4a16" else act.codes
        if out is None:
            out = torch.empty((len(tokens), packed.shape[0]), dtype=dtype, device=tokens.device)
        if precision == "int8":
            scaled_matmul(tokens, weight, act.token_scale, packed.int8_scale, bias, out, when)
        elif when is not None and precision == "w4a16":
            scaled_matmul(tokens.to(torch.bfloat16).contiguous(), weight, None, None, bias, out, when)
        elif precision == "w4a16":
            if bias is None:
                torch.mm(tokens, weight.T, out=out)
            else:
                torch.addmm(bias.to(dtype), tokens, weight.T, out=out)
        elif native:
            linear_w4a4_triton(act, packed, bias, dtype, when=when, out=out)
        else:
            for rows in _strips(slice(0, len(tokens)), packed.shape[0], tokens.device):
                values = torch.empty(
                    (rows.stop - rows.start, packed.shape[1]), dtype=weight.dtype, device=tokens.device
                )
                unpack.unpack_values_triton(tokens[rows], act.scales[rows], values)
                scaled_matmul(values, weight, act.token_scale[rows], packed.tensor_scale, bias, out[rows], when)
        return out.view(*act.shape[:-1], -1)

    return run


def _strips(rows: slice, columns: int, device: torch.device) -> list[slice]:
    """Slices of `rows`, so long that each product of `columns` outputs fills whole waves of the multiprocessors."""
    tiles = max(1, _STRIP_ROWS // _TILE_ROWS)
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        wave = processors // math.gcd(processors, -(-columns // _TILE_COLUMNS))
        tiles = wave * max(1, tiles // wave)
    step = tiles * _TILE_ROWS
    return [slice(start, min(start + step, rows.stop)) for start in range(rows.start, rows.stop, step)]


def _rows(act, rows: slice, shape: tuple[int, ...]):
    """The part of an activation, or of a plain tensor, that belongs to these tokens."""
    if isinstance(act, torch.Tensor):
        return act.flatten(0, -2)[rows].view(shape)
    tensors = {name: value[rows] for name, value in act._asdict().items() if isinstance(value, torch.Tensor)}
    return act._replace(**tensors, shape=torch.Size(shape) if isinstance(act.shape, torch.Size) else shape)
