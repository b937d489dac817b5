"""The fused and delta kernels against their PyTorch twins.

On a GPU these tests run as they are (`pytest -m gpu`); without one, test_interpreter_fused.py runs
them on CPU tensors under Triton's interpreter. Shapes lie off every tile on purpose.
"""

import importlib.util

import pytest
import torch

from kernels import dequantize, hadamard_block, target
from kernels import gate_residual as gate_module
from kernels import gelu_quantize as gelu_module
from kernels import norm_modulate as norm_module
from kernels import outlier_predicate as outlier_module
from kernels import qk_norm_rope as qk_module
from kernels import residual as residual_module
from kernels.bench_explore import CANDIDATES
from kernels.quantize_int8 import quantize_int8_torch
from kernels.quantize_nvfp4 import quantize_nvfp4_torch
from kernels.target import interpreting

INTERPRETED = interpreting()
DEVICE = "cpu" if INTERPRETED else "cuda"
if not INTERPRETED:
    pytestmark = pytest.mark.gpu
if importlib.util.find_spec("triton") is not None:
    from kernels import triton_quantize
    from kernels.gate_residual_triton import gate_residual_triton
    from kernels.gelu_quantize_triton import gelu_quantize_triton
    from kernels.norm_modulate_triton import norm_modulate_triton
    from kernels.outlier_predicate_triton import outlier_predicate_triton
    from kernels.qk_norm_rope_triton import qk_norm_rope_triton
    from kernels.quantize_triton import quantize_int8_triton, quantize_nvfp4_triton
    from kernels.residual_triton import apply_delta_triton, residual_delta_triton

# The interpreter walks programs one by one, and cuts bfloat16 where hardware rounds.
SAMPLES, TOKENS = (2, 3) if INTERPRETED else (2, 333)
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
WIDTHS = [192, 544] if INTERPRETED else [192, 256, 1920, 3072, 5120]
# Finer inputs take another rotation, which takes long to compile for long rows.
CASES = [(width, dtype) for width in WIDTHS for dtype in DTYPES if dtype == torch.bfloat16 or width < 1000 or INTERPRETED]


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def assert_same_activation(ours, twin, coarse):
    """Codes may differ where a value lies on a rounding boundary, never the values by more."""
    assert ours.shape == twin.shape
    torch.testing.assert_close(ours.absmax, twin.absmax, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.abssum, twin.abssum, rtol=1e-3 if coarse else 1e-4, atol=1e-3)
    # The rotation's tensor core takes bfloat16: half a step of one code in places, 2^-9 at most.
    torch.testing.assert_close(ours.token_scale, twin.token_scale, rtol=5e-3 if coarse else 1e-4, atol=1e-9)
    difference = dequantize(ours) - dequantize(twin)
    if not coarse:
        assert (difference.abs() > 1e-3 * dequantize(twin).abs()).float().mean() < 0.01
    four_bits = ours.codes.dtype == torch.uint8
    limit = (0.08 if coarse else 0.02) if four_bits else 0.012
    assert difference.norm() / dequantize(twin).norm() < limit


@pytest.mark.parametrize("quantize", [None, "int8", "nvfp4"])
@pytest.mark.parametrize(("width", "dtype"), CASES)
def test_norm_modulate(width, dtype, quantize):
    video, text = draw(SAMPLES, TOKENS + 3, width, dtype=dtype) * 3 + 1, draw(SAMPLES, 3, width, dtype=dtype)
    parts = (draw(SAMPLES, 4 * width, dtype=dtype, seed=1) * 0.3).chunk(4, dim=1)
    streams = [norm_module.Stream(text, *parts[:2]), norm_module.Stream(video[:, 3:], *parts[2:])]
    affine = draw(width, dtype=dtype, seed=2), draw(width, dtype=dtype, seed=3)
    settings = (1e-5, quantize, hadamard_block(width) if quantize else 1, False)
    ours = norm_modulate_triton(streams, *affine, *settings)
    twin = norm_module.norm_modulate_torch(streams, *affine, *settings)
    if quantize is None:
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(ours, twin, rtol=tolerance, atol=tolerance)
    else:
        assert_same_activation(ours, twin, dtype != torch.float32)


