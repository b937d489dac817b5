"""Runs: state that belongs to one run and dies with it, in the order people have hit it."""

import gc
import threading
from dataclasses import replace

import pytest
import torch
from diffusers import (
    CogVideoXDPMScheduler,
    CogVideoXVideoToVideoPipeline,
    HeunDiscreteScheduler,
    KDPM2DiscreteScheduler,
    UniPCMultistepScheduler,
    WanVideoToVideoPipeline,
)

from engine import replay
from engine.attach import attach
from engine.calibrate import fit
from engine.policy import PRESETS, Policy
from engine.run import record, shell
from tests import pipelines

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]

# Random weights drift a lot, so reuse has to be loose to happen at all in five steps.
LOOSE = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, outlier_threshold=5.0)


@pytest.fixture
def pipe():
    pipe = pipelines.cogvideox()
    attach(pipe)
    return pipe


def run_once(pipe, policy=LOOSE, **changes):
    with record(pipe, policy) as run:
        latents = pipelines.latents(pipe, **changes)
    return latents, run.trace


def fresh(policy=LOOSE, **changes):
    pipe = pipelines.cogvideox()
    attach(pipe)
    return run_once(pipe, policy, **changes)[0]


def test_same_seed_twice_and_seed_zero_is_a_seed(pipe):
    first, trace = run_once(pipe)
    again, _ = run_once(pipe)
    assert torch.equal(first, again) and trace.blocks["skipped"].any() and trace.layers["purified"].any()
    assert not torch.equal(first, run_once(pipe, seed=1)[0])


def test_other_steps_and_sizes_in_one_process_equal_fresh_ones(pipe):
    changes = [{}, {"num_inference_steps": 3}, {"height": 48, "num_frames": 5}, {}]
    with record(pipe, LOOSE) as run:
        together = [pipelines.latents(pipe, **change) for change in changes]
    assert run.calls == 4 and set(run.trace.blocks["call"]) == {0, 1, 2, 3}
    for latents, change in zip(together, changes):
        assert torch.equal(latents, fresh(**change))


@pytest.mark.parametrize("plain", [False, True], ids=["recorded", "plain calls"])
def test_guidance_off_between_two_guided_calls(pipe, plain):
    calls = [
        {"guidance_scale": 6.0}, {"guidance_scale": 1.0, "prompt": pipelines.OTHER_PROMPT}, {"guidance_scale": 6.0},
    ]
    if plain:
        attach(pipe, policy=LOOSE)
        together = [pipelines.latents(pipe, **call) for call in calls]
    else:
        with record(pipe, LOOSE):
            together = [pipelines.latents(pipe, **call) for call in calls]
    assert torch.equal(together[0], together[2]) and torch.equal(together[0], fresh(**calls[0]))
    assert torch.equal(together[1], fresh(**calls[1]))


class Stop(Exception):
    pass


@pytest.mark.parametrize("plain", [False, True], ids=["recorded", "plain calls"])
def test_a_cancelled_call_leaves_nothing_for_the_next(pipe, plain):
    def cancel(_, step, timestep, tensors):
        if step == 2:
            raise Stop
        return tensors

    if plain:
        handle = attach(pipe, policy=LOOSE)
        with pytest.raises(Stop):
            pipelines.latents(pipe, callback_on_step_end=cancel)
        gc.collect()
        assert not handle._plain.run._tracks
        after = pipelines.latents(pipe, height=48)
    else:
        with pytest.raises(Stop):
            with record(pipe, LOOSE) as run:
                pipelines.latents(pipe, callback_on_step_end=cancel)
        assert len(run.trace.blocks) == 3 * 2 and not run._tracks
        after = run_once(pipe, height=48)[0]
    assert torch.equal(after, fresh(height=48))


def test_an_interrupted_call_and_a_failing_observer(pipe):
    def interrupt(pipeline, step, timestep, tensors):
        pipeline._interrupt = step == 1
        return tensors

    with record(pipe, LOOSE) as run:
        pipelines.latents(pipe, callback_on_step_end=interrupt)
        complete = pipelines.latents(pipe)
    assert run.trace.blocks.groupby("call")["step"].nunique().tolist() == [2, 5]
    assert torch.equal(complete, fresh())

    def fail(step):
        raise Stop

    with pytest.raises(Stop):
        with record(pipe, LOOSE, on_step=fail):
            pipelines.latents(pipe)
    assert torch.equal(run_once(pipe)[0], fresh())


