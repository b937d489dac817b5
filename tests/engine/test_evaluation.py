"""One forward under a plan: what is measured, kept and told, and what reuse and purification do to it."""

from dataclasses import replace

import pytest
import torch

from engine import replay
from engine.attach import attach
from engine.calibrate import fit
from engine.policy import PRESETS, Policy
from engine.run import record
from tests import pipelines
from tests.runs import LOOSE, run_once

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]


def test_a_batch_of_equal_samples_decides_like_one(pipe):
    noise = torch.randn(1, 3, 8, 4, 4, generator=torch.Generator().manual_seed(3))
    one, alone = run_once(pipe, latents=noise)
    twice = {"prompt": [pipelines.PROMPT] * 2, "negative_prompt": [""] * 2}
    two, both = run_once(pipe, latents=noise.repeat(2, 1, 1, 1, 1), **twice)
    assert alone.blocks["skipped"].tolist() == both.blocks["skipped"].tolist()
    assert alone.layers["precision"].tolist() == both.layers["precision"].tolist()
    assert torch.allclose(two[0], two[1]) and torch.allclose(one[0], two[0], rtol=0, atol=0.05)


def test_the_trace_replays_exactly_and_every_cell_is_there(pipe):
    policy = replace(LOOSE, precision="dynamic", tdc_threshold=1.2)
    with record(pipe, PRESETS["fp16"], probe=True) as probe:
        pipelines.latents(pipe)
    with record(pipe, policy, calibration=fit(probe.trace)) as run:
        pipelines.latents(pipe)
    trace = run.trace
    assert len(trace.blocks) == 5 * 2 and len(trace.layers) == 5 * 2 * 4 and (trace.layers["macs"] > 0).all()
    assert {"predictor", "first step"} <= set(trace.layers["decided_by"])
    what_if = replay(trace, policy, fit(probe.trace))
    assert what_if.meta.replay == "exact"
    assert what_if.layers["precision"].tolist() == trace.layers["precision"].tolist()
    assert run.report.average_bits > 0


def test_members_that_do_not_get_one_input_are_still_right(pipe):
    expected, trace = run_once(pipe)
    for block in pipe.transformer.transformer_blocks:
        # An adapter or another attention processor may hand each projection a tensor of its own.
        block.attn1.to_k.register_forward_pre_hook(lambda module, args: (args[0].clone(),))
    latents, other = run_once(pipe)
    assert torch.equal(latents, expected) and other.layers["macs"].tolist() == trace.layers["macs"].tolist()


def test_memory_is_told_apart(pipe):
    with record(pipe, PRESETS["w4a8"]) as without:
        pipelines.latents(pipe)
    with record(pipe, LOOSE) as run:
        pipelines.latents(pipe)
    tokens, width = 2 * (3 * 2 * 2 + 12), 128
    assert without.memory["cache"] == 0 and run.memory["cache"] == 2 * tokens * (width + 4)
    assert run.memory["packed"] == attach(pipe).nbytes["packed"] > 0 and run.memory["workspace"] > 0


def test_a_probe_changes_no_output_and_measures_everything(pipe):
    stock = pipelines.latents(pipe)
    with record(pipe, PRESETS["fp16"], probe=True) as run:
        assert torch.equal(pipelines.latents(pipe), stock)
    layers, blocks = run.trace.layers, run.trace.blocks
    assert (layers["error_nvfp4"] > layers["error_int8"]).mean() > 0.9
    assert layers["outlier_ratio"].gt(1).all() and run.trace.meta.probe
    assert all(len(sample) == 16 for sample in layers["sample"])
    for age in (1, 2, 3):
        known = blocks[f"drift_{age}"].notna()
        assert (known == (blocks["step"] >= age)).all()
    assert (blocks["delta_change"].dropna() == blocks["drift_1"].dropna()).all()


def test_observers_see_every_evaluation(pipe):
    seen = []
    with record(pipe, LOOSE, on_step=seen.append) as run:
        pipelines.latents(pipe)
    assert [(step.step, step.steps, len(step.blocks), len(step.layers)) for step in seen] == [
        (index, 5, 2, 8) for index in range(5)
    ]
    assert [step.timestep for step in seen] == run.trace.blocks.query("block == 0")["timestep"].tolist()
    assert all(step.seconds > 0 for step in seen)


def test_numbers_that_overflow_are_named(pipe):
    with torch.no_grad():
        pipe.transformer.transformer_blocks[1].ff.net[2].bias[3] = float("inf")
    for policy in (PRESETS["fp16"], LOOSE, PRESETS["tdc"]):
        with pytest.raises(RuntimeError, match="NaN at step 0, block 1 "):
            run_once(pipe, policy)


def test_reuse_that_never_fires_is_stock(pipe):
    stock = pipelines.latents(pipe)
    latents, trace = run_once(pipe, replace(PRESETS["tdc"], tdc_threshold=0.0))
    assert torch.equal(latents, stock) and not trace.blocks["skipped"].any()
    assert isinstance(Policy.preset("tdc"), Policy)


def test_a_skipped_block_may_go_on_along_the_line_of_its_last_two_deltas(pipe):
    policy = replace(PRESETS["tdc"], tdc_threshold=9.0, warmup_steps=0, protect_last=0, max_skips=2, extrapolation=0.8)
    block, changes = pipe.transformer.transformer_blocks[0], []

    def keep(module, args, kwargs, output):
        inputs = kwargs["hidden_states"], kwargs["encoder_hidden_states"]
        changes.append([y.float() - x.float() for x, y in zip(inputs, output)])

    handle = block.register_forward_hook(keep, with_kwargs=True)
    with record(pipe, policy) as run:
        pipelines.latents(pipe)
    handle.remove()
    steps = run.trace.blocks.query("block == 0")["skipped"].tolist()
    assert steps[:4] == [False, False, True, True]
    for stream in range(2):
        older, newest = changes[0][stream], changes[1][stream]
        for age in (1, 2):
            expected = newest + 0.8 * age * (newest - older)
            assert (changes[1 + age][stream] - expected).norm() < 0.05 * expected.norm()
    with record(pipe, replace(policy, extrapolation=0.0)) as plain:
        pipelines.latents(pipe)
    assert run.memory["cache"] == 2 * plain.memory["cache"]
    assert run.trace.blocks["skipped"].head(6).tolist() == plain.trace.blocks["skipped"].head(6).tolist()
