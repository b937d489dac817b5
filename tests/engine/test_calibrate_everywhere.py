"""Calibrating every layout, and what becomes of a fit that cannot be kept or made."""

import pytest

from engine.attach import attach
from engine.calibrate import cache_path, calibrate, fit
from engine.cli import main
from engine.policy import PRESETS
from engine.records import Calibration
from engine.request import _calibration_warnings
from tests import pipelines
from tests.synthetic import probe_trace

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(pipe):
    arguments = pipelines.arguments(pipe)
    return {
        name: value for name, value in arguments.items() if name not in ("prompt", "generator", "num_inference_steps")
    }


@pytest.mark.parametrize("variant", [name for name in pipelines.VARIANTS if "i2v" in name or "v2v" in name])
def test_pipelines_that_start_from_a_picture_or_a_video_are_calibrated(variant):
    pipe = pipelines.VARIANTS[variant]()
    guidance = settings(pipe)["guidance_scale"]
    found = calibrate(pipe, [pipelines.PROMPT], steps=3, keep=False, guidance=guidance, **settings(pipe))
    assert found.rows and attach(pipe).calibration is found


def test_a_fit_that_cannot_be_kept_is_used_all_the_same(monkeypatch, tmp_path):
    pipe = pipelines.cogvideox(layers=1)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SIXBIT_CACHE", str(blocked))
    with pytest.warns(UserWarning, match="used now but was not kept: .* SIXBIT_CACHE"):
        found = calibrate(pipe, [pipelines.PROMPT], steps=3, guidance=5.0, height=32, width=32, num_frames=9)
    assert attach(pipe).calibration is found and len(found.rows) == 4


def test_the_command_tries_the_cache_before_it_measures(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SIXBIT_CACHE", str(blocked))
    pipelines.cogvideox(layers=1).save_pretrained(tmp_path / "model")
    assert main(["calibrate", "--model", str(tmp_path / "model"), "--prompt", pipelines.PROMPT, "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "takes no new file" in said and "give --out FILE" in said and "SIXBIT_CACHE" in said


def test_one_step_holds_no_pair_to_fit():
    with pytest.raises(ValueError, match="at least 2 steps, got 1"):
        fit(probe_trace(blocks=1, steps=1))


def test_a_calibration_without_lines_is_none():
    pipe = pipelines.cogvideox(layers=1)
    empty = Calibration(attach(pipe).model_hash, 5, 5.0, {})
    with pytest.warns(UserWarning, match="not calibrated"):
        attach(pipe, policy=PRESETS["dmpq"], calibration=empty)
    assert _calibration_warnings(empty, 5, 5.0)[0].key == "uncalibrated"
    assert not cache_path(empty.model_hash).exists()
