"""Sessions, the line, settings, downloads, recordings: the Lab's quiet parts."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app import machine, recording_maker, reels, sprites, take
from app import recordings as recorded
from app import session as session_of
from app.gate import Full, Gate
from app.models import Models, Refused, free_bytes
from app.session import Sessions
from app.settings import read
from app.views.lab_memory import Lab, race_of
from app.views.lab_server import functions
from app.views.lab_wish import read_wish
from engine.settings import Policy, PolicyError
from engine.trace import Trace, TraceError
from tests import pipelines
from tests.app.standin import record


def test_two_tabs_have_two_sessions_and_closing_one_stops_its_run():
    sessions = Sessions(limit=2)
    a, b = sessions.get("a"), sessions.get("b")
    assert a is not b and sessions.get("a") is a
    sessions.close("a")
    assert a.stop.is_set() and not b.stop.is_set() and sessions.get("a") is not a


def test_a_page_without_a_name_yet_shares_nothing():
    sessions = Sessions()
    assert sessions.get("") is not sessions.get("") and len(sessions) == 0


def test_a_running_session_is_not_thrown_out():
    sessions = Sessions(limit=2)
    busy = sessions.get("busy")
    busy.running = True
    for name in "cdef":
        sessions.get(name)
    assert sessions.get("busy") is busy and len(sessions) == 2


def test_the_line_is_fair_bounded_and_thread_safe():
    gate = Gate(1, 2)
    first, second, third = gate.join(), gate.join(), gate.join()
    assert [gate.ahead(t) for t in (first, second, third)] == [0, 1, 2]
    with pytest.raises(Full):
        gate.join()
    gate.leave(first)
    gate.leave(first)
    assert gate.ahead(second) == 0
    threads = [threading.Thread(target=gate.leave, args=(t,)) for t in (second, third)]
    [t.start() for t in threads] + [t.join() for t in threads]
    assert len(gate) == 0


def test_settings_name_what_cannot_be_read():
    with pytest.raises(ValueError, match="LAB_QUEUE must be a whole number"):
        read({"LAB_QUEUE": "many"})
    assert read({"SPACE_ID": "a/b"}).public and not read({}).public


@pytest.mark.parametrize("wish", ["/etc", "../..", "someone/else", "file:///etc/passwd", "x" * 500])
def test_a_public_page_opens_its_own_models_only(wish):
    models = Models(read({"LAB_PUBLIC": "1", "LAB_MODELS": "big/model"}))
    with pytest.raises(Refused, match="tiny, big/model"):
        models.resolve(wish, "en")
    assert models.resolve("big/model", "en") == "big/model"
    assert models.resolve("tiny", "en").endswith("tiny")


def test_a_local_page_says_what_fits_before_loading(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "x.safetensors").write_bytes(b"0" * 3_200_000)
    said = Models(read({})).fits(str(tmp_path), "en")
    assert "3.2 MB" in said and "0.9 MB" in said


def test_code_to_take_home_rebuilds_the_policy(source):
    source = replace(source, prompt="a 'quoted' prompt")
    for policy in (Policy(), Policy.preset("int8_tdc"), Policy(error_threshold=0.08, max_skips=1, gap="linear")):
        code = take.python_code(policy, source)
        line = next(row for row in code.splitlines() if row.startswith("policy = "))
        space = {"Policy": Policy}
        exec(line, space)
        assert space["policy"] == policy
        compile(code, "code", "exec")


@pytest.mark.parametrize("kind, start", [("video", b""), ("reference", b""), ("parquet", b"PAR1"), ("csv", b"call"), ("policy", b"{")])
def test_everything_can_be_downloaded(source, kind, start):
    name, media, data = take.package(source, kind, source.policy)
    assert data.startswith(start) and len(data) > 40
    if media == "video/mp4":
        assert data[4:8] == b"ftyp"


def test_a_downloaded_trace_opens_again(source, tmp_path):
    _, _, data = take.package(source, "parquet", source.policy)
    (tmp_path / "run.parquet").write_bytes(data)
    limits = dict(upload_folder=str(tmp_path), max_bytes=10**8, max_rows=10**6)
    found = take.opened(str(tmp_path / "run.parquet"), "run.parquet", **limits)
    assert isinstance(found, Trace) and len(found.layers) == len(source.trace.layers)


def test_a_trace_without_layers_is_refused_in_words(source, tmp_path):
    replace(source.trace, layers=source.trace.layers.iloc[:0]).save(tmp_path / "run.parquet")
    limits = dict(upload_folder=str(tmp_path), max_bytes=10**8, max_rows=10**6)
    with pytest.raises(TraceError, match="No layers are listed in run.parquet"):
        take.opened(str(tmp_path / "run.parquet"), "run.parquet", **limits)


def test_the_machine_is_told_while_torch_is_half_imported(monkeypatch):
    half = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "torch", half)
    assert machine.chip()["machine"] == "cpu" and "CPU" in machine.describe() and free_bytes() > 0


def test_a_second_file_of_the_same_name_is_another_one(recordings, source, large, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    settings = read({"LAB_RECORDINGS": str(recordings), "LAB_PRELOAD": "0"})
    lab = Lab(settings, recorded.find(recordings), Models(settings))
    ask = {fn.__name__: fn for fn in functions(lab)}
    changed = source.trace.with_meta(prompt="changed meanwhile")
    traces = {"first": source.trace, "second": large.trace, "third": changed}
    for folder, trace in traces.items():
        (tmp_path / folder).mkdir()
        trace.save(tmp_path / folder / "run.parquet")

    def opening(folder, shown):
        return ask["opened"]({"sid": "tab", "path": str(tmp_path / folder / "run.parquet"), "name": "run.parquet", "source": shown})

    keys = ["recording:large"]
    for folder, rows in (("first", len(source.trace.layers)), ("second", len(large.trace.layers))):
        keys.append(opening(folder, keys[-1])["source"])
        about = ask["open"]({"sid": "tab", "source": keys[-1]})["look"]["about"]
        assert (about["key"], about["title"]) == (keys[-1], "run.parquet")
        assert len(lab.session({"sid": "tab"}).current.trace.layers) == rows
    first, second = keys[1:]
    assert first != second and lab.session({"sid": "tab"}).find(first).trace.meta == source.trace.meta
    ask["open"]({"sid": "tab", "source": first})
    assert opening("third", first) == {"versus": "file"}          # as many cells: beside what is shown
    seen = ask["look"]({"sid": "tab", "source": first, "versus": "file"})
    assert seen["map"]["against"] == "file" and lab.session({"sid": "tab"}).file.prompt == "changed meanwhile"


def test_uploads_are_read_from_the_upload_folder_only(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    (outside / "p.json").write_text(Policy().to_json())
    (inside / "link.json").symlink_to(outside / "p.json")
    limits = dict(upload_folder=str(inside), max_bytes=1000, max_rows=10)
    for path in (outside / "p.json", inside / ".." / "out" / "p.json", inside / "link.json", inside):
        with pytest.raises(ValueError, match="uploaded file"):
            take.opened(str(path), "p.json", **limits)
    (inside / "big.json").write_bytes(b"0" * 2000)
    with pytest.raises(TraceError, match="at most"):
        take.opened(str(inside / "big.json"), "big.json", **limits)
    (inside / "bad.json").write_text("{")
    with pytest.raises(PolicyError):
        take.opened(str(inside / "bad.json"), "bad.json", **limits)
    (inside / "x.exe").write_text("MZ")
    with pytest.raises(ValueError, match="parquet"):
        take.opened(str(inside / "x.exe"), "x.exe", **limits)


def test_recordings_are_whole_or_left_out(recordings, tmp_path):
    found = recorded.find(recordings)
    assert [r.slug for r in found] == ["red-star", "large"]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "recording.json").write_text(json.dumps({"version": 1, "prompt": "x"}))
    assert recorded.find(tmp_path) == []
    with pytest.raises(recorded.RecordingError, match="missing"):
        recorded.read(broken)


def test_a_sprite_book_has_a_row_for_every_step():
    from io import BytesIO

    from PIL import Image

    clips = [np.full((5, 8, 6, 3), 40 * i, np.uint8) for i in range(4)]
    data, shape = sprites.book(clips)
    picture = Image.open(BytesIO(data))
    assert picture.size == (30, 32) and shape == {"w": 6, "h": 8, "n": 5}
    wide = sprites.sheet(np.zeros((200, 90, 160, 3), np.uint8))
    assert wide["w"] * wide["n"] <= sprites.WIDEST
    with pytest.raises(ValueError, match="uint8"):
        sprites.sheet(np.zeros((2, 4, 4, 3)))


def test_the_first_paint_needs_no_torch(recordings):
    code = ("import sys; from app.settings import read; from app.shell import build; "
            f"build(read({{'LAB_RECORDINGS': {str(recordings)!r}}})); "
            "assert not {'torch', 'diffusers', 'triton', 'transformers'} & set(sys.modules)")
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_a_reel_plays_every_step_and_fits_into_one_picture():
    drawn = np.zeros((3, 400, 8, 3), np.uint8)
    kept = reels.Reel(("lab.race.own", {}), tuple(range(1, 61)), (None, *[drawn] * 59), 80.0, drawn, ())
    played = reels.race("run:1", {"b": kept}, 8.0)
    sheet = played["panes"]["b"]["sheet"]
    assert played["speed"] == 8.9 and (sheet["w"], sheet["h"], sheet["n"]) == (4, 200, 3) and 60 * sheet["h"] <= sprites.WIDEST
    assert kept.nbytes == 59 * drawn.nbytes and reels.race("run:1", {}, 8.0) is None


def test_a_tab_keeps_its_last_runs_within_bounds(source, monkeypatch):
    session = Sessions().get("a")
    for number in range(5):
        session.keep(replace(source, key=f"run:{number}", video={"b": np.zeros(100, np.uint8)}, race=None))
    assert [held.key for held in session.own] == ["run:4", "run:3", "run:2"] and session.previous.key == "run:3"
    assert session.find("run:2") is session.own[2] and session.find("run:0") is None
    monkeypatch.setattr(session_of, "OWN_BYTES", 150)
    session.keep(session.own[1])
    assert [held.key for held in session.own] == ["run:3"] and session.current.key == "run:3"


def test_both_lanes_of_a_recording_get_the_same_decoding_time():
    laps = [SimpleNamespace(stages={"encode": 0.1, "denoise": 8.0, "decode": seconds}) for seconds in (4.4, 2.8)]
    recording_maker.share_decoding(*laps)
    assert [lap.stages["decode"] for lap in laps] == [pytest.approx(3.6)] * 2


def test_a_recording_is_made_warm_and_replaces_the_old_one_whole(recordings, tmp_path, monkeypatch):
    (old := tmp_path / "red-star").mkdir()
    (old / "old.txt").write_text("old")

    def refuse(source, target):
        if Path(target) == old and Path(source).name.startswith(".making-"):
            raise OSError("no room")
        return os_replace(source, target)

    os_replace = os.replace
    monkeypatch.setattr(recording_maker.os, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        record(tmp_path, "red-star", steps=3)
    assert (old / "old.txt").exists() and [p.name for p in tmp_path.iterdir()] == ["red-star"]
    monkeypatch.undo()
    record(tmp_path, "red-star", steps=3)
    assert not (old / "old.txt").exists() and [p.name for p in tmp_path.iterdir()] == ["red-star"]


def test_unrecorded_laps_come_first(tmp_path, monkeypatch):
    laps = []

    class Spy(recording_maker.Lap):
        def __init__(self, pipe, prompt, policy, **settings):
            laps.append((policy, settings["steps"]))
            super().__init__(pipe, prompt, policy, **settings)

    pipelines.cogvideox().save_pretrained(tmp_path / "model")
    monkeypatch.setattr(recording_maker, "Lap", Spy)
    policy, fp16 = Policy.preset("w4a8"), Policy.preset("fp16")
    made = recording_maker.make("x", pipelines.PROMPT, 1, policy=policy, model=str(tmp_path / "model"), folder=tmp_path / "out", steps=2)
    assert laps == [(fp16, 2), (policy, 2), (fp16, 2), (policy, 2), (fp16, 2)]
    panes = recorded.read(made).about["panes"]
    assert panes["a"]["stages"]["decode"] == panes["b"]["stages"]["decode"]


def test_what_is_free_is_memory_or_unknown(tmp_path, monkeypatch):
    (tmp_path / "x.safetensors").write_bytes(b"0" * 3_200_000)
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    said = Models(read({})).fits(str(tmp_path), "en")
    assert "not known" in said and "has only" not in said


def test_only_the_embedded_model_has_its_words(tmp_path):
    lab = Lab(read({}), [], Models(read({})))
    assert read_wish(lab, {"model": str(tmp_path / "very-tiny"), "prompt": "a dragon"}, "en").prompt == "a dragon"
    with pytest.raises(ValueError, match="knows these words"):
        read_wish(lab, {"model": "tiny", "prompt": "a dragon"}, "en")


def test_a_run_whose_every_signal_was_measured_is_not_timed_against_another(source):
    drawn = np.zeros((3, 8, 8, 3), np.uint8)
    kept = reels.Reel(("lab.race.own", {}), (1.0, 2.0), (drawn, drawn), 2.5, drawn, ())
    run = replace(source, key="run:1", race=None, reels={"b": kept})
    assert race_of(run)["fair"] is False and race_of(replace(run, signals=None))["fair"] is True
