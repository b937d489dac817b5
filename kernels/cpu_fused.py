"""The fused passes of `cpu_rows.py` for tensors, and the products between them.

A product stays as its sums until the pass that reads it scales them. In INT8 these are exact integers where PyTorch
multiplies INT8 fast (`Target.int8_mm`), else a float32 product of the codes. In NVFP4 the operands are code times block
scale, which bfloat16 holds exactly; their sums are float32, or rounded to bfloat16 where the model and the CPU multiply
in it. Values equal the PyTorch definitions up to these roundings, so a code on a rounding boundary may fall either way.

`precision` is that of the product to come: "int8", "nvfp4", or "w4a16" for values as they are.
"""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import NamedTuple

import torch

from kernels import target
from kernels.activations import Int8Activation
from kernels.cpu_share import share_rows
from kernels.formats import BLOCK, bits_float
from kernels.weights import PackedWeight, int8_weight, unpack_weight
from kernels.workspace import Workspace

_BLOCKS = (1, 16, 32, 64, 128)
_DTYPES = (torch.float32, torch.bfloat16)
# As `cpu_rows.PLAIN`, `INT8` and `NVFP4`.
_FORMS = {"w4a16": 0, "int8": 1, "nvfp4": 2}
# Fewer tokens are not worth the call; more sums than this leave a core's second cache before they are read.
_FEWEST, _STRIP = 32, 1 << 19
_memory = threading.local()


class Product(NamedTuple):
    """x Wᵀ + bias before it is scaled: sums (M, N) · sum_scale (M,) · row_scale (N,) + offset (N,).

    sums: int32, float32 or bfloat16; the others float32.

    The sums lie in memory that this thread's next product overwrites.
    """

    sums: torch.Tensor
    sum_scale: torch.Tensor
    row_scale: torch.Tensor
    offset: torch.Tensor

    def arrays(self) -> tuple:
        return tuple(_array(part) for part in self)


class Made(NamedTuple):
    """What a pass made for the next product, (M, K): codes int8, or values in `operand`'s dtype.

    token_scale: float32 (M,), in INT8 and NVFP4. absmax, abssum: float32 (M,), before the rotation.
    """

    codes: torch.Tensor
    values: torch.Tensor
    token_scale: torch.Tensor
    absmax: torch.Tensor
    abssum: torch.Tensor

    def arrays(self) -> tuple:
        return tuple(_array(part) for part in self)


def usable() -> bool:
    """Whether this machine's CPU can take the compiled passes."""
    return rows() is not None and not target.probe("cpu").triton


def fits(*tensors: torch.Tensor, block: int = 1) -> bool:
    """Whether the compiled passes take these tensors (…, C) and this rotation."""
    if not all(part.device.type == "cpu" and part.dtype in _DTYPES and part.numel() for part in tensors):
        return False
    return block in _BLOCKS and sum(part.numel() for part in tensors) >= _FEWEST * tensors[0].shape[-1] and usable()


def quantizes(x: torch.Tensor, block: int, precision: str) -> bool:
    """Whether the compiled passes quantize x (…, K) to "int8" or "nvfp4" after a rotation by `block`."""
    return fits(x, block=block) and (precision == "int8" or x.shape[-1] % BLOCK == 0)


def rows() -> ModuleType | None:
    """The compiled passes; None where nothing compiles them."""
    return target.compiled("cpu_rows")


def operand(dtype: torch.dtype) -> torch.dtype:
    """In what a model of `dtype` multiplies, INT8 aside: in bfloat16 where both it and the CPU do."""
    return dtype if dtype == torch.bfloat16 and target.probe("cpu").native_bf16 else torch.float32


