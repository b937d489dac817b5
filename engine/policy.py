"""The paper: which blocks reuse their last change, and how many bits every other layer takes.

Read this file and you know the method of *6Bit-Diffusion* (arXiv 2603.18742). Signals in, decision out: no model, no
torch. The live engine, the what-if sliders, the lessons and the tests all call the rules below.

Three signals are measured while a video is made, with X the input and Y the output of transformer block i at
denoising step t:

    Γ(i,t)  = ‖Y−X‖₁ / ‖X‖₁                          how much the block changes its input
    c(i,t)  = ‖Δ(i,t) − Δ(i,prev)‖₁ / ‖Δ(i,prev)‖₁   drift of that change Δ = Y−X since the last computed step
    r(l,t)  = max|X| / mean|X|                       outliers in the input of layer l (Eq. 12)

* **TDC**, temporal delta cache (`reuse_rules`). A block is skipped, Y = X + Δ_cached, while the drift expected since
  the last computed step stays within a budget: E_acc + c ≤ tdc_threshold. Skipping adds c, computing resets.
* **DMPQ**, dynamic mixed-precision quantization (`precision_rules`). A line fitted offline predicts a layer group's
  NVFP4 error from the *previous* step: Ê = α·Γ(i,t−1) + β. Above error_threshold it takes INT8, else NVFP4.
* **PDR**, purified delta refresh (`purify`). What a computed block leaves in the cache is used again, so there a
  group whose input has outliers, r > outlier_threshold, runs with 16-bit activations.

Extensions of ours, each behind a setting whose default is the paper:

* `resume="last_gamma"`: right after a skip the predictor looks at the last computed Γ, instead of INT8 for all.
* `weighting="sensitivity"`: the error that DMPQ forecasts is the layer's own, and the model's output minds some layers
  more than others. So Ê is first multiplied by the group's measured weight (`records.Coefficient.weight`), and
  weight · Ê is compared with error_threshold. What is predicted, and recorded, stays Ê.
* `purify_to="int8"`: an alarm lifts 4-bit groups to 8 bits and leaves 8-bit ones, where 16 bits buy nothing.
* `extrapolation` = κ > 0: a skipped block adds Δ₁ + κ·(a/g)·(Δ₁ − Δ₂) instead of Δ₁, where Δ₁ and Δ₂ are its last two
  computed deltas, g steps apart, and Δ₁ is a steps old (`extrapolation_weight`). Deltas that drift in one direction,
  so that drift grows almost as fast as time, are met better on that line. Decisions do not change: c stays the drift
  of Δ₁. Costs a second cached delta per stream.

Where the paper is silent, we decide:

* The unit of decision is a group of layers that share one input (q, k and v; not single layers), so that an input is
  quantized once. Ê predicts the error of the group's worst member.
* No Γ(t−1), no prediction: the first step of a run and the first computation after a skip take INT8.
* A group without a fitted line takes INT8. So does one whose Γ is NaN or infinite: broken numbers never buy 4 bits.
* Skipping needs two computed deltas (hence a known, finite c) and at most max_skips skips in a row. The first
  warmup_steps and the last protect_last steps always compute.
* c measured after a gap of g steps is turned into a drift per step by `gap`: divided by g ("linear"), by √g
  ("sqrt") or taken as it is ("none"). Linear is biased low, as drift grows slower than time.
* r is measured before the rotation: after it the verdicts invert. NVFP4 and INT8 are purified; 16 bits need no help.
* While TDC is on *every* computed block refreshes the cache, also in the last steps, whose cache nobody uses again.
* Signals that disagree within a batch or between streams are joined before they come here: the largest speaks.
  Guidance branches that run separately have separate states. A second transformer that takes over half way (Wan 2.2)
  begins without a past, so its first step is a first step; warm-up and final steps count over the whole run.

The rules are elementwise: each works on Python numbers (one block, `decide`) and on NumPy arrays with one element per
block (`replay`), so live and what-if cannot drift apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.records import NAN, BlockDecision, BlockState, Coefficient, GroupDecision
from engine.settings import (
    BREAK_IT,
    PRESETS,
    RANGES,
    Policy,
    PolicyError,
    needs_calibration,
    preset_name,
    purifiable,
    signals_needed,
    unweighed,
    warnings,
    weighs,
)

__all__ = [
    "BREAK_IT", "PRESETS", "RANGES", "Policy", "PolicyError", "advance", "decide", "extrapolation_weight",
    "needs_calibration", "plan", "preset_name", "purifiable", "purify", "signals_needed", "unweighed", "warnings",
    "weigh", "weighs",
]  # fmt: skip

# --- The rules, elementwise over numbers or arrays ---------------------------------------------------------------


def reuse_rules(policy: Policy, state: BlockState, step: Any, steps: Any) -> tuple[tuple[Any, str], ...]:
    """TDC: (holds, reason) in order; the first that holds makes the block compute. If none holds, it is skipped."""
    return (
        (not policy.tdc, "reuse off"),
        (state.computed == 0, "first step"),
        (step < policy.warmup_steps, "warm-up"),
        (step >= steps - policy.protect_last, "final steps"),
        (state.computed < 2, "no history"),
        (state.consecutive_skips >= policy.max_skips, "skip limit"),
        (~np.isfinite(state.drift), "signal not finite"),
        (state.accumulated + state.drift > policy.tdc_threshold, "budget spent"),
    )


def precision_rules(
    policy: Policy, state: BlockState, calibrated: Any, weighed: Any
) -> tuple[tuple[Any, str, str, str], ...]:
    """DMPQ: (holds, precision, decided_by, reason) in order; the first that holds decides a computed block's group.

    `weighed` is the predicted error as `weigh` returns it.
    """
    return (
        (state.computed == 0, "int8", "first step", "first step"),
        ((state.consecutive_skips > 0) & (policy.resume == "int8"), "int8", "resume", "resumed after skip"),
        (np.logical_not(calibrated), "int8", "uncalibrated", "uncalibrated"),
        (~np.isfinite(weighed), "int8", "no signal", "signal not finite"),
        (weighed > policy.error_threshold, "int8", "predictor", "predicted error above threshold"),
        (weighed <= policy.error_threshold, "nvfp4", "predictor", "predicted error within threshold"),
    )


def predict(alpha: Any, beta: Any, gamma: Any) -> Any:
    """Ê = α·Γ(t−1) + β, the relative error that NVFP4 activations are expected to make."""
    return alpha * gamma + beta


def weigh(policy: Policy, predicted: Any, weight: Any) -> Any:
    """What error_threshold is compared with: Ê, or weight · Ê where the policy weighs by sensitivity."""
    return weight * predicted if policy.weighting == "sensitivity" else predicted


def purifies(policy: Policy, refreshed: Any, low_precision: Any, outlier_ratio: Any) -> Any:
    """PDR: a group of a refreshing block, at fewer bits than `purify_to`, whose input has r above the threshold."""
    return policy.pdr & refreshed & low_precision & (outlier_ratio > policy.outlier_threshold)


def extrapolation_weight(policy: Policy, age: int, apart: int) -> float:
    """κ·a/g: how far a skipped block goes beyond its last delta, in units of the change between its last two."""
    return policy.extrapolation * age / apart


def state_after_skip(state: BlockState) -> BlockState:
    """A skip spends c of the budget: E_acc += c."""
    return replace(state, accumulated=state.accumulated + state.drift, consecutive_skips=state.consecutive_skips + 1)


def state_after_compute(policy: Policy, state: BlockState, gamma: Any, delta_change: Any) -> BlockState:
    """Computing clears the debt; c, measured since the last computed step, becomes the drift expected per step."""
    steps_apart = state.steps_since_computed
    divisor = {"linear": steps_apart, "sqrt": np.sqrt(steps_apart), "none": 1}[policy.gap]
    return BlockState(
        computed=state.computed + 1,
        gamma_last=gamma,
        drift=delta_change / divisor,
        accumulated=0.0 * state.computed,  # zeros in the shape of the state
        consecutive_skips=0 * state.consecutive_skips,
    )


# --- One block ---------------------------------------------------------------------------------------------------


def decide(
    policy: Policy, state: BlockState, step: int, steps: int, coefficients: Mapping[str, Coefficient | None]
) -> BlockDecision:
    """What one block does at `step` (0-based) of `steps`.

    `coefficients` maps each of the block's groups to its fitted line, or None where it has none. Outliers are of
    the moment: pass each group's r through `purify` once the block's input is there.
    """
    reason = next((reason for holds, reason in reuse_rules(policy, state, step, steps) if holds), "within budget")
    skipped = reason == "within budget"
    if skipped:
        cached = GroupDecision("skipped", "cache", "skipped")
        groups = dict.fromkeys(coefficients, cached)
    else:
        groups = {name: _decide_group(policy, state, line) for name, line in coefficients.items()}
    return BlockDecision(
        skipped=skipped,
        refreshed=policy.tdc and not skipped,
        reason=reason,
        accumulated=float(state.accumulated + state.drift) if skipped else 0.0,
        groups=groups,
        drift=float(state.drift),
        gap=state.steps_since_computed if state.computed else 0,
    )


def _decide_group(policy: Policy, state: BlockState, line: Coefficient | None) -> GroupDecision:
    if policy.precision != "dynamic":
        return GroupDecision(policy.precision, "policy", forced_reason(policy))
    predicted = predict(line.alpha, line.beta, state.gamma_last) if line else NAN
    weighed = weigh(policy, predicted, line.weight) if line else NAN
    rules = precision_rules(policy, state, line is not None, weighed)
    _, precision, decided_by, reason = next(rule for rule in rules if rule[0])
    return GroupDecision(precision, decided_by, reason, predicted if decided_by == "predictor" else NAN)


def forced_reason(policy: Policy) -> str:
    """The reason of a precision that the policy fixes."""
    return "stock" if policy.precision == "stock" else "forced precision"


def purify(policy: Policy, block: BlockDecision, group: str, outlier_ratio: float) -> GroupDecision:
    """The group's decision once its r is known: `purify_to` if PDR says so, else unchanged but for r."""
    decision = block.groups[group]
    if purifies(policy, block.refreshed, decision.precision in purifiable(policy), outlier_ratio):
        decision = replace(
            decision, precision=policy.purify_to, purified=True, decided_by="outliers", reason="outliers"
        )
    return replace(decision, outlier_ratio=float(outlier_ratio))


def advance(
    policy: Policy,
    state: BlockState,
    decision: BlockDecision,
    gamma: float | None = None,
    delta_change: float | None = None,
) -> BlockState:
    """The state after a step. `gamma` is Γ(t) and `delta_change` c(t) as measured, not divided; None: not measured."""
    if decision.skipped:
        return state_after_skip(state)
    gamma, delta_change = (NAN if value is None else float(value) for value in (gamma, delta_change))
    return state_after_compute(policy, state, gamma, delta_change)


def plan(
    policy: Policy,
    states: Sequence[BlockState],
    step: int,
    steps: int,
    coefficients: Sequence[Mapping[str, Coefficient | None]],
) -> list[BlockDecision]:
    """`decide` for all blocks of one forward; needs earlier steps only, so it runs before the forward does."""
    return [decide(policy, state, step, steps, lines) for state, lines in zip(states, coefficients, strict=True)]
