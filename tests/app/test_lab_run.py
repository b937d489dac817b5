"""What the page asks for is checked before any work, and whatever happens ends in one sentence."""

import pytest

from app.gate import Gate
from app.models import Models
from app.recordings import find
from app.settings import read
from app.views.lab_memory import Lab
from app.views.lab_run import events
from app.views.lab_server import sentence
from app.views.lab_wish import read_wish
from engine.settings import BREAK_IT, Policy

PROMPT = "a large red star bounces in a sunset room"


@pytest.fixture(scope="module")
def lab(recordings):
    settings = read({"LAB_RECORDINGS": str(recordings), "LAB_PUBLIC": "1", "LAB_PRELOAD": "0"})
    return Lab(settings, find(recordings), Models(settings))


def wish(lab, **ask):
    return read_wish(lab, {"prompt": PROMPT, "seed": 7, "preset": "sixbit", "mode": "race", **ask}, "en")


def test_a_race_has_two_lanes_and_seed_0_is_a_seed(lab):
    made = wish(lab, seed=0)
    assert made.seed == 0 and [lane.pane for lane in made.lanes] == ["a", "b"] and made.lanes[0].is_reference
    assert [lane.pane for lane in wish(lab, mode="sixbit").lanes] == ["b"]
    assert 0 <= wish(lab, seed=None).seed < 2**31


def test_break_it_runs_beside_the_sound_setting(lab):
    made = wish(lab, preset="break")
    assert made.lanes[0].policy == Policy.preset("sixbit") and made.lanes[1].policy == BREAK_IT


def test_measuring_everything_runs_the_reference_first(lab):
    made = wish(lab, probe=True, mode="sixbit")
    assert made.first_alone and made.lanes[0].probe and made.lanes[0].is_reference and not made.lanes[1].probe


@pytest.mark.parametrize(
    "ask, said",
    [
        ({"steps": 0}, "steps must be a whole number from 1 to 60"), ({"steps": 10**6}, "steps must be"),
        ({"steps": "<b>"}, "got <b>"), ({"seed": -1}, "seed must be"), ({"seed": 1.5}, "seed must be"),
        ({"frames": 500}, "frames must be a whole number from 1 to 49"), ({"height": 4000, "width": 4000}, "pixels"),
        ({"prompt": ""}, "empty"), ({"prompt": "a dragon"}, "knows these words"), ({"prompt": "🙂"}, "knows these words"),
        ({"prompt": "x" * 10_000}, "knows these words"), ({"model": "/etc"}, "public page"),
        ({"policy": {"error_threshold": 9}}, "error_threshold must be"), ({"policy": {"evil": 1}}, "evil"),
        ({"preset": "../x"}, "preset must be one of"),
        ({"guidance": "much"}, "guidance must be a number from 0 to 100; got much"), ({"guidance": "nan"}, "guidance must be"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(lab, ask, said):
    with pytest.raises(ValueError, match=said) as refused:
        wish(lab, **ask)
    assert "\n" not in str(refused.value)


def test_a_refused_run_ends_with_a_sentence_and_leaves_nothing_behind(lab):
    gate = Gate(1, 1)
    told = list(events(lab, gate, {"id": "1", "prompt": "a dragon"}, "tab"))
    assert len(told) == 1 and told[0]["over"] and told[0]["status"]["tone"] == "bad"
    assert not lab.sessions.get("tab").running and len(gate) == 0


def test_a_refusal_speaks_the_pages_language(lab):
    ask = {"id": "1", "prompt": "a dragon", "lang": "zh-CN"}
    told = next(events(lab, Gate(1, 1), ask, "tab"))["status"]["sentence"]
    assert told.startswith("这个小模型只认识") and "dragon" in told and "knows these words" not in told


def test_a_full_line_says_so(lab):
    gate = Gate(1, 0)
    gate.join()
    told = list(events(lab, gate, {"id": "1", "prompt": PROMPT, "preset": "w4a8"}, "tab"))
    assert "Too many people" in told[-1]["status"]["sentence"] and len(gate) == 1


def test_a_waiting_visitor_knows_how_many_are_ahead_and_can_leave(lab):
    gate = Gate(1, 4)
    gate.join()
    gate.join()
    stream = events(lab, gate, {"id": "1", "prompt": PROMPT, "preset": "w4a8"}, "tab")
    assert "2 ahead" in next(stream)["status"]["sentence"]
    stream.close()
    assert len(gate) == 2 and not lab.sessions.get("tab").running


def test_a_stop_in_the_line_says_that_nothing_was_run(lab):
    gate = Gate(1, 4)
    gate.join()
    stream = events(lab, gate, {"id": "7", "prompt": PROMPT, "preset": "w4a8"}, "tab")
    assert "1 ahead" in next(stream)["status"]["sentence"]
    lab.sessions.get("tab").halt("7")
    told = list(stream)
    assert told[-1]["over"] and told[-1]["status"]["sentence"] == "You left the line; nothing was run."
    assert len(gate) == 1 and not lab.sessions.get("tab").running


def test_a_stop_that_comes_before_its_run_is_not_lost(lab):
    session = lab.sessions.get("quick")
    session.halt("1")
    told = list(events(lab, Gate(1, 1), {"id": "1", "prompt": PROMPT, "preset": "w4a8"}, "quick"))
    assert len(told) == 1 and told[0]["over"] and "left the line" in told[0]["status"]["sentence"]
    assert session.begin("2") and not session.stop.is_set()           # the next run is not stopped by it
    session.halt("1")
    assert not session.stop.is_set()                                  # nor by a stop of the run before, come late
    session.halt("2")
    assert session.stop.is_set()


@pytest.mark.parametrize("ask", [{"steps": 61}, {"height": 4000, "width": 4000}, {"frames": 50}])
def test_every_refusal_of_ours_is_said_in_chinese_too(lab, ask):
    with pytest.raises(ValueError) as refused:
        read_wish(lab, {"prompt": PROMPT, **ask}, "zh-CN")
    assert str(refused.value).isascii() is False and "must" not in str(refused.value) and "Expected" not in str(refused.value)


@pytest.mark.parametrize(
    "values, chinese",
    [({"max_skips": 500}, "“最多连续跳过”应为 0 到 100 的整数"), ({"error_threshold": 3}, "“4 比特容忍度”应为 0 到 1 的数"), ({"gap": "x"}, "应为以下之一")],
)
def test_a_policy_out_of_range_is_refused_in_the_pages_language(values, chinese):
    with pytest.raises(ValueError) as refused:
        Policy(**values)
    assert chinese in sentence(refused.value, "zh-CN") and sentence(refused.value, "en") == str(refused.value)