def quantized(x: torch.Tensor, block: int, precision: str = "int8") -> Made:
    """x (…, K), float32 or bfloat16 -> INT8 or NVFP4 after a rotation by `block`. NVFP4: K a multiple of 16."""
    tokens = x.reshape(-1, x.shape[-1]).contiguous()
    made = _made(*tokens.shape, precision, x.dtype)
    operands = _array(tokens), block, _FORMS[precision], *made.arrays()
    share_rows(rows().quantize_rows, *tokens.shape, operands, tokens.shape[1])
    return made


def activated(product: Product, block: int, precision: str, dtype: torch.dtype) -> Made:
    """GELU in its tanh form of a product. dtype: the model's."""
    made = _made(*product.sums.shape, precision, dtype)
    operands = *product.arrays(), block, _FORMS[precision], *made.arrays()
    share_rows(rows().gelu_rows, *product.sums.shape, operands, product.sums.shape[1])
    return made


class Norm(NamedTuple):
    """LayerNorm and modulation of both streams: weight, bias float32 (C,); modulation float32 (samples, 6 C): shift,
    scale and gate of the video, then of the text; block: of the rotation that follows."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float
    modulation: torch.Tensor
    block: int


def streams(
    text: torch.Tensor,
    video: torch.Tensor,
    norm: Norm | None,
    precision: str = "w4a16",
    update: Product | None = None,
    gates=None,
) -> tuple[Made | None, torch.Tensor, torch.Tensor]:
    """(input of the next product or None, text, video): the streams, (samples, tokens, C), plus the gated update.

    gates: as `Norm.modulation`; of an update. The streams are new where there is an update.
    """
    samples, plain, size = text.shape
    tokens = plain + video.shape[1]
    shape = samples * tokens, size
    after = (torch.empty_like(text), torch.empty_like(video)) if update is not None else (text, video)
    made = _made(*(shape if norm is not None else (1, 1)), precision, text.dtype)
    gating = (True, *update.arrays(), gates.numpy()) if update is not None else (False, *_no_product(), _NOTHING)
    rest = norm if norm is not None else _no_norm()
    norming = norm is not None, rest.modulation.numpy(), rest.weight.numpy(), rest.bias.numpy(), rest.eps, rest.block
    before, outputs = ([_array(part.view(-1, size)) for part in pair] for pair in ((text, video), after))
    operands = tokens, plain, *before, *gating, *outputs, *norming, _FORMS[precision], *made.arrays()
    share_rows(rows().stream_rows, *shape, operands, size)
    return (made if norm is not None else None), *after


def split_heads(product: Product, samples: int, heads: int, affine: torch.Tensor, eps: float, rope, plain: int, dtype):
    """q, k, v (samples, heads, tokens, D) from their joint product, q and k normalized per head and turned by `rope`.

    affine: float32 (4, D), LayerNorm's weight and bias of q, then of k. rope: (cos, sin) of the tokens after the first
    `plain`, float32 (tokens, D), or None.
    """
    count, width = product.sums.shape[0], affine.shape[1]
    tokens = count // samples
    outputs = torch.empty(3, samples * heads * tokens, width, dtype=dtype)
    if rope is None:
        rope, plain = (torch.empty(1, width),) * 2, tokens
    turn = (part.reshape(-1, width).float().contiguous().numpy() for part in rope)
    operands = tokens, plain, *product.arrays(), heads, width, affine.numpy(), eps, *turn, _array(outputs)
    share_rows(rows().head_rows, *product.sums.shape, operands, 2 * width)
    return outputs.view(3, samples, heads, tokens, width).unbind(0)


def stream_change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Σ|y − x| and Σ|x| of each sample, float32 (batch, 2), for x and y (batch, ..., C) that `fits` takes."""
    size = x.shape[-1]
    count = x.numel() // size
    sums = torch.empty(2, count)
    both = (_array(part.reshape(-1, size).contiguous()) for part in (x, y))
    share_rows(rows().change_rows, count, size, (*both, sums.numpy()))
    return sums.view(2, len(x), -1).sum(dim=-1).T


