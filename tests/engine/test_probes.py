"""What is fitted to probe traces: fixed mixtures, weighted lines, thresholds for a number of bits."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import probes
from engine.calibrate import fit
from engine.policy import PRESETS
from engine.records import Calibration
from engine.replay import replay
from engine.trace import Trace
from tests import synthetic

ASSETS = Path(__file__).parents[2] / "assets"


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
    weight = {key: line.weight for key, line in found.rows.items()}
    assert weight[minds] == max(weight.values())
    assert all(line._replace(weight=1.0) == fitted.rows[key] for key, line in found.rows.items())
    macs = {key: synthetic.macs(key[2]) for key in keys}
    assert sum(weight[key] * macs[key] for key in keys) / sum(macs.values()) == pytest.approx(1)
    # k = s / (mean e₄ · √MACs), up to a common factor.
    local = {key: np.mean([t.layers.query(f"block == {key[1]} and layer == {key[2]!r}")["error_nvfp4"].mean() for t in traces])
             for key in keys}  # fmt: skip
    other = keys[5]
    output = np.sqrt((0.05**2 - 0.001**2) / (0.01**2 - 0.001**2))
    expected = output * local[other] / local[minds] * np.sqrt(macs[other] / macs[minds])
    assert weight[minds] / weight[other] == pytest.approx(expected)
    static = probes.sensitive_lines(traces, fitted, table, static=True)
    assert all(line.alpha == 0.0 and line.weight == weight[key] for key, line in static.rows.items())
    with pytest.raises(ValueError, match="of another model"):
        probes.sensitive_lines(traces, fitted, table.assign(model="other"))
    with pytest.raises(ValueError, match="nothing to weigh"):
        probes.sensitive_lines(traces, fitted, table.assign(output_error=0.0))


def test_a_group_that_was_not_measured_weighs_one_and_one_without_effect_almost_nothing(traces, fitted):
    import pandas as pd

    keys = list(fitted.rows)
    table = pd.DataFrame([
        {"model": model, "block": block, "layer": layer, "step": 3, "precision": precision,
         "output_error": 0.0 if (model, block, layer) == keys[1] else error}
        for model, block, layer in keys[1:] for precision, error in (("nvfp4", 0.02), ("w4a16", 0.001))
    ])  # fmt: skip
    found = probes.sensitive_lines(traces, fitted, table)
    assert found.rows[keys[0]].weight == 1.0 and found.rows[keys[1]].weight == probes.LEAST_WEIGHT
    assert Calibration.from_json(found.to_json()) == found


@pytest.mark.parametrize("slug, decisions", [
    ("sunset-star", "3e1aa091ee74f475"), ("cross-and-ring", "d2d3415a8e78d25c"), ("gray-circle", "6a49718d9e83eb95"),
])  # fmt: skip
def test_the_embedded_models_weights_decide_as_its_multiplied_lines_did(slug, decisions):
    """`decisions`: of the file with multiplied lines that these weights took the place of, at its threshold 0.055."""
    trace = Trace.load(ASSETS / "recordings" / slug / "probe.parquet")
    known = Calibration.load(ASSETS / "tiny" / "calibration.json")
    draft = replay(trace, PRESETS["dmpq_sensitive"], known)
    assert hashlib.sha256(" ".join(draft.layers["precision"]).encode()).hexdigest()[:16] == decisions
    assert 5.9 < draft.report.average_bits_computed < 6.1
    multiplied = {key: line._replace(alpha=line.alpha * line.weight, beta=line.beta * line.weight, weight=1.0)
                  for key, line in known.rows.items()}  # fmt: skip
    before = replay(trace, replace(PRESETS["dmpq"], error_threshold=0.055), replace(known, rows=multiplied))
    for name in ("precision", "reason", "decided_by", "purified"):
        assert (before.layers[name] == draft.layers[name]).all()
    macs = trace.layers.drop_duplicates(["model", "block", "layer"]).set_index(["model", "block", "layer"])["macs"]
    assert sum(line.weight * macs[key] for key, line in known.rows.items()) / macs.sum() == pytest.approx(1)


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
