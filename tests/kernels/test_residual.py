"""The delta ops' definition: sums, storage, and what happens to values that are no numbers."""

import pytest
import torch

from kernels.residual import (
    CachedDelta,
    apply_delta,
    apply_delta_torch,
    dequantize_delta,
    extrapolate_delta,
    residual_delta,
    residual_delta_compiled,
    residual_delta_torch,
)

# Largest relative error of one stored delta on Gaussian tokens: int8 steps are 1/127 of a
# token's largest value, E4M3 keeps 3 mantissa bits, bf16 8, NVFP4 1.
LIMITS = {"int8": 0.01, "fp8": 0.03, "bf16": 0.003, "nvfp4": 0.12}


def streams(shape=(2, 37, 64), dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x.to(dtype), (x + 0.1 * torch.randn(shape, generator=generator)).to(dtype)


@pytest.mark.parametrize("format", ["int8", "fp8", "bf16"])
def test_sums_equal_float64(format):
    x, y = streams()
    _, later = streams(seed=1)
    cached, first = residual_delta_torch(x, y, format=format)
    _, stats = residual_delta_torch(x, later, cached, format=format)
    assert first[:, 2:].isnan().all(), "the drift was never observed, so it is not a number"
    delta = later.double() - x.double()
    old = dequantize_delta(cached).double().view_as(delta)
    expected = [delta.abs(), x.double().abs(), (delta - old).abs(), old.abs()]
    expected = torch.stack([part.sum(dim=(1, 2)) for part in expected], dim=1)
    torch.testing.assert_close(stats.double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("format", LIMITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_delta_is_close_and_applied_once(format, dtype):
    x, y = streams(dtype=dtype)
    cached, _ = residual_delta(x, y, format=format)
    delta = y.float() - x.float()
    stored = dequantize_delta(cached).view_as(delta)
    assert (stored - delta).norm() / delta.norm() < LIMITS[format]
    applied = apply_delta(x, cached)
    assert applied.dtype == dtype and applied.shape == x.shape
    torch.testing.assert_close(applied, (x.float() + stored).to(dtype), rtol=1e-6, atol=1e-6)


def test_bytes_per_value():
    x, y = streams((1, 16, 128))
    sizes = {name: residual_delta(x, y, format=name)[0].nbytes / x.numel() for name in LIMITS}
    assert sizes["bf16"] == 2
    assert sizes["int8"] == sizes["fp8"] == 1 + 4 / 128
    assert sizes["nvfp4"] == 0.5 + 1 / 16 + 4 / 128


@pytest.mark.parametrize("format", ["int8", "fp8"])
def test_not_a_number_stays_one_and_zero_stays_zero(format):
    x, y = streams()
    y[0, 3, 5], y[1, 4, 6] = float("nan"), float("inf")
    y[0, 7] = x[0, 7]
    y[0, 8], x[0, 8] = 1e-42, 0.0
    cached, stats = residual_delta(x, y, format=format)
    assert not torch.isfinite(stats[:, 0]).any()
    applied = apply_delta(x, cached)
    assert applied[0, 3].isnan().all() and applied[1, 4].isnan().all()
    assert torch.equal(applied[0, 7], x[0, 7]) and torch.equal(applied[0, 8], x[0, 8])
    others = [0, 1, 2, 4, 5, 6]
    assert torch.isfinite(applied[0, others]).all()


def test_views_and_samples_do_not_couple():
    x, y = streams((2, 40, 48))
    whole, stats = residual_delta(x[:, 3:, :], y[:, 3:, :])
    alone, single = residual_delta(x[1:, 3:].contiguous(), y[1:, 3:].contiguous())
    assert torch.equal(stats[1:, :2], single[:, :2])
    assert torch.equal(whole.codes[37:], alone.codes)
    twice = residual_delta(x[:, 3:, :], y[:, 3:, :])[1]
    assert torch.equal(stats[:, :2], twice[:, :2])


def test_chunks_do_not_change_a_result(monkeypatch):
    x, y = streams((2, 50, 64))
    cached, stats = residual_delta_torch(x, y)
    monkeypatch.setattr("kernels.residual._CPU_CHUNK", 64 * 7)
    again, others = residual_delta_torch(x, y)
    assert torch.equal(stats[:, :2], others[:, :2])
    assert torch.equal(cached.codes, again.codes) and torch.equal(cached.scale, again.scale)


def test_a_delta_travels_and_knows_its_size():
    cached, _ = residual_delta(*streams())
    moved = cached.to("cpu", non_blocking=True)
    assert isinstance(moved, CachedDelta) and torch.equal(moved.codes, cached.codes)
    assert moved.nbytes == cached.codes.numel() + 4 * cached.scale.numel()


def test_refusals_are_sentences():
    x, y = streams()
    cached, _ = residual_delta(x, y)
    with pytest.raises(ValueError, match="one of int8, fp8, bf16, nvfp4"):
        residual_delta(x, y, format="int4")
    with pytest.raises(ValueError, match="one shape"):
        residual_delta(x, y[:1])
    with pytest.raises(ValueError, match="drop the cache"):
        residual_delta(x[:1], y[:1], cached)
    with pytest.raises(ValueError, match="drop the cache"):
        apply_delta(x[:, :5], cached)
    assert apply_delta_torch(x, cached).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_loop_equals_the_definition(dtype):
    pytest.importorskip("numba")
    x, y = streams(dtype=dtype)
    y[0, 3, 5], y[1, 4, 6], y[0, 7] = float("nan"), float("inf"), x[0, 7]
    broken = [3, 37 + 4]
    for cached in (None, residual_delta_torch(*streams(dtype=dtype))[0]):
        ours, stats = residual_delta_compiled(x, y, cached)
        twin, expected = residual_delta_torch(x, y, cached)
        torch.testing.assert_close(stats, expected, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(ours.scale, twin.scale, rtol=0, atol=0, equal_nan=True)
        assert ours.scale[broken].isnan().all()
        kept = [row for row in range(len(ours.codes)) if row not in broken]
        assert (ours.codes[kept] != twin.codes[kept]).float().mean() < 1e-3
        applied, defined = apply_delta(x, ours), apply_delta_torch(x, ours)
        assert applied[0, 3].isnan().all() and applied[1, 4].isnan().all()
        torch.testing.assert_close(applied, defined, rtol=1e-6 if dtype == torch.float32 else 0, atol=1e-6, equal_nan=True)


def test_threads_do_not_change_a_delta():
    pytest.importorskip("numba")
    x, y = streams((2, 2100, 128), torch.bfloat16)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            cached, stats = residual_delta(x, y, residual_delta(x, x)[0])
            found.append((cached.codes, cached.scale, stats, apply_delta(x, cached)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_extrapolation_goes_on_along_the_line_of_two_deltas(weight):
    x, y = streams()
    later = y + 0.05 * streams(seed=3)[0]
    older, newest = (residual_delta_torch(x, end)[0] for end in (y, later))
    found = extrapolate_delta(x, newest, older, weight)
    expected = x + (later - x) + weight * (later - y)
    scale = max(float(part.scale.max()) for part in (older, newest))
    assert found.shape == x.shape and (found - expected).abs().max() <= scale * (0.51 + 1.02 * weight)
    if weight == 0.0:
        torch.testing.assert_close(found, apply_delta_torch(x, newest))


def test_two_deltas_of_different_streams_are_one_sentence():
    x, y = streams()
    newest = residual_delta_torch(x, y)[0]
    with pytest.raises(ValueError, match="one shape"):
        extrapolate_delta(x, newest, residual_delta_torch(x[:1], y[:1])[0], 1.0)
