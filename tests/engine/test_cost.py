"""Counting bits, shares and time."""

import math
from dataclasses import replace

import numpy as np
import pytest

from engine.cost import Speeds, estimate_seconds, firing, measure_speeds, report
from engine.policy import PRESETS, Policy
from engine.replay import replay
from engine.trace import Recorder, TraceMeta, empty_trace
from tests.synthetic import live_trace, probe_trace


def cell(recorder, step, precisions, milliseconds, block=0, macs=(3.0, 1.0)):
    """One block with the groups `wide` and `slim` at the given precisions."""
    key = {"call": 0, "model": "transformer", "branch": "", "step": step, "block": block}
    skipped = precisions == ("skipped", "skipped")
    recorder.block(
        **key, steps=99, skipped=skipped, refreshed=not skipped, reason="reuse off", milliseconds=milliseconds
    )
    for layer, precision, count in zip(("wide", "slim"), precisions, macs, strict=True):
        recorder.layer(**key, layer=layer, precision=precision, decided_by="predictor" if precision == "nvfp4" else "policy",
                       reason="stock", macs=count, purified=precision == "w4a16",
                       outlier_ratio=30.0 if layer == "slim" and not skipped else float("nan"))  # fmt: skip


@pytest.fixture
def by_hand():
    recorder = Recorder(TraceMeta(policy={"outlier_threshold": 25.0}))
    cell(recorder, 0, ("int8", "int8"), 10.0)
    cell(recorder, 1, ("nvfp4", "w4a16"), 9.0)
    cell(recorder, 2, ("skipped", "skipped"), 1.0)
    cell(recorder, 3, ("nvfp4", "int8"), 8.0)
    return recorder.trace()


def test_average_bits_weigh_macs_and_count_skips_as_zero_only_in_the_papers_figure(by_hand):
    figures = report(by_hand)
    bits = 3 * 8 + 1 * 8 + 3 * 4 + 1 * 16 + 0 + 3 * 4 + 1 * 8
    assert figures.average_bits == bits / 16 and figures.average_bits_computed == bits / 12
    assert (figures.macs, figures.macs_computed) == (16.0, 12.0)


def test_shares_and_counts(by_hand):
    figures = report(by_hand)
    assert (figures.layer_calls, figures.block_calls) == (8, 4)
    assert figures.skipped_share == 0.25 and figures.purified_share == 1 / 8 and figures.predictor_share == 2 / 8
    assert figures.precision_shares == {"nvfp4": 2 / 8, "int8": 3 / 8, "w4a16": 1 / 8, "skipped": 2 / 8}
    assert sum(figures.precision_shares.values()) == 1.0 and figures.known_share == 1.0
    assert figures.seconds == pytest.approx(0.028)


def test_firing_counts_measured_calls_only(by_hand):
    figures = report(by_hand).firing
    assert figures["slim"] == 1.0 and math.isnan(figures["wide"])
    assert firing(by_hand.layers, 31.0)["slim"] == 0.0


def test_an_empty_trace_has_no_figures_and_no_error():
    figures = report(empty_trace())
    assert math.isnan(figures.average_bits) and math.isnan(figures.skipped_share) and math.isnan(figures.seconds)
    assert figures.layer_calls == 0 and figures.precision_shares == {} == figures.firing
    assert math.isnan(estimate_seconds(empty_trace(), Speeds({}))) and measure_speeds(empty_trace()).milliseconds == {}


@pytest.mark.parametrize("name, bits", [("fp16", 16), ("w4a16", 16), ("w4a8", 8), ("w4a4", 4)])
def test_fixed_precisions_average_to_themselves(name, bits):
    figures = live_trace(PRESETS[name], 3, 6).report
    assert figures.average_bits == figures.average_bits_computed == bits and figures.skipped_share == 0.0


def test_all_int8_with_skips_falls_below_six_by_itself():
    figures = live_trace(Policy(precision="int8", pdr=False, tdc_threshold=0.3)).report
    assert figures.average_bits_computed == 8.0
    assert figures.average_bits == pytest.approx(8.0 * (1 - figures.skipped_share))


