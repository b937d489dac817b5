"""The paper's rules, one by one, on single blocks."""

import copy
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest

from engine.policy import (
    BREAK_IT,
    PRESETS,
    Policy,
    PolicyError,
    advance,
    decide,
    extrapolation_weight,
    plan,
    preset_name,
    purify,
    unweighed,
    weighs,
)
from engine.records import BLOCK_REASONS, DECIDED_BY, GROUP_REASONS, BlockState, Calibration, Coefficient
from engine.settings import RANGES, needs_calibration, signals_needed, warnings

FLAT = {"qkv": Coefficient(0.0, 0.05, 0.0, 9), "down": Coefficient(1.0, 0.0, 0.9, 9)}
INF, NAN = float("inf"), float("nan")


def state(**changes) -> BlockState:
    """A block in mid-run: two computed deltas, Γ .1, drift .04, nothing skipped yet."""
    return BlockState(**{"computed": 2, "gamma_last": 0.1, "drift": 0.04, **changes})


def middle(policy: Policy, past: BlockState, lines=FLAT):
    return decide(policy, past, 10, 30, lines)


def walk(policy: Policy, steps: int, drift: float, gamma: float = 0.2, lines=FLAT) -> list:
    """Decisions of one block whose drift over g steps is drift·√g."""
    past, decisions = BlockState(), []
    for step in range(steps):
        decisions.append(decide(policy, past, step, steps, lines))
        gap = decisions[-1].gap
        past = advance(policy, past, decisions[-1], gamma, drift * math.sqrt(gap) if gap else None)
    return decisions


# --- TDC


@pytest.mark.parametrize("accumulated, drift, skipped", [(0.0, 0.1, True), (0.05, 0.05, True), (0.06, 0.05, False)])
def test_a_block_is_skipped_while_the_budget_lasts(accumulated, drift, skipped):
    policy = Policy(tdc_threshold=0.1)
    decision = middle(policy, state(accumulated=accumulated, drift=drift, consecutive_skips=int(accumulated > 0)))
    assert decision.skipped is skipped
    assert decision.reason == ("within budget" if skipped else "budget spent")
    assert decision.accumulated == (accumulated + drift if skipped else 0.0)
    assert decision.refreshed is not skipped
    assert {g.precision for g in decision.groups.values()} == {"skipped"} if skipped else {"int8"}


def test_skipping_spends_and_computing_clears():
    policy = Policy()
    past = state()
    after = advance(policy, past, middle(policy, past))
    assert (after.accumulated, after.consecutive_skips, after.computed) == (0.04, 1, 2)
    assert after.drift == past.drift and after.gamma_last == past.gamma_last
    computed = advance(policy, after, decide(policy, after, 29, 30, FLAT), 0.3, 0.08)
    assert (computed.accumulated, computed.consecutive_skips, computed.computed) == (0.0, 0, 3)
    assert computed.gamma_last == 0.3


@pytest.mark.parametrize("gap, expected", [("linear", 0.04), ("sqrt", 0.12 / math.sqrt(3)), ("none", 0.12)])
def test_the_gap_rule_turns_c_into_a_drift_per_step(gap, expected):
    policy = Policy(gap=gap)
    past = state(consecutive_skips=2, accumulated=0.08)
    decision = middle(policy, past)
    assert decision.reason == "skip limit" and decision.gap == 3
    assert advance(policy, past, decision, 0.1, 0.12).drift == pytest.approx(expected, rel=1e-15)


def test_two_skips_in_a_row_then_the_limit():
    reasons = [d.reason for d in walk(Policy(warmup_steps=0, protect_last=0), 9, drift=0.02)]
    assert reasons == ["first step", "no history", "within budget", "within budget", "skip limit"] + [
        "within budget", "within budget", "skip limit", "within budget",
    ]  # fmt: skip


@pytest.mark.parametrize("most", [0, 1, 4])
def test_max_skips_is_the_longest_row_of_skips(most):
    decisions = walk(Policy(max_skips=most, tdc_threshold=10), 40, drift=0.01)
    text = "".join("s" if d.skipped else "c" for d in decisions)
    assert max(map(len, text.split("c"))) == most


def test_warm_up_and_final_steps_always_compute():
    decisions = walk(Policy(warmup_steps=5, protect_last=4), 20, drift=0.01)
    assert [d.reason for d in decisions[:5]] == ["first step", *["warm-up"] * 4]
    assert [d.reason for d in decisions[-4:]] == ["final steps"] * 4
    assert decisions[5].skipped


