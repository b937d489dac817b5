import threading
import time

import numpy as np
import pytest
import torch

from engine import Policy, attach, generate, record
from engine.latents import LatentColours, predicted_clean
from engine.run import shell
from engine.stream import Cancelled, Decoding, Finished, Started, Step
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = dict(steps=4, guidance=3.0, height=32, width=32, frames=9, seed=3)
FP16 = Policy.preset("fp16")


@pytest.fixture(scope="module")
def cog():
    pipe = pipelines.cogvideox()
    attach(pipe)
    return pipe


@pytest.fixture(scope="module")
def wan():
    pipe = pipelines.wan(two=True)
    attach(pipe)
    return pipe


def stock(make, **changes):
    """Frames of the stock pipeline call, as diffusers gives them."""
    pipe = make()
    call = dict(num_inference_steps=4, guidance_scale=3.0, height=32, width=32, num_frames=9, output_type="np")
    generator = torch.Generator().manual_seed(3)
    return pipe(pipelines.PROMPT, generator=generator, max_sequence_length=12, **{**call, **changes}).frames[0]


def finished(events):
    return next(event for event in events if isinstance(event, Finished))


def test_the_events_come_in_order_and_say_what_the_run_was(cog):
    events = list(generate(cog, pipelines.PROMPT, policy=Policy(tdc=False, pdr=False), **SETTINGS))
    kinds = [type(event) for event in events]
    assert kinds == [Started, *[Step] * 4, Decoding, Finished]
    start, *steps, _, end = events
    assert (start.seed, start.steps, start.frames, start.height, start.fps) == (3, 4, 9, 32, 8)
    assert start.blocks == {"transformer": 2} and start.groups == ("qkv", "out", "up", "down")
    assert any("not calibrated" in sentence for sentence in start.warnings)
    assert [step.step for step in steps] == [0, 1, 2, 3] and {step.steps for step in steps} == {4}
    assert all(len(step.blocks) == 2 and len(step.layers) == 8 for step in steps)
    spent = [step.seconds_total for step in steps]
    assert 0 < spent[0] and spent == sorted(set(spent))
    assert end.frames.shape == (9, 32, 32, 3) and end.frames.dtype == np.uint8
    assert set(end.seconds) == {"encode", "denoise", "decode"} and min(end.seconds.values()) > 0
    assert end.memory["packed"] > 0
    meta = end.trace.meta
    assert (meta.prompt, meta.seed, meta.guidance, meta.frames, meta.fps, meta.steps) == (
        pipelines.PROMPT, 3, 3.0, 9, 8, 4
    )
    assert meta.seconds == end.seconds
    assert end.report.layer_calls == len(end.trace.layers) == 32


def test_fp16_is_the_stock_call_bit_for_bit(cog):
    frames = finished(generate(cog, pipelines.PROMPT, policy=FP16, **SETTINGS)).frames
    assert np.array_equal(frames, np.round(stock(pipelines.cogvideox) * 255).astype(np.uint8))


def test_wan_joins_both_branches_of_a_step(wan):
    events = list(generate(wan, pipelines.PROMPT, policy=FP16, max_sequence_length=12, **SETTINGS))
    steps = [event for event in events if isinstance(event, Step)]
    assert events[0].blocks == {"transformer": 2, "transformer_2": 2} and events[0].fps == 16
    assert len(steps) == 4 and set(steps[0].blocks["branch"]) == {"cond", "uncond"}
    expected = stock(lambda: pipelines.wan(two=True))
    assert np.array_equal(finished(iter(events)).frames, np.round(expected * 255).astype(np.uint8))


def test_the_run_waits_for_its_consumer_and_waiting_is_not_counted(cog):
    began = time.perf_counter()
    run = generate(cog, pipelines.PROMPT, policy=FP16, **SETTINGS)
    next(run), next(run)
    worker = next(thread for thread in threading.enumerate() if thread.name == "sixbit-run")
    time.sleep(0.6)
    assert worker.is_alive()
    seconds = finished(run).seconds
    assert sum(seconds.values()) < time.perf_counter() - began - 0.59
    run.close()
    assert not worker.is_alive()


