"""The CPU's compiled passes against the PyTorch definitions of the same ops."""

import pytest
import torch
import torch.nn.functional as F

from kernels import cpu_fused, cpu_share, pack_weight, target
from kernels.cpu_fused import Norm, Product
from kernels.fake_quantize import fake_quantize_nvfp4
from kernels.gate_residual import gate_residual_torch
from kernels.gelu_quantize import gelu_quantize_torch
from kernels.linear_w4a4 import linear_w4a4_torch
from kernels.linear_w4a8 import linear_w4a8_torch
from kernels.norm_modulate import Stream, norm_modulate_torch
from kernels.qk_norm_rope import qk_norm_rope_torch
from kernels.quantize_int8 import quantize_int8_torch
from kernels.quantize_nvfp4 import quantize_nvfp4_torch
from kernels.workspace import Workspace

pytestmark = pytest.mark.skipif(not cpu_fused.usable(), reason="needs Numba")
DTYPES = [torch.float32, torch.bfloat16]
SAMPLES, TEXT, VIDEO = 2, 5, 33
TOKENS = TEXT + VIDEO


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(rows, columns, seed=0):
    """Sums as a product leaves them, and the float32 values they stand for."""
    sums = (draw(rows, columns, seed=seed) * 5000).to(torch.int32)
    scales = draw(rows, seed=seed + 1).abs() * 1e-3 + 1e-4, draw(columns, seed=seed + 2).abs() + 0.1
    offset = draw(columns, seed=seed + 3)
    return Product(sums, *scales, offset), sums.float() * scales[0][:, None] * scales[1] + offset


def assert_same(made, act):
    """Codes may differ where a value lies on a rounding boundary, by one."""
    difference = (made.codes.int() - act.codes.int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
    for ours, other in ((made.token_scale, act.token_scale), (made.absmax, act.absmax), (made.abssum, act.abssum)):
        torch.testing.assert_close(ours, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "block"), [(256, 128), (192, 64), (96, 32), (48, 16), (40, 1)])
def test_quantized(size, block, dtype):
    x = draw(SAMPLES, TOKENS, size, dtype=dtype) * 3
    x[0, 3] = 0.0
    assert_same(cpu_fused.quantized(x, block), quantize_int8_torch(x, block))


def assert_same_nvfp4(made, x, block):
    """x (tokens, K), as `assert_same`; a code on the boundary is a whole step of its block, and in few of them."""
    expected = fake_quantize_nvfp4(x.float(), block)
    ours = made.values.float() * made.token_scale[:, None]
    differ = (ours - expected).abs() > 1e-5 * expected.abs()
    assert differ.float().mean() < 1e-3
    torch.testing.assert_close(made.absmax, x.float().abs().amax(-1), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(made.abssum, x.float().abs().sum(-1), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "block"), [(256, 128), (192, 64), (96, 32), (48, 16), (48, 1)])
def test_quantized_to_nvfp4(size, block, dtype, bf16, monkeypatch):
    here = target.probe("cpu")
    monkeypatch.setattr("kernels.cpu_fused.target.probe", lambda _: here._replace(native_bf16=bf16))
    x = draw(SAMPLES * TOKENS, size, dtype=dtype) * 3
    # Nothing at all, blocks without a code of their own, and the ends of float32.
    x[3], x[5, :16], x[7], x[9], x[11, 16:] = 0.0, x[5, :16] * 1e-4, x[7] * 1e-34, x[9] * 1e35, 0.0
    made = cpu_fused.quantized(x, block, "nvfp4")
    assert made.values.dtype == (torch.bfloat16 if bf16 and dtype == torch.bfloat16 else torch.float32)
    assert_same_nvfp4(made, x, block)


def test_ties_go_to_the_even_code():
    """A block whose scale is 1: what lies between two codes, and beyond the last."""
    x = torch.zeros(32, 32)
    x[:, 0], x[:, 16] = 2688.0, 6.0
    x[:, 17:28] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -2.5, -5.0])
    made = cpu_fused.quantized(x, 1, "nvfp4")
    assert (made.token_scale == 1).all()
    found = made.values[0, 17:28].tolist()
    assert found == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, -1.0, -2.0, -4.0]


