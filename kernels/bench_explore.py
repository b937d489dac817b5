"""Launch configurations of the row kernels and the products, timed side by side: `python -m kernels.bench --explore`.

What wins here becomes the rule in `triton_quantize` and `scaled_matmul_triton.tiles_for`; nothing
is tuned at run time.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F

from kernels import bench, bench_cases, quantize_int8, quantize_nvfp4, target
from kernels.bench_cases import COGVIDEOX, WAN
from kernels.gelu_quantize import gelu_quantize
from kernels.norm_modulate import Stream, norm_modulate

# Values a thread holds, tokens a program, pipeline stages of its loop, most registers a thread, early start.
CANDIDATES = {
    "quantize": (
        (96, 1, 1, 128), (96, 1, 1, 96), (96, 2, 1, 128), (96, 4, 1, 128), (48, 1, 1), (48, 1, 1, 64), (48, 8, 1),
    ),
    "norm_modulate": (
        (96, 1, 1, 128, True), (96, 1, 1, 0, True), (96, 1, 1, 160, True), (48, 1, 1, 0, True), (48, 1, 1, 80, True),
    ),
    "gelu_quantize": ((96, 1, 1), (96, 1, 1, 128), (48, 1, 1), (48, 1, 1, 64), (48, 1, 1, 80), (24, 1, 1)),
}
_BYTES = {"int8": 3.0, "nvfp4": 2.5625}
# A configuration further from float64 than its format allows is wrong, however fast.
_LARGEST_ERROR = {"int8": 0.03, "nvfp4": 0.12}
_ROWS_TO_COMPILE = 64
# m, n, k, warps, stages, operands by TMA, persistent
_TILES = ((128, 256, 128, 8, 3, True, True), (128, 256, 128, 8, 4, True, True), (128, 256, 64, 8, 4, True, True))


class Operation(NamedTuple):
    """What is timed: a call, the float64 values of its first tokens, the bytes it must move."""

    run: Callable[[], object]
    exact: torch.Tensor
    bytes: float


@contextmanager
def fastest(device: str, only: str = "") -> Iterator[None]:
    """Print a table per operation, fastest first; within the context the kernels launch like the winners.

    A configuration that fails says why and ends nothing. only: operations whose name contains this.
    """
    if not target.probe(device).triton:
        print("Launch configurations belong to the Triton kernels, which need a GPU: nothing to time here.")
        yield
        return
    from kernels.triton_quantize import LAUNCHES, Launch

    rows = COGVIDEOX.batch * COGVIDEOX.tokens
    large = torch.empty(rows, COGVIDEOX.ffn, dtype=torch.bfloat16, device=device).normal_()
    copy = _copy_rate(large)
    print(f"copy {copy:.0f} GB/s", flush=True)
    winners = dict(LAUNCHES)
    for (op, quantize, width), operation in _operations(large).items():
        if only not in op:
            continue
        found = []
        for launch in itertools.starmap(Launch, CANDIDATES[op]):
            with mock.patch.dict(LAUNCHES, {(op, quantize): launch}):
                time, error = _time(f"{op} {quantize} {tuple(launch)}", operation)
            if error < _LARGEST_ERROR[quantize]:
                found.append((time, launch))
            rate = 1e-6 * operation.bytes / time
            print(
                f"{op:<14} {quantize:<6} {width:>6} wide {launch.values:>3} values {launch.tokens:>3} tokens {launch.stages} stages "
                f"{launch.registers or '':>3} {'early' if launch.early else '     '} "
                f"{time:8.4f} ms {rate:7.0f} GB/s {100 * rate / copy:4.0f} % of copy  error {error:.2e}", flush=True,
            )  # fmt: skip
        if found and width != WAN.channels:
            winners[op, quantize] = min(found)[1]
    del operation, large
    if only in "products":
        _products(rows, COGVIDEOX.channels, COGVIDEOX.ffn, device)
    print("fastest:", {key: tuple(launch) for key, launch in winners.items()}, flush=True)
    with mock.patch.dict(LAUNCHES, winners):
        yield


def compile_part(index: int, count: int, only: str = "") -> None:
    """Fill the compilers' cache for every count-th configuration, from the index-th on; only: as above."""
    from kernels.triton_quantize import LAUNCHES, Launch

    # As many rows as make the sizes divisible by 16, like the real ones: Triton compiles them apart.
    operations = _operations(torch.zeros(_ROWS_TO_COMPILE, COGVIDEOX.ffn, dtype=torch.bfloat16, device="cuda"))
    everything = [(key, launch) for key in operations if only in key[0] for launch in CANDIDATES[key[0]]]
    with mock.patch("kernels.triton_quantize.MANY_ROWS", 0):
        for key, launch in everything[index::count]:
            with suppress(Exception), mock.patch.dict(LAUNCHES, {key[:2]: Launch(*launch)}):
                operations[key].run()


