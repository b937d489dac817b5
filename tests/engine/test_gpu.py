"""The live engine on a CUDA device: stock stays stock bit for bit, and weights are where `keep` says."""

import pytest
import torch

from engine.attach import attach
from engine.policy import PRESETS
from engine.run import record
from tests import pipelines

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("build", [pipelines.cogvideox, pipelines.wan], ids=["cogvideox", "wan"])
@pytest.mark.parametrize("keep", ["device", "cpu"])
def test_stock_and_quantized_on_the_device(build, keep):
    pipe = build(dtype=torch.bfloat16).to("cuda")
    stock = pipelines.latents(pipe)
    handle = attach(pipe, keep=keep)
    group = handle.groups[0][1]
    assert group.packed.codes.is_cuda and group.members[0]._original.is_cuda == (keep == "device")
    assert torch.equal(pipelines.latents(pipe), stock)
    with record(pipe, PRESETS["fp16"], probe=True) as run:
        assert torch.equal(pipelines.latents(pipe), stock)
    assert run.trace.layers["error_nvfp4"].gt(0).all()
    for name in ("sixbit", "int8_tdc", "w4a4", "tdc"):
        with record(pipe, PRESETS[name]) as run:
            first = pipelines.latents(pipe)
        assert first.isfinite().all() and run.trace.blocks["milliseconds"].gt(0).all()
        with record(pipe, PRESETS[name]):
            assert torch.equal(pipelines.latents(pipe), first)
    handle.detach()
    assert group.members[0].weight.is_cuda and torch.equal(pipelines.latents(pipe), stock)


def test_outliers_decide_on_the_device_as_on_the_host():
    from dataclasses import replace

    policy = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, outlier_threshold=5.0)
    pipe = pipelines.cogvideox(dtype=torch.bfloat16).to("cuda")
    attach(pipe)
    with record(pipe, policy) as run:
        pipelines.latents(pipe)
    layers = run.trace.layers.query("precision != 'skipped'")
    purified = layers["outlier_ratio"] > policy.outlier_threshold
    assert purified.any() and (layers["purified"] == purified).all()


@pytest.mark.parametrize("name", ["w4a8", "w4a4", "w4a16", "int8_tdc", "sixbit"])
def test_the_fused_block_in_strips_equals_the_plain_path(name, monkeypatch):
    from engine import fused, products

    def strips(rows, *_):
        return [slice(start, min(start + 16, rows.stop)) for start in range(rows.start, rows.stop, 16)]

    monkeypatch.setattr(products, "_strips", strips)
    found = {}
    for path in ("fused", "plain"):
        pipe = pipelines.cogvideox(dtype=torch.bfloat16).to("cuda")
        attach(pipe)
        with monkeypatch.context() as patch:
            if path == "plain":
                patch.setattr(fused, "applies", lambda *_: False)
            with record(pipe, PRESETS[name]):
                found[path] = pipelines.latents(pipe).float()
    difference = (found["fused"] - found["plain"]).norm() / found["plain"].norm()
    assert difference < (0.25 if name in ("w4a4", "sixbit") else 0.06)


def test_model_offload_goes_on_after_attach():
    pipe = pipelines.cogvideox(dtype=torch.bfloat16)
    attach(pipe, PRESETS["int8_tdc"], keep="none")
    pipe.enable_model_cpu_offload()
    offloaded = pipelines.latents(pipe)
    assert offloaded.isfinite().all()
    pipe.remove_all_hooks()
    pipe.to("cuda")
    assert torch.allclose(pipelines.latents(pipe).float(), offloaded.float().cuda(), atol=0.05)


def test_an_adapter_loaded_on_an_attached_pipe_counts():
    peft = pytest.importorskip("peft")
    pipe = pipelines.cogvideox(dtype=torch.bfloat16).to("cuda")
    attach(pipe, PRESETS["w4a8"])
    before = pipelines.latents(pipe)
    pipe.transformer.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    assert not torch.equal(pipelines.latents(pipe), before)


def test_a_run_leaves_the_process_choice_of_attention_as_it_was():
    q = torch.randn(2, 4, 640, 64, device="cuda", dtype=torch.bfloat16)
    chosen = torch._fused_sdp_choice(q, q, q)
    order = torch._C._get_sdp_priority_order()
    stock = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    pipe = pipelines.cogvideox(dtype=torch.bfloat16).to("cuda")
    attach(pipe, PRESETS["w4a8"])
    pipelines.latents(pipe)
    assert torch._fused_sdp_choice(q, q, q) == chosen and torch._C._get_sdp_priority_order() == order
    assert torch.equal(torch.nn.functional.scaled_dot_product_attention(q, q, q), stock)


def test_attention_is_as_close_to_float64_as_the_stock_one():
    from engine.fused import attend

    q, k, v = (torch.randn(2, 4, tokens, 64, device="cuda", dtype=torch.bfloat16) for tokens in (641, 77, 77))
    exact = torch.nn.functional.scaled_dot_product_attention(*(part.double() for part in (q, k, v)))
    ours, stock = (
        (found.double() - exact).norm() / exact.norm()
        for found in (attend(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v))
    )
    assert ours < 1.5 * stock + 1e-4
