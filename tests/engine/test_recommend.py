"""The bend of a curve, on curves whose bend is known."""

import pandas as pd
import pytest

from engine import recommend


def test_dominated_settings_are_left_out():
    assert recommend.front([0.1, 0.2, 0.3, 0.3], [30, 29, 28, 27]).tolist() == [0, 1, 2]
    assert recommend.front([0.1, 0.2, 0.3], [30, 31, 28]).tolist() == [1, 2]


def test_the_bend_is_where_savings_begin_to_cost_more():
    # One point of saving costs 0.1 dB up to 0.4, then 5 dB.
    assert recommend.bend([0.0, 0.2, 0.4, 0.5, 0.6], [40, 39.98, 39.96, 39.0, 38.0]) == 2


def test_a_floor_is_kept_or_refused():
    assert recommend.bend([0.0, 0.2, 0.4], [40, 36, 30], floor=35) == 1
    with pytest.raises(ValueError, match="No setting reaches"):
        recommend.bend([0.0, 0.2], [30, 29], floor=35)


def test_the_recommendation_looks_at_one_field_of_one_method():
    lines = pd.DataFrame({
        "method": ["sixbit"] * 4 + ["tdc"],
        "setting": ['{"error_threshold":0.09,"tdc_threshold":0.05}', '{"tdc_threshold":0.1}', '{"tdc_threshold":0.3}',
                    '{"gap":"none","tdc_threshold":0.1}', '{"tdc_threshold":0.1}'],
        "skipped": [0.0, 0.3, 0.5, 0.9, 0.9], "psnr": [40.0, 39.5, 30.0, 50.0, 50.0],
    })  # fmt: skip
    found = recommend.recommend(lines, "sixbit", "tdc_threshold")
    assert found["value"] == 0.1 and len(found["curve"]) == 3
    assert recommend.recommend(lines, "dmpq", "error_threshold") == {}


def test_the_table_has_intervals_and_costs():
    rows = pd.DataFrame({
        "method": "a", "setting": "{}", "psnr": [30.0, 32.0], "ssim": [0.9, 0.92], "same_ticks": [1.0, 0.5],
        "prompt_accuracy": [1.0, 0.0], "bits": [6.0, 5.0], "skipped": [0.2, 0.4],
    })  # fmt: skip
    line = recommend.table(rows).iloc[0]
    assert line["psnr"] == 31 and line["psnr_low"] <= 31 <= line["psnr_high"] and line["skipped"] == pytest.approx(0.3)
