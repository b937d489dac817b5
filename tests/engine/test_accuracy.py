"""Prompt accuracy against the 16-bit model: only the clips that differ decide."""

import pandas as pd
import pytest

from engine import accuracy


def rows(method, right):
    return [{"method": method, "setting": "{}", "prompt": f"p{n}", "seed": n, "device": "cuda", "prompt_accuracy": float(value)}
            for n, value in enumerate(right)]  # fmt: skip


def test_pairs_are_counted_both_ways():
    table = accuracy.against(
        pd.DataFrame(rows("fp16", [1, 1, 1, 0]) + rows("dmpq", [1, 0, 0, 1]) + rows("w4a8", [1, 1]))
    )
    dmpq, w4a8 = (table[table["method"] == name].iloc[0] for name in ("dmpq", "w4a8"))
    assert (dmpq["prompts"], dmpq["gained"], dmpq["lost"], dmpq["change"]) == (4, 1, 2, -0.25)
    assert (dmpq["right"], dmpq["right_base"]) == (0.5, 0.75) and dmpq["low"] < -0.25 < dmpq["high"]
    assert w4a8["prompts"] == 2 and w4a8["p"] == 1 and w4a8["low"] < 0 < w4a8["high"]


def test_the_exact_test_by_hand():
    # Ten clips differ, one of them gained: 2 · (1 + 10) / 2¹⁰.
    assert accuracy.mcnemar(1, 9) == pytest.approx(22 / 1024)
    assert accuracy.mcnemar(0, 0) == accuracy.mcnemar(3, 3) == 1.0


def test_the_interval_narrows_with_clips_and_is_never_empty():
    wide, narrow = accuracy.interval(64, 0, 0), accuracy.interval(256, 0, 0)
    assert wide[0] < narrow[0] < 0 < narrow[1] < wide[1]
    low, high = accuracy.interval(100, 0, 10)
    assert low < -0.1 < high < 0


def test_clips_of_another_world_have_no_accuracy():
    assert accuracy.against(pd.DataFrame(rows("fp16", [float("nan")]) + rows("dmpq", [float("nan")]))).empty