def _copy_rate(tensor: torch.Tensor) -> float:
    copied = torch.empty_like(tensor)
    return 2e-6 * tensor.nbytes / bench.milliseconds(lambda: copied.copy_(tensor))


def _operations(large: torch.Tensor) -> dict[tuple[str, str, int], Operation]:
    """By operation, format and channels; Wan's width is timed to see, CogVideoX's decide."""
    rows, (width, ffn) = large.shape[0], (COGVIDEOX.channels, COGVIDEOX.ffn)
    x = large[:, :width].contiguous().view(2, rows // 2, width)
    modulation = large[:2, :width].contiguous()
    first, wide, gain, offset = bench_cases.as_float64(x[0, :32], large[:32], modulation[0], modulation[1])
    normed = F.layer_norm(first, (width,), gain, offset) * (1 + gain) + gain
    both = modulation[:1].expand(2, -1)
    text = COGVIDEOX.text if rows > _ROWS_TO_COMPILE else 2
    streams = [Stream(x[:, :text], both, both), Stream(x[:, text:], both, both)]
    found = {}
    for name, plain in (("int8", quantize_int8), ("nvfp4", quantize_nvfp4)):
        small, big = (_BYTES[name] * rows * size for size in (width, ffn))

        def norm(name=name):
            return norm_modulate(streams, modulation[0], modulation[1], quantize=name, hadamard=128)

        def gelu(name=name):
            return gelu_quantize(large, quantize=name, hadamard=128)

        found["norm_modulate", name, width] = Operation(norm, normed, small)
        found["quantize", name, width] = Operation(lambda plain=plain: plain(x, 128), first, small)
        found["gelu_quantize", name, ffn] = Operation(gelu, F.gelu(wide, approximate="tanh"), big)
    size = WAN.channels
    wider = large[:, :size].contiguous().view(1, rows, size)
    first, shift = bench_cases.as_float64(wider[0, :32], wider[0, 0])

    def norm_wider():
        return norm_modulate([Stream(wider, wider[:, 0], wider[:, 0])], quantize="int8", hadamard=128)

    exact = F.layer_norm(first, (size,)) * (1 + shift) + shift
    found["norm_modulate", "int8", size] = Operation(norm_wider, exact, _BYTES["int8"] * rows * size)
    return found


def _time(label: str, operation: Operation) -> tuple[float, float]:
    try:
        values = bench_cases.values_of(operation.run(), 128)[: len(operation.exact)]
        return bench.milliseconds(operation.run), bench_cases.relative_error(values, operation.exact)
    except Exception as problem:  # a configuration may not fit this card: say so and go on
        print(f"{label}: {type(problem).__name__}: {str(problem).splitlines()[0][:80]}", flush=True)
        return float("inf"), float("inf")


def _products(rows: int, inner: int, columns: int, device: str) -> None:
    from kernels.scaled_matmul_triton import Tiles, scaled_matmul

    scales = torch.rand(rows, device=device), torch.rand(columns, device=device).view(torch.int32)
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    a, b = (torch.randint(-127, 128, (size, inner), device=device, dtype=torch.int8) for size in (rows, columns))
    for sizes in map(Tiles._make, _TILES):
        try:
            time = bench.milliseconds(lambda sizes=sizes: scaled_matmul(a, b, *scales, None, out, tiles=sizes))
        except Exception as problem:  # as above
            print(f"INT8 product {tuple(sizes)}: {str(problem).splitlines()[0][:80]}", flush=True)
        else:
            rate = 2e-9 * rows * inner * columns / time
            print(f"INT8 product {tuple(sizes)} {time:8.4f} ms {rate:7.0f} TFLOP/s", flush=True)
