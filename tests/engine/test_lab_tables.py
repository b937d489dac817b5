"""Effects of single changes: paired with the same thresholds, an extension with the preset that it changes."""

import pandas as pd
import pytest

from engine import lab_tables
from engine.sweep import setting


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
