"""The CPU's fused block computes what the plain path computes, decides the same, and declines what it does not know."""

import pytest
import torch

from engine import fused_cpu
from engine.attach import attach
from engine.policy import PRESETS
from engine.position import Position
from engine.run import attachment_of, record
from kernels import cpu_fused
from tests import pipelines
from tests.engine.fused_alike import POLICIES, check_alike, check_declines_a_hook, check_stock_is_stock, run_once

pytestmark = [
    pytest.mark.usefixtures("one_thread"), pytest.mark.skipif(not cpu_fused.usable(), reason="needs Numba"),
]  # fmt: skip


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", POLICIES)
def test_equals_the_plain_path(name, dtype, taken, monkeypatch):
    ours = run_once(POLICIES[name], dtype)
    assert taken and all(taken)
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)
    check_alike(name, ours, run_once(POLICIES[name], dtype))


def test_the_same_seed_gives_the_same_bits():
    assert torch.equal(run_once(PRESETS["w4a8"])[0], run_once(PRESETS["w4a8"])[0])


def test_declines_what_it_does_not_know(taken, monkeypatch):
    pipe = check_declines_a_hook(taken)
    # What would hold too much memory at once goes the way that cuts it.
    monkeypatch.setattr(fused_cpu, "_MOST_SUMS", 100)
    taken.clear()
    pipelines.latents(pipe)
    assert not any(taken)


def rebuilt(**changes):
    """A pipeline whose transformer has another configuration, with all norms' weights away from one."""
    pipe = pipelines.cogvideox()
    torch.manual_seed(0)
    model = type(pipe.transformer).from_config({**pipe.transformer.config, **changes}).eval()
    for name, value in model.named_parameters():
        if "norm" in name and value.dim() == 1:
            torch.nn.init.normal_(value, 1.0, 0.1)
    pipe.register_modules(transformer=model.requires_grad_(False))
    return pipe


@pytest.mark.parametrize("affine", [True, False])
def test_norms_with_and_without_weights_of_their_own(affine, taken, monkeypatch):
    pipe = rebuilt(norm_elementwise_affine=affine)
    attach(pipe, PRESETS["w4a8"])
    ours = pipelines.latents(pipe)
    assert taken and all(taken)
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)
    plain = pipelines.latents(pipe)
    assert (ours - plain).norm() / plain.norm() < 0.02


def test_a_head_that_is_no_whole_vectors_takes_the_plain_path(taken):
    pipe = rebuilt(attention_head_dim=24, num_attention_heads=2, use_rotary_positional_embeddings=False)
    attach(pipe, PRESETS["w4a8"])
    assert pipelines.latents(pipe).isfinite().all() and taken and not any(taken)


def called_with(module):
    """(keyword arguments of the module's forwards from now on, as they come; the hook that notes them)."""
    seen = {}
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: seen.update(kwargs), with_kwargs=True)
    return seen, hook


@torch.no_grad()
def test_one_timestep_for_both_samples_is_broadcast_as_stock_does(taken):
    pipe = pipelines.cogvideox()
    model = pipe.transformer
    seen, hook = called_with(model)
    pipelines.latents(pipe, num_inference_steps=1)
    hook.remove()
    attach(pipe, PRESETS["w4a8"])
    both = model(**seen)[0]
    assert len(seen["timestep"]) == 2 and all(taken)
    taken.clear()
    one = model(**{**seen, "timestep": seen["timestep"][:1]})[0]
    assert not any(taken) and (one - both).norm() / both.norm() < 0.02


@torch.no_grad()
def test_what_stock_refuses_is_not_read_beyond_its_end(taken):
    pipe = pipelines.cogvideox()
    attach(pipe, PRESETS["w4a8"])
    block = pipe.transformer.transformer_blocks[0]
    seen, hook = called_with(block)
    pipelines.latents(pipe, num_inference_steps=1)
    hook.remove()
    shorter = {"image_rotary_emb": tuple(part[:-1] for part in seen["image_rotary_emb"])}
    for wrong in (shorter, {"temb": seen["temb"].repeat(2, 1)}):
        taken.clear()
        with pytest.raises(RuntimeError, match="must match"), record(pipe, PRESETS["w4a8"]) as run:
            first = Position(0, "transformer", "", 0, 5, 9.0, True)
            run.enter("transformer", {"hidden_states": seen["hidden_states"]}, first)
            block(**{**seen, **wrong})
        assert taken == [False]
    # What stock would join or broadcast is its own.
    module, groups, _ = attachment_of(pipe).anatomy("transformer", 0)
    text, video = seen["encoder_hidden_states"], seen["hidden_states"]
    assert fused_cpu.applies(module, groups, seen, video)
    for other in (text.bfloat16(), text[:1]):
        assert not fused_cpu.applies(module, groups, {**seen, "encoder_hidden_states": other}, video)


def test_the_stock_preset_never_takes_it(taken):
    check_stock_is_stock(taken)
