"""The fit against lines that are known, its guards, and the files it is kept in."""

import numpy as np
import pandas as pd
import pytest

from engine.attach import attach
from engine.calibrate import cache_path, calibrate, find_calibration, fit, line, store
from engine.identity import model_hash
from engine.policy import PRESETS
from engine.records import Calibration, Coefficient
from engine.run import record
from tests import pipelines
from tests.synthetic import calibration as drawn_lines
from tests.synthetic import probe_trace, signals


def test_a_line_without_noise_is_found():
    gammas = np.linspace(0.1, 0.5, 20)
    found = line(np.stack([gammas, -0.2 * gammas + 0.15], axis=1))
    assert found.alpha == pytest.approx(-0.2) and found.beta == pytest.approx(0.15)
    assert found.r2 == pytest.approx(1.0) and found.samples == 20


def test_a_line_that_explains_nothing_becomes_the_mean():
    x = np.tile([0.1, 0.2, 0.3, 0.4], 10)
    y = np.repeat([0.1, 0.2], 20)
    found = line(np.stack([x, y], axis=1))
    assert found.alpha == 0 and found.beta == pytest.approx(0.15) and found.r2 < 0.05


RAMP = list(np.linspace(0, 1, 20))


@pytest.mark.parametrize(
    ("x", "y"), [(RAMP[:3], RAMP[:3]), ([0.2] * 20, RAMP), (RAMP, [0.3] * 20)], ids=["few", "one gamma", "one error"]
)
def test_too_little_to_fit_becomes_the_mean(x, y):
    found = line(np.stack([np.array(x), np.array(y)], axis=1))
    assert found.alpha == 0 and found.beta == pytest.approx(np.mean(y)) and found.samples == len(x)


def test_points_that_are_not_finite_do_not_count():
    gammas = np.linspace(0.1, 0.5, 20)
    points = np.stack([gammas, 2 * gammas], axis=1)
    points[3, 0], points[4, 1] = np.nan, np.inf
    assert line(points).samples == 18 and line(points).alpha == pytest.approx(2)
    assert line(np.full((3, 2), np.nan)) is None


def test_the_lines_of_a_synthetic_probe_come_back():
    found = fit([probe_trace(blocks=3, steps=30, seed=0), probe_trace(blocks=3, steps=30, seed=0)], "abc")
    expected = drawn_lines(signals(blocks=3, steps=30, seed=0), 30)
    assert found.model_hash == "abc" and found.steps == 30 and set(found.rows) == set(expected.rows)
    errors = [
        abs(found.rows[key].alpha * 0.2 + found.rows[key].beta - row.alpha * 0.2 - row.beta)
        for key, row in expected.rows.items()
    ]
    assert np.median(errors) < 0.01 and found.rows["transformer", 0, "qkv"].samples == 2 * 29


def test_a_skipped_step_gives_no_pair():
    trace = probe_trace(blocks=1, steps=12, seed=1)
    trace.blocks.loc[trace.blocks["step"] == 4, "gamma"] = np.nan
    assert {row.samples for row in fit(trace).rows.values()} == {10}


def test_what_cannot_be_fitted_is_said():
    with pytest.raises(ValueError, match="nothing to fit"):
        fit([])
    with pytest.raises(ValueError, match="probe=True"):
        fit(probe_trace(blocks=1, steps=4).with_meta(probe=False))
    with pytest.raises(ValueError, match="one step count"):
        fit([probe_trace(blocks=1, steps=4), probe_trace(blocks=1, steps=5)])


def test_calibrating_a_pipeline_lets_the_predictor_decide(one_thread):
    pipe = pipelines.cogvideox(layers=1)
    seen = []
    arguments = pipelines.arguments(pipe)
    sizes = {name: arguments[name] for name in ("height", "width", "num_frames")}
    found = calibrate(
        pipe, [pipelines.PROMPT, pipelines.OTHER_PROMPT], steps=6, guidance=5.0,
        progress=lambda *counts: seen.append(counts), **sizes,
    )
    assert seen[-1] == (12, 12) and found.prompts == 2 and found.guidance == 5.0 and len(found.rows) == 4
    handle = attach(pipe)
    assert handle.calibration is found and cache_path(handle.model_hash).is_file()
    with record(pipe, PRESETS["dmpq"]) as run:
        pipelines.latents(pipe)
    assert (run.trace.layers.query("step > 0")["decided_by"] == "predictor").all()
    again = pipelines.cogvideox(layers=1)
    assert attach(again).calibration == found
    with pytest.raises(ValueError, match="at least one prompt"):
        calibrate(pipe, [])
    with pytest.raises(ValueError, match="at least 2 steps, got 1"):
        calibrate(pipe, [pipelines.PROMPT], steps=1, guidance=5.0, **sizes)
    assert handle.calibration is found


def test_the_hash_names_weights_and_configuration_not_dtype():
    import torch

    pipe = pipelines.cogvideox(layers=1, dtype=torch.bfloat16)
    known = model_hash(pipe)
    pipe.to(torch.float32)
    assert model_hash(pipe) == known
    assert model_hash(pipelines.cogvideox(layers=1, seed=1, dtype=torch.bfloat16)) != known
    assert model_hash(pipelines.cogvideox(layers=2, dtype=torch.bfloat16)) != known


def test_foreign_and_damaged_calibrations_are_passed_over(tmp_path):
    pipe = pipelines.wan(layers=1)
    known = model_hash(pipe)
    assert find_calibration(pipe, known) is None
    own = Calibration(known, 5, 5.0, {("transformer", 0, "qkv"): Coefficient(0.0, 0.1, 0.0, 8)})
    pipe.register_to_config(_name_or_path=str(tmp_path))
    Calibration("0" * 16, 5, 5.0).save(tmp_path / "calibration.json")
    assert find_calibration(pipe, known) is None
    store(own)
    assert find_calibration(pipe, known) == own
    cache_path(known).write_text("{")
    assert find_calibration(pipe, known) is None
    Calibration(known, 1, 5.0).save(tmp_path / "calibration.json")
    assert find_calibration(pipe, known) is None
    own.save(tmp_path / "calibration.json")
    mine = Calibration(known, 7, 5.0, own.rows)
    store(mine)
    assert find_calibration(pipe, known) == mine  # a person's own fit before the one that came with the model
    cache_path(known).unlink()
    assert find_calibration(pipe, known) == own and isinstance(own.table(), pd.DataFrame)
