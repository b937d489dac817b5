"""The lessons as the page gets them: complete, true to the data, harmless with hostile input, free of torch."""

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from app.lessons import controls, course, words
from app.lessons.material import Film, Material, furnish, read_frontier
from app.views import learn
from engine.settings import Policy
from tests.synthetic import probe_trace

HOSTILE = "<script>alert(1)</script>\"'../" + "x" * 10_000


@pytest.fixture(scope="module")
def material():
    return Material(probe=probe_trace(blocks=6, steps=20), film=Film("recordings/x/b.webp", 20, 17, 1.0), source="recording:x")


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not attrs


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key not in ("bdata", "href"):
                yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
@pytest.mark.parametrize("lesson", range(1, course.COUNT + 1))
def test_every_lesson_is_whole_in_both_languages(material, lesson, lang):
    view = course.open_lesson(material, lesson, lang, {})
    assert (view["lesson"], view["lang"]) == (lesson, lang)
    json.dumps(view, allow_nan=False)
    assert view["title"] and view["lead"] and view["task"] and view["aha"] and view["note"]
    assert len(view["titles"]) == course.COUNT and 1 <= len(view["facts"]) <= 4
    assert all(figure["alt"] and figure["title"] for figure in view["figures"])
    assert not [text for text in strings(view) if "{" in text.replace("%{", "") or "nan" in text.lower().split()]


@pytest.mark.parametrize("lesson", range(1, course.COUNT + 1))
def test_every_lesson_without_data_says_so_in_a_sentence(lesson):
    view = course.open_lesson(Material(), lesson, "en", {})
    assert "Nothing is recorded yet" in view["aha"] and view["figures"][0]["spec"]["data"] == []
    assert view["lab"] is None


@pytest.mark.parametrize("lesson", range(1, course.COUNT + 1))
@pytest.mark.parametrize(
    "sent",
    [
        None, [], "x", {"step": HOSTILE, "group": HOSTILE, "block": HOSTILE, "tolerance": HOSTILE, "rotated": HOSTILE},
        {"step": float("nan"), "tolerance": float("inf"), "value": -1e300, "index": 1e9, "precision": -5, "reuse": True},
        {str(i): i for i in range(1000)},
    ],
)  # fmt: skip
def test_no_request_breaks_a_lesson(material, lesson, sent):
    json.dumps(course.open_lesson(material, lesson, HOSTILE, sent), allow_nan=False)


@pytest.mark.parametrize("lesson", [0, 8, -1, 2.5, "3", None, True])
def test_an_unknown_lesson_is_the_first(material, lesson):
    assert course.open_lesson(material, lesson, "en", {})["lesson"] == 1


@pytest.mark.parametrize("lesson", range(1, course.COUNT + 1))
def test_a_hostile_prompt_shows_as_text(lesson):
    probe = probe_trace(blocks=3, steps=12)
    probe = probe.with_meta(prompt=HOSTILE, model=HOSTILE[:60], device=HOSTILE[:60])
    view = course.open_lesson(Material(probe=probe), lesson, "en", {})
    for text in strings(view):
        parser = _Tags()
        parser.feed(text)
        assert parser.seen <= {"b", "i", "code", "br", "extra"}
        assert len(text) < 3000


def test_a_layer_with_a_hostile_name_shows_as_text():
    probe = probe_trace(blocks=3, steps=12, groups=("<img src=x>", "down"))
    for lesson in (3, 4, 6):
        view = course.open_lesson(Material(probe=probe), lesson, "en", {})
        assert not [text for text in strings(view["aha"]) if "<img" in text]
        shown = [option[1] for control in view["controls"] for option in control.get("options", [])]
        assert not any("<img" in text for text in shown)


def test_the_lab_link_carries_the_policy_that_the_lesson_shows(material):
    view = course.open_lesson(material, 4, "zh-CN", {"tolerance": 0.15})
    policy = Policy.from_dict(view["lab"]["cfg"]["policy"])
    assert policy.error_threshold == 0.15 and view["lab"]["cfg"]["source"] == "recording:x"
    assert view["lab"]["href"].startswith("?cfg=%7B") and view["lab"]["href"].endswith("&lang=zh")


def test_moving_a_control_changes_what_is_said(material):
    for lesson, name, values in ((1, "step", (2, 15)), (4, "tolerance", (0.05, 0.12)), (5, "tolerance", (0.0, 0.25)),
                                 (3, "rotated", ("off", "on")), (6, "purified", ("off", "on")), (7, "reuse", (0.0, 0.3))):
        first, second = (course.open_lesson(material, lesson, "en", {name: value}) for value in values)
        assert (first["facts"], first["aha"]) != (second["facts"], second["aha"]), lesson


