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
