"""Launch configurations of the heavy kernels, timed side by side: `python -m kernels.bench --explore`."""

from __future__ import annotations

from unittest import mock

import torch

from kernels import bench, quantize_int8
from kernels.bench_cases import COGVIDEOX
from kernels.gelu_quantize import gelu_quantize
from kernels.norm_modulate import Stream, norm_modulate

# m, n, k, warps, stages, operands by TMA, persistent
_TILES = (
    (128, 256, 128, 8, 3, True, True), (128, 256, 128, 8, 3, True, False),
    (128, 256, 128, 8, 4, True, False), (128, 128, 128, 8, 4, True, True),
    (256, 128, 128, 8, 3, True, True), (128, 256, 128, 8, 3, False, False),
    (128, 256, 64, 8, 4, True, True),
)
# width of a chunk, chunks, warps
_ROWS = {
    3072: ((1024, 3, 1), (1024, 3, 2), (2048, 2, 2), (1024, 3, 4), (4096, 1, 4)),
    12288: ((4096, 3, 4), (2048, 6, 4), (4096, 3, 8), (4096, 3, 16)),
}


def run(device: str) -> None:
    """Print the time of each configuration; a failing one says why and does not end the list."""
    rows = COGVIDEOX.batch * COGVIDEOX.tokens
    width, ffn = COGVIDEOX.channels, COGVIDEOX.ffn
    x = torch.randn(2, rows // 2, width, device=device).to(torch.bfloat16)
    modulation = torch.randn(2, width, device=device).to(torch.bfloat16)
    wide = torch.randn(rows, ffn, device=device).to(torch.bfloat16)
    operations = {
        "LayerNorm+modulate+Hadamard+int8": (width, lambda: norm_modulate(
            [Stream(x, modulation, modulation)], modulation[0], modulation[1], quantize="int8", hadamard=128)),
        "Hadamard+int8": (width, lambda: quantize_int8(x, 128)),
        "GELU+Hadamard+int8": (ffn, lambda: gelu_quantize(wide, quantize="int8", hadamard=128)),
    }
    for name, (channels, function) in operations.items():
        for chunk, chunks, warps in _ROWS[channels]:
            shape = {"CHANNELS": channels, "WIDTH": chunk, "CHUNKS": chunks, "num_warps": warps}
            with mock.patch("kernels.triton_quantize.row_shape", lambda _, shape=shape: shape):
                _report(f"{name} {chunk} x {chunks}, {warps} warps", function, 3 * rows * channels, "GB/s")
    _products(rows, width, ffn, device)


def _products(rows: int, inner: int, columns: int, device: str) -> None:
    from kernels.scaled_matmul_triton import Tiles, scaled_matmul

    scales = torch.rand(rows, device=device), torch.rand(columns, device=device).view(torch.int32)
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    for kind in (torch.int8, torch.bfloat16):
        a, b = (torch.randn(size, inner, device=device).mul_(30).clamp_(-127, 127).to(kind) for size in (rows, columns))
        for sizes in _TILES:
            tiles = Tiles(*sizes)
            if kind == torch.bfloat16:
                tiles = tiles._replace(k=tiles.k // 2)

            def product(a=a, b=b, tiles=tiles):
                return scaled_matmul(a, b, *scales, None, out, tiles=tiles)

            _report(f"{str(kind)[6:]} product {tuple(tiles)}", product, 2e-3 * rows * inner * columns, "TFLOP/s")


def _report(name: str, function, work: float, unit: str) -> None:
    try:
        time = bench.milliseconds(function)
    except Exception as problem:  # a configuration may not fit this card: say so and go on
        print(f"{name:<70} {type(problem).__name__}: {str(problem).splitlines()[0][:80]}", flush=True)
    else:
        print(f"{name:<70} {time:8.3f} ms {work * 1e-6 / time:9.1f} {unit}", flush=True)
