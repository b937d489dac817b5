"""Where a call stands: model evaluations counted through schedulers, branches, transformers and pipelines."""

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

from engine.attach import attach
from engine.run import record, shell
from tests import pipelines
from tests.runs import LOOSE, run_once

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]


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
