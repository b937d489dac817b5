"""Compiling ahead of the first step: which sizes, and what is told meanwhile."""

import torch

from kernels import pack_weight, target, warm_up
from kernels.first_use import compile_beside


def weights():
    torch.manual_seed(0)
    return [pack_weight(torch.randn(rows, size), search=False) for rows, size in ((32, 128), (32, 128), (16, 64))]


def test_it_says_which_path_is_taken():
    told = []
    assert "PyTorch" in warm_up(weights(), torch.float32, lambda *step: told.append(step))
    assert told == ([(1, 1)] if target.probe("cpu").compiled_loops else [])
    assert "no weights" in warm_up([], torch.float32)


def test_each_size_is_compiled_once_for_every_precision(monkeypatch):
    # The other machine's branch, with the calls that would compile there.
    card = target.Target("cuda", (9, 0), True, False, True, True, "Triton kernels.")
    monkeypatch.setattr("kernels.first_use.target.probe", lambda _: card)
    calls, told = [], []
    monkeypatch.setattr("kernels.first_use.quantized_linear", lambda x, packed, _, how: calls.append((packed.shape, how)))
    for name in ("norm_modulate", "gelu_quantize"):
        monkeypatch.setattr(f"kernels.first_use.{name}", lambda *_, quantize, hadamard, name=name: calls.append((name, quantize)))
    assert warm_up(weights(), torch.bfloat16, lambda *step: told.append(step), tokens=64) == "Triton kernels."
    assert told == [(1, 2), (2, 2)]
    for call in (((32, 128), "int8"), ((16, 64), "nvfp4"), ((16, 64), "w4a16"), ("norm_modulate", "nvfp4")):
        assert call in calls
    assert len(calls) == 2 * 7


def test_the_loops_compile_beside_other_work_and_only_where_they_are_used():
    thread = compile_beside("cpu")
    assert (thread is not None) == target.probe("cpu").compiled_loops
    if thread is not None:
        thread.join()
    assert compile_beside("meta") is None