def test_norm_modulate_takes_any_number_of_streams_and_any_part_of_a_modulation():
    shift, scale = draw(SAMPLES, 64, seed=1), draw(SAMPLES, 64, seed=2)
    parts = [(), (shift,), (None, scale)]
    streams = [norm_module.Stream(draw(SAMPLES, 1 + count, 64, seed=count), *part) for count, part in enumerate(parts)]
    for count in (1, 2, 3):
        chosen = streams[-count:]
        torch.testing.assert_close(norm_modulate_triton(chosen), norm_module.norm_modulate_torch(chosen), rtol=1e-5, atol=1e-5)
    # A modulation in another dtype than the other stream's, or in none.
    for first in (streams[0], streams[2]):
        chosen = [first, norm_module.Stream(streams[1].x, shift.to(torch.float16), None)]
        torch.testing.assert_close(norm_modulate_triton(chosen), norm_module.norm_modulate_torch(chosen), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("quantize", ["int8", "nvfp4"])
@pytest.mark.parametrize("launch", [(96, 2, 1), (24, 4, 1)] if INTERPRETED else CANDIDATES["norm_modulate"], ids=str)
@pytest.mark.parametrize("width", [192] if INTERPRETED else [1920, 3072])
def test_norm_modulate_under_every_launch(width, launch, quantize, monkeypatch):
    monkeypatch.setattr(triton_quantize, "MANY_ROWS", 0)
    monkeypatch.setitem(triton_quantize.LAUNCHES, ("norm_modulate", quantize), triton_quantize.Launch(*launch))
    check_streams(width, quantize, [(3, 0), (TOKENS, 2)])


@pytest.mark.parametrize("quantize", ["int8", "nvfp4"])
@pytest.mark.parametrize("width", [192] if INTERPRETED else [192, 256, 1920, 3072, 5120])
def test_norm_modulate_of_many_rows(width, quantize, monkeypatch):
    monkeypatch.setattr(triton_quantize, "MANY_ROWS", 0)
    # Lengths of the streams, and how many tokens of a longer tensor lie before them.
    for lengths in ([(5, 0)], [(3, 2), (7, 1)], [(0, 0), (4, 0)], [(4, 0), (0, 3)], [(1, 0), (2, 0), (9, 1)]):
        check_streams(width, quantize, lengths)
    check_streams(width, quantize, [(3, 0), (5, 1)], affine=False)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one kernel after the other")
def test_an_early_start_waits_for_the_modulation(monkeypatch):
    x = draw(SAMPLES, 4000, 3072, dtype=torch.bfloat16)
    for seed in range(12):
        shift, scale = (draw(SAMPLES, 3072, dtype=torch.bfloat16, seed=100 * seed + part) for part in (1, 2))
        runs = []
        for early in (False, True):
            launch = triton_quantize.Launch(96, 1, 1, 128, early)
            monkeypatch.setitem(triton_quantize.LAUNCHES, ("norm_modulate", "int8"), launch)
            runs.append(norm_modulate_triton([norm_module.Stream(x, shift, scale)], quantize="int8", hadamard=128))
        assert all(torch.equal(late, early) for late, early in zip(*(run[:4] for run in runs)))


def check_streams(width, quantize, lengths, affine=True):
    """Kernel and twin on streams of (tokens, tokens cut off before); a mean far from zero, and an outlier first."""
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    streams = []
    for seed, (length, before) in enumerate(lengths):
        x = draw(SAMPLES, before + length, width, dtype=dtype, seed=seed) * 3 + 20 * seed
        x[:, ::2, 0] = 500.0
        shift, scale = (draw(SAMPLES, 6 * width, dtype=dtype, seed=seed + 5) * 0.3).chunk(6, dim=1)[1:3]
        streams.append(norm_module.Stream(x[:, before:], *((shift, scale) if affine else ())))
    shared = [draw(width, dtype=dtype, seed=seed) if affine else None for seed in (8, 9)]
    settings = *shared, 1e-5, quantize, hadamard_block(width)
    assert_same_activation(
        norm_modulate_triton(streams, *settings), norm_module.norm_modulate_torch(streams, *settings),
        dtype != torch.float32,
    )  # fmt: skip


@pytest.mark.parametrize("mean", [1e2, 1e4])
def test_norm_modulate_of_a_mean_far_beyond_the_deviation(mean):
    x = draw(SAMPLES, TOKENS, 192) + mean
    ours, twin = (make([norm_module.Stream(x)]) for make in (norm_modulate_triton, norm_module.norm_modulate_torch))
    exact = torch.nn.functional.layer_norm(x.double(), (192,))
    # Sums in another order: a float32 mean is off by a few 2^-24 of itself.
    assert (ours - exact).norm() <= 2 * (twin - exact).norm() + 5e-7 * mean * exact.norm()


@pytest.mark.parametrize("quantize", [None, "int8", "nvfp4"])
@pytest.mark.parametrize(("width", "dtype"), CASES if INTERPRETED else [*CASES, (12288, torch.bfloat16)])
def test_gelu_quantize(width, dtype, quantize):
    x = draw(SAMPLES, TOKENS, width, dtype=dtype) * 3
    settings = quantize, hadamard_block(width) if quantize else 1, True
    ours, twin = gelu_quantize_triton(x, *settings), gelu_module.gelu_quantize_torch(x, *settings)
    if quantize is None:
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(ours, twin, rtol=tolerance, atol=tolerance)
    else:
        assert_same_activation(ours, twin, dtype != torch.float32)


@pytest.mark.parametrize("quantize", ["int8", "nvfp4"])
@pytest.mark.parametrize("width", [256, 640] if INTERPRETED else [256, 640, 1920, 3072, 5120, 12288])
@pytest.mark.parametrize("make", ["plain", "gelu", "norm"])
def test_rows_of_two_values_to_a_register(make, width, quantize, monkeypatch):
    if INTERPRETED:
        # As on a card from compute capability 8.9 on.
        monkeypatch.setattr(target, "probe", lambda device: target.Target("cuda", (8, 9), True, False, True, True, ""))
    elif torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("these kernels need compute capability 8.9")
    x = draw(2, 5, width, dtype=torch.bfloat16)
    x[0, 0, 3], x[0, 1, 7], x[0, 2], x[0, 3, 5], x[0, 4, 6] = 50.0, 3e4, 0.0, float("nan"), -float("inf")
    # LayerNorm squares what it takes.
    large = 1e15 if make == "norm" else 1e30
    x[1, 0] *= large
    x[1, 1] /= large
    # Blocks of every size down to those whose scale is a subnormal number, or 0.
    x[1, 2] *= torch.logspace(-8, 4, width, device=DEVICE).to(torch.bfloat16)
    x[1, 3], x[1, 3, 9] = 0.0, -large
    if make == "plain":
        # Close to the end of what sums in float32 hold.
        x[1, 4] *= 1e37 / x[1, 4].abs().sum()
        x[1, 4, 2] = 1.5e37
    if make == "plain":
        ours = (quantize_int8_triton if quantize == "int8" else quantize_nvfp4_triton)(x, 128)
        twin = (quantize_int8_torch if quantize == "int8" else quantize_nvfp4_torch)(x, 128)
    elif make == "gelu":
        ours, twin = gelu_quantize_triton(x, quantize, 128), gelu_module.gelu_quantize_torch(x, quantize, 128)
    else:
        streams = [norm_module.Stream(x)]
        settings = None, None, 1e-5, quantize, 128
        ours, twin = norm_modulate_triton(streams, *settings), norm_module.norm_modulate_torch(streams, *settings)
    mine, other = dequantize(ours).view(10, width), dequantize(twin).view(10, width)
    assert torch.equal(mine.isnan(), other.isnan())
    coarse = 0.012 if quantize == "int8" else 0.08
    for row in range(10):
        if other[row].isfinite().all():
            # In double precision: the squares of some rows leave float32.
            assert (mine[row] - other[row]).double().norm() <= coarse * other[row].double().norm()
            torch.testing.assert_close(ours.absmax[row], twin.absmax[row], rtol=1e-4, atol=0)
            torch.testing.assert_close(ours.abssum[row], twin.abssum[row], rtol=1e-3, atol=0)
            torch.testing.assert_close(ours.token_scale[row], twin.token_scale[row], rtol=5e-3, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_residual(dtype):
    x, joint = draw(SAMPLES, TOKENS, 192, dtype=dtype), draw(SAMPLES, TOKENS + 4, 192, dtype=dtype, seed=1)
    gate = draw(SAMPLES, 6 * 192, dtype=dtype, seed=2).chunk(6, dim=1)[2]
    for arguments in ((x, joint[:, 4:], gate), (x, joint[:, 4:])):
        torch.testing.assert_close(gate_residual_triton(*arguments), gate_module.gate_residual_torch(*arguments))
    inplace = x.clone()
    gate_residual_triton(inplace, joint[:, 4:], gate, inplace)
    assert torch.equal(inplace, gate_residual_triton(x, joint[:, 4:], gate))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("norm", "heads", "width"), [("layer", 6, 64), ("layer", 5, 32), ("rms", 3, 128)])
def test_qk_norm_rope(norm, heads, width, dtype):
    first = 1
    angles = draw(TOKENS - first, width // 2, seed=1).repeat_interleave(2, dim=1)
    affine = [draw(width if norm == "layer" else heads * width, dtype=dtype, seed=seed) for seed in range(4)]
    if norm == "rms":
        affine[1] = affine[3] = None
    results = []
    for twin in (qk_module.qk_norm_rope_torch, qk_norm_rope_triton):
        joint = draw(SAMPLES, TOKENS, 3 * heads * width, dtype=dtype)
        q, k, _ = joint.chunk(3, dim=-1)
        twin(q, k, heads, *affine, norm, 1e-6, angles.cos(), angles.sin(), first)
        results.append(joint)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["int8", "bf16"] if INTERPRETED else ["int8", "bf16", "fp8"])
def test_residual_delta(format, dtype):
    if not INTERPRETED and format == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no E4M3 type before compute capability 8.9")
    x = draw(SAMPLES, TOKENS + 2, 544, dtype=dtype)[:, 2:]
    y, later = (x + 0.1 * draw(SAMPLES, TOKENS, 544, dtype=dtype, seed=seed) for seed in (1, 2))
    y[0, 1, 5] = float("nan")
    y[0, 2] = x[0, 2]
    cached, first = residual_module.residual_delta_torch(x, y, format=format)
    ours, stats = residual_delta_triton(x, y, None, format)
    assert stats[0, 0].isnan() and stats[:, 2:].isnan().all()
    torch.testing.assert_close(stats[1:, :2], first[1:, :2], rtol=1e-5, atol=0)
    stored, twin = (residual_module.dequantize_delta(part) for part in (ours, cached))
    assert torch.equal(stored.isnan(), twin.isnan())
    # The interpreter cuts where hardware rounds when it converts to bfloat16 or E4M3.
    step = {"int8": 1e-3, "bf16": 8e-3, "fp8": 1e-2}[format]
    far = (stored - twin).abs() > 2e-3 + step * twin.abs()
    # On a rounding boundary the code may fall either way.
    assert far.float().mean() < 5e-3
    torch.testing.assert_close(stored, twin, rtol=2 * step, atol=5e-3, equal_nan=True)
    _, expected = residual_module.residual_delta_torch(x, later, cached, format=format)
    _, stats = residual_delta_triton(x, later, cached, format)
    torch.testing.assert_close(stats, expected, rtol=1e-5, atol=0, equal_nan=True)
    applied = apply_delta_triton(x, cached)
    assert applied[0, 1].isnan().any() and torch.equal(applied[0, 2], x[0, 2])
    expected = residual_module.apply_delta_torch(x, cached)
    torch.testing.assert_close(applied, expected, rtol=1e-2 if dtype != torch.float32 else 1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_stays_in_its_token(bad):
    x = draw(1, 4, 64)
    x[0, 2, 7] = bad
    for quantize in ("int8", "nvfp4"):
        activations = (
            norm_modulate_triton([norm_module.Stream(x)], quantize=quantize, hadamard=64),
            gelu_quantize_triton(x.abs(), quantize, 64),
        )
        for activation in activations:
            assert activation.token_scale[2].isnan() and activation.token_scale[[0, 1, 3]].isfinite().all()


def test_outlier_predicate():
    x = draw(3, 50, 64)
    x[1, 4, 5] = 60.0
    absmax, abssum = x.abs().amax(-1).flatten(), x.abs().sum(-1).flatten()
    for threshold in (25.0, 1e6):
        ours = outlier_predicate_triton(absmax, abssum, 3, 64, threshold)
        twin = outlier_module.outlier_predicate_torch(absmax, abssum, 3, 64, threshold)
        assert torch.equal(ours.flag, twin.flag)
        torch.testing.assert_close(ours.ratio, twin.ratio)
    abssum[7] = float("nan")
    assert outlier_predicate_triton(absmax, abssum, 3, 64, 1e6).flag.item() == 1


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one program after the other")
def test_the_same_input_gives_the_same_bits():
    x, y = draw(SAMPLES, TOKENS, 1536), draw(SAMPLES, TOKENS, 1536, seed=1)
    runs = [residual_delta_triton(x, y, None, "int8") for _ in range(2)]
    assert torch.equal(runs[0][0].codes, runs[1][0].codes)
    assert torch.equal(runs[0][1][:, :2], runs[1][1][:, :2])
    runs = [norm_modulate_triton([norm_module.Stream(x)], quantize="int8", hadamard=128) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][:4], runs[1][:4]))
