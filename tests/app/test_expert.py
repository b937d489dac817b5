"""The scripted expert: few moves, in range, towards less time; a lost tick is noticed and reuse taken back."""

import pytest

from app.expert import GOAL, MARGIN, MOVES, STEPS, Outcome, Tuner, lost, moved, say
from engine.settings import Policy


@pytest.fixture
def tuner(source):
    return Tuner(source)


def test_moves_are_few_and_pay(tuner, source):
    tuner.search(GOAL + MARGIN)
    assert 0 < tuner.moves == len(tuner.log) <= MOVES and len(STEPS) + 1 <= MOVES
    foreseen = tuner.saving(tuner.policy)
    assert tuner.policy != source.policy and (foreseen is None or foreseen > 0)
    assert tuner.saving(source.policy) == pytest.approx(0, abs=1e-9)


def test_a_search_ends_when_the_goal_is_foreseen(tuner):
    tuner.search(0.0)
    assert tuner.moves == 0


def test_knobs_stay_in_range():
    policy = Policy(tdc_threshold=9.5, protect_last=0, max_skips=2)
    assert moved(policy, "tdc_threshold", 1.2).tdc_threshold == 10.0
    assert moved(policy, "protect_last", -1).protect_last == 0
    assert moved(policy, "max_skips", 1).max_skips == 3


def test_a_lost_tick_is_noticed_and_reuse_taken_back(tuner, source):
    right = [{"word": "red", "ok": True}, {"word": "star", "ok": True}, {"word": "spins", "ok": False}]
    wrong = [{"word": "red", "ok": True}, {"word": "star", "ok": False}, {"word": "spins", "ok": True}]
    assert lost(Outcome(1, 1, wrong, 0), Outcome(1, 1, right, 0)) == ["star"]
    tuner.search(1.0)
    far = tuner.policy.tdc_threshold
    tuner.back_off()
    assert source.policy.tdc_threshold <= tuner.policy.tdc_threshold <= far


def test_the_result_is_said_in_lines():
    run = {"seconds": 8.0, "saved": 0.2, "predicted": None, "skipped": 0.5, "lost": ["star"]}
    made = {"prompt": "p", "seed": 1, "log": ["tdc_threshold 0.2: +1.0 %"], "found": False, "runs": [run],
            "default": {"seconds": 10.0, "skipped": 0.4, "ticks": [True, False]}}
    text = say("x", made)
    assert "1 of 2 ticks" in text and "+20.0 % saved (predicted: not to be foreseen)" in text and "lost: star" in text
