"""Replay against reality: an exact replay agrees in every cell, another policy's does not."""

import pandas as pd
import pytest

from engine import agreement, lab_tasks
from engine.policy import Policy
from engine.replay import replay
from tests import synthetic


@pytest.fixture(scope="module")
def probe():
    return synthetic.probe_trace(blocks=4, steps=12)


def test_random_policies_are_varied_and_the_same_everywhere():
    found = agreement.random_policies(50)
    assert found == agreement.random_policies(50) and len(set(found)) == 50
    assert {policy.gap for policy in found} == {"linear", "sqrt", "none"} and all(policy.tdc for policy in found)


def test_equal_traces_agree_and_others_do_not(probe):
    policy = Policy(tdc_threshold=0.2)
    run = replay(probe, policy)
    same = agreement.compare(run, replay(probe, policy))
    assert same["skips"] == same["precision"] == 1 and same["skipped_real"] == same["skipped_draft"] > 0
    other = agreement.compare(run, replay(probe, Policy(tdc_threshold=0.05)))
    assert other["skips"] < 1 and other["skipped_draft"] < other["skipped_real"]


def test_traces_of_other_sizes_are_refused(probe):
    with pytest.raises(ValueError, match="different cells"):
        agreement.compare(probe, synthetic.probe_trace(blocks=3, steps=12))


def test_the_band_sums_up_both_sources(probe):
    policies = agreement.random_policies(6)
    rows = []
    for policy in policies:
        found = agreement.compare(replay(probe, policy), replay(probe, policy))
        rows.append({**found, **{f"run_{name}": value for name, value in found.items()}})
    band = agreement.band(lab_tasks.both_sources(pd.DataFrame(rows)))
    assert (band["runs"], band["skip_low"], band["skip_high"]) == (6, 1, 1) and band["run"]["policies"] == 6
    assert band["probe"]["skips"] == [1, 1, 1] and band["probe"]["skipped_error"] == [0, 0]
