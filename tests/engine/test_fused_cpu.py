"""The CPU's fused block computes what the plain path computes, decides the same, and declines what it does not know."""

from dataclasses import replace

import pytest
import torch

from engine import fused_cpu
from engine.attach import attach
from engine.policy import PRESETS
from engine.run import record
from kernels import cpu_fused
from tests import pipelines

pytestmark = [
    pytest.mark.usefixtures("one_thread"), pytest.mark.skipif(not cpu_fused.usable(), reason="needs Numba"),
]  # fmt: skip

MIXED = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, outlier_threshold=5.0)
LIFTED = replace(MIXED, precision="nvfp4", purify_to="int8")


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(cpu_fused, "_FEWEST", 1)


@pytest.fixture
def taken(monkeypatch):
    asked, applies = [], fused_cpu.applies

    def noted(*arguments):
        asked.append(applies(*arguments))
        return asked[-1]

    monkeypatch.setattr(fused_cpu, "applies", noted)
    return asked


def run_once(policy, dtype=torch.float32):
    pipe = pipelines.cogvideox(dtype=dtype)
    attach(pipe)
    with record(pipe, policy) as run:
        latents = pipelines.latents(pipe)
    return latents.float(), run.trace


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["w4a16", "w4a8", "w4a4", "int8_tdc", "mixed", "lifted"])
def test_equals_the_plain_path(name, dtype, taken, monkeypatch):
    policy = {"mixed": MIXED, "lifted": LIFTED}.get(name) or PRESETS[name]
    ours, trace = run_once(policy, dtype)
    assert taken and all(taken)
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)
    plain, expected = run_once(policy, dtype)
    # Roundings differ in the last bit, and one flipped 4-bit code is a whole quantization step.
    limit = 0.12 if name in ("w4a4", "mixed", "lifted") else 0.02
    assert (ours - plain).norm() / plain.norm() < limit
    columns = ["step", "block", "layer", "precision", "macs"]
    first = slice(None) if name not in ("mixed", "lifted") else trace.layers["step"] == 0
    assert trace.layers[first][columns].equals(expected.layers[first][columns])
    if name in ("mixed", "lifted"):
        purified = trace.layers[trace.layers["purified"]]
        assert len(purified) and trace.blocks["skipped"].any() and set(purified["precision"]) == {policy.purify_to}
        assert (purified["outlier_ratio"] > policy.outlier_threshold).all()


def test_the_same_seed_gives_the_same_bits():
    assert torch.equal(run_once(PRESETS["w4a8"])[0], run_once(PRESETS["w4a8"])[0])


def test_declines_what_it_does_not_know(taken, monkeypatch):
    pipe = pipelines.cogvideox(dtype=torch.float32)
    attach(pipe, PRESETS["w4a8"])
    hook = pipe.transformer.transformer_blocks[0].ff.net[2].register_forward_hook(lambda *_: None)
    pipelines.latents(pipe)
    assert not taken[0] and taken[1]
    hook.remove()
    taken.clear()
    pipelines.latents(pipe)
    assert all(taken)
    # What would hold too much memory at once goes the way that cuts it.
    monkeypatch.setattr(fused_cpu, "_MOST_SUMS", 100)
    taken.clear()
    pipelines.latents(pipe)
    assert not any(taken)


def test_the_stock_preset_never_takes_it(taken):
    ours, _ = run_once(PRESETS["fp16"])
    assert not taken and torch.equal(ours, pipelines.latents(pipelines.cogvideox(dtype=torch.float32)).float())
