"""Sentences that name the true cause: idle settings, a fit for other settings, broken numbers, the details on request."""

from dataclasses import replace

import pytest
import torch

from engine.attach import attach
from engine.cli import main
from engine.policy import PRESETS, Policy, signals_needed, warnings
from engine.records import Calibration, Coefficient
from engine.request import _calibration_warnings
from engine.run import record
from tests import pipelines

FITTED = {("transformer", 0, "qkv"): Coefficient(0.0, 0.1, 0.0, 8)}


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        (Policy(precision="int8", purify_to="int8"), ["alarm_at_8_bits"]),
        (Policy(precision="w4a16"), ["alarm_at_16_bits"]),
        (Policy(tdc=False), ["alarm_without_reuse"]),
        (Policy(precision="int8"), []),
        (Policy(precision="nvfp4", purify_to="int8"), []),
        (Policy(purify_to="int8"), []),
    ],
)
def test_an_alarm_that_can_lift_nothing_is_said(policy, keys):
    assert [notice.key for notice in warnings(policy, 30)] == keys
    assert ("outlier_ratio" in signals_needed(policy)) == (not keys)


def test_a_fit_for_other_steps_or_another_guidance_is_said():
    fitted = Calibration("abc", 30, 6.0, FITTED)
    assert _calibration_warnings(fitted, 30, 6.0) == []
    assert [notice.key for notice in _calibration_warnings(fitted, 30, 3.0)] == ["calibrated_guidance"]
    said = [notice.key for notice in _calibration_warnings(fitted, 20, 3.0)]
    assert said == ["calibrated_steps", "calibrated_guidance"]
    assert _calibration_warnings(replace(fitted, guidance=0.0), 30, 3.0) == []


@pytest.mark.parametrize(
    ("dtype", "said"), [(torch.float32, "in float32: check what goes in"), (torch.float16, "overflowed")]
)
def test_broken_numbers_are_told_with_the_dtype_they_broke_in(dtype, said, one_thread):
    pipe = pipelines.cogvideox(layers=1, dtype=dtype)
    attach(pipe)
    bad = torch.full((1, 3, 8, 4, 4), float("nan"), dtype=dtype)
    with pytest.raises(RuntimeError, match=f"NaN at step 0, block 0 of the transformer, .*{said}"):
        with record(pipe, PRESETS["w4a16"]):
            pipelines.latents(pipe, latents=bad)


def test_debug_shows_the_traceback_of_a_foreseen_error_too(monkeypatch, capsys, tmp_path):
    arguments = ["quantize", str(tmp_path / "none"), str(tmp_path / "packed")]
    monkeypatch.delenv("SIXBIT_DEBUG", raising=False)
    assert main(arguments) == 2 and "error: There is no folder" in capsys.readouterr().err
    monkeypatch.setenv("SIXBIT_DEBUG", "1")
    with pytest.raises(ValueError):
        main(arguments)


@pytest.fixture
def folder(tmp_path):
    pipelines.cogvideox(layers=1).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_no_skips_because_none_are_allowed_is_said(folder, tmp_path, capsys, one_thread):
    arguments = ["--prompt", pipelines.PROMPT, "--steps", "6", "--height", "32", "--width", "32", "--frames", "9"]
    given = ["generate", "--model", folder, "--device", "cpu", "--policy", "int8_tdc", "--set", "max_skips=0"]
    assert main([*given, *arguments, "--out", str(tmp_path / "a.mp4")]) == 0
    assert "0 blocks skipped, no gain: max_skips is 0." in capsys.readouterr().out


def test_tuning_keeps_the_fit_and_asks_for_prompts_that_the_model_knows(
    folder, tmp_path, capsys, monkeypatch, one_thread
):
    from engine import tune
    from engine.calibrate import find_calibration
    from engine.identity import model_hash

    given = ["tune", "--model", folder, "--device", "cpu", "--out", str(tmp_path / "policy.json")]
    assert main(given) == 2
    assert "give at least one with --prompt" in capsys.readouterr().err
    monkeypatch.setattr(tune, "ERROR_THRESHOLDS", (0.1,))
    monkeypatch.setattr(tune, "TDC_THRESHOLDS", (0.0,))
    assert main([*given, "--prompt", pipelines.PROMPT, "--steps", "3", "--keep-quality", "0.5"]) == 0
    assert "the fitted predictor" in capsys.readouterr().out
    pipe = pipelines.cogvideox(layers=1)
    kept = find_calibration(pipe, model_hash(pipe))
    assert kept is not None and kept.steps == 3 and kept.guidance == 6.0
    assert Policy.load(tmp_path / "policy.json").tuned_steps == 3
