"""The lists of the quality lab: balanced prompts, tasks in a fair order, policies that exist."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from engine import lab_tasks, methods, vocabulary
from engine.policy import Policy, weighs


def test_prompts_are_held_out_balanced_and_stable():
    pairs = methods.prompts(64)
    scenes = [vocabulary.parse(prompt) for prompt, _ in pairs]
    assert all(vocabulary.is_held_out(scene) for scene in scenes)
    assert set(Counter((scene.dialect, len(scene.objects)) for scene in scenes).values()) == {16}
    assert len(set(pairs)) == 64 and pairs[:5] == methods.prompts(5)


def test_calibration_prompts_are_none_of_those_that_are_measured_on():
    known = methods.prompts(16, held_out=False)
    assert not any(vocabulary.is_held_out(vocabulary.parse(prompt)) for prompt, _ in known)
    assert not {seed for _, seed in known} & {seed for _, seed in methods.prompts(64)}


def test_a_sweep_cut_short_has_every_setting_equally_often():
    found = methods.tasks(methods.FRONTIER, methods.prompts(3), 30, 5.0, "weights")
    settings = len(found) // 3
    assert len({(task.method, task.setting) for task in found[:settings]}) == settings
    assert len({task.key for task in found}) == len(found)


@pytest.mark.parametrize("grid", [methods.FRONTIER, methods.DEFAULTS])
def test_every_setting_of_ours_is_a_policy(grid):
    import json

    for task in methods.tasks(grid, methods.prompts(1), 30, 5.0, ""):
        if task.method in methods.OURS:
            assert isinstance(methods.policy_of(task.method, json.loads(task.setting), 0.1), Policy)


@pytest.mark.parametrize("part", [methods.BRIEF, methods.ACCURACY])
def test_what_runs_first_and_what_runs_on_more_prompts_are_parts_of_the_published_sweep(part):
    pairs = {
        (n, str(v)) for grid in (methods.FRONTIER, methods.EXTENDED) for n, settings in grid.items() for v in settings
    }
    assert {(name, str(values)) for name, settings in part.items() for values in settings} <= pairs


def test_rows_that_are_stored_keep_their_keys():
    """A setting that a policy gains later must not make a sweep run everything again."""
    folder = Path(__file__).parents[2] / "assets" / "quality"
    agreed = pd.read_parquet(folder / "replay_agreement.parquet", columns=["key", "model"])
    model = agreed["model"].iloc[0]
    assert set(agreed["key"]) == {task.key for task in lab_tasks.agreement_tasks(50, 8, 30, 3.0, model, repeats=2)}
    swept = pd.read_parquet(folder / "frontier.parquet", columns=["key"])
    pairs = methods.prompts(64)
    assert set(swept["key"]) <= {
        task.key for grid in methods.GRIDS.values() for task in methods.tasks(grid, pairs, 30, 3.0, model)
    }


def test_methods_by_sensitivity_weigh():
    for method in methods.OURS:
        assert weighs(methods.policy_of(method, {"target_bits": 6.0}, 0.05)) == (method in methods.SENSITIVE), method
    assert methods.policy_of("dmpq_sensitive", {}) == Policy.preset("dmpq_sensitive")


def test_target_bits_become_a_threshold():
    assert methods.policy_of("dmpq", {"target_bits": 6.0}, 0.09).error_threshold == 0.09
    assert methods.policy_of("sixbit", {"tdc_threshold": 0.2}).tdc_threshold == 0.2


def test_an_unknown_method_is_one_sentence():
    with pytest.raises(ValueError, match="no method 'nonsense'"):
        methods.chosen(methods.FRONTIER, ["nonsense"])
    assert list(methods.chosen(methods.FRONTIER, ["sixbit", "fp16"])) == ["fp16", "sixbit"]