def test_a_trace_without_macs_has_no_average_bits(by_hand):
    bare = replace(by_hand, layers=by_hand.layers.assign(macs=float("nan")))
    assert math.isnan(bare.report.average_bits) and bare.report.skipped_share == 0.25


# --- Time


def mixed(costs=None, noise=0.0, blocks=3, steps=40):
    """A run whose cells cost exactly the MAC-weighted mean of their precisions."""
    costs = costs or {"nvfp4": 6.0, "int8": 8.0, "w4a16": 14.0, "skipped": 0.5}
    rng = np.random.default_rng(0)
    recorder = Recorder(TraceMeta())
    for step in range(steps):
        for block in range(blocks):
            pair = tuple(rng.choice(["nvfp4", "int8", "w4a16"], 2))
            pair = ("skipped", "skipped") if rng.random() < 0.3 and step else tuple(str(p) for p in pair)
            cost = (3 * costs[pair[0]] + costs[pair[1]]) / 4 * (block + 1)
            cell(recorder, step, pair, (cost if step else 500.0) + rng.normal(0, noise), block)
    return recorder.trace()


def test_speeds_are_found_per_precision_and_block_and_the_first_step_is_left_out():
    speeds = measure_speeds(mixed()).milliseconds
    for block in range(3):
        found = speeds["transformer", block]
        for name, cost in (("nvfp4", 6.0), ("int8", 8.0), ("w4a16", 14.0), ("skipped", 0.5)):
            assert found[name] == pytest.approx(cost * (block + 1), rel=0.05)


def test_an_estimate_of_the_recording_itself_is_its_own_time():
    trace = mixed(noise=0.2)
    later = trace.blocks["step"] > 0
    timed = trace.blocks[later]["milliseconds"].sum() / 1e3
    rest = replace(trace, blocks=trace.blocks[later], layers=trace.layers[trace.layers["step"] > 0])
    assert estimate_seconds(rest, measure_speeds(trace)) == pytest.approx(timed, rel=0.02)


def test_a_draft_that_skips_more_is_estimated_faster():
    run = live_trace(Policy(tdc_threshold=0.1))
    draft = replay(run, Policy(tdc_threshold=0.1))
    more = replay(probe_trace(), Policy(tdc_threshold=0.3))
    speeds = measure_speeds(run)
    assert estimate_seconds(draft, speeds) == estimate_seconds(run, speeds)
    assert estimate_seconds(more, speeds) < 0.8 * estimate_seconds(run, speeds)


def test_a_precision_that_was_never_timed_is_unknown_not_free():
    run = live_trace(PRESETS["w4a8"], 3, 8)
    assert math.isnan(estimate_seconds(live_trace(PRESETS["w4a4"], 3, 8), measure_speeds(run)))
    assert math.isnan(estimate_seconds(live_trace(PRESETS["w4a8"], 4, 8), measure_speeds(run)))


def test_a_precision_that_one_block_never_took_is_carried_over_from_the_others():
    recorder = Recorder(TraceMeta())
    for step in range(20):
        cell(
            recorder, step, ("int8", "int8") if step % 2 else ("skipped", "skipped"), 8.0 if step % 2 else 0.5, block=0
        )
        cell(recorder, step, ("int8", "int8"), 16.0, block=1)
    found = measure_speeds(recorder.trace()).milliseconds
    assert found["transformer", 1] == {"skipped": pytest.approx(1.0), "int8": pytest.approx(16.0)}


def test_precisions_that_never_part_share_their_mean():
    recorder = Recorder(TraceMeta())
    for step in range(20):
        cell(recorder, step, ("nvfp4", "int8"), 8.0)
    found = measure_speeds(recorder.trace()).milliseconds["transformer", 0]
    assert found["nvfp4"] == pytest.approx(8.0) and found["int8"] == pytest.approx(8.0)


def test_probe_recordings_do_not_set_speeds():
    assert measure_speeds(probe_trace(2, 4)).milliseconds == {}
