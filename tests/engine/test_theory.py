"""The analyses against signals whose answer is known by construction."""

import numpy as np
import pandas as pd
import pytest

from engine import theory
from tests import synthetic


@pytest.fixture(scope="module")
def probes():
    return [synthetic.probe_trace(blocks=3, steps=20, seed=seed) for seed in range(4)]


def with_error(probe, rule):
    """The probe with e₄(t) = rule(Γ(t−1)) in every group."""
    before = probe.blocks[["block", "step", "gamma"]].assign(step=lambda t: t["step"] + 1)
    joined = probe.layers[["block", "step"]].merge(before, on=["block", "step"], how="left")["gamma"].to_numpy()
    layers = probe.layers.assign(error_nvfp4=rule(joined), outlier_ratio=10 * rule(joined))
    return type(probe)(probe.blocks, layers, probe.meta)


def test_a_perfect_line_is_found_also_on_prompts_it_has_not_seen(probes):
    table = theory.predictor([with_error(p, lambda g: 0.2 - 0.5 * g) for p in probes], 0.12)
    assert np.allclose(table["alpha"], -0.5) and np.allclose(table["beta"], 0.2)
    assert np.allclose(table["r2"], 1) and np.allclose(table["r2_held_out"], 1)
    assert np.allclose(table["rank_correlation"], -1)
    assert np.allclose(table["right"], 1) and np.allclose(table["needless"] + table["missed"], 0)


def test_hits_and_misses_add_up(probes):
    table = theory.predictor(probes)
    assert np.allclose(table[["right", "needless", "missed"]].sum(axis=1), 1)
    assert len(table) == 12


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_growth_of_drift_tells_the_gap_rule(probes, power):
    blocks = probes[0].blocks
    grown = {f"drift_{n}": 0.1 * n**power for n in (1, 2, 3)}
    probe = type(probes[0])(blocks.assign(**grown), probes[0].layers, probes[0].meta)
    assert np.allclose(theory.drift_growth([probe])["exponent"], power)


def test_outliers_that_follow_the_error_rank_with_it(probes):
    table = theory.outliers([with_error(p, lambda g: 0.5 * g) for p in probes])
    assert np.allclose(table["rank_nvfp4"], 1)
    shares = table[[f"over_{t:g}" for t in theory.THRESHOLDS]].to_numpy()
    assert (np.diff(shares, axis=1) <= 0).all()


def test_paired_differences_use_the_same_prompts_only():
    rows = pd.DataFrame({
        "method": ["a"] * 3 + ["b"] * 2, "setting": "{}", "prompt": ["x", "y", "z", "x", "y"], "seed": 0,
        "psnr": [30.0, 40.0, 99.0, 31.0, 42.0],
    })  # fmt: skip
    line = theory.paired(rows, ("a", "{}"), ["psnr"]).set_index("method").loc["b"]
    assert line["prompts"] == 2 and line["psnr"] == pytest.approx(1.5)
    assert 1 <= line["psnr_low"] <= line["psnr"] <= line["psnr_high"] <= 2


def test_what_the_refresh_buys_is_read_per_threshold():
    rows = pd.DataFrame([
        {"method": method, "setting": f'{{"tdc_threshold":{tau}}}', "prompt": "x", "seed": 0, "psnr": psnr, "ssim": 1.0,
         "bits": 6.0, "skipped": tau}
        for tau, plain, pure in ((0.1, 30.0, 30.1), (0.2, 28.0, 28.5)) for method, psnr in (("dmpq_tdc", plain), ("sixbit", pure))
    ])  # fmt: skip
    table = theory.reuse_gain(rows)
    assert table["tdc_threshold"].tolist() == [0.1, 0.2] and table["psnr"].tolist() == pytest.approx([0.1, 0.5])


def test_no_torch():
    import subprocess
    import sys

    code = ("import sys, engine.theory, engine.methods, engine.agreement, engine.recommend, engine.sweep, engine.probes;"
            "sys.exit('torch' in sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], cwd=".").returncode == 0
