"""Plain calls follow what the handle said when they began; what is set meanwhile holds from the next call on."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from engine.attach import attach
from engine.policy import PRESETS
from engine.records import Calibration, Coefficient
from tests import pipelines

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]

LOOSE = replace(PRESETS["int8_tdc"], tdc_threshold=9.0, warmup_steps=0, protect_last=2)


def calls(make, policy, **changes):
    pipe = make()
    attach(pipe, policy=policy)
    return pipelines.latents(pipe, **changes)


def between(change, step=1):
    def callback(pipe, index, timestep, tensors):
        if index == step:
            change()
        return tensors

    return callback


@pytest.mark.parametrize("variant", ["cogvideox", "wan 2.1", "wan v2v"])
@pytest.mark.parametrize(
    "before, after", [(LOOSE, PRESETS["w4a16"]), (None, LOOSE), (LOOSE, None), (LOOSE, PRESETS["fp16"])]
)
def test_a_policy_that_is_set_between_steps_waits_for_the_next_call(variant, before, after):
    make = pipelines.VARIANTS[variant]
    pipe = make()
    handle = attach(pipe, policy=before)
    during = pipelines.latents(pipe, callback_on_step_end=between(lambda: setattr(handle, "policy", after)))
    assert torch.equal(during, calls(make, before))
    assert torch.equal(pipelines.latents(pipe), calls(make, after))


@pytest.mark.parametrize("before, after", [(LOOSE, PRESETS["w4a16"]), (None, LOOSE), (LOOSE, None)])
def test_a_policy_that_is_set_during_a_forward_waits_too(before, after):
    pipe = pipelines.cogvideox()
    handle = attach(pipe, policy=before)
    with pytest.MonkeyPatch.context() as patch:
        block = pipe.transformer.transformer_blocks[0]
        stock = block.norm1.forward

        def setting(*args, **kwargs):
            handle.policy = after
            return stock(*args, **kwargs)

        patch.setattr(block.norm1, "forward", setting)
        during = pipelines.latents(pipe)
    assert torch.equal(during, calls(pipelines.cogvideox, before))
    assert torch.equal(pipelines.latents(pipe), calls(pipelines.cogvideox, after))


def test_a_calibration_that_is_set_between_steps_waits_for_the_next_call():
    policy = replace(PRESETS["dmpq"], error_threshold=0.5)
    pipe = pipelines.cogvideox()
    handle = attach(pipe, policy=policy)
    rows = {
        ("transformer", block, name): Coefficient(0.0, 0.1, 0.0, 8)
        for block in range(2)
        for name in handle.family.groups
    }
    change = between(lambda: setattr(handle, "calibration", Calibration(handle.model_hash, 5, 5.0, rows)))
    during = pipelines.latents(pipe, callback_on_step_end=change)
    assert torch.equal(during, calls(pipelines.cogvideox, policy))
    assert not torch.equal(pipelines.latents(pipe), during)


def stopped_halfway(pipe):
    """Break off a call whose embeddings outlive it, so that nothing tells that it is over; returns how to call so."""

    def stop():
        raise KeyError("stop")

    with torch.no_grad():
        prompt, negative = pipe.encode_prompt(pipelines.PROMPT, max_sequence_length=12)
    held = dict(prompt=None, negative_prompt=None, prompt_embeds=prompt, negative_prompt_embeds=negative)
    held["guidance_scale"] = 1.0  # with guidance the pipeline joins both in a tensor of its own
    with pytest.raises(KeyError):
        pipelines.latents(pipe, callback_on_step_end=between(stop), **held)
    return held


def test_a_cancelled_call_does_not_hold_back_the_next_policy():
    pipe = pipelines.cogvideox()
    handle = attach(pipe, policy=LOOSE)
    held = stopped_halfway(pipe)
    handle.policy = PRESETS["w4a16"]
    assert torch.equal(pipelines.latents(pipe, **held), calls(pipelines.cogvideox, PRESETS["w4a16"], **held))


@pytest.mark.parametrize("before, after", [(None, LOOSE), (LOOSE, None)])
def test_a_cancelled_call_is_not_under_way_once_the_next_one_ended(before, after):
    pipe = pipelines.cogvideox()
    handle = attach(pipe, policy=before)
    held = stopped_halfway(pipe)
    handle.policy = after
    pipelines.latents(pipe, **held)
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(handle.detach).result()
    assert not handle.attached