def test_cpu_seconds_are_of_denoising_and_leave_out_what_the_consumer_computes(cog):
    spent, end, began = 0.0, None, time.process_time()
    for event in generate(cog, pipelines.PROMPT, policy=FP16, **SETTINGS):
        if isinstance(event, Step):
            before = time.process_time()
            while time.process_time() < before + 0.2:
                pass
            spent += time.process_time() - before
        end = event
    assert 0 < end.cpu_seconds < time.process_time() - began - spent


def test_closing_stops_within_a_step_and_the_next_run_is_clean(cog):
    clean = finished(generate(cog, pipelines.PROMPT, policy=Policy(), **SETTINGS)).frames
    run = generate(cog, pipelines.PROMPT, policy=Policy(), **{**SETTINGS, "frames": 17})
    next(run), next(run)
    run.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sixbit-run"]
    assert np.array_equal(finished(generate(cog, pipelines.PROMPT, policy=Policy(), **SETTINGS)).frames, clean)


def test_a_run_that_was_never_begun_leaves_no_thread(cog):
    generate(cog, pipelines.PROMPT, policy=FP16, **SETTINGS).close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sixbit-run"]


def test_stop_ends_with_what_was_recorded(cog):
    stop, seen = threading.Event(), []
    for event in generate(cog, pipelines.PROMPT, policy=FP16, stop=stop, **SETTINGS):
        seen.append(event)
        if isinstance(event, Step) and event.step == 1:
            stop.set()
    assert isinstance(seen[-1], Cancelled) and seen[-1].step == 2 and seen[-1].steps == 4
    assert len(seen[-1].trace.blocks) == 4


def test_two_runs_by_turns_equal_their_single_runs(cog):
    alone = [
        finished(generate(cog, prompt, policy=policy, **{**SETTINGS, "seed": seed})).frames
        for prompt, policy, seed in ((pipelines.PROMPT, Policy(), 1), (pipelines.OTHER_PROMPT, FP16, 2))
    ]
    first = generate(cog, pipelines.PROMPT, policy=Policy(), **{**SETTINGS, "seed": 1})
    second = generate(cog, pipelines.OTHER_PROMPT, policy=FP16, **{**SETTINGS, "seed": 2})
    events = [event for pair in zip(first, second, strict=True) for event in pair]
    together = [event.frames for event in events if isinstance(event, Finished)]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_steps_size_and_guidance_may_change_from_run_to_run(cog):
    """50 → 20 steps, another size, guidance 6 → 1 → 6, in one process: each equals a fresh pipeline."""
    policy = Policy(error_threshold=0.2, warmup_steps=1)
    plans = [
        dict(steps=6, guidance=6.0), dict(steps=3, guidance=6.0), dict(steps=4, guidance=1.0, height=48, frames=17),
        dict(steps=6, guidance=6.0),
    ]  # fmt: skip
    for plan in plans:
        fresh = pipelines.cogvideox()
        attach(fresh)
        expected = finished(
            generate(fresh, pipelines.PROMPT, policy=policy, previews=False, **{**SETTINGS, **plan})
        ).frames
        here = finished(generate(cog, pipelines.PROMPT, policy=policy, previews=False, **{**SETTINGS, **plan})).frames
        assert np.array_equal(here, expected), plan


def test_seed_zero_is_a_seed_and_a_random_seed_is_told(cog):
    zero = [finished(generate(cog, pipelines.PROMPT, policy=FP16, **{**SETTINGS, "seed": 0})).frames for _ in range(2)]
    assert np.array_equal(*zero)
    events = list(generate(cog, pipelines.PROMPT, policy=FP16, **{**SETTINGS, "seed": None}))
    again = finished(generate(cog, pipelines.PROMPT, policy=FP16, **{**SETTINGS, "seed": events[0].seed})).frames
    assert np.array_equal(events[-1].frames, again)