@pytest.mark.parametrize(
    "policy", [Policy(warmup_steps=99), Policy(protect_last=99), Policy(warmup_steps=5, protect_last=5)]
)
def test_limits_longer_than_the_run_compute_everything(policy):
    assert not any(d.skipped for d in walk(policy, 10, drift=0.0))


def test_one_step_is_a_first_step_at_int8():
    (only,) = walk(Policy(), 1, drift=0.0)
    assert only.reason == "first step" and only.refreshed
    assert {(g.precision, g.decided_by, g.reason) for g in only.groups.values()} == {
        ("int8", "first step", "first step")
    }


def test_reuse_off_never_skips_and_never_refreshes():
    decisions = walk(Policy(tdc=False), 10, drift=0.0)
    assert {(d.skipped, d.refreshed, d.reason) for d in decisions} == {(False, False, "reuse off")}


@pytest.mark.parametrize("drift", [NAN, INF])
def test_a_drift_that_is_no_number_never_buys_a_skip(drift):
    decision = middle(Policy(tdc_threshold=10), state(drift=drift))
    assert not decision.skipped and decision.reason == "signal not finite"


def test_a_block_state_reads_as_the_paper_does():
    assert state().steps_since_computed == 1 and state(consecutive_skips=2).steps_since_computed == 3


# --- DMPQ


def test_the_predictor_compares_alpha_gamma_plus_beta_with_the_threshold():
    policy = Policy(error_threshold=0.1, tdc=False)
    groups = middle(policy, state(gamma_last=0.15)).groups
    assert groups["qkv"].precision == "nvfp4" and groups["qkv"].predicted_error == 0.05
    assert groups["qkv"].reason == "predicted error within threshold"
    assert groups["down"].precision == "int8" and groups["down"].predicted_error == 0.15
    assert groups["down"].reason == "predicted error above threshold"
    assert {g.decided_by for g in groups.values()} == {"predictor"}


def test_an_error_equal_to_the_threshold_is_within_it():
    assert middle(Policy(error_threshold=0.05, tdc=False), state()).groups["qkv"].precision == "nvfp4"


@pytest.mark.parametrize(
    "weighting, weight, precision",
    [("none", 9.0, "nvfp4"), ("sensitivity", 1.0, "nvfp4"), ("sensitivity", 2.0, "nvfp4"), ("sensitivity", 2.1, "int8"),
     ("sensitivity", 0.5, "nvfp4")],
)  # fmt: skip
def test_a_policy_that_weighs_compares_weight_times_error_and_records_the_error(weighting, weight, precision):
    lines = {"qkv": Coefficient(0.0, 0.05, 0.0, 9, weight)}
    group = middle(Policy(error_threshold=0.1, tdc=False, weighting=weighting), state(), lines).groups["qkv"]
    assert (group.precision, group.predicted_error, group.decided_by) == (precision, 0.05, "predictor")
    assert group.reason == f"predicted error {'above' if precision == 'int8' else 'within'} threshold"


def test_weights_are_of_no_account_where_nothing_is_predicted():
    heavy = {"qkv": Coefficient(0.0, 0.05, 0.0, 9, 100.0), "down": None}
    policy = Policy(tdc=False, weighting="sensitivity")
    first = decide(policy, BlockState(), 0, 30, heavy).groups
    assert {group.reason for group in first.values()} == {"first step"}
    broken = middle(policy, state(gamma_last=NAN), heavy).groups
    assert [group.reason for group in broken.values()] == ["signal not finite", "uncalibrated"]
    assert not weighs(Policy(precision="nvfp4", weighting="sensitivity"))


def test_weighing_without_weights_is_said():
    rows = {("transformer", 0, name): line for name, line in FLAT.items()}
    plain = Calibration("abc", 30, 3.0, rows)
    measured = Calibration("abc", 30, 3.0, {**rows, ("transformer", 1, "qkv"): Coefficient(0.0, 0.1, 0.0, 9, 1.5)})
    sentence, = unweighed(PRESETS["dmpq_sensitive"], plain)
    assert "calibrate --sensitivity" in sentence and sentence.count(". ") == 0
    assert unweighed(PRESETS["dmpq_sensitive"], measured) == unweighed(PRESETS["dmpq"], plain) == []
    assert unweighed(PRESETS["dmpq_sensitive"], None) == []