def stream_delta(x: torch.Tensor, y: torch.Tensor, old: tuple[torch.Tensor, torch.Tensor] | None):
    """(codes int8 (tokens, C), scale (tokens,), sums (4, tokens)) of Δ = y − x, for x and y that `fits` takes.

    old: codes and scale of the delta that was cached before, or None; then the last two sums are NaN.
    """
    size = x.shape[-1]
    count = x.numel() // size
    codes = torch.empty(count, size, dtype=torch.int8)
    scale, sums = torch.empty(count), torch.full((4, count), float("nan"))
    both = (_array(part.reshape(-1, size).contiguous()) for part in (x, y))
    before = (part.numpy() for part in (old or (codes, scale)))
    operands = *both, old is not None, *before, codes.numpy(), scale.numpy(), sums.numpy()
    share_rows(rows().delta_rows, count, size, operands, size)
    return codes, scale, sums


def add_delta(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x + codes · scale in x's shape and dtype, for an x that `fits` takes."""
    tokens = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty_like(tokens)
    share_rows(rows().add_delta_rows, *tokens.shape, (_array(tokens), codes.numpy(), scale.numpy(), _array(out)))
    return out.view(x.shape)


def multiply(
    made: Made, precision: str, packed: PackedWeight, bias: torch.Tensor | None, workspace: Workspace | None
) -> Product:
    """The product of what a pass made for "int8" or "nvfp4" (M, K) with a packed weight in the same format."""
    by = _multiply_int8 if precision == "int8" else _multiply_nvfp4
    return by(made.codes if precision == "int8" else made.values, made.token_scale, packed, bias, workspace)


def _multiply_int8(
    codes: torch.Tensor,
    token_scale: torch.Tensor,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    workspace: Workspace | None,
) -> Product:
    fast = target.probe("cpu").int8_mm
    weight = _codes_of(packed, torch.int8 if fast else torch.float32, workspace)
    sums = _sums((codes.shape[0], packed.shape[0]), torch.int32 if fast else torch.float32)
    if fast:
        torch._int_mm(codes, weight, out=sums)
    else:
        torch.mm(codes.float(), weight, out=sums)
    return Product(sums, token_scale, bits_float(packed.int8_scale), offset(bias, packed.shape[0]))


def _multiply_nvfp4(
    values: torch.Tensor,
    token_scale: torch.Tensor,
    packed: PackedWeight,
    bias: torch.Tensor | None,
    workspace: Workspace | None,
) -> Product:
    def make() -> torch.Tensor:
        return unpack_weight(packed, values.dtype)

    weight = make() if workspace is None else workspace.unpacked(f"values {values.dtype}", packed.codes, make)
    sums = _sums((values.shape[0], packed.shape[0]), values.dtype)
    torch.mm(values, weight.T, out=sums)
    return Product(sums, token_scale, bits_float(packed.tensor_scale), offset(bias, packed.shape[0]))


def offset(bias: torch.Tensor | None, size: int) -> torch.Tensor:
    """A bias as float32 (N,), zeros without one."""
    return torch.zeros(size) if bias is None else bias.detach().float()


def scaled(product: Product, out: torch.Tensor) -> torch.Tensor:
    """The values of a product, written to `out` (M, N), float32 or bfloat16."""
    share_rows(rows().scale_rows, *product.sums.shape, (*product.arrays(), _array(out)))
    return out


def multiplies(act: Int8Activation, dtype: torch.dtype) -> bool:
    """Whether `linear_int8` takes this activation for an output of `dtype`."""
    return act.codes.device.type == "cpu" and dtype in _DTYPES and act.codes.shape[0] >= _FEWEST and usable()


def linear(
    x: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None, precision: str, workspace: Workspace | None
) -> torch.Tensor:
    """x (M, K) that `quantizes` takes, times a packed weight: (M, N) in x's dtype."""
    y = torch.empty(len(x), packed.shape[0], dtype=x.dtype)
    # At least `_FEWEST` rows in each part, as they share a core's memory and its caches.
    step = max(_FEWEST, _STRIP // packed.shape[0])
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        made = quantized(x[part], packed.hadamard, precision)
        scaled(multiply(made, precision, packed, bias, workspace), y[part])
    return y


def linear_int8(act: Int8Activation, packed, bias, dtype: torch.dtype, workspace: Workspace | None) -> torch.Tensor:
    """`linear_w4a8` of an activation on a CPU: (…, N) in float32 or bfloat16."""
    y = torch.empty(act.codes.shape[0], packed.shape[0], dtype=dtype)
    step = max(_FEWEST, _STRIP // packed.shape[0])
    for start in range(0, len(y), step):
        part = slice(start, start + step)
        scaled(_multiply_int8(act.codes[part], act.token_scale[part], packed, bias, workspace), y[part])
    return y.view(*act.shape[:-1], packed.shape[0])


def quantize_int8_compiled(x: torch.Tensor, block: int) -> Int8Activation:
    """`quantize_int8` for an x that `fits`."""
    made = quantized(x.detach(), block)
    return Int8Activation(made.codes, made.token_scale, made.absmax, made.abssum, tuple(x.shape))


def compile_rows(dtype: torch.dtype) -> None:
    """Compile what a block in `dtype` needs, or read it from the disk cache."""
    x = torch.ones(1, _FEWEST, 16, dtype=dtype)
    if not fits(x):
        return
    made = quantized(x, 16)
    one = torch.ones(16)
    whole = torch.int32 if target.probe("cpu").int8_mm else torch.float32
    for kind in {whole: None, operand(dtype): None}:
        sums = torch.ones(_FEWEST, 16, dtype=kind)
        product = Product(sums, made.token_scale, one, one)
        scaled(product, torch.empty(sums.shape, dtype=dtype))
        activated(product, 16, "int8", dtype)
        streams(x[:, :1], x[:, 1:], None, update=product, gates=torch.ones(1, 96))
        thrice = Product(sums.repeat(1, 3), made.token_scale, one.repeat(3), one.repeat(3))
        split_heads(thrice, 1, 1, torch.ones(4, 16), 1e-6, None, 0, dtype)
    stream_change(x, x)
    codes, scale, _ = stream_delta(x, x, None)
    add_delta(x, codes, scale)


def _sums(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """This thread's memory for sums: fresh memory would cost more than what is written to it."""
    held, count = getattr(_memory, "sums", None), shape[0] * shape[1]
    if held is None or held.numel() < count:
        held = _memory.sums = torch.empty(count, dtype=torch.int32)
    return held.view(dtype)[:count].view(shape)


def _codes_of(packed: PackedWeight, dtype: torch.dtype, workspace: Workspace | None) -> torch.Tensor:
    """The weight's INT8 codes transposed, (K, N)."""

    def make() -> torch.Tensor:
        return int8_weight(packed).to(dtype).T

    return make() if workspace is None else workspace.unpacked(f"codes {dtype}", packed.codes, make)


def _made(count: int, size: int, precision: str, dtype: torch.dtype) -> Made:
    whole, none = (count, size), (1, 1)
    codes, values = (whole, none) if precision == "int8" else (none, whole)
    return Made(
        torch.empty(codes, dtype=torch.int8), torch.empty(values, dtype=operand(dtype)), *torch.empty(3, count)
    )


_EMPTY = torch.empty(1, 1)
_NOTHING = _EMPTY.numpy()


@functools.cache
def _no_product() -> tuple:
    one = torch.empty(1)
    sums = torch.empty(1, 1, dtype=torch.int32 if target.probe("cpu").int8_mm else torch.float32)
    return Product(sums, one, one, one).arrays()


@functools.cache
def _no_norm() -> Norm:
    one = torch.empty(1)
    return Norm(one, one, 1.0, _EMPTY, 1)


def _array(x: torch.Tensor):
    x = x.detach()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
