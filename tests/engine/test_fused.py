"""The fused block computes what the plain path computes, decides the same, and declines what it does not know."""

from dataclasses import replace

import pytest
import torch

from engine import fused, fused_cpu, products
from engine.attach import attach
from engine.policy import PRESETS
from engine.run import record
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")

MIXED = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, outlier_threshold=5.0)
LIFTED = replace(MIXED, precision="nvfp4", purify_to="int8", extrapolation=0.8)


@pytest.fixture(autouse=True)
def no_passes(monkeypatch):
    """Neither side may take the CPU's own fused forward, which has tests of its own."""
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)


@pytest.fixture
def anywhere(monkeypatch):
    """Take the fused forward with the PyTorch twins, on a machine without Triton's device."""
    applied, stock = [], fused.applies

    class Present:
        triton = True

    def applies(module, groups, kwargs, x):
        with monkeypatch.context() as patch:
            patch.setattr(fused.target, "probe", lambda device: Present)
            applied.append(stock(module, groups, kwargs, x))
        return applied[-1]

    monkeypatch.setattr(fused, "applies", applies)
    return applied


def run_once(policy, **changes):
    pipe = pipelines.cogvideox(dtype=torch.float32)
    attach(pipe)
    with record(pipe, policy) as run:
        latents = pipelines.latents(pipe, **changes)
    return latents, run.trace


@pytest.mark.parametrize("name", ["w4a16", "w4a8", "w4a4", "int8_tdc", "mixed", "lifted"])
@pytest.mark.parametrize("samples", [1, 2])
def test_equals_the_plain_path(name, samples, anywhere, monkeypatch):
    # Strips of eight tokens end inside the text, at its end and inside the video.
    monkeypatch.setattr(fused, "_SAMPLES", samples)
    monkeypatch.setattr(products, "_TILE_ROWS", 8)
    monkeypatch.setattr(products, "_STRIP_ROWS", 8)
    policy = {"mixed": MIXED, "lifted": LIFTED}.get(name) or PRESETS[name]
    ours, trace = run_once(policy)
    assert anywhere and all(anywhere)
    monkeypatch.undo()
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)
    plain, expected = run_once(policy)
    # Roundings differ in the last bit of float32, and one flipped 4-bit code is a whole quantization step.
    assert (ours - plain).norm() / plain.norm() < (0.12 if name in ("w4a4", "mixed", "lifted") else 0.02)
    columns = ["step", "block", "layer", "precision", "macs"]
    if name not in ("mixed", "lifted"):
        assert trace.layers[columns].equals(expected.layers[columns])
    else:
        first = trace.layers["step"] == 0
        assert trace.layers[first][columns].equals(expected.layers[first][columns])
        assert trace.layers["purified"].any() and trace.blocks["skipped"].any()
        purified = trace.layers[trace.layers["purified"]]
        assert (purified["outlier_ratio"] > policy.outlier_threshold).all()
        assert set(purified["precision"]) == {policy.purify_to}


def test_declines_what_it_does_not_know(anywhere):
    pipe = pipelines.cogvideox(dtype=torch.float32)
    attach(pipe, PRESETS["w4a8"])
    hook = pipe.transformer.transformer_blocks[0].ff.net[2].register_forward_hook(lambda *_: None)
    pipelines.latents(pipe)
    assert not anywhere[0] and anywhere[1]
    hook.remove()
    anywhere.clear()
    pipelines.latents(pipe)
    assert all(anywhere)


def test_the_stock_preset_never_takes_it(anywhere):
    ours, _ = run_once(PRESETS["fp16"])
    assert not anywhere
    assert torch.equal(ours, pipelines.latents(pipelines.cogvideox(dtype=torch.float32)))
