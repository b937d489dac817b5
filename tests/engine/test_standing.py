"""Duels at equal cost: interpolated, paired, and silent where two methods never meet."""

import pandas as pd
import pytest

from engine.standing import COLUMNS, standing


def rows(method, settings, offset=0.0):
    return [
        {"method": method, "setting": f'{{"t":{cost}}}', "prompt": f"p{number}", "seed": number, "skipped": cost,
         "psnr": 40.0 - 20.0 * cost + 3.0 * number + offset}
        for cost in settings for number in range(8)
    ]  # fmt: skip


def test_the_other_side_is_interpolated_and_the_difference_paired():
    table = pd.DataFrame(rows("a", [0.3]) + rows("b", [0.2, 0.5], offset=-1.0))
    found = standing(table, [("a", "b", "skipped")])
    assert list(found.columns) == list(COLUMNS) and len(found) == 1
    line = found.iloc[0]
    # Prompts differ by up to 21 dB, but each is compared with itself only: no spread is left.
    assert (line["gain"], line["low"], line["high"]) == pytest.approx((1.0, 1.0, 1.0))
    assert (line["at"], line["of"], line["prompts"]) == (pytest.approx(0.3), "a", 8)


def test_each_side_may_be_the_one_that_was_run():
    table = pd.DataFrame(rows("a", [0.1, 0.4]) + rows("b", [0.2, 0.5], offset=2.0))
    found = standing(table, [("a", "b", "skipped")])
    assert sorted(found["of"]) == ["a", "b"] and found["gain"].tolist() == pytest.approx([-2.0, -2.0])


def test_methods_that_never_cost_the_same_are_not_compared():
    table = pd.DataFrame(rows("a", [0.1]) + rows("b", [0.2, 0.5]))
    assert standing(table, [("a", "b", "skipped"), ("a", "absent", "skipped")]).empty


def test_runs_of_different_devices_are_never_paired():
    here, there = (
        pd.DataFrame(rows(name, [0.3])).assign(device=device) for name, device in (("a", "cpu"), ("b", "cuda"))
    )
    assert standing(pd.concat([here, there]), [("a", "b", "skipped")]).empty
    both = pd.concat([here, there, there.assign(device="cpu", psnr=there["psnr"] - 2.0)])
    assert standing(both, [("a", "b", "skipped")])["gain"].tolist() == pytest.approx([2.0, 2.0])
