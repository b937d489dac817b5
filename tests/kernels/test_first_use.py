"""Compiling ahead of the first step: which sizes, and what is told meanwhile."""

from importlib.util import find_spec

import pytest
import torch

from kernels import pack_weight, quantized_linear, target, warm_up
from kernels.first_use import Block, Use, compile_beside
from kernels.gate_residual import gate_residual
from kernels.gelu_quantize import gelu_quantize
from kernels.norm_modulate import QUANTIZED, Stream, norm_modulate
from kernels.qk_norm_rope import qk_norm_rope
from kernels.quantize_int8 import quantize_int8
from kernels.quantize_nvfp4 import quantize_nvfp4
from kernels.residual import apply_delta, residual_delta
from tests.kernels.launches import recorded_launches


def weights():
    torch.manual_seed(0)
    sizes = ((32, 128), (32, 128), (16, 64), (48, 64))
    packed = [pack_weight(torch.randn(*size), search=False) for size in sizes]
    ways = ((True, False, "norm"), (True, False, "norm"), (False, False, "gelu"), (True, True, None))
    return [Use(weight, *way) for weight, way in zip(packed, ways)]


def test_it_says_which_path_is_taken():
    told = []
    assert "PyTorch" in warm_up(weights(), torch.float32, lambda *step: told.append(step))
    assert told == ([(1, 1)] if target.probe("cpu").compiled_loops else [])
    assert "no weights" in warm_up([], torch.float32)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_progress_counts_sizes_and_then_the_streams(monkeypatch):
    # The other machine's branch; tests/engine/test_first_use.py compares what it launches with what runs launch.
    card = target.Target("cuda", (9, 0), True, False, True, True, "Triton kernels.")
    monkeypatch.setattr(target, "probe", lambda _: card)
    told = []
    with recorded_launches() as launches:
        assert warm_up(weights(), torch.bfloat16, lambda *step: told.append(step)) == "Triton kernels."
    assert told == [(1, 3), (2, 3), (3, 3)]
    plain = {launch[0] for launch in launches}
    assert "_gelu_quantize_kernel" in plain and "_residual_delta_kernel" not in plain
    told.clear()
    with recorded_launches() as launches:
        warm_up(weights(), torch.bfloat16, lambda *step: told.append(step), Block((8, 40), 2, channels=128, heads=2))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {launch[0] for launch in launches} == plain | {
        "_residual_delta_kernel", "_sum_tokens_kernel", "_apply_delta_kernel", "_gate_residual_kernel",
        "_qk_layer_norm_rope_kernel", "_outlier_predicate_kernel",
    }  # fmt: skip


def launches_at(tokens, samples=2, channels=256, width=64):
    """What every kernel that walks rows is compiled for at this length: a call of each with `tokens` rows a sample."""
    x = torch.zeros(samples, tokens, channels, dtype=torch.bfloat16)
    q, k, _ = torch.zeros(samples, tokens, 3 * channels, dtype=x.dtype).chunk(3, dim=-1)
    modulation = torch.zeros(samples, 6 * channels, dtype=x.dtype).chunk(6, dim=1)
    wide, narrow = (torch.zeros(size, dtype=x.dtype) for size in (channels, width))
    angles = (torch.zeros(tokens - 3, width),) * 2
    with recorded_launches() as found:
        cached, _ = residual_delta(x, x)
        residual_delta(x, x, cached)
        apply_delta(x, cached)
        gate_residual(x, x.clone(), modulation[2], out=x)
        qk_norm_rope(q, k, channels // width, narrow, narrow, narrow, narrow, rope=angles, first=3)
        qk_norm_rope(q, k, channels // width, wide, None, wide, None, norm="rms", rope=angles, first=3)
        for quantize in QUANTIZED:
            norm_modulate([Stream(x[:, :3], *modulation[:2])], wide, wide, quantize=quantize, hadamard=64)
            norm_modulate([Stream(x[:, :3]), Stream(x[:, 3:])], wide, wide, quantize=quantize, hadamard=64)
            gelu_quantize(x, quantize=quantize, hadamard=64)
        for quantize in (quantize_int8, quantize_nvfp4):
            quantize(x, 64)
    return found


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_what_walks_rows_is_compiled_once_for_all_lengths(monkeypatch, capability):
    card = target.Target("cuda", capability, True, capability >= (10, 0), True, True, "Triton kernels.")
    monkeypatch.setattr(target, "probe", lambda _: card)
    expected = launches_at(39)
    assert {"_qk_rms_norm_rope_kernel", "_qk_layer_norm_rope_kernel"} < {launch[0] for launch in expected}
    for tokens in (48, 37, 52):  # whole sixteens, odd, whole fours
        # The sums of tokens are one small kernel, which looks at what its length divides by.
        assert {launch[0] for launch in launches_at(tokens) - expected} <= {"_sum_tokens_kernel"}


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_slices_of_a_simulated_product_are_compiled_once(monkeypatch):
    from kernels import linear_w4a4_triton

    card = target.Target("cuda", (9, 0), True, False, True, True, "Triton kernels.")
    monkeypatch.setattr(target, "probe", lambda _: card)
    monkeypatch.setattr(linear_w4a4_triton, "_CHUNK_BYTES", 2 * 128 * 17)  # of 17 rows, were that taken as it is
    packed = weights()[0].packed
    x = torch.zeros(48, 128, dtype=torch.bfloat16)
    with recorded_launches() as found:
        quantized_linear(x, packed, None, "nvfp4")
    names = [launch[0] for launch in found]
    assert "_scaled_matmul_kernel" in names and len(names) == len(set(names))


def test_the_loops_compile_beside_other_work_and_only_where_they_are_used():
    thread = compile_beside("cpu")
    assert (thread is not None) == target.probe("cpu").compiled_loops
    if thread is not None:
        thread.join()
    assert compile_beside("meta") is None
