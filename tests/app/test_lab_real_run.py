"""Runs through `events` on a small random model: limits, references, a first run that calibrates, what a broken run leaves."""

import os
import threading
from importlib import import_module

import numpy as np
import pytest

from app import lanes
from app import models as models_of
from app.gate import Gate
from app.recordings import find
from app.settings import read
from app.views.lab_memory import Lab, race_of
from app.views.lab_run import events
from app.views.lab_server import functions
from tests import pipelines
from tests.crowd import one_crowded_core

SMALL = {"steps": 3, "height": 32, "width": 32, "frames": 9, "seed": 5, "prompt": pipelines.PROMPT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random CogVideoX checkpoint of two blocks."""
    path = tmp_path_factory.mktemp("models") / "small"
    pipelines.cogvideox().save_pretrained(path)
    return path


@pytest.fixture
def lab(recordings, folder, monkeypatch, tmp_path):
    """A Lab with bounds, whose models are the process's."""
    monkeypatch.setenv("SIXBIT_CACHE", str(tmp_path / "cache"))
    settings = read({"LAB_RECORDINGS": str(recordings), "LAB_MAX_STEPS": "10", "LAB_MAX_PIXELS": "1200", "LAB_MAX_FRAMES": "9"})
    monkeypatch.setattr(models_of, "_shared", None)
    return Lab(settings, find(recordings), models_of.shared(settings))


def run(lab, folder, number="1", **ask):
    return list(events(lab, Gate(1, 4), {"id": number, "model": str(folder), "preset": "w4a8", **SMALL, **ask}, "tab"))


def asked(lab, name, **ask):
    return next(fn for fn in functions(lab) if fn.__name__ == name)({"sid": "tab", **ask})


@pytest.mark.parametrize(
    "ask, said",
    [({"steps": ""}, "steps must be a whole number from 1 to 10 here; got 50"), ({"height": 64}, "1,200 pixels here; got 32 × 64")],
)
def test_what_an_empty_field_leaves_to_the_model_is_bounded_too(lab, folder, ask, said):
    told = run(lab, folder, **ask)[-1]
    assert told["over"] and told["status"]["tone"] == "bad" and said in told["status"]["sentence"]
    assert lab.sessions.get("tab").own == ()


def test_a_first_run_measures_calibrates_and_is_the_reference_of_the_next(lab, folder):
    told = run(lab, folder, preset="dmpq")
    session = lab.sessions.get("tab")
    first = session.current
    assert told[-1]["over"] and told[-1]["look"]["source"] == "run:1" and first.signals.meta.probe
    assert models_of.shared().get(str(folder), "en").handle.calibration is not None
    assert any(event.get("status", {}).get("sentence") == "Loading the model…" for event in told)
    again = run(lab, folder, "2", preset="dmpq", mode="cached")
    panes = again[-1]["race"]["panes"]
    assert panes["a"]["note"] == "kept from an earlier run" and panes["a"]["state"] == "done" and np.isfinite(session.current.psnr)
    assert not any(event["race"]["panes"]["a"]["state"] == "running" for event in again if "race" in event)
    other = run(lab, folder, "3", preset="dmpq", mode="cached", seed=6)
    assert other[-1]["race"]["panes"]["a"]["note"] == ""
    assert [held.key for held in session.own] == ["run:3", "run:2", "run:1"]


def test_own_runs_can_be_opened_again_with_their_race(lab, folder):
    run(lab, folder, "1")
    run(lab, folder, "2", mode="sixbit", seed=6)
    asked(lab, "open", source="recording:red-star")
    found = asked(lab, "open", source="run:1")
    assert found["race"]["recorded"] and set(found["race"]["panes"]) == {"a", "b"} and found["ask"]["seed"] == 5
    assert found["look"]["about"]["own"] == [[f"run:{n}", f"{SMALL['prompt']} · {seed}", "lab.preset.w4a8"] for n, seed in ((2, 6), (1, 5))]
    pane = found["race"]["panes"]["a"]
    assert len(pane["times"]) == 3 and pane["sheet"]["src"].startswith("data:image/webp") and pane["label"][0] == "lab.race.fp16"
    assert set(race_of(lab.sessions.get("tab").find("run:2"))["panes"]) == {"b"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a core to crowd")
def test_times_of_a_crowded_core_are_not_compared_now_nor_later(lab, folder):
    with one_crowded_core():
        told = run(lab, folder, "1", mode="race")[-1]
    net = told["look"]["net"]
    assert told["race"]["busy"] and "the machine was busy, so times do not compare" in net["lead"] and " dB" in net["lead"]
    labels = [figure["label"] for figure in net["figures"]]
    assert not any("speed of FP16" in label or "time of FP16" in label for label in labels)
    assert any("of 16 bits" in label for label in labels)
    assert race_of(lab.sessions.get("tab").find("run:1"))["busy"]
    kept = run(lab, folder, "2", mode="cached")[-1]
    assert kept["race"]["panes"]["a"]["note"] == "kept from an earlier run" and kept["race"]["busy"]


class Broken(Exception):
    """Something that nobody foresaw."""


@pytest.mark.parametrize("error, said", [(RuntimeError("NaN at step 2, block 1."), "NaN at step 2"), (Broken("x"), "error in this program")])
def test_a_run_that_breaks_midway_leaves_a_page_that_answers(lab, folder, monkeypatch, error, said):
    """The map it showed belongs to a run that can be asked; nothing is blocked."""

    def breaking(wish):
        for count, beat in enumerate(lanes.drive(wish)):
            if count == 3:
                raise error
            yield beat

    monkeypatch.setattr("app.views.lab_run.drive", breaking)
    for number in ("1", "2"):
        told = run(lab, folder, number, mode="sixbit")[-1]
        assert told["over"] and said in told["status"]["sentence"] and told["race"]["panes"]["b"]["state"] == "stopped"
        assert told["look"]["source"] == f"run:{number}"
        assert "error" not in asked(lab, "look", source=f"run:{number}", policy={"error_threshold": 0.2})
    assert not lab.sessions.get("tab").running


def test_a_stop_at_once_says_that_nothing_was_made(lab, folder):
    stream = events(lab, Gate(1, 1), {"id": "1", "model": str(folder), "preset": "w4a8", **SMALL}, "tab")
    for event in stream:
        if "race" in event:
            break
    lab.sessions.get("tab").halt("1")
    assert list(stream)[-1]["status"]["sentence"] == "Stopped before the first step; nothing was made."


def test_a_run_that_is_gone_and_a_question_that_breaks_get_sentences(lab):
    for name in ("look", "open", "explain", "take", "python"):
        assert "no longer here" in asked(lab, name, source="run:17-1", block=0, step=0, kind="csv")["error"]
    told = asked(lab, "explain", source="recording:red-star")["error"]
    assert told == "This could not be answered; the page stays as it is. Try again, or reload it."


def test_the_next_large_model_takes_the_place_of_the_last(lab, folder, tmp_path):
    other = tmp_path / "other"
    pipelines.cogvideox(layers=1, seed=3).save_pretrained(other)
    models = models_of.shared()
    first = models.get(str(folder), "en")
    assert models.get(str(folder), "en") is first
    with pytest.raises(ValueError):
        models.get(str(tmp_path / "nothing"), "en")
    assert models.kept(str(folder), "en") is first          # a refusal costs nobody a loaded model
    models.get(str(other), "en")
    assert models.kept(str(folder), "en") is None and models.kept(str(other), "en") is not None and models.progress is None


def test_a_model_that_loads_holds_nobody_up(lab, folder, tmp_path, monkeypatch):
    """A visitor who waits for a download lets the next one go first, and leaves with a stop."""
    models, gate, ready = models_of.shared(), Gate(1, 4), threading.Event()
    models.get(str(folder), "en")

    def slow(source, progress):
        assert ready.wait(60)
        raise ValueError("Nothing there.")

    monkeypatch.setattr(import_module("engine.load"), "load", slow)          # `engine.load` itself is the function
    wishes = [{"id": "1", "model": str(tmp_path / "slow")}, {"id": "2", "model": str(tmp_path / "slow")}, {"id": "3", "model": str(folder)}]
    streams = [events(lab, gate, {**SMALL, "preset": "w4a8", "mode": "sixbit", **wish}, f"tab{wish['id']}") for wish in wishes]
    told = [[], [], []]
    threads = [threading.Thread(target=kept.extend, args=(stream,), daemon=True) for kept, stream in zip(told, streams)]
    for thread in threads:
        thread.start()
    threads[2].join(60)
    assert told[2][-1]["over"] and told[2][-1]["look"]["source"] == "run:3" and threads[0].is_alive()
    lab.sessions.get("tab2").halt("2")
    threads[1].join(60)
    assert "left the line" in told[1][-1]["status"]["sentence"]
    ready.set()
    threads[0].join(60)
    assert told[0][-1]["status"]["sentence"] == "Nothing there." and len(gate) == 0


def test_the_code_to_take_home_makes_the_clip_that_was_seen(lab, folder, tmp_path, monkeypatch):
    run(lab, folder, mode="sixbit", preset="w4a8", guidance=2.5)
    made = lab.sessions.get("tab").current
    code = asked(lab, "python", source="run:1")["code"]
    monkeypatch.chdir(tmp_path)
    space = {}
    exec(code, space)
    assert np.array_equal(np.stack([np.asarray(frame) for frame in space["frames"][0]]), made.video["b"])
    assert (tmp_path / "run.parquet").exists()