def test_a_negative_slope_is_taken_as_fitted():
    line = {"qkv": Coefficient(-1.0, 0.3, 0.5, 9)}
    policy = Policy(error_threshold=0.15, tdc=False)
    assert middle(policy, state(gamma_last=0.2), line).groups["qkv"].precision == "nvfp4"
    assert middle(policy, state(gamma_last=0.1), line).groups["qkv"].precision == "int8"


def test_after_a_skip_there_is_no_gamma_so_int8():
    groups = middle(Policy(tdc_threshold=0.0), state(consecutive_skips=1)).groups
    assert {(g.precision, g.decided_by, g.reason) for g in groups.values()} == {
        ("int8", "resume", "resumed after skip")
    }
    assert all(math.isnan(g.predicted_error) for g in groups.values())


def test_resume_with_the_last_gamma_asks_the_predictor():
    groups = middle(Policy(tdc_threshold=0.0, resume="last_gamma"), state(consecutive_skips=1)).groups
    assert groups["qkv"].precision == "nvfp4" and groups["qkv"].decided_by == "predictor"


def test_uncalibrated_means_int8():
    groups = middle(Policy(tdc=False), state(), {"qkv": None, "down": FLAT["down"]}).groups
    assert (groups["qkv"].precision, groups["qkv"].reason) == ("int8", "uncalibrated")
    assert groups["down"].decided_by == "predictor"


@pytest.mark.parametrize("gamma", [NAN, INF, -INF])
def test_broken_numbers_never_buy_four_bits(gamma):
    groups = middle(
        Policy(tdc=False, error_threshold=1.0), state(gamma_last=gamma), {"qkv": Coefficient(0.0, 0.01, 0, 9)}
    ).groups
    assert (groups["qkv"].precision, groups["qkv"].decided_by, groups["qkv"].reason) == (
        "int8", "no signal", "signal not finite",
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["nvfp4", "int8", "w4a16", "stock"])
def test_a_forced_precision_holds_from_the_first_step_on(precision):
    for decision in walk(Policy(precision=precision, tdc=False), 4, drift=0.1):
        for group in decision.groups.values():
            assert (group.precision, group.decided_by) == (precision, "policy")
            assert group.reason == ("stock" if precision == "stock" else "forced precision")


# --- PDR


def test_outliers_in_a_refreshing_block_run_at_16_bits():
    policy = Policy(tdc_threshold=0.0, outlier_threshold=25)
    decision = middle(policy, state())
    pure = purify(policy, decision, "qkv", 25.1)
    assert (pure.precision, pure.purified, pure.decided_by, pure.reason) == ("w4a16", True, "outliers", "outliers")
    assert pure.outlier_ratio == 25.1 and pure.predicted_error == 0.05
    calm = purify(policy, decision, "qkv", 25.0)
    assert (calm.precision, calm.purified, calm.outlier_ratio) == ("nvfp4", False, 25.0)


def test_an_alarm_may_lift_to_8_bits_and_then_leaves_8_bit_groups_alone():
    policy = Policy(tdc_threshold=0.0, purify_to="int8")
    low = purify(policy, middle(policy, state()), "qkv", 30.0)
    assert (low.precision, low.purified, low.decided_by) == ("int8", True, "outliers")
    first = decide(policy, BlockState(), 0, 30, FLAT)
    kept = purify(policy, first, "qkv", 30.0)
    assert (kept.precision, kept.purified, kept.decided_by, kept.outlier_ratio) == ("int8", False, "first step", 30.0)


def test_extrapolation_goes_further_the_older_the_delta_and_the_closer_the_last_two():
    assert extrapolation_weight(Policy(), 2, 1) == 0.0
    ahead = Policy(extrapolation=0.8)
    assert [extrapolation_weight(ahead, age, apart) for age, apart in ((1, 1), (2, 1), (1, 2))] == [0.8, 1.6, 0.4]
    past = state()
    assert middle(ahead, past) == middle(Policy(), past)  # what is decided does not change


@pytest.mark.parametrize(
    "policy", [Policy(pdr=False), Policy(tdc=False), Policy(precision="stock"), Policy(precision="w4a16")]
)
def test_nothing_is_purified_without_a_cheap_layer_in_a_refresh(policy):
    decision = decide(policy, BlockState(), 0, 30, FLAT)
    pure = purify(policy, decision, "qkv", 1e6)
    assert not pure.purified and pure.precision == decision.groups["qkv"].precision


def test_a_skipped_block_and_a_ratio_that_is_no_number_stay_as_they_are():
    policy = Policy()
    skipped = middle(policy, state())
    assert skipped.skipped and purify(policy, skipped, "qkv", 1e6).precision == "skipped"
    first = decide(policy, BlockState(), 0, 30, FLAT)
    assert purify(policy, first, "qkv", NAN).precision == "int8"
    assert purify(policy, first, "qkv", INF).precision == "w4a16"


