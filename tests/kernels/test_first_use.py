"""Compiling ahead of the first step: which sizes, and what is told meanwhile."""

import torch

from kernels import pack_weight, target, warm_up
from kernels.first_use import Use, compile_beside


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


def test_each_size_is_compiled_once_for_what_it_will_be_used_for(monkeypatch):
    # The other machine's branch, with the calls that would compile there.
    card = target.Target("cuda", (9, 0), True, False, True, True, "Triton kernels.")
    monkeypatch.setattr("kernels.first_use.target.probe", lambda _: card)
    calls, told = [], []

    def product(x, packed, bias, how):
        calls.append((packed.shape, bias is not None, how))

    monkeypatch.setattr("kernels.first_use.quantized_linear", product)
    for name in ("norm_modulate", "gelu_quantize"):
        monkeypatch.setattr(f"kernels.first_use.{name}", lambda *_, quantize, hadamard, name=name: calls.append((name, quantize)))
    assert warm_up(weights(), torch.bfloat16, lambda *step: told.append(step), tokens=64) == "Triton kernels."
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert calls == [
        *(((32, 128), True, how) for how in ("nvfp4", "int8", "w4a16")), ("norm_modulate", "int8"), ("norm_modulate", "nvfp4"),
        *(((16, 64), False, how) for how in ("nvfp4", "int8", "w4a16")), ("gelu_quantize", "int8"), ("gelu_quantize", "nvfp4"),
        ((48, 64), True, "w4a16"),
    ]  # fmt: skip


def test_the_loops_compile_beside_other_work_and_only_where_they_are_used():
    thread = compile_beside("cpu")
    assert (thread is not None) == target.probe("cpu").compiled_loops
    if thread is not None:
        thread.join()
    assert compile_beside("meta") is None
