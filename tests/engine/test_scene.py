"""The reader against clips as the world draws them, clean and degraded, and against wrong prompts."""

import random

import cv2
import numpy as np
import pytest
import torch

from assets.recipe.world import Painter, from_scenes
from engine import vocabulary as world
from engine.metrics import prompt_accuracy, read_scene
from engine.metrics.scene import describe

ATTRIBUTES = ("size", "colour", "shape", "motion")


def drawn(scenes, seed=0):
    """uint8 clips of scenes, laid out at random."""
    laid_out = from_scenes(scenes, torch.Generator().manual_seed(seed))
    clips, _ = Painter().paint(laid_out)
    return (clips * 255).round().clamp(0, 255).to(torch.uint8).numpy()


def scene(prompt):
    return world.parse(prompt)


def random_scenes(count, dialect, objects, seed=0):
    rng = random.Random(seed)
    return [world.random_scene(rng, dialect, objects) for _ in range(count)]


@pytest.mark.parametrize("objects", [1, 2])
@pytest.mark.parametrize("dialect", ["plain", "scenic"])
def test_drawn_clips_are_read_right(dialect, objects):
    scenes = random_scenes(8, dialect, objects, seed=5)
    assert prompt_accuracy(drawn(scenes), [world.render(each) for each in scenes]) == 1


def test_every_shape_and_motion_is_told_apart():
    scenes = [
        world.Scene("plain", "gray", (world.Object("small", "orange", world.SHAPES[index % 6], motion),))
        for index, motion in enumerate(world.MOTIONS)
    ]
    assert prompt_accuracy(drawn(scenes), [world.render(each) for each in scenes]) == 1


def test_blur_and_noise_of_a_decoder_are_survived():
    scenes = random_scenes(4, "plain", 1, seed=2)
    noise = np.random.default_rng(0)
    clips = [
        np.stack(
            [
                cv2.GaussianBlur(frame, (0, 0), 1.0) + noise.normal(0, 3, frame.shape)
                for frame in clip.astype(np.float32)
            ]
        )
        for clip in drawn(scenes)
    ]
    clips = [clip.clip(0, 255).astype(np.uint8) for clip in clips]
    assert prompt_accuracy(clips, [world.render(each) for each in scenes]) == 1


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_wrong_attribute_is_the_only_one_read_wrong(attribute):
    others = {"size": "small", "colour": "cyan", "shape": "square", "motion": "swings"}
    right = scene("a large red star moves up on a navy background")
    wrong = world.Scene("plain", "navy", (world.Object(**{**vars(right.objects[0]), attribute: others[attribute]}),))
    reading = read_scene(drawn([right])[0], world.render(wrong))
    assert not reading.all_right
    assert [key for key, tick in reading.ticks.items() if not tick] == [(0, attribute)]


def test_a_wrong_place_and_a_missing_object_are_read_wrong():
    clip = drawn([scene("a large red star moves up on a navy background")])[0]
    assert not read_scene(clip, "a large red star moves up on a black background").ticks["scene", "background"]
    two = read_scene(clip, "a large red star moves up and a small blue ring spins on a navy background")
    assert not two.ticks["scene", "objects"]
    assert not any(two.ticks[1, name] for name in ATTRIBUTES)
    assert all(two.ticks[0, name] for name in ATTRIBUTES)


def test_the_order_of_two_objects_does_not_matter_but_who_is_what_does():
    clip = drawn([scene("a large red star moves up and a small blue ring spins on a gray background")])[0]
    assert read_scene(clip, "a small blue ring spins and a large red star moves up on a gray background").all_right
    mixed = read_scene(clip, "a small red ring spins and a large blue star moves up on a gray background")
    assert not mixed.all_right and not mixed.ticks[0, "shape"]


def test_two_objects_of_one_colour_that_stay_apart_are_two():
    wanted = scene("a small green circle moves right and a small green star stays still on a black background")
    clip = next(clip for clip in drawn([wanted] * 8) if len(describe(clip)[1]) == 2)
    assert read_scene(clip, world.render(wanted)).all_right


@pytest.mark.parametrize("fill", ["noise", "black", "white"])
def test_meaningless_frames_tick_nothing_about_objects(fill):
    frames = {
        "noise": np.random.default_rng(0).integers(0, 256, (17, 128, 128, 3), np.uint8),
        "black": np.zeros((17, 128, 128, 3), np.uint8),
        "white": np.full((17, 128, 128, 3), 255, np.uint8),
    }[fill]
    reading = read_scene(frames, "a large white circle stays still on a black background")
    assert not reading.all_right
    assert not any(tick for (thing, name), tick in reading.ticks.items() if thing == 0 and name in ("shape", "motion"))
    assert str(reading)


def test_a_frozen_clip_does_not_move():
    clip = drawn([scene("a large red star moves up on a navy background")])[0]
    reading = read_scene(np.repeat(clip[8:9], 17, 0), "a large red star moves up on a navy background")
    assert not reading.ticks[0, "motion"] and reading.ticks[0, "shape"]
    assert reading.objects[0].motion == "stays still"


def test_bad_frames_and_prompts_get_one_sentence():
    with pytest.raises(ValueError, match="uint8 frames"):
        read_scene(np.zeros((17, 64, 64, 3), np.uint8), world.EXAMPLE)
    with pytest.raises(ValueError, match="knows these words"):
        read_scene(np.zeros((17, 128, 128, 3), np.uint8), "a <script> of 10,000 elephants")
    with pytest.raises(ValueError, match="as many clips"):
        prompt_accuracy([], [])