# --- Plans, words, arrays


def test_a_plan_decides_every_block_by_its_own_past():
    first, skipping = plan(Policy(), [BlockState(), state()], 10, 30, [FLAT, FLAT])
    assert (first.reason, skipping.reason) == ("first step", "within budget")


def test_every_word_is_in_the_vocabulary():
    seen_blocks, seen_groups, seen_by = set(), set(), set()
    for policy in [*PRESETS.values(), BREAK_IT]:
        for decision in walk(policy, 12, drift=0.03):
            seen_blocks.add(decision.reason)
            seen_groups |= {g.reason for g in decision.groups.values()}
            seen_by |= {g.decided_by for g in decision.groups.values()}
    assert seen_blocks <= set(BLOCK_REASONS) and seen_groups <= set(GROUP_REASONS) and seen_by <= set(DECIDED_BY)


def test_decisions_are_plain_python():
    decision = walk(Policy(), 6, drift=0.03)[-1]
    assert type(decision.accumulated) is float and type(decision.drift) is float and type(decision.gap) is int
    assert type(decision.skipped) is bool and type(decision.refreshed) is bool
    assert {type(g.purified) for g in decision.groups.values()} == {bool}


# --- Settings


def test_presets_are_the_papers_ablation_and_one_of_ours():
    papers = ["fp16", "w4a16", "w4a8", "w4a4", "dmpq", "tdc", "dmpq_tdc", "sixbit", "int8_tdc"]
    assert [name for name in PRESETS if name != "dmpq_sensitive"] == papers
    assert {p.weighting for name, p in PRESETS.items() if name in papers} == {"none"} == {BREAK_IT.weighting}
    ours = PRESETS["dmpq_sensitive"]
    assert weighs(ours) and dataclasses.replace(ours, weighting="none", error_threshold=0.092) == PRESETS["dmpq"]
    assert Policy.preset("sixbit") == Policy() and preset_name(Policy()) == "sixbit"
    assert preset_name(Policy(max_skips=1)) is None
    assert Policy.preset("fp16").precision == "stock" and not Policy.preset("fp16").tdc
    assert [name for name, p in PRESETS.items() if needs_calibration(p)] == [
        "dmpq", "dmpq_sensitive", "dmpq_tdc", "sixbit"
    ]
    with pytest.raises(PolicyError, match="preset must be one of 'fp16', .*'int8_tdc'; got 'sixbits'"):
        Policy.preset("sixbits")


@pytest.mark.parametrize("name", RANGES)
def test_out_of_range_values_name_field_value_and_range(name):
    low, high = RANGES[name]
    for value in (low - 1, high + 1, NAN, INF, "3", True, [1], None):
        if name == "tuned_steps" and value is None:
            continue
        with pytest.raises(ValueError) as raised:
            Policy(**{name: value})
        said = str(raised.value)
        assert said.startswith(f"{name} must be") and f"from {low:g} to" in said and repr(value) in said
    for value in (low, high):
        assert getattr(Policy(**{name: value}), name) == value


@pytest.mark.parametrize(
    "change",
    [{"precision": "fp4"}, {"gap": "log"}, {"weighting": "yes"}, {"weighting": True}, {"resume": ""}, {"tdc": 1}, {"pdr": "yes"}, {"precision": None},
     {"max_skips": 1.5}, {"warmup_steps": "<script>" * 1000}],
)  # fmt: skip
def test_wrong_kinds_are_refused_in_a_short_sentence(change):
    with pytest.raises(PolicyError) as raised:
        Policy(**change)
    assert str(raised.value).startswith(next(iter(change))) and len(str(raised.value)) < 200


def test_numbers_are_kept_in_one_kind():
    policy = Policy(max_skips=2.0, error_threshold=1, warmup_steps=np.int64(3), tdc_threshold=np.float32(0.5))
    assert type(policy.max_skips) is int and type(policy.error_threshold) is float
    assert type(policy.warmup_steps) is int and type(policy.tdc_threshold) is float


@pytest.mark.parametrize("policy", [*PRESETS.values(), BREAK_IT, Policy(tuned_steps=30, resume="last_gamma")])
def test_json_round_trip(policy, tmp_path):
    assert Policy.from_json(policy.to_json()) == policy
    policy.save(tmp_path / "p.json")
    assert Policy.load(tmp_path / "p.json") == policy