def test_an_error_of_the_run_comes_out_and_leaves_nothing_behind(cog, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("the decoder broke")

    with monkeypatch.context() as patch:
        patch.setattr(type(cog.vae), "decode", broken)
        with pytest.raises(RuntimeError, match="the decoder broke"):
            list(generate(cog, pipelines.PROMPT, policy=FP16, **SETTINGS))
    assert not [thread for thread in threading.enumerate() if thread.name == "sixbit-run"]
    assert finished(generate(cog, pipelines.PROMPT, policy=FP16, **SETTINGS))


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (dict(height=488), "height must be a multiple of 16 .* got 488. The nearest are 480 and 496"),
        (dict(width=-16), "width must be a multiple of 16"),
        (dict(width=10**9), "width must be a multiple of 16"),
        (dict(frames=48), r"1, 9, 17, … frames .* got 48. The nearest are 41 and 49"),
        (dict(frames=16), "nearest are 9 and 17"),
        (dict(frames=5), "nearest are 1 and 9"),
        (dict(frames=0), "frames must be a whole number"),
        (dict(frames=2.5), "frames must be a whole number"),
        (dict(steps=0), "steps must be a whole number from 1 to 1,000; got 0"),
        (dict(steps=True), "steps must be a whole number"),
        (dict(guidance=float("nan")), "guidance must be a number"),
        (dict(seed=-1), "seed must be a whole number"),
        (dict(seed=10**400), "seed must be a whole number"),
        (dict(seed=10**5000), "seed must be .* got a very long int"),
        (dict(guidance=10**400, steps=-(10**400)), "steps must be a whole number"),
        (dict(frames=10**5000), "frames must be a whole number"),
        (dict(height=10**5000), "height must be a multiple of 16"),
        (dict(policy="sixbit"), "Expected policy to be a Policy"),
        (dict(image=1), "takes no argument 'image'"),
        (dict(self=1), "takes no argument 'self'"),
        (dict(num_inference_steps=3), "sets num_inference_steps of the pipeline call itself: give steps=… instead"),
        (dict(timesteps=[9, 1]), "give steps="),
        (dict(guidance_scale=3.0), "give guidance="),
        (dict(generator=None), "give seed="),
        (dict(num_frames=9), "give frames="),
        (dict(num_videos_per_prompt=2), "call generate once per video"),
        (dict(output_type="pil"), "Finished.frames are always uint8"),
        (dict(return_dict=False), "always a Finished event"),
        (dict(callback_on_step_end=print), "comes as a Step event"),
        (dict(callback_on_step_end_tensor_inputs=["latents"]), "comes as a Step event"),
        (dict(prompt_embeds=1), "give the prompt as text"),
        (dict(negative_prompt_embeds=1), "give negative_prompt="),
        (dict(calibration="x"), "Expected calibration to be a Calibration, such as .* got str"),
        (dict(stop=True), "Expected stop to be a threading.Event; got bool"),
    ],
)
def test_bad_values_are_refused_before_any_work(cog, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        generate(cog, pipelines.PROMPT, **{"policy": FP16, **SETTINGS, **changes})


@pytest.mark.parametrize(
    "prompt, sentence",
    [
        ("", "The prompt is empty"),
        ("  \n", "The prompt is empty"),
        ("a red \ud83d circle", "The prompt holds half a character .a lone surrogate., which is no text"),
        (["two", "prompts"], "Expected one prompt as text; got list"),
        (None, "Expected one prompt"),
        ("a red circle " * 160, "480 tokens and this model reads at most 12"),
        ("x" * 30_000, "30,000 characters"),
    ],
)
def test_bad_prompts_are_refused_before_any_work(cog, prompt, sentence):
    with pytest.raises(ValueError, match=sentence):
        generate(cog, prompt, policy=FP16, **SETTINGS)


def test_emoji_and_markup_are_text_like_any_other(cog):
    events = list(generate(cog, "a <script> 🎬 red circle", policy=FP16, **{**SETTINGS, "steps": 1}))
    assert events[-1].trace.meta.prompt == "a <script> 🎬 red circle"


def test_one_frame_works(cog):
    single = finished(generate(cog, pipelines.PROMPT, policy=FP16, **{**SETTINGS, "frames": 1}))
    assert single.frames.shape == (1, 32, 32, 3)


def test_a_useless_negative_prompt_is_told(cog):
    start = next(generate(cog, pipelines.PROMPT, policy=FP16, negative_prompt="blue", **{**SETTINGS, "guidance": 1.0}))
    assert any("negative prompt does nothing at guidance 1" in sentence for sentence in start.warnings)


def test_what_is_not_attached_or_needs_an_input_says_so():
    pipe = pipelines.VARIANTS["cogvideox i2v"]()
    with pytest.raises(RuntimeError, match="not attached; call attach"):
        generate(pipe, pipelines.PROMPT, policy=FP16)
    attach(pipe)
    with pytest.raises(ValueError, match="starts from an image; give image="):
        generate(pipe, pipelines.PROMPT, policy=FP16, **SETTINGS)
    with pytest.raises(ValueError, match="Expected image to be a picture .* got str"):
        generate(pipe, pipelines.PROMPT, policy=FP16, image="frog.png", **SETTINGS)
    events = generate(pipe, pipelines.PROMPT, policy=FP16, image=pipelines.picture(), **SETTINGS)
    assert finished(events).frames.shape == (9, 32, 32, 3)


@pytest.mark.parametrize("variant", ["cogvideox 1.5", "cogvideox v2v", "wan v2v", "wan 2.2 5b"])
def test_other_layouts_stream_with_previews(variant):
    pipe = pipelines.VARIANTS[variant]()
    attach(pipe)
    settings = {**SETTINGS, "steps": 3}
    if "v2v" in variant:
        settings.pop("frames")
        settings.update(video=[pipelines.picture()] * 9, strength=0.8)
    if "wan" in variant:
        settings.update(max_sequence_length=12)
    first = list(generate(pipe, pipelines.PROMPT, policy=FP16, **settings))
    assert first[1].preview is None, "nothing is known of an unknown model's colours before its first clip"
    second = [event for event in generate(pipe, pipelines.PROMPT, policy=FP16, **settings) if isinstance(event, Step)]
    assert second[-1].preview.dtype == np.uint8 and len(second[-1].preview) == len(first[-1].frames)


def test_the_last_clean_prediction_is_the_final_latent(cog):
    """At the last step of DDIM the sample is x̂₀ itself, whatever formula the preview uses."""
    pipe = shell(cog)
    seen = []
    stock_step = pipe.scheduler.step

    def spying(output, timestep, sample, *args, **kwargs):
        result = stock_step(output, timestep, sample, *args, **kwargs)
        seen.append((predicted_clean(pipe.scheduler, output, timestep, sample), result))
        return result

    pipe.scheduler.step = lambda *args, **kwargs: spying(*args, **{k: v for k, v in kwargs.items() if k != "eta"})
    with record(pipe, FP16):
        latents = pipe(**pipelines.arguments(pipe)).frames
    for ours, (_, theirs) in seen:
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(seen[-1][0].float(), latents.float(), rtol=1e-4, atol=1e-4)


def test_latent_colours_recover_a_linear_world(tmp_path):
    rng = np.random.default_rng(0)
    latents = rng.normal(size=(3, 4, 6, 6)).astype(np.float32)
    mix = rng.uniform(-0.1, 0.1, (4, 3))
    small = np.clip(np.einsum("fchw,cd->fhwd", latents, mix) + 0.5, 0, 1)
    frames = np.concatenate([small[:1], np.repeat(small[1:], 4, 0)]).repeat(8, 1).repeat(8, 2)
    frames = np.round(frames * 255).astype(np.uint8)
    colours = LatentColours.fit(latents, frames)
    drawn = colours.draw(latents)
    assert drawn.shape == (9, 6, 6, 3)
    assert np.abs(drawn.astype(int) - frames[:, ::8, ::8]).max() <= 2
    colours.save(tmp_path / "new" / "map.npz")
    assert np.array_equal(LatentColours.load(tmp_path / "new" / "map.npz").draw(latents), drawn)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 cut")
    assert LatentColours.load(tmp_path / "broken.npz") is None and LatentColours.load(tmp_path / "none.npz") is None


def test_what_generate_sets_itself_is_what_its_own_call_gives(cog):
    """Nothing that the pipeline call takes is set twice: every argument is ours, a free input, or told apart here."""
    import inspect

    from engine.request import OURS

    free = {
        "latents", "attention_kwargs", "max_sequence_length", "eta", "use_dynamic_cfg", "image", "last_image", "image_embeds",
        "video", "strength", "guidance_scale_2",
    }  # fmt: skip
    named = {"self", "prompt", "negative_prompt", "height", "width"}
    for build in (
        pipelines.VARIANTS["cogvideox i2v"], pipelines.VARIANTS["wan 2.2 i2v"], pipelines.VARIANTS["wan v2v"]
    ):
        assert set(inspect.signature(type(build()).__call__).parameters) <= free | named | set(OURS)