def test_finished_plain_calls_hold_no_deltas(pipe):
    handle = attach(pipe, policy=LOOSE)
    pipelines.latents(pipe)
    assert not handle._plain.run._tracks


def test_a_plain_call_of_another_pipeline_around_the_same_weights(pipe):
    attach(pipe, policy=LOOSE)
    expected = pipelines.latents(pipe)
    other = shell(pipe)
    for _ in range(2):
        assert torch.equal(pipelines.latents(other), expected)
    sibling = CogVideoXVideoToVideoPipeline(**pipe.components)
    first = pipelines.latents(sibling)
    assert torch.equal(pipelines.latents(sibling), first)
    assert torch.equal(pipelines.latents(pipe), expected)


def test_another_scheduler_after_attach(pipe):
    with record(pipe, LOOSE) as run:
        pipelines.latents(pipe)
        pipe.scheduler = CogVideoXDPMScheduler.from_config(pipe.scheduler.config)
        replaced = pipelines.latents(pipe)
    assert run.calls == 2
    other = pipelines.cogvideox()
    other.scheduler = CogVideoXDPMScheduler.from_config(other.scheduler.config)
    attach(other)
    assert torch.equal(replaced, run_once(other)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("scheduler", "evaluations"),
    [(HeunDiscreteScheduler, 9), (KDPM2DiscreteScheduler, 9), (UniPCMultistepScheduler, 5), (CogVideoXDPMScheduler, 5)],
)
def test_a_step_is_a_model_evaluation(scheduler, evaluations):
    pipe = pipelines.cogvideox(scheduler=scheduler(prediction_type="v_prediction"))
    attach(pipe)
    _, trace = run_once(pipe)
    assert trace.blocks["step"].drop_duplicates().tolist() == list(range(evaluations))
    assert (trace.blocks["steps"] == evaluations).all() and trace.meta.steps == evaluations
    assert trace.blocks["timestep"].is_monotonic_decreasing


def test_wan_branches_have_states_of_their_own():
    pipe = pipelines.wan()
    attach(pipe)
    guided, trace = run_once(pipe)
    assert list(trace.blocks["branch"].drop_duplicates()) == ["cond", "uncond"]
    single, alone = run_once(pipe, guidance_scale=1.0)
    assert list(alone.blocks["branch"].drop_duplicates()) == ["cond"]
    first = trace.blocks.query("step == 0 and branch == 'cond'")["gamma"].tolist()
    assert first == alone.blocks.query("step == 0")["gamma"].tolist()
    assert torch.equal(run_once(pipe)[0], guided)


def test_wan_video_to_video_announces_no_branches_but_has_them():
    pipe = pipelines.wan(WanVideoToVideoPipeline)
    attach(pipe)
    _, trace = run_once(pipe)
    counted = trace.blocks.groupby(["branch", "step"], sort=False).size()
    assert counted.to_dict() == {(branch, step): 2 for step in range(4) for branch in ("cond", "uncond")}


def test_wan_two_transformers_share_the_step_count_but_no_state():
    pipe = pipelines.wan(two=True)
    attach(pipe)
    with record(pipe, LOOSE) as run:
        pipelines.latents(pipe, num_inference_steps=8)
    blocks = run.trace.blocks.query("branch == 'cond' and block == 0")
    models = blocks.set_index("step")["model"].to_dict()
    change = next(step for step, model in models.items() if model == "transformer_2")
    assert sorted(models) == list(range(8)) and 0 < change < 8
    assert blocks.set_index("step")["reason"][change] == "first step" and blocks["skipped"].any()
    assert blocks.set_index("step")["reason"][7] == "final steps"


def test_a_batch_of_equal_samples_decides_like_one(pipe):
    noise = torch.randn(1, 3, 8, 4, 4, generator=torch.Generator().manual_seed(3))
    one, alone = run_once(pipe, latents=noise)
    twice = {"prompt": [pipelines.PROMPT] * 2, "negative_prompt": [""] * 2}
    two, both = run_once(pipe, latents=noise.repeat(2, 1, 1, 1, 1), **twice)
    assert alone.blocks["skipped"].tolist() == both.blocks["skipped"].tolist()
    assert alone.layers["precision"].tolist() == both.layers["precision"].tolist()
    assert torch.allclose(two[0], two[1]) and torch.allclose(one[0], two[0], rtol=0, atol=0.05)


