"""Effects of single changes: paired with the same thresholds, an extension with the preset that it changes."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from engine import lab_tables
from engine.calibrate import FILE_NAME, fit
from engine.records import Calibration
from engine.sweep import setting
from tests import synthetic

QUALITY = Path(__file__).resolve().parents[2] / "assets" / "quality"


def runs(method, psnr, prompts=4, **values):
    return [
        {"method": method, "setting": setting(**values), "prompt": f"p{n}", "seed": n, "psnr": psnr + 5.0 * n, "ssim": 0.9,
         "bits_computed": 8.0, "skipped": 0.4}
        for n in range(prompts)
    ]  # fmt: skip


def test_a_change_is_paired_with_its_base():
    rows = pd.DataFrame(
        runs("int8_tdc", 30.0, tdc_threshold=0.18)
        + runs("int8_tdc", 31.0, prompts=3, tdc_threshold=0.18, gap="linear")
        + runs("int8_tdc", 29.0, tdc_threshold=0.5, gap="linear")
        + runs("int8_tdc_extrapolated", 34.0, tdc_threshold=0.18, extrapolation=0.8)
        + runs("first_block_cache", 33.0, threshold=0.1)
    )
    found = lab_tables.effects(rows).set_index("method")
    assert list(found.index) == ["int8_tdc", "int8_tdc_extrapolated"]
    assert found["psnr"].tolist() == pytest.approx([1.0, 4.0]) and found["prompts"].tolist() == [3, 4]
    assert found["change"].tolist() == ['{"gap":"linear"}', '{"extrapolation":0.8}']
    assert set(found["base"]) == {'{"tdc_threshold":0.18}'}


def test_nothing_to_compare_is_an_empty_table():
    assert lab_tables.effects(pd.DataFrame(runs("w4a8", 30.0))).empty


@pytest.mark.parametrize("measured", [True, False])
def test_the_calibration_holds_weights_where_sensitivity_was_measured(tmp_path, measured):
    probe = synthetic.probe_trace(blocks=2, steps=8)
    runs = pd.read_parquet(QUALITY / "frontier.parquet")
    few = runs["prompt"].isin(runs["prompt"].unique()[:3]) & runs["method"].isin(["w4a8", "dmpq", "int8_tdc"])
    runs[few].to_parquet(tmp_path / "rows.parquet")
    if measured:
        shutil.copy(QUALITY / lab_tables.SENSITIVITY, tmp_path)
    lab_tables.write([probe], tmp_path, tmp_path / "rows.parquet")
    found = Calibration.load(tmp_path / FILE_NAME)
    fitted = fit([probe], runs["model"].iloc[0])
    assert found.weighed == measured and found.model_hash == fitted.model_hash
    assert [line[:4] for line in found.rows.values()] == [line[:4] for line in fitted.rows.values()]
