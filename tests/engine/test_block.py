"""A skipped block is X + Δ, exactly once, in every stream; wrapping leaves no trace."""

import inspect
from dataclasses import replace

import pytest
import torch

from engine.attach import attach
from engine.block import own_forward, unwrap, wrap
from engine.families import family_of
from engine.policy import PRESETS
from engine.run import record
from kernels.residual import dequantize_delta
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")

LOOSE = replace(PRESETS["tdc"], tdc_threshold=9.0, warmup_steps=0)


@pytest.mark.parametrize("build", [pipelines.cogvideox, pipelines.wan], ids=["cogvideox", "wan"])
def test_a_skip_adds_the_delta_once_to_every_stream(build):
    pipe = build()
    attach(pipe)
    block, seen = getattr(pipe.transformer, family_of(pipe).blocks)[1], []

    def watch(module, args, kwargs, result):
        evaluation = run._evaluation
        if not evaluation._plan[1].skipped:
            return
        given = [kwargs[name] if name in kwargs else args[place] for name, place in module._place.streams]
        results = result if isinstance(result, tuple) else (result,)
        deltas = evaluation._track.deltas.latest(1)[1]
        assert len(given) == len(results) == len(deltas)
        for x, y, delta in zip(given, results, deltas):
            added = dequantize_delta(delta).reshape(x.shape)
            assert added.abs().max() > 0
            torch.testing.assert_close(y, x + added, rtol=1e-6, atol=1e-6)
        seen.append(len(results))

    hook = block.register_forward_hook(watch, with_kwargs=True)
    with record(pipe, LOOSE) as run:
        pipelines.latents(pipe)
    hook.remove()
    assert seen and set(seen) == {2 if build is pipelines.cogvideox else 1}


def test_two_skips_in_a_row_use_the_same_delta_on_fresh_inputs():
    pipe = pipelines.cogvideox()
    attach(pipe)
    with record(pipe, LOOSE) as run:
        latents = pipelines.latents(pipe, num_inference_steps=7)
    assert run.trace.blocks.query("block == 0")["skipped"].tolist() == [False, False, True, True, False, True, False]
    assert latents.isfinite().all() and latents.abs().max() < 50


def test_wrapping_keeps_name_signature_and_leftovers():
    block = pipelines.cogvideox(layers=1).transformer.transformer_blocks[0]
    stock, signature = type(block), inspect.signature(block.forward)
    block.forward = block.forward
    leftover = block.__dict__["forward"]
    assert own_forward(block)

    class Owner:
        def active(self):
            return None

    wrap(block, Owner(), "transformer", 0, ("hidden_states", "encoder_hidden_states"))
    assert type(block) is not stock and type(block).__name__ == stock.__name__ and isinstance(block, stock)
    assert inspect.signature(block.forward) == signature
    assert block._place.streams == (("hidden_states", 0), ("encoder_hidden_states", 1))
    unwrap(block)
    assert type(block) is stock and block.__dict__["forward"] is leftover
    assert not {"_owner", "_place", "_leftover"} & set(block.__dict__)


def test_a_foreign_forward_is_recognised():
    block = pipelines.cogvideox(layers=1).transformer.transformer_blocks[0]
    other = pipelines.cogvideox(layers=1).transformer.transformer_blocks[0]
    block.forward = other.forward
    assert not own_forward(block)
