"""Every peer does what it says on a real CogVideoX pipeline, and leaves it exactly stock."""

import pytest
import torch

from engine import peers
from tests import pipelines

STEPS = 12


@pytest.fixture(scope="module")
def pipe(one_thread_throughout):
    return pipelines.cogvideox(layers=4)


@pytest.fixture(scope="module")
def stock(pipe):
    return run(pipe)


def run(pipe):
    return pipelines.latents(pipe, num_inference_steps=STEPS)


def anatomy(pipe):
    return {name: (type(module), set(vars(module)), len(module._forward_pre_hooks), len(module._forward_hooks))
            for name, module in pipe.transformer.named_modules()}  # fmt: skip


def maxima(pipe):
    with peers.channel_maxima(pipe) as found:
        pipelines.latents(pipe, num_inference_steps=2)
    return found


CACHES = {
    "first_block_cache": lambda pipe: peers.first_block_cache(pipe, 0.5),
    "taylorseer": lambda pipe: peers.taylorseer(pipe, 3),
    "pyramid_attention_broadcast": lambda pipe: peers.pyramid_attention_broadcast(pipe, 2),
    "mag_cache": lambda pipe: peers.mag_cache(pipe, 0.5, [0.98] * STEPS, STEPS),
}
QUANTIZERS = {
    "smoothquant": lambda pipe: peers.smoothquant_w8a8(pipe, maxima(pipe)),
    "weights only": peers.weights_only_nvfp4,
}


@pytest.mark.parametrize("name", [*CACHES, *QUANTIZERS])
def test_a_peer_changes_the_run_and_leaves_the_pipeline_stock(name, pipe, stock):
    before = anatomy(pipe)
    with {**CACHES, **QUANTIZERS}[name](pipe) as usage:
        changed = run(pipe)
    distance = float((changed - stock).norm() / stock.norm())
    assert 1e-5 < distance < 0.5
    assert (usage.skipped > 0.05) == (name in CACHES)
    assert anatomy(pipe) == before
    assert torch.equal(run(pipe), stock)


def test_a_failed_run_leaves_the_pipeline_stock_too(pipe, stock):
    before = anatomy(pipe)
    with pytest.raises(KeyboardInterrupt), peers.taylorseer(pipe, 2):
        raise KeyboardInterrupt
    assert anatomy(pipe) == before


def test_usage_of_the_stock_model_is_everything(pipe, stock):
    with peers.stock(pipe) as usage:
        assert torch.equal(run(pipe), stock)
    assert usage.skipped == 0 and usage.evaluations == STEPS and usage.average_bits == 16


def test_taylorseer_skips_attention_and_ffn_in_all_but_one_step_of_an_interval(pipe):
    # Steps 0, 1, 2 warm up; then one in three computes: 4, 7, 10. So 3, 5, 6, 8, 9, 11 of 12 are extrapolated.
    with peers.taylorseer(pipe, 3) as usage:
        run(pipe)
    assert usage.skipped == pytest.approx(6 / 12)


def test_pyramid_broadcast_skips_attention_only(pipe):
    # A block of width d has 4 d² MACs per token in attention and 8 d² in the FFN, so at most a third can be skipped.
    with peers.pyramid_attention_broadcast(pipe, 100) as usage:
        run(pipe)
    assert 0.1 < usage.skipped < 1 / 3


def test_magnitude_ratios_are_those_that_mag_cache_calibrates(pipe, capsys):
    from diffusers import MagCacheConfig

    with peers.magnitude_ratios(pipe) as ratios:
        run(pipe)
    pipe.transformer.enable_cache(MagCacheConfig(num_inference_steps=STEPS, calibrate=True))
    run(pipe)
    pipe.transformer.disable_cache()
    printed = capsys.readouterr().out.rsplit("[", 1)[1].split("]")[0]
    assert ratios == pytest.approx([float(number) for number in printed.split(",")], rel=1e-4)


def test_smoothquant_moves_outliers_into_the_weights():
    linear = torch.nn.Linear(64, 32, bias=False)
    block = torch.nn.Module()
    block.attn = torch.nn.Module()
    block.attn.to_q = linear
    model = torch.nn.Module()
    model.transformer_blocks = torch.nn.ModuleList([block])

    class Holder:
        transformer = model

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 64, generator=generator)
    x[:, 3] *= 100
    exact = linear(x)

    def error(strength):
        with peers.smoothquant_w8a8(Holder, {"transformer_blocks.0.attn.to_q": x.abs().amax(0)}, strength):
            return float(((linear(x) - exact).norm() / exact.norm()).detach())

    # strength 0 only normalises the weights' columns and leaves the outlier to the activations.
    assert error(0.5) < 0.5 * error(0.0)
    with pytest.raises(ValueError, match="strength"):
        peers.smoothquant_w8a8(Holder, {}, 2.0)
