"""The words and the geometry that everything else builds on."""

import math
import random
import subprocess
import sys

import pytest

from engine import vocabulary as V


@pytest.mark.parametrize("dialect", V.DIALECTS)
@pytest.mark.parametrize("objects", [1, 2])
def test_every_scene_survives_the_round_trip(dialect, objects):
    rng = random.Random(objects)
    for _ in range(300):
        scene = V.random_scene(rng, dialect, objects)
        prompt = V.render(scene)
        assert V.parse(prompt) == scene
        assert len(V.words_of(prompt)) + 1 <= V.MAX_WORDS
        assert all(word in V.WORDS for word in V.words_of(prompt))


def test_parse_forgives_case_and_punctuation():
    assert V.parse("A large Red circle,  moves right on a black background.") == V.parse(V.EXAMPLE)


@pytest.mark.parametrize("prompt, named", [
    ("", "empty"), ("a huge red circle moves right on a black background", '"huge"'), ("🦊", '"🦊"'),
    ("x" * 2000, "…"), ("a red large circle moves right on a black background", "another order"),
    ("a large red circle moves right", "another order"),
])
def test_a_wrong_prompt_gets_one_sentence_with_the_words(prompt, named):
    with pytest.raises(ValueError) as error:
        V.parse(prompt)
    message = str(error.value)
    assert named in message and "This small model knows these words:" in message and len(message) < 900


def test_two_objects_of_a_random_scene_differ_in_colour():
    rng = random.Random(0)
    assert all(len({o.colour for o in V.random_scene(rng, "plain", 2).objects}) == 2 for _ in range(200))


@pytest.mark.parametrize("motion", V.MOTIONS)
def test_motion_is_slow_enough_for_the_tokens_and_loops_where_it_should(motion):
    poses = V.frame_poses(motion)
    assert len(poses) == V.FRAMES
    for a, b in zip(poses, poses[1:]):
        assert math.hypot(b.dx - a.dx, b.dy - a.dy) <= 5.0
    if motion in V.LOOPING:
        first, last = poses[0], poses[-1]
        assert math.isclose(first.dx, last.dx, abs_tol=1e-9) and math.isclose(first.dy, last.dy, abs_tol=1e-9)
        assert math.isclose(first.scale, last.scale)
        assert math.isclose(math.remainder(last.angle - first.angle, 2 * math.pi), 0, abs_tol=1e-9)


def test_spin_is_one_whole_turn():
    assert math.isclose(V.pose("spins", 1.0).angle, 2 * math.pi)


def test_no_object_is_smaller_than_36_pixels():
    for left, top, right, bottom in V.BOXES.values():
        assert min(V.SIZES.values()) * min(left + right, top + bottom) >= 36 - 1e-9


def test_unknown_motion_is_refused():
    with pytest.raises(ValueError, match="moves right"):
        V.pose("jumps", 0.5)


def test_a_small_share_is_held_out():
    rng = random.Random(3)
    share = sum(V.is_held_out(V.random_scene(rng)) for _ in range(4000)) / 4000
    assert 0.02 < share < 0.05


def test_the_words_need_no_torch():
    code = "import sys; import engine.vocabulary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
