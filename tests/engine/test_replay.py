"""Replay: exact with the recording's own policy, never more certain than the observations allow, and fast."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.policy import PRESETS, Policy
from engine.replay import diff, net, replay
from engine.trace import Trace, TraceError, empty_trace
from tests.synthetic import GROUPS, live_trace, meta, probe_trace, signals

WAN = ("self_qkv", "self_out", "cross_q", "cross_out", "up", "down")


def random_policy(rng: np.random.Generator, most_skips: int = 5, **fixed) -> Policy:
    """Any policy, drawn so that every rule gets its turn."""
    drawn = {
        "precision": rng.choice(["dynamic", "dynamic", "dynamic", "nvfp4", "int8", "w4a16", "stock"]).item(),
        "error_threshold": float(rng.uniform(0.08, 0.17)),
        "tdc": bool(rng.random() < 0.8),
        "tdc_threshold": float(rng.choice([0.0, rng.uniform(0.05, 0.5), 10.0])),
        "max_skips": int(rng.integers(0, most_skips + 1)),
        "pdr": bool(rng.random() < 0.6),
        "outlier_threshold": float(rng.uniform(8, 35)),
        "gap": rng.choice(["linear", "sqrt", "none"]).item(),
        "resume": rng.choice(["int8", "last_gamma"]).item(),
        "purify_to": rng.choice(["w4a16", "int8"]).item(),
        "extrapolation": float(rng.choice([0.0, 0.8])),
        "weighting": rng.choice(["none", "sensitivity"]).item(),
        "warmup_steps": int(rng.integers(0, 8)),
        "protect_last": int(rng.integers(0, 5)),
    }
    return Policy(**{**drawn, **fixed})


def assert_same_rows(a: Trace, b: Trace, but: tuple[str, ...] = ()) -> None:
    for left, right in ((a.blocks, b.blocks), (a.layers, b.layers)):
        columns = [name for name in left if name not in but]
        pd.testing.assert_frame_equal(left[columns], right[columns], check_exact=True)


def broken(drawn, rng):
    """Signals with NaN and infinity in them, as a run with overflowing numbers shows."""
    hurt = {}
    for name in ("gamma", "drift", "outlier_ratio"):
        values = getattr(drawn, name).copy()
        values[rng.random(values.shape) < 0.05] = np.nan
        values[rng.random(values.shape) < 0.05] = np.inf
        hurt[name] = values
    return replace(drawn, **hurt)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("run.parquet", Policy()), "Expected trace to be a Trace, such as .* got str"),
        ((None, "sixbit"), "Expected policy to be a Policy, such as .* got str"),
        ((None, None), "Expected policy to be a Policy, such as .* got NoneType"),
        ((None, Policy(), "x"), "Expected calibration to be a Calibration, such as .* got str"),
    ],
)
def test_arguments_of_another_kind_are_refused_in_one_sentence(arguments, said):
    first, *rest = arguments
    with pytest.raises(ValueError, match=said):
        replay(first or empty_trace(), *rest)


# --- Exact


@pytest.mark.parametrize("seed", range(24))
def test_replay_with_the_recordings_own_policy_is_exact_to_the_last_column(seed):
    rng = np.random.default_rng(seed)
    policy = random_policy(rng)
    blocks, steps = int(rng.integers(1, 7)), int(rng.integers(1, 25))
    drawn = signals(blocks, steps, GROUPS if seed % 2 else WAN, seed, gaps=8)
    if seed % 5 == 0:
        drawn = broken(drawn, rng)
    trace = live_trace(policy, drawn=drawn, done=steps if seed % 3 else int(rng.integers(1, steps + 1)))
    again = replay(trace, policy)
    assert again.meta.replay == "exact"
    assert_same_rows(trace, again)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_replays_exactly(name):
    trace = live_trace(PRESETS[name])
    assert replay(trace, PRESETS[name]).meta.replay == "exact"


def test_exact_after_a_file(tmp_path):
    trace = live_trace(Policy())
    trace.save(tmp_path / "run.parquet")
    loaded = Trace.load(tmp_path / "run.parquet")
    again = replay(loaded, Policy.from_dict(loaded.meta.policy))
    assert again.meta.replay == "exact"
    assert_same_rows(trace, again)


def test_weights_move_decisions_but_not_predictions_and_replay_exactly():
    probe, plain, weighing = (
        probe_trace(), Policy(tdc=False), Policy(tdc=False, weighting="sensitivity", error_threshold=0.12)
    )
    a, b = (replay(probe, replace(policy, error_threshold=0.12)) for policy in (plain, weighing))
    pd.testing.assert_series_equal(a.layers["predicted_error"], b.layers["predicted_error"])
    weight = np.array([probe.meta.calibration.rows[key].weight
                       for key in zip(*(b.layers[name] for name in ("model", "block", "layer")), strict=True)])  # fmt: skip
    seen = b.layers["decided_by"] == "predictor"
    above = b.layers["predicted_error"] * weight > 0.12
    assert (b.layers["precision"][seen] == np.where(above[seen], "int8", "nvfp4")).all()
    assert (a.layers["precision"] != b.layers["precision"]).sum() > 100
    run = live_trace(weighing)
    assert replay(run, weighing).meta.replay == "exact" and replay(run, plain).meta.replay == "open loop"


def test_a_trace_from_before_there_were_weights_replays_exactly(tmp_path):
    lines = meta({}, signals(), 30, 0).calibration
    lines = replace(lines, rows={key: line._replace(weight=1.0) for key, line in lines.rows.items()})
    trace = live_trace(Policy(), drawn=signals(), lines=lines)
    older = trace.with_meta(policy={name: value for name, value in trace.meta.policy.items() if name != "weighting"})
    older.save(tmp_path / "run.parquet")
    loaded = Trace.load(tmp_path / "run.parquet")
    policy = Policy.from_dict(loaded.meta.policy)
    assert policy == Policy() and replay(loaded, policy).meta.replay == "exact"
    # Without weights a policy that weighs decides as one that does not.
    weighing = replay(loaded, replace(policy, weighting="sensitivity"))
    assert weighing.meta.replay == "exact"
    assert_same_rows(loaded, weighing)


@pytest.mark.parametrize("slug", ["sunset-star", "gray-circle"])
def test_recordings_from_before_there_were_weights_replay_exactly(slug):
    trace = Trace.load(Path(__file__).parents[2] / "assets" / "recordings" / slug / "run.parquet")
    assert "weighting" not in trace.meta.policy and not trace.meta.calibration.weighed
    assert replay(trace, Policy.from_dict(trace.meta.policy)).meta.replay == "exact"


def test_uncalibrated_groups_replay_exactly_too():
    drawn = signals(4, 12)
    lines = meta({}, drawn, 12, 0).calibration
    some = replace(lines, rows={key: line for key, line in lines.rows.items() if key[2] != "up" and key[1] != 2})
    trace = live_trace(Policy(), drawn=drawn, lines=some)
    assert "uncalibrated" in set(trace.layers["reason"])
    assert replay(trace, Policy()).meta.replay == "exact"


def several() -> tuple[Trace, list[Trace]]:
    """Two calls, two guidance branches, two models, the second of which starts half way and has more blocks."""
    policy, parts = Policy(), []
    plans = [(0, "transformer", "cond", 3, 12), (0, "transformer", "uncond", 3, 12), (0, "transformer_2", "cond", 5, 12),
             (1, "transformer", "cond", 3, 9)]  # fmt: skip
    for seed, (call, model, branch, blocks, steps) in enumerate(plans):
        part = live_trace(policy, blocks, steps, seed=seed)
        rows = part.meta.calibration.rows
        lines = replace(part.meta.calibration, rows={(model, block, group): v for (_, block, group), v in rows.items()})
        tables = [t.assign(call=call, model=model, branch=branch).astype({"model": "str", "branch": "str"})
                  for t in (part.blocks, part.layers)]  # fmt: skip
        if model == "transformer_2":
            tables = [t.assign(step=t["step"] + 12) for t in tables]
            tables[0] = tables[0].assign(steps=24)
        parts.append(Trace(*tables, replace(part.meta, calibration=lines)))
    rng = np.random.default_rng(0)
    joined = [pd.concat(tables).iloc[rng.permutation(sum(map(len, tables)))].reset_index(drop=True)
              for tables in ([p.blocks for p in parts], [p.layers for p in parts])]  # fmt: skip
    return Trace(*joined, parts[0].meta), parts


def test_calls_models_and_branches_have_separate_pasts_and_rows_keep_their_places():
    together, parts = several()
    policy = Policy(tdc_threshold=0.2, precision="int8", warmup_steps=0, protect_last=0)
    whole = replay(together, policy)
    assert list(whole.blocks["step"]) == list(together.blocks["step"])
    for part in parts:
        alone = replay(part, policy)
        key = part.blocks.iloc[0][["call", "model", "branch"]]
        for table, expected in ((whole.blocks, alone.blocks), (whole.layers, alone.layers)):
            mine = table[(table[["call", "model", "branch"]] == key).all(axis=1)]
            order = ["step", "block", *(["layer"] if "layer" in mine else [])]
            pd.testing.assert_frame_equal(
                mine.sort_values(order, ignore_index=True), expected.sort_values(order, ignore_index=True)
            )


# --- Open loop and partial


@pytest.mark.parametrize("seed", range(12))
def test_a_probe_answers_any_policy_of_up_to_two_skips_and_answers_truly(seed):
    rng = np.random.default_rng(100 + seed)
    drawn = signals(4, 20, seed=seed, gaps=3)
    policy = random_policy(rng, most_skips=2)
    what_if, truth = replay(probe_trace(drawn=drawn), policy), live_trace(policy, drawn=drawn)
    assert what_if.meta.replay in ("open loop", "exact")
    decided = ["skipped", "refreshed", "reason", "accumulated", "gap", "known"]
    pd.testing.assert_frame_equal(what_if.blocks[decided], truth.blocks[decided])
    decided = ["precision", "predicted_error", "purified", "decided_by", "reason", "known"]
    pd.testing.assert_frame_equal(what_if.layers[decided], truth.layers[decided])


@pytest.mark.parametrize("seed", range(32))
def test_what_a_replay_claims_to_know_is_true(seed):
    """On fixed signals the open-loop assumption holds, so each known cell must equal the run of that policy."""
    rng = np.random.default_rng(200 + seed)
    drawn = signals(5, 24, seed=seed, gaps=8)
    if seed % 4 == 0:
        drawn = broken(drawn, rng)
    recorded, other = random_policy(rng), random_policy(rng)
    what_if, truth = replay(live_trace(recorded, drawn=drawn), other), live_trace(other, drawn=drawn)
    at = what_if.blocks["known"]
    decided = ["skipped", "refreshed", "reason", "accumulated"]
    pd.testing.assert_frame_equal(what_if.blocks[at][decided], truth.blocks[at][decided])
    at = what_if.layers["known"]
    decided = ["precision", "purified", "decided_by", "reason"]
    pd.testing.assert_frame_equal(what_if.layers[at][decided], truth.layers[at][decided])
    # Numbers are those of the real run, or absent.
    pairs = ((what_if.blocks, truth.blocks, ("gamma", "delta_change", "drift")),
             (what_if.layers, truth.layers, ("predicted_error", "outlier_ratio")))  # fmt: skip
    for given, real, names in pairs:
        for name in names:
            at = given["known"] & given[name].notna() & real[name].notna()
            assert (given[name][at] == real[name][at]).all()


def test_an_unobserved_drift_is_marked_and_what_follows_too():
    drawn = signals(1, 12, gaps=8)
    recorded = replay_source = live_trace(Policy(precision="int8", pdr=False, tdc_threshold=0.0), drawn=drawn)
    assert not recorded.blocks["skipped"].any()
    draft = replay(replay_source, Policy(precision="int8", pdr=False, tdc_threshold=10, max_skips=1, warmup_steps=0,
                                         protect_last=2))  # fmt: skip
    # 0 first, 1 no history, 2 skipped, 3 computes (limit) across a gap of 2 that nobody measured: 4 is unknown.
    assert draft.meta.replay == "partial"
    reasons = draft.blocks["reason"].tolist()
    assert reasons[:5] == ["first step", "no history", "within budget", "skip limit", "signal not observed"]
    assert set(reasons[4:10]) == {"signal not observed"} and reasons[10:] == ["final steps"] * 2
    known = draft.blocks["known"].tolist()
    assert known == [True] * 4 + [False] * 6 + [True] * 2
    unknown = draft.blocks[~draft.blocks["known"]]
    assert unknown[["drift", "accumulated"]].isna().all(axis=None)
    assert not unknown["skipped"].any()  # where it cannot know, it does what the recording did


def test_a_gamma_that_was_skipped_over_is_unknown_to_the_predictor():
    drawn = signals(1, 8, gaps=8)
    recorded = live_trace(Policy(tdc_threshold=10, warmup_steps=0, protect_last=0, pdr=False), drawn=drawn)
    assert recorded.blocks["skipped"].tolist() == [False, False, True, True, False, True, True, False]
    draft = replay(recorded, Policy(tdc=False, pdr=False))
    assert draft.blocks["known"].all() and not draft.blocks["skipped"].any()
    by_step = draft.layers.groupby("step")["known"].all()
    # Γ is missing at the skipped steps 2, 3, 5, 6, so the steps after them cannot be predicted.
    assert by_step.tolist() == [True, True, True, False, False, True, False, False]
    unknown = draft.layers[~draft.layers["known"]]
    assert set(unknown["reason"]) == {"signal not observed"} and set(unknown["precision"]) == {"int8"}
    assert set(unknown["decided_by"]) == {"no signal"} and unknown["predicted_error"].isna().all()


def test_outliers_that_were_not_measured_are_not_guessed():
    recorded = live_trace(Policy(pdr=False, tdc_threshold=0.0), 2, 8)
    draft = replay(recorded, Policy(pdr=True, tdc_threshold=0.0))
    assert draft.meta.replay == "partial" and not draft.layers["known"].any() and not draft.layers["purified"].any()


def test_cells_keep_their_milliseconds_only_where_nothing_changed():
    recorded = live_trace(Policy(), 6, 20)
    draft = replay(recorded, Policy(error_threshold=0.10))
    changed = diff(recorded, draft)[["step", "block"]].drop_duplicates()
    assert len(changed) and draft.blocks["milliseconds"].isna().sum() == len(changed)


def test_broken_numbers_are_decided_as_they_were_live():
    drawn = broken(signals(6, 24, gaps=8), np.random.default_rng(1))
    trace = live_trace(Policy(), drawn=drawn)
    assert "signal not finite" in set(trace.blocks["reason"]) & set(trace.layers["reason"])
    assert replay(trace, Policy()).meta.replay == "exact"


def test_another_calibration_can_be_tried():
    trace = probe_trace(3, 10)
    lines = trace.meta.calibration
    flat = replace(lines, rows={key: line._replace(alpha=0.0, beta=0.5) for key, line in lines.rows.items()})
    draft = replay(trace, PRESETS["dmpq"], flat)
    assert set(draft.layers["precision"]) == {"int8"} and draft.meta.calibration_hash == flat.hash
    none = replay(trace.with_meta(calibration=None), PRESETS["dmpq"])
    assert set(none.layers["reason"]) == {"first step", "uncalibrated"}


def test_edges_and_refusals():
    assert len(replay(empty_trace(), Policy()).blocks) == 0
    one = replay(probe_trace(2, 1), Policy())
    assert set(one.blocks["reason"]) == {"first step"} and set(one.layers["precision"]) <= {"int8", "w4a16"}
    with pytest.raises(ValueError, match="itself a replay"):
        replay(one, Policy())
    scattered = pd.concat([probe_trace(1, 6000).blocks.assign(block=range(6000))])
    with pytest.raises(TraceError, match="too scattered"):
        replay(Trace(scattered, probe_trace(1, 1).layers, probe_trace(1, 1).meta), Policy())


def test_the_source_is_left_as_it_was():
    trace = probe_trace(3, 10)
    before = trace.blocks.copy(deep=True), trace.layers.copy(deep=True)
    draft = replay(trace, Policy())
    draft.blocks["gamma"] = 0.0
    draft.layers.loc[0, "outlier_ratio"] = -1.0
    assert trace.blocks.equals(before[0]) and trace.layers.equals(before[1])


def test_a_large_map_replays_within_the_time_of_a_slider():
    trace = probe_trace(42, 50)
    replay(trace, Policy())
    times = []
    for threshold in np.linspace(0.05, 0.2, 7):
        # Time of this thread alone, as others may be working beside this test.
        begin = time.thread_time()
        replay(trace, Policy(tdc_threshold=float(threshold)))
        times.append(time.thread_time() - begin)
    assert min(times) < 0.1, [f"{1e3 * t:.0f} ms" for t in times]


# --- Differences


def test_the_difference_names_changed_cells_and_the_first_of_each_block():
    probe = probe_trace(4, 16)
    a, b = (replay(probe, Policy(tdc_threshold=x)) for x in (0.05, 0.2))
    cells = diff(a, b)
    assert list(cells) == ["call", "model", "branch", "step", "block", "layer", "reason", "known", "before", "after",
                           "reuse", "first"]  # fmt: skip
    assert (cells["before"] != cells["after"]).all() and cells["step"].is_monotonic_increasing
    for _, row in cells.groupby("block"):
        assert row.loc[row["first"], "step"].unique().tolist() == [row["step"].min()]
    old, new = a.layers["precision"], b.layers["precision"]
    assert len(cells) == (old != new).sum()
    assert (cells["reuse"] == (cells["before"].eq("skipped") | cells["after"].eq("skipped"))).all()


def test_net_figures_add_up():
    probe = probe_trace(4, 16)
    a, b = (replay(probe, Policy(tdc_threshold=x)) for x in (0.05, 0.2))
    figures = net(a, b)
    assert figures.skips == int(b.blocks["skipped"].sum()) - int(a.blocks["skipped"].sum()) > 0
    assert sum(figures.moved.values()) == 0 and figures.moved["skipped"] == 4 * figures.skips
    assert figures.cells == len(diff(a, b)[["step", "block"]].drop_duplicates())
    assert figures.compared == 64 and figures.unknown == 0
    assert figures.bits == (a.report.average_bits, b.report.average_bits)
    assert figures.bits_computed[1] == b.report.average_bits_computed


def test_two_runs_of_different_length_are_compared_where_both_are():
    a, b = live_trace(Policy(), 4, 12), live_trace(Policy(), 6, 9, seed=1)
    assert net(a, b).compared == 4 * 9
    cells = diff(a, b)
    assert cells["step"].max() <= 8 and cells["block"].max() <= 3
    assert len(diff(a, a)) == 0 and net(a, empty_trace()).compared == 0 and len(diff(a, empty_trace())) == 0


def test_the_order_of_rows_does_not_matter_to_a_difference():
    a, b = live_trace(Policy(), 4, 12), live_trace(Policy(tdc_threshold=0.3), 4, 12)
    shuffled = replace(b, layers=b.layers.sample(frac=1, random_state=0))
    pd.testing.assert_frame_equal(
        diff(a, b).sort_values(["step", "block", "layer"], ignore_index=True),
        diff(a, shuffled).sort_values(["step", "block", "layer"], ignore_index=True),
    )