def test_a_change_of_shape_inside_a_call_drops_the_history(pipe):
    with record(pipe, LOOSE) as run:
        pipe.scheduler.set_timesteps(4)
        for step, frames in enumerate((3, 3, 3, 2)):
            pipe.transformer(
                torch.ones(1, frames, 8, 4, 4), torch.ones(1, 12, 64), timestep=torch.tensor([900 - step]),
                image_rotary_emb=pipe._prepare_rotary_positional_embeddings(32, 32, frames, "cpu"),
            )
    reasons = run.trace.blocks.query("block == 0")["reason"].tolist()
    assert reasons == ["first step", "no history", "within budget", "first step"]


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
        with pytest.raises(RuntimeError, match="NaN at step 0, block 1 .*bfloat16"):
            run_once(pipe, policy)


@pytest.mark.parametrize("policy, calibration, said", [
    ("sixbit", None, "Expected policy to be a Policy, such as .* got str"),
    (None, None, "Expected policy to be a Policy, such as .* got NoneType"),
    (LOOSE, "zz", "Expected calibration to be a Calibration, such as .* got str"),
])  # fmt: skip
def test_what_is_no_policy_or_calibration_is_refused(pipe, policy, calibration, said):
    with pytest.raises(ValueError, match=said):
        with record(pipe, policy, calibration=calibration):
            pass


def test_nested_and_unattached_runs_are_refused(pipe):
    with record(pipe, LOOSE):
        with pytest.raises(RuntimeError, match="already"):
            with record(pipe, LOOSE):
                pass
        with pytest.raises(RuntimeError, match="being recorded"):
            attach(pipe).detach()
    with pytest.raises(RuntimeError, match="attach"):
        with record(pipelines.cogvideox(layers=1), LOOSE):
            pass
    run_once(pipe)


def test_two_models_in_one_run_do_not_mix(pipe):
    other = pipelines.wan()
    stock = pipelines.latents(other)
    attach(other)
    with record(pipe, LOOSE) as run:
        assert torch.equal(pipelines.latents(other), stock)
        latents = pipelines.latents(pipe)
    assert set(run.trace.layers["layer"]) == {"qkv", "out", "up", "down"}
    assert torch.equal(latents, fresh())


def test_concurrent_runs_equal_their_single_runs():
    for build in (pipelines.cogvideox, pipelines.wan):
        pipe = build()
        attach(pipe)
        jobs = [
            (LOOSE, {"seed": 1, "prompt": pipelines.OTHER_PROMPT}),
            (PRESETS["w4a4"], {"seed": 2, "num_inference_steps": 4}),
            (PRESETS["tdc"], {"seed": 3, "num_frames": 5}),
        ]
        alone = [run_once(pipe, policy, **changes) for policy, changes in jobs]
        found = [None] * len(jobs)
        barrier = threading.Barrier(len(jobs))

        def work(index, policy, changes):
            other = shell(pipe)
            barrier.wait()
            found[index] = run_once(other, policy, **changes)

        threads = [threading.Thread(target=work, args=(index, *job)) for index, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for (latents, trace), (expected, expected_trace) in zip(found, alone):
            assert torch.equal(latents, expected)
            same = ["call", "branch", "step", "block", "skipped", "gamma"]
            assert trace.blocks[same].equals(expected_trace.blocks[same])


def test_a_shell_keeps_what_makes_the_pipeline():
    pipe = pipelines.wan(two=True)
    other = shell(pipe)
    assert type(other) is type(pipe) and other.scheduler is not pipe.scheduler
    assert other.transformer is pipe.transformer and other.transformer_2 is pipe.transformer_2
    assert other.config.boundary_ratio == pipe.config.boundary_ratio == 0.875
    assert torch.equal(pipelines.latents(other), pipelines.latents(pipe))
    assert torch.equal(pipelines.latents(other, output_type="pt"), pipelines.latents(pipe, output_type="pt"))


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