def test_zero_skips_are_called_no_gain(material):
    assert "no gain" in course.open_lesson(material, 5, "en", {"tolerance": 0.0})["aha"]


def test_pdr_is_judged_by_measurement(material):
    import pandas as pd

    def told(gain):
        rows = [(m, p, 0, 30.0 + (gain if m == "sixbit" else 0)) for m in ("dmpq_tdc", "sixbit") for p in "abc"]
        table = pd.DataFrame(rows, columns=["method", "prompt", "seed", "psnr"])
        table = table.assign(setting="{}", bits=6.0, prompt_accuracy=0.9)
        ready = Material(probe=material.probe, frontier=table)
        return course.open_lesson(ready, 6, "en", {"purified": "on"})["aha"]

    assert "hardly pays" in told(0.2) and "Here it pays" in told(2.0) and "does not help" in told(-0.1)
    assert "only real runs can tell" in course.open_lesson(material, 6, "en", {"purified": "on"})["aha"]


def test_furnish_adds_only_what_is_there(tmp_path):
    ready = furnish(Material(), tmp_path)
    assert ready.frontier is None and ready.tokens == []
    (tmp_path / "f.parquet").write_bytes(b"x")
    assert read_frontier(tmp_path / "f.parquet") is None


@pytest.mark.parametrize(
    "value, shown",
    [(0.0, "0\u202f%"), (0.0042, "0.42\u202f%"), (0.084, "8.4\u202f%"), (0.0996, "10\u202f%"), (1.0, "100\u202f%"), (float("nan"), "–")],
)  # fmt: skip
def test_percent_keeps_two_digits(value, shown):
    assert words.percent(value) == shown


def test_controls_take_defaults_and_bounds():
    assert controls.number({"a": 5}, "a", 0, 1, 0.5) == 1.0 and controls.number({"a": "5"}, "a", 0, 1, 0.5) == 0.5
    assert controls.whole({"a": 2.6}, "a", 0, 9, 1) == 3 and controls.choice({"a": "z"}, "a", ("x",), "x") == "x"


def test_the_script_is_whole():
    script = learn.script()
    assert "/* DRAWING */" not in script and "drawRuler" in script and "drawPlot" in script
    assert script.count("const root =") == 1


def test_learn_needs_no_torch():
    code = (
        "import sys; from app.views import learn, compare; from app.lessons import course; "
        "from app.lessons.material import Material; from tests.synthetic import probe_trace; "
        "m = Material(probe=probe_trace(blocks=2, steps=8)); "
        "[course.open_lesson(m, n, 'en', {}) for n in range(1, 8)]; "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True, timeout=300)


def test_lesson_four_opens_on_a_layer_with_both_answers():
    from app.lessons import forecast

    probe = probe_trace(blocks=6, steps=20)
    ready = Material(probe=probe)
    grid, lines = ready.probe_grid, ready.fits
    middle = float(lines.apply(lambda row: row.alpha * grid.gamma[int(row.block), :-1].mean() + row.beta, axis=1).median())
    block, group = forecast.telling(grid, lines, middle)
    points = forecast.facts(grid, block, group, middle).points
    assert 0 < (points["predicted"] <= middle).mean() < 1
    assert forecast.telling(grid, lines, -1.0) in list(zip(lines["block"], lines["group"], strict=True))


def test_lesson_five_tells_the_replay_from_the_run(material):
    assert "estimated by replay" not in course.open_lesson(material, 5, "en", {})["note"]
    ran = Material(probe=material.probe, run=material.run.with_meta(replay=None))
    assert "the recorded run itself measured" in course.open_lesson(ran, 5, "en", {})["note"]
    assert "the recorded run itself measured" not in course.open_lesson(ran, 5, "en", {"tolerance": 0.05})["note"]


def test_lesson_four_hands_the_lab_the_policy_that_it_counted():
    """The lesson sets errors as they are against the tolerance, whatever the recorded run weighed them by."""
    probe = probe_trace(blocks=6, steps=20)
    views = [course.open_lesson(Material(probe=probe, policy=Policy(weighting=way)), 4, "en", {"tolerance": 0.08})
             for way in ("sensitivity", "none")]
    assert views[0]["facts"] == views[1]["facts"] and views[0]["figures"] == views[1]["figures"]
    handed = [Policy.from_dict(view["lab"]["cfg"]["policy"]) for view in views]
    assert handed[0] == handed[1] == Policy(error_threshold=0.08)