@pytest.mark.parametrize("precision", ["int8", "nvfp4"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_a_number_stays_in_its_token(bad, precision):
    x = draw(TOKENS, 64)
    x[2, 7] = bad
    scale = cpu_fused.quantized(x, 64, precision).token_scale
    assert scale[2].isnan() and torch.cat([scale[:2], scale[3:]]).isfinite().all()
    sums, _ = product(TOKENS, 64)
    sums.offset[9] = bad
    assert activated(sums, 64, precision).token_scale.isnan().all()


def test_gelu():
    sums, values = product(TOKENS, 256)
    assert_same(activated(sums, 128, "int8"), gelu_quantize_torch(values, "int8", 128))
    assert_same_nvfp4(activated(sums, 128, "nvfp4"), F.gelu(values, approximate="tanh"), 128)
    made = activated(sums, 128, "w4a16")
    exact = F.gelu(values.double(), approximate="tanh")
    assert (made.values.double() - exact).abs().max() < 2e-6
    torch.testing.assert_close(made.abssum, exact.abs().sum(-1).float(), rtol=1e-5, atol=1e-6)
    # Far out, where the exponential would leave float32.
    inf = float("inf")
    wide = torch.cat([torch.linspace(-200, 200, 4001), torch.tensor([1e20, 3e38, inf, -1e4, -1e37, -3e38, -inf])])
    one = torch.ones(len(wide))
    found = activated(Product(wide[:, None].contiguous(), one, one[:1], torch.zeros(1)), 1, "w4a16").values[:, 0]
    expected = F.gelu(wide, approximate="tanh")
    assert expected[-1].isnan() and expected[-5] == inf
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6, equal_nan=True)


def activated(sums, block, precision, dtype=torch.float32):
    return cpu_fused.activated(sums, block, precision, dtype)


def norm(size, block):
    weight, bias, modulation = draw(size, seed=4), draw(size, seed=5), draw(SAMPLES, 6 * size, seed=6) * 0.3
    return Norm(weight, bias, 1e-5, modulation, block)


def stream_pair(norm_, text, video):
    shift, scale, _, text_shift, text_scale, _ = norm_.modulation.chunk(6, dim=1)
    return [Stream(text, text_shift, text_scale), Stream(video, shift, scale)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
def test_streams(gated, dtype):
    size, made_by = 128, norm(128, 128)
    text, video = draw(SAMPLES, TEXT, size, dtype=dtype) * 3 + 1, draw(SAMPLES, VIDEO, size, dtype=dtype, seed=1)
    before, update, gates = (text.clone(), video.clone()), None, None
    if gated:
        update, values = product(SAMPLES * TOKENS, size, seed=7)
        gates = draw(SAMPLES, 6 * size, seed=8)
        parts, values = gates.chunk(6, dim=1), values.view(SAMPLES, TOKENS, size)
        expected = [
            gate_residual_torch(stream.float(), value, gate).to(dtype)
            for stream, value, gate in ((text, values[:, :TEXT], parts[5]), (video, values[:, TEXT:], parts[2]))
        ]
    else:
        expected = [text, video]
    made, *after = cpu_fused.streams(text, video, made_by, "int8", update, gates)
    for ours, other in zip(after, expected):
        torch.testing.assert_close(ours, other, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert torch.equal(text, before[0]) and torch.equal(video, before[1])
    pair = stream_pair(made_by, *after)
    assert_same(made, norm_modulate_torch(pair, made_by.weight, made_by.bias, 1e-5, "int8", 128))
    plain, *_ = cpu_fused.streams(*after, made_by, "w4a16")
    exact = norm_modulate_torch([Stream(*(p.float() for p in stream)) for stream in pair], made_by.weight, made_by.bias)
    close = dict(rtol=1e-2, atol=1e-3) if plain.values.dtype == torch.bfloat16 else dict(rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.values.float().view(SAMPLES, TOKENS, size), exact, **close)
    four, *_ = cpu_fused.streams(*after, made_by, "nvfp4")
    assert_same_nvfp4(four, exact.flatten(0, 1), 128)
    nothing, *same = cpu_fused.streams(text, video, None, update=update, gates=gates) if gated else (None, *after)
    assert nothing is None and all(torch.equal(ours, other) for ours, other in zip(same, after))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("width", [64, 32])
def test_heads(width, turned):
    heads = 3
    sums, values = product(SAMPLES * TOKENS, 3 * heads * width)
    affine = draw(4, width, seed=4)
    angles = draw(VIDEO, width // 2, seed=5).repeat_interleave(2, dim=1)
    rope = (angles.cos(), angles.sin()) if turned else None
    found = cpu_fused.split_heads(sums, SAMPLES, heads, affine, 1e-6, rope, TEXT, torch.float32)
    q, k, v = values.view(SAMPLES, TOKENS, -1).chunk(3, dim=-1)
    qk_norm_rope_torch(q, k, heads, *affine, "layer", 1e-6, *(rope or (None, None)), TEXT)
    for ours, other in zip(found, (q, k, v)):
        torch.testing.assert_close(ours, other.unflatten(-1, (heads, -1)).transpose(1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_product_is_the_definitions(dtype, fast, monkeypatch):
    here = target.probe("cpu")
    if fast and not here.int8_mm:
        pytest.skip("no fast INT8 product here")
    monkeypatch.setattr("kernels.cpu_fused.target.probe", lambda _: here._replace(int8_mm=fast))
    monkeypatch.setattr(cpu_fused, "_STRIP", 1 << 10)
    for size, bias in ((256, draw(24, seed=1).to(dtype)), (2048, None)):
        packed, act = pack_weight(draw(24, size), search=False), quantize_int8_torch(draw(3, 23, size), 128)
        ours = cpu_fused.linear_int8(act, packed, bias, dtype, Workspace())
        expected = linear_w4a8_torch(act, packed, bias, dtype)
        if fast:
            assert torch.equal(ours, expected)
        else:
            torch.testing.assert_close(ours, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_nvfp4_product_is_the_definitions(dtype, bf16, monkeypatch):
    here = target.probe("cpu")
    monkeypatch.setattr("kernels.cpu_fused.target.probe", lambda _: here._replace(native_bf16=bf16))
    packed, x, workspace = pack_weight(draw(24, 256) * 0.05), draw(40, 256, dtype=dtype), Workspace()
    x[3] = float("nan")
    for bias in (draw(24, seed=1).to(dtype), None):
        made = cpu_fused.quantized(x, 128, "nvfp4")
        for kept in (workspace, workspace, None):
            out = torch.empty(40, 24)
            cpu_fused.scaled(cpu_fused.multiply(made, "nvfp4", packed, bias, kept), out)
            expected = linear_w4a4_torch(quantize_nvfp4_torch(x, 128), packed, bias, torch.float32)
            assert out[3].isnan().all() and out[:3].isfinite().all() and out[4:].isfinite().all()
            rounded = made.values.dtype == torch.bfloat16
            torch.testing.assert_close(
                out, expected, rtol=2e-2 if rounded else 1e-5, atol=1e-2 if rounded else 1e-5, equal_nan=True
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_change(dtype):
    x, y = draw(SAMPLES, TOKENS, 96, dtype=dtype), draw(SAMPLES, TOKENS, 96, dtype=dtype, seed=1)
    expected = [(part.float().abs()).flatten(1).sum(1) for part in (y.float() - x.float(), x)]
    torch.testing.assert_close(cpu_fused.stream_change(x, y), torch.stack(expected, dim=1), rtol=1e-5, atol=0)


def test_few_tokens_and_other_dtypes_are_left_to_pytorch():
    assert not cpu_fused.fits(torch.ones(31, 64)) and cpu_fused.fits(torch.ones(32, 64))
    assert not cpu_fused.fits(torch.ones(64, 64, dtype=torch.float16)) and not cpu_fused.fits(torch.ones(0, 64))


@pytest.mark.parametrize("precision", ["int8", "nvfp4"])
@pytest.mark.parametrize("openmp", [True, False])
def test_threads_do_not_change_a_bit(openmp, precision, monkeypatch):
    if openmp and not cpu_share._openmp():
        pytest.skip("PyTorch computes on other threads here")
    if not openmp:
        monkeypatch.setattr(cpu_share, "_openmp", lambda: 0)
    monkeypatch.setattr(cpu_share, "_ELEMENTS_PER_HELPER", 1 << 10)
    monkeypatch.setattr(cpu_share, "_ELEMENTS_PER_THREAD", 1 << 10)
    x, threads, results = draw(701, 256), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(cpu_fused.quantized(x, 128, precision))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for name in ("codes" if precision == "int8" else "values", "token_scale", "absmax", "abssum"):
            assert torch.equal(getattr(results[0], name), getattr(other, name))
