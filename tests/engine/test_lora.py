"""LoRA: fused and unloaded before attach it is in the packed weights; loaded on an attached pipe it runs beside them."""

import pytest
import torch

from engine import fused
from engine.attach import attach
from engine.policy import PRESETS
from engine.refusals import CannotAttach
from engine.run import record
from tests import pipelines

pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("one_thread")


def weights(strength=0.3):
    generator = torch.Generator().manual_seed(7)
    found = {}
    for block in range(2):
        for name, rows, columns in (("attn1.to_q", 128, 128), ("attn1.to_out.0", 128, 128), ("ff.net.2", 128, 512)):
            place = f"transformer.transformer_blocks.{block}.{name}"
            found[f"{place}.lora_A.weight"] = torch.randn(4, columns, generator=generator) / columns**0.5
            found[f"{place}.lora_B.weight"] = torch.randn(rows, 4, generator=generator) * strength
    return found


def run(pipe, name="w4a16"):
    with record(pipe, PRESETS[name]):
        return pipelines.latents(pipe)


def apart(one, other):
    return float((one - other).norm() / other.norm())


def test_fused_and_unloaded_before_attach():
    pipe = pipelines.cogvideox()
    base = pipelines.latents(pipe)
    pipe.load_lora_weights(weights())
    expected = pipelines.latents(pipe)
    pipe.fuse_lora()
    with pytest.raises(CannotAttach, match="unload_lora_weights"):
        attach(pipe)
    pipe.unload_lora_weights()
    attach(pipe)
    assert apart(run(pipe), expected) < 0.5 * apart(base, expected)


def test_loaded_on_an_attached_pipe_and_unloaded_again():
    pipe = pipelines.cogvideox()
    handle = attach(pipe)
    base = run(pipe)
    pipe.load_lora_weights(weights())
    changed = run(pipe)
    stock = pipelines.cogvideox()
    stock.load_lora_weights(weights())
    expected = pipelines.latents(stock)
    assert apart(changed, expected) < 0.5 * apart(base, expected)
    with pytest.raises(RuntimeError, match="the weights are packed"):
        pipe.fuse_lora()
    with pytest.raises(CannotAttach, match="unload_lora_weights"):
        handle.detach()
    pipe.unload_lora_weights()
    assert torch.equal(run(pipe), base)
    handle.detach()


def test_a_fused_block_leaves_adapted_layers_to_the_stock_forward(monkeypatch):
    """The fused forward multiplies with the packed weights alone: it must not run where an adapter adds to them."""
    applied = []

    class Present:
        triton = True

    pipe = pipelines.cogvideox()
    handle = attach(pipe, PRESETS["w4a8"])

    def look():
        for index in range(2):
            block, groups, _ = handle.anatomy("transformer", index)
            with torch.no_grad(), monkeypatch.context() as patch:
                patch.setattr(fused.target, "probe", lambda device: Present)
                applied.append(fused.applies(block, groups, {}, torch.zeros(1)))

    look()
    pipe.load_lora_weights(weights())
    look()
    pipe.unload_lora_weights()
    look()
    assert applied == [True, True, False, False, True, True]
