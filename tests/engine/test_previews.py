"""Previews never cost a run: other schedulers, other frame counts, a decoder that breaks."""

import numpy as np
import pytest
import torch
from diffusers import CogVideoXDPMScheduler, HeunDiscreteScheduler, UniPCMultistepScheduler

from engine import Policy, attach, generate
from engine.latents import CleanSpy, LatentColours, Preview
from engine.stream import Finished, Step
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")
FP16 = Policy.preset("fp16")
SETTINGS = dict(policy=FP16, steps=3, guidance=3.0, height=32, width=32, seed=3)


def previews(events):
    return [event.preview for event in events if isinstance(event, Step)]


def finished(events):
    return next(event for event in events if isinstance(event, Finished))


SCHEDULERS = pytest.mark.parametrize(
    "scheduler",
    [
        lambda: CogVideoXDPMScheduler(prediction_type="v_prediction", timestep_spacing="trailing", snr_shift_scale=3.0),
        lambda: HeunDiscreteScheduler(prediction_type="v_prediction"),
        lambda: UniPCMultistepScheduler(prediction_type="v_prediction"),
    ],
    ids=["dpm", "heun", "unipc"],
)


@SCHEDULERS
def test_other_schedulers_stream_with_previews(scheduler):
    pipe = pipelines.cogvideox(scheduler=scheduler())
    attach(pipe)
    frames = finished(generate(pipe, pipelines.PROMPT, frames=9, **SETTINGS)).frames
    plain = finished(generate(pipe, pipelines.PROMPT, frames=9, previews=False, **SETTINGS)).frames
    assert np.array_equal(frames, plain)
    drawn = previews(generate(pipe, pipelines.PROMPT, frames=9, **SETTINGS))
    assert all(picture is not None and len(picture) == 9 for picture in drawn)


@SCHEDULERS
def test_the_last_clean_clip_is_the_final_latent(scheduler):
    """Each of these ends at σ = 0, where the sample is x̂₀ itself; the DPM one gives x̂₀ back second."""
    pipe = pipelines.cogvideox(scheduler=scheduler())
    spy = CleanSpy(pipe.scheduler)
    latents = pipelines.latents(pipe)
    torch.testing.assert_close(spy.clean().float(), latents.float(), rtol=1e-3, atol=1e-3)


def test_a_clip_that_no_latent_count_fits_is_finished_and_teaches_nothing():
    """Video-to-video keeps the frame count of its input: 24 and 16 are no 4·n + 1."""
    pipe = pipelines.VARIANTS["cogvideox v2v"]()
    attach(pipe)
    for count in (24, 16):
        events = generate(pipe, pipelines.PROMPT, video=[pipelines.picture()] * count, strength=0.8, **SETTINGS)
        assert len(finished(events).frames) == count
    good = dict(video=[pipelines.picture()] * 9, strength=0.8, **SETTINGS)
    assert previews(generate(pipe, pipelines.PROMPT, **good)) == [None, None]
    list(generate(pipe, pipelines.PROMPT, **good))
    assert [len(picture) for picture in previews(generate(pipe, pipelines.PROMPT, **good))] == [9, 9]


def test_colours_of_another_frame_rate_are_not_used():
    pipe = pipelines.cogvideox()
    path = Preview(pipe, attach(pipe)).path
    LatentColours(np.zeros((9, 3), np.float32), np.zeros((9, 15), np.float32)).save(path)
    assert previews(generate(pipe, pipelines.PROMPT, frames=9, **SETTINGS)) == [None] * 3


def test_a_preview_that_breaks_costs_no_run(monkeypatch):
    def broken(*_):
        raise ValueError("no picture of this")

    pipe = pipelines.cogvideox()
    attach(pipe)
    monkeypatch.setattr(Preview, "draw", broken)
    monkeypatch.setattr(Preview, "learn", broken)
    events = list(generate(pipe, pipelines.PROMPT, frames=9, **SETTINGS))
    assert previews(events) == [None] * 3 and isinstance(events[-1], Finished)
