"""What is fitted to probe traces: fixed mixtures, weighted lines, thresholds for a number of bits."""

from dataclasses import replace

import numpy as np
import pytest

from engine import probes
from engine.calibrate import fit
from engine.policy import PRESETS
from engine.replay import replay
from tests import synthetic


@pytest.fixture(scope="module")
def traces():
    return [synthetic.probe_trace(blocks=4, steps=12, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def fitted(traces):
    return fit(traces)


def test_the_static_mix_predicts_each_groups_mean_whatever_the_moment(traces, fitted):
    static = probes.mean_lines(traces, fitted)
    key = ("transformer", 2, "up")
    mean = np.mean([t.layers.query("block == 2 and layer == 'up'")["error_nvfp4"].mean() for t in traces])
    assert static.rows[key].alpha == 0 and static.rows[key].beta == pytest.approx(mean)
    draft = replay(traces[0], replace(PRESETS["dmpq"], error_threshold=0.11), static)
    later = draft.layers[draft.layers["step"] > 0]
    assert (later.groupby(["block", "layer"])["precision"].nunique() == 1).all()


def test_weighting_keeps_the_lines_and_scales_them_by_change(traces, fitted):
    weighted = probes.weighted_lines(traces, fitted)
    ratios = {key[1]: weighted.rows[key].beta / fitted.rows[key].beta for key in fitted.rows}
    gamma = {block: np.mean([t.blocks[t.blocks["block"] == block]["gamma"].mean() for t in traces]) for block in ratios}
    assert sorted(ratios, key=ratios.get) == sorted(gamma, key=gamma.get)
    assert np.mean(list(ratios.values())) == pytest.approx(1)


def test_sensitivity_scales_each_line_by_what_its_error_does_to_the_output(traces, fitted):
    import pandas as pd

    keys = list(fitted.rows)
    minds = keys[0]
    table = pd.DataFrame([
        {"model": model, "block": block, "layer": layer, "step": 3, "precision": precision,
         "output_error": {"nvfp4": 0.05 if key == minds else 0.01, "int8": 0.002, "w4a16": 0.001}[precision]}
        for key in keys for model, block, layer in [key] for precision in ("nvfp4", "int8", "w4a16")
    ])  # fmt: skip
    found = probes.sensitive_lines(traces, fitted, table)
    scale = {key: found.rows[key].beta / fitted.rows[key].beta for key in keys}
    assert scale[minds] == max(scale.values()) and found.rows[minds].r2 == fitted.rows[minds].r2
    for key in keys:
        assert found.rows[key].alpha == pytest.approx(fitted.rows[key].alpha * scale[key])
    static = probes.sensitive_lines(traces, fitted, table, static=True)
    assert all(line.alpha == 0.0 for line in static.rows.values())
    assert static.rows[minds].beta == max(line.beta for line in static.rows.values())
    with pytest.raises(ValueError, match="of another model"):
        probes.sensitive_lines(traces, fitted, table.assign(model="other"))


@pytest.mark.parametrize("bits", [5.0, 6.0, 7.0])
def test_a_threshold_spends_what_was_asked_and_hardly_less(traces, fitted, bits):
    threshold = probes.threshold_for_bits(traces, bits, fitted)

    def spent(limit):
        trial = replace(PRESETS["dmpq"], error_threshold=limit)
        return np.mean([replay(probe, trial, fitted).report.average_bits_computed for probe in traces])

    assert spent(threshold) <= bits < spent(threshold - 2e-4) + 0.2


def test_bits_that_cannot_be_reached_are_one_sentence(traces, fitted):
    with pytest.raises(ValueError, match="No error threshold brings the average to 4 bits"):
        probes.threshold_for_bits(traces, 4.0, fitted)


def test_probes_are_found_in_order_and_missing_ones_named(tmp_path, traces):
    for number, trace in enumerate(traces):
        trace.save(probes.probe_path(tmp_path, number))
    assert [len(t.blocks) for t in probes.load_probes(tmp_path)] == [48, 48]
    with pytest.raises(ValueError, match="probe_02.parquet"):
        probes.load_probes(tmp_path, 3)
    with pytest.raises(ValueError, match="holds none"):
        probes.load_probes(tmp_path / "empty")
