"""What the tests of both fused blocks ask alike: the same run with and without, the same decisions, a hook declined."""

from dataclasses import replace

import torch

from engine.attach import attach
from engine.policy import PRESETS, Policy
from engine.run import record
from tests import pipelines

MIXED = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, outlier_threshold=5.0)
POLICIES = {
    **{name: PRESETS[name] for name in ("w4a16", "w4a8", "w4a4", "int8_tdc")}, "mixed": MIXED,
    "lifted": replace(MIXED, precision="nvfp4", purify_to="int8", extrapolation=0.8),
}  # fmt: skip


def run_once(policy: Policy, dtype=torch.float32):
    """The latents in float32 and the trace of one recorded call."""
    pipe = pipelines.cogvideox(dtype=dtype)
    attach(pipe)
    with record(pipe, policy) as run:
        latents = pipelines.latents(pipe)
    return latents.float(), run.trace


def check_alike(name: str, ours, plain) -> None:
    """Two results of `run_once` under a policy of POLICIES: near each other, with equal decisions."""
    (made, trace), (expected, plainly), policy = ours, plain, POLICIES[name]
    signals_decide = name in ("mixed", "lifted")
    # Roundings differ in the last bit, and one flipped 4-bit code is a whole quantization step.
    limit = 0.12 if signals_decide or name == "w4a4" else 0.02
    assert (made - expected).norm() / expected.norm() < limit
    columns = ["step", "block", "layer", "precision", "macs"]
    first = trace.layers["step"] == 0 if signals_decide else slice(None)
    assert trace.layers[first][columns].equals(plainly.layers[first][columns])
    if signals_decide:
        purified = trace.layers[trace.layers["purified"]]
        assert len(purified) and trace.blocks["skipped"].any() and set(purified["precision"]) == {policy.purify_to}
        assert (purified["outlier_ratio"] > policy.outlier_threshold).all()


def check_declines_a_hook(taken: list[bool]):
    """A hook inside the first block keeps that block, and no other, on the plain path. taken: whether each block call
    was fused, as it comes. Returns the pipeline, which follows `w4a8`."""
    pipe = pipelines.cogvideox(dtype=torch.float32)
    attach(pipe, PRESETS["w4a8"])
    hook = pipe.transformer.transformer_blocks[0].ff.net[2].register_forward_hook(lambda *_: None)
    pipelines.latents(pipe)
    assert not taken[0] and taken[1]
    hook.remove()
    taken.clear()
    pipelines.latents(pipe)
    assert taken and all(taken)
    return pipe


def check_stock_is_stock(taken: list[bool]) -> None:
    """The preset `fp16` never asks for a fused block, and equals the pipeline that nobody attached."""
    ours, _ = run_once(PRESETS["fp16"])
    assert not taken and torch.equal(ours, pipelines.latents(pipelines.cogvideox(dtype=torch.float32)))
