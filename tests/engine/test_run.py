"""Runs: state that belongs to one run and dies with it, in the order people have hit it."""

import gc

import pytest
import torch

from engine.attach import attach
from engine.run import record
from tests import pipelines
from tests.runs import LOOSE, fresh, run_once

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]


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
