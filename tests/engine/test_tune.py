"""Autotune: the front is a front, damage grows with risk, and a real search verifies what it promises."""

import pytest

from engine.attach import attach
from engine.policy import Policy
from engine.replay import replay
from engine.tune import Progress, Tuned, candidates, damage, tune
from tests import pipelines, synthetic


@pytest.fixture(scope="module")
def probe():
    return synthetic.probe_trace(blocks=2, steps=8)


@pytest.fixture(scope="module")
def pipe(one_thread_throughout):
    made = pipelines.cogvideox(layers=1)
    attach(made)
    return made


def test_no_candidate_is_beaten_in_both_cost_and_damage(probe):
    front = candidates([probe])
    assert len(front) > 5
    assert front["damage"].is_monotonic_increasing and front["cost"].is_monotonic_decreasing
    assert {policy.tuned_steps for policy in front["policy"]} == {8}
    assert front["policy"].iloc[0].error_threshold < front["policy"].iloc[-1].error_threshold


def test_what_is_not_searched_comes_from_the_base(probe):
    base = Policy.preset("int8_tdc")
    assert {policy.precision for policy in candidates([probe], base)["policy"]} == {"int8"}
    assert all(policy.max_skips == 1 for policy in candidates([probe], Policy(max_skips=1))["policy"])


def test_damage_grows_with_fewer_bits_and_more_reuse(probe):
    def of(policy):
        draft = replay(probe, policy)
        return damage(type(draft)(draft.blocks.assign(gamma=probe.blocks["gamma"]), draft.layers, draft.meta))

    assert 0 == of(Policy.preset("w4a16")) < of(Policy.preset("w4a8")) < of(Policy.preset("w4a4"))
    assert of(Policy.preset("w4a8")) < of(Policy(precision="int8", pdr=False, tdc_threshold=0.5, warmup_steps=2))


def test_only_probes_will_do(probe):
    with pytest.raises(ValueError, match="at least one probe trace"):
        candidates([])
    with pytest.raises(ValueError, match="at least one probe trace"):
        candidates([probe.with_meta(probe=False)])
    with pytest.raises(ValueError, match="objective must be one of"):
        candidates([probe], objective="beauty")


@pytest.fixture
def few_settings(monkeypatch):
    monkeypatch.setattr("engine.tune.ERROR_THRESHOLDS", (0.0, 1.0))
    monkeypatch.setattr("engine.tune.TDC_THRESHOLDS", (0.0, 0.3))


@pytest.mark.parametrize("objective", ["bits", "seconds"])
def test_a_real_search_keeps_the_quality_it_was_asked_for(pipe, objective, few_settings):
    events = list(tune(pipe, [pipelines.PROMPT], 0.9, objective=objective, steps=5))
    assert all(isinstance(event, Progress) for event in events[:-1])
    shares = [event.done for event in events[:-1]]
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1
    found = events[-1]
    assert isinstance(found, Tuned) and found.quality >= 0.9 and found.policy.tuned_steps == 5
    assert found.trials and found.policy in [trial.policy for trial in found.trials if trial.kept]
    assert Policy.from_json(found.policy.to_json()) == found.policy


def test_a_stop_ends_with_what_is_verified(pipe, few_settings):
    work = tune(pipe, [pipelines.PROMPT], 0.9, steps=4, stop=lambda: len(seen) > 1)
    seen = []
    for event in work:
        seen.append(event)
    assert isinstance(seen[-1], Tuned) and "Stopped" in seen[-1].message
    assert seen[-1].policy.precision == "int8" and not seen[-1].policy.tdc


def test_without_a_wish_the_models_own_step_count_is_what_is_tuned(pipe, few_settings):
    seen = []
    for event in tune(pipe, [pipelines.PROMPT], 0.9, stop=lambda: len(seen) > 1, height=32, width=32, frames=9):
        seen.append(event)
    assert seen[-1].policy.tuned_steps == 50


@pytest.mark.parametrize("keep, prompts", [(0.0, ["a"]), (1.5, ["a"]), (0.9, [])])
def test_impossible_wishes_are_one_sentence(pipe, keep, prompts):
    with pytest.raises(ValueError):
        next(tune(pipe, prompts, keep))


def test_a_stock_pipeline_is_refused():
    with pytest.raises(RuntimeError, match="not attached"):
        next(tune(pipelines.cogvideox(layers=1), [pipelines.PROMPT]))
