"""Launch configurations of the row kernels and the products, timed side by side: `python -m kernels.bench --explore`.

What wins here becomes the rule in `triton_quantize.launch_shape`, `norm_modulate_triton` and
`scaled_matmul_triton.tiles_for`; nothing is tuned at run time.
"""

from __future__ import annotations

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Callable, Iterator, NamedTuple
from unittest import mock

import torch

from kernels import bench, quantize_int8, quantize_nvfp4, target
from kernels.bench_cases import COGVIDEOX
from kernels.gelu_quantize import gelu_quantize
from kernels.norm_modulate import Stream, norm_modulate

# Width of a chunk, chunks, warps: 96, 48, 24 and 12 values a thread.
_ROWS = {
    3072: ((256, 12, 1), (512, 6, 1), (512, 6, 2), (1024, 3, 2), (1024, 3, 4), (1024, 3, 8)),
    12288: ((1024, 12, 4), (2048, 6, 4), (2048, 6, 8), (4096, 3, 8), (4096, 3, 16)),
}
# Tokens a program, pipeline stages of its loop.
_LOOPS = ((1, 1), (8, 1), (8, 3))
_NORM_LOOPS = (*_LOOPS, (8, 2), (32, 3))
_BYTES = {"int8": 3.0, "nvfp4": 2.5625}
# m, n, k, warps, stages, operands by TMA, persistent
_TILES = ((128, 256, 128, 8, 3, True, True), (128, 256, 128, 8, 4, True, True), (128, 256, 64, 8, 4, True, True))
_COMPILERS = 8


class Configuration(NamedTuple):
    """One launch of an operation: the constants of its row kernel."""

    op: str
    shape: dict[str, int]

    def __str__(self) -> str:
        return "{WIDTH} x {CHUNKS}, {num_warps} warps, {TOKENS} tokens, {num_stages} stages".format(**self.shape)

    def forced(self):
        """A context in which the kernels launch like this and not by their own rule."""
        return mock.patch("kernels.triton_quantize.launch_shape", lambda *_: self.shape)


class Operation(NamedTuple):
    """What is timed: a call, the channels of a token, the bytes it must move."""

    run: Callable[[], object]
    channels: int
    bytes: float


def run(device: str) -> None:
    """Print a table per operation, fastest first; a configuration that fails says why and ends nothing."""
    if not target.probe(device).triton:
        print("Launch configurations belong to the Triton kernels, which need a GPU: nothing to time here.")
        return
    configurations = list(_configurations())
    # Compiling takes a second each, timing a tenth: the compilers' cache is filled by processes of their own.
    with ProcessPoolExecutor(_COMPILERS, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, configurations))
    rows = COGVIDEOX.batch * COGVIDEOX.tokens
    large = torch.empty(rows, COGVIDEOX.ffn, dtype=torch.bfloat16, device=device).normal_()
    copy = _copy_rate(large)
    print(f"copy {copy:.0f} GB/s", flush=True)
    for op, operation in _operations(large).items():
        times = []
        for configuration in configurations:
            if configuration.op == op:
                with configuration.forced():
                    times.append((_time(str(configuration), operation.run), str(configuration)))
        for time, label in sorted(times):
            rate = 1e-6 * operation.bytes / time
            print(f"{op:<34} {label:<42} {time:8.4f} ms {rate:8.1f} GB/s {100 * rate / copy:4.0f} % of copy", flush=True)
    _products(rows, COGVIDEOX.channels, COGVIDEOX.ffn, device)


def _copy_rate(tensor: torch.Tensor) -> float:
    copied = torch.empty_like(tensor)
    return 2e-6 * tensor.nbytes / bench.milliseconds(lambda: copied.copy_(tensor))


def _operations(large: torch.Tensor) -> dict[str, Operation]:
    width, ffn = COGVIDEOX.channels, COGVIDEOX.ffn
    rows = large.shape[0]
    x = large[:, :width].contiguous().view(2, rows // 2, width)
    modulation = large[:2, :width].contiguous()
    found = {}
    for name, plain in (("int8", quantize_int8), ("nvfp4", quantize_nvfp4)):
        small, wide = (_BYTES[name] * rows * size for size in (width, ffn))

        def normed(name=name):
            streams = [Stream(x, modulation, modulation)]
            return norm_modulate(streams, modulation[0], modulation[1], quantize=name, hadamard=128)

        found[f"LayerNorm+modulate+Hadamard+{name}"] = Operation(normed, width, small)
        found[f"Hadamard+{name}"] = Operation(lambda plain=plain: plain(x, 128), width, small)
        found[f"GELU+Hadamard+{name}"] = Operation(
            lambda name=name: gelu_quantize(large, quantize=name, hadamard=128), ffn, wide
        )
    return found


def _configurations() -> Iterator[Configuration]:
    for op, operation in _operations(torch.empty(2, COGVIDEOX.ffn)).items():
        norm = op.startswith("LayerNorm")
        for (width, chunks, warps), (tokens, stages) in itertools.product(
            _ROWS[operation.channels], _NORM_LOOPS if norm else _LOOPS
        ):
            values = width * chunks // (32 * warps)
            # The modulation takes two more registers a value: what would spill is not tried.
            if not norm or values <= 24 or (values <= 48 and stages == 1):
                shape = {"CHANNELS": operation.channels, "WIDTH": width, "CHUNKS": chunks, "num_warps": warps}
                yield Configuration(op, {**shape, "TOKENS": tokens, "num_stages": stages})


def _compile(configuration: Configuration) -> None:
    # As many rows as make the sizes divisible by 16, like the real ones: Triton compiles them apart.
    with suppress(Exception), configuration.forced():
        _operations(torch.zeros(64, COGVIDEOX.ffn, dtype=torch.bfloat16, device="cuda"))[configuration.op].run()


def _time(label: str, function: Callable[[], object]) -> float:
    try:
        return bench.milliseconds(function)
    except Exception as problem:  # a configuration may not fit this card: say so and go on
        print(f"{label}: {type(problem).__name__}: {str(problem).splitlines()[0][:80]}", flush=True)
        return float("inf")


def _products(rows: int, inner: int, columns: int, device: str) -> None:
    from kernels.scaled_matmul_triton import Tiles, scaled_matmul

    scales = torch.rand(rows, device=device), torch.rand(columns, device=device).view(torch.int32)
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    a, b = (torch.randint(-127, 128, (size, inner), device=device, dtype=torch.int8) for size in (rows, columns))
    for sizes in _TILES:
        time = _time(str(sizes), lambda sizes=sizes: scaled_matmul(a, b, *scales, None, out, tiles=Tiles(*sizes)))
        rate = 2e-9 * rows * inner * columns / time
        print(f"{'INT8 product':<34} {str(sizes):<42} {time:8.4f} ms {rate:8.1f} TFLOP/s", flush=True)