@pytest.mark.parametrize("huge", [10**400, -(10**400), 10**5000], ids=["400", "-400", "5000"])
def test_integers_too_large_for_a_float_are_out_of_range_like_any_other(huge):
    for name in RANGES:
        with pytest.raises(PolicyError, match=f"{name} must be") as raised:
            Policy(**{name: huge})
        assert len(str(raised.value)) < 200
    if abs(huge) < 10**4000:
        with pytest.raises(PolicyError, match="max_skips must be"):
            Policy.from_json(json.dumps({"max_skips": huge}))


def test_what_is_no_policy_or_no_path_gets_one_sentence(tmp_path):
    for values in (None, 3, "sixbit", [1]):
        with pytest.raises(PolicyError, match="A policy must be a mapping"):
            Policy.from_dict(values)
    for path in (None, 3, ""):
        with pytest.raises(PolicyError, match="Expected the path of a file"):
            Policy.load(path)
    with pytest.raises(OSError, match="'x.json' cannot be written: its folder does not exist"):
        Policy().save(tmp_path / "none" / "x.json")


def test_json_from_strangers(tmp_path):
    with pytest.raises(PolicyError, match="A policy has no field 'threshold'.*; its fields are error_threshold"):
        Policy.from_json('{"threshold": 1}')
    with pytest.raises(PolicyError, match="tdc_threshold must be"):
        Policy.from_json('{"tdc_threshold": 1e999}')
    with pytest.raises(PolicyError, match="not valid JSON"):
        Policy.from_json(Policy().to_json()[:-3])
    (tmp_path / "p.json").write_bytes(b"\x80")
    with pytest.raises(PolicyError, match="not UTF-8"):
        Policy.load(tmp_path / "p.json")
    assert Policy.from_json(json.dumps({"max_skips": 1})) == Policy(max_skips=1)
    older = {name: value for name, value in Policy().to_dict().items() if name != "weighting"}
    assert Policy.from_json(json.dumps(older)) == Policy()


@pytest.mark.parametrize(
    "make", [lambda **fields: Policy(**fields), lambda **fields: dataclasses.replace(Policy(), **fields)]
)
def test_a_field_that_there_is_not_is_one_sentence_with_the_nearest(make):
    with pytest.raises(
        PolicyError, match=r"^A policy has no field 'tdc_treshold' \(perhaps tdc_threshold\); its fields are err"
    ):
        make(tdc_treshold=0.1)
    assert make(max_skips=1) == pickle.loads(pickle.dumps(Policy(max_skips=1))) == copy.copy(Policy(max_skips=1))


def test_a_file_that_is_no_policy_is_named(tmp_path):
    (tmp_path / "cut.json").write_text(Policy().to_json()[:-3])
    with pytest.raises(PolicyError, match="^'cut.json' is not a policy file: it is not valid JSON"):
        Policy.load(tmp_path / "cut.json")
    (tmp_path / "more.json").write_text('{"speed": 1, "max_skip": 2}')
    with pytest.raises(PolicyError, match=r"no fields 'max_skip' \(perhaps max_skips\), 'speed'; its fields are"):
        Policy.load(tmp_path / "more.json")


def test_a_policy_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().max_skips = 3


def test_signals_needed_follow_the_policy():
    assert signals_needed(Policy()) == {"gamma", "delta_change", "outlier_ratio"}
    assert signals_needed(PRESETS["fp16"]) == frozenset()
    assert signals_needed(PRESETS["tdc"]) == {"delta_change"} == signals_needed(Policy(precision="stock"))
    assert signals_needed(PRESETS["dmpq"]) == {"gamma"}


@pytest.mark.parametrize(
    "policy, steps, said",
    [
        (Policy(), 4, "Nothing can be skipped"),
        (Policy(max_skips=0), 30, "Nothing can be skipped"),
        (Policy(tuned_steps=50), 30, "tuned at 50 steps; at 30 steps"),
        (Policy(tdc_threshold=1.0), 30, "more than twice"),
        (Policy(warmup_steps=0), 30, "smear"),
        (Policy(tdc=False), 30, "outlier alarm does nothing"),
        (Policy(precision="stock"), 30, "already take 16 bits"),
    ],
)
def test_warnings_say_what_is_probably_not_meant(policy, steps, said):
    assert any(said in sentence for sentence in warnings(policy, steps))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_warn_about_nothing_at_a_normal_length(name):
    assert warnings(PRESETS[name], PRESETS[name].tuned_steps or 30) == []
