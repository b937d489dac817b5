"""The time on the Run button: per model and size, per policy, and only for lanes that will run."""

from types import SimpleNamespace

import pytest

from app.models import Models
from app.recordings import find
from app.references import Reference
from app.settings import read
from app.views.lab_estimate import estimate, remember
from app.views.lab_memory import Lab
from app.views.lab_wish import read_wish
from engine.settings import Policy
from tests.app.standin import PROMPT

FIXED = {"race": 2 * 1.5, "sixbit": 1.5}          # the stand-in's encoding and decoding


@pytest.fixture
def lab(recordings):
    settings = read({"LAB_RECORDINGS": str(recordings)})
    return Lab(settings, find(recordings), Models(settings))


def asked(lab, **ask):
    return estimate(lab, {"prompt": PROMPT, "seed": 7, "preset": "sixbit", "mode": "race", "source": "recording:red-star", **ask}, "en")


def ran(lab, times, whole, policy="sixbit", **ask):
    """As a finished run leaves it: seconds at the end of each step, by pane."""
    wish = read_wish(lab, {"prompt": PROMPT, "seed": 7, "preset": policy, **ask}, "en")
    panes = {key: SimpleNamespace(times=times[key], seconds=times[key][-1] + whole) for key in times}
    started = SimpleNamespace(steps=len(times["b"]), height=wish.height or 128, width=wish.width or 128, frames=wish.frames or 17)
    remember(lab, SimpleNamespace(wish=wish, started=started, panes=panes))


def test_before_the_first_run_the_recording_tells(lab):
    assert asked(lab) == pytest.approx(30 * (0.36 + 0.22) + FIXED["race"], abs=0.11)
    assert asked(lab, mode="sixbit", steps=10) == pytest.approx(2.2 + FIXED["sixbit"], abs=0.11)
    assert asked(lab, mode="sixbit", preset="fp16") == pytest.approx(30 * 0.36 + FIXED["sixbit"], abs=0.11)


def test_a_policy_that_computes_more_takes_longer(lab):
    base = asked(lab, mode="sixbit")
    loose = asked(lab, mode="sixbit", preset=None, policy={**Policy().to_dict(), "tdc_threshold": 0.5})
    strict = asked(lab, mode="sixbit", preset=None, policy={**Policy().to_dict(), "tdc_threshold": 0.02})
    assert loose < base < strict


def test_break_it_is_timed_beside_the_sound_setting(lab):
    assert asked(lab, preset="break") == pytest.approx(2 * asked(lab, preset="break", mode="sixbit"), abs=0.11)          # and no FP16


def test_the_cached_mode_is_quick_only_where_the_reference_is_there(lab):
    assert asked(lab, mode="cached") == asked(lab, mode="race")
    wish = read_wish(lab, {"prompt": PROMPT, "seed": 7, "mode": "cached"}, "en")
    lab.references.put(wish, Reference(SimpleNamespace(nbytes=1), None, 1.0, [], 30))
    assert asked(lab, mode="cached") == asked(lab, mode="sixbit") and asked(lab, mode="cached", seed=8) == asked(lab, mode="race")


def test_another_size_or_model_is_not_known_until_it_ran(lab):
    large = {"height": 256, "width": 256}
    assert asked(lab, **large) is None and asked(lab, model="some/model", steps=10) is None
    ran(lab, {"a": [2.0, 4.0], "b": [1.0, 2.0]}, 3.0, steps=2, **large)
    assert asked(lab, steps=2, **large) == pytest.approx(2 * (2.0 + 1.0) + 2 * 3.0, abs=0.11)
    assert asked(lab) == pytest.approx(30 * (0.36 + 0.22) + FIXED["race"], abs=0.11)          # the usual size as before


def test_a_run_on_this_machine_replaces_the_recordings_times(lab):
    ran(lab, {"a": [0.8] * 5 + [4.0], "b": [3.0] * 6}, 1.0, steps=6)
    assert asked(lab, steps=6) == pytest.approx(4.0 + 3.0 + 2 * 1.0, abs=0.11)
    assert asked(lab) == pytest.approx(30 * (4.0 + 3.0) / 6 + 2 * 1.0, abs=0.3)          # 30 steps: the model's own number
    ran(lab, {"b": [0.6]}, 1.0, policy="w4a4", steps=1, mode="sixbit")
    assert asked(lab, mode="sixbit", preset="w4a4", steps=2) == pytest.approx(1.2 + 1.0, abs=0.11)


def test_what_would_be_refused_has_no_time(lab):
    assert asked(lab, prompt="a dragon") is None and asked(lab, steps=10_000) is None
