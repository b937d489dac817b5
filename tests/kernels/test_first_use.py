"""Compiling ahead of the first step: which sizes, and what is told meanwhile."""

from importlib.util import find_spec

import pytest
import torch

from kernels import pack_weight, target, warm_up
from kernels.first_use import Block, Use, compile_beside
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


def test_the_loops_compile_beside_other_work_and_only_where_they_are_used():
    thread = compile_beside("cpu")
    assert (thread is not None) == target.probe("cpu").compiled_loops
    if thread is not None:
        thread.join()
    assert compile_beside("meta") is None
