"""Find thresholds: the cheapest policy that keeps a wanted share of the quality.

Probe traces hold every signal, so thousands of settings are judged without running the model: `candidates` replays
them, estimates what each costs and what damage it does, and keeps those that no other beats in both. Only a handful,
found by bisection along that front, is then verified by real runs. The damage is an estimate used for *ordering* only:

    damage = Σ over cells of Γ² · (e² of the chosen precision, or c² at the age of the reused delta)

that is, the squared error that a cell adds to the residual stream, relative to the stream (Γ scales an error of the
block's change to an error of its output). What counts in the end is measured: SSIM against the FP16 video, relative
to what the same packed weights reach at 8 bits without reuse, since no threshold can repair the weights' own error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pandas as pd

from engine import cost
from engine.records import Calibration
from engine.replay import replay
from engine.settings import Policy
from engine.trace import Trace

ERROR_THRESHOLDS = (0.0, 0.06, 0.08, 0.09, 0.10, 0.12, 1.0)
TDC_THRESHOLDS = (0.0, 0.06, 0.08, 0.10, 0.13, 0.17, 0.22, 0.30)
OBJECTIVES = ("bits", "seconds")


@dataclass(frozen=True)
class Verified:
    """A candidate that was really run. `quality` is relative (1 = as good as 8 bits without reuse)."""

    policy: Policy
    quality: float
    bits: float
    bits_computed: float
    skipped: float
    seconds: float
    kept: bool


@dataclass(frozen=True)
class Progress:
    """What `tune` is doing, in a sentence, with its share done in [0, 1] and the newest verified candidate."""

    done: float
    message: str
    newest: Verified | None = None


@dataclass(frozen=True)
class Tuned:
    """The result: `policy` is the cheapest verified one that kept the quality, `trials` all that were run."""

    policy: Policy
    quality: float
    message: str
    trials: tuple[Verified, ...] = field(default=())


def damage(trace: Trace) -> float:
    """Estimated squared error that a replay's decisions add; needs a probe trace's measured errors.

    Unmeasured cells (NaN) count as the worst measured one, so that ignorance is never cheap.
    """
    keys = ["call", "model", "branch", "step", "block"]
    layers, blocks = trace.layers, trace.blocks
    chosen = layers["precision"].to_numpy(object)
    error = np.select(
        [chosen == "nvfp4", chosen == "int8"], [layers["error_nvfp4"], layers["error_int8"]], default=0.0
    ).astype(float)
    error = np.where(np.isnan(error), np.nanmax(error) if np.isfinite(error).any() else 1.0, error)
    squares = pd.Series(error**2 * layers["macs"].to_numpy()).groupby([layers[key] for key in keys], sort=False).sum()
    macs = layers["macs"].groupby([layers[key] for key in keys], sort=False).sum()
    table = blocks.set_index(keys)
    computed = (squares / macs).reindex(table.index).to_numpy()
    gaps = table["gap"].to_numpy().clip(1, 3)
    drifts = table[["drift_1", "drift_2", "drift_3"]].to_numpy(float)
    drift = np.take_along_axis(drifts, (gaps - 1)[:, None], axis=1)[:, 0]
    drift = np.where(np.isnan(drift), table["drift"].to_numpy(), drift)
    gamma = table["gamma"].to_numpy(float)
    worst = np.nanmax(gamma) if np.isfinite(gamma).any() else 1.0
    gamma = np.where(np.isnan(gamma), worst, gamma)
    return float(np.nansum(gamma**2 * np.where(table["skipped"], drift**2, computed)))


def _with_probe_gamma(draft: Trace, probe: Trace) -> Trace:
    """A replay blanks Γ where it skips; the probe knows it."""
    return replace(draft, blocks=draft.blocks.assign(gamma=probe.blocks["gamma"].to_numpy()))


def candidates(
    probes: Sequence[Trace], base: Policy | None = None, objective: str = "bits", speeds: cost.Speeds | None = None,
    calibration: Calibration | None = None, steps: int | None = None,
) -> pd.DataFrame:  # fmt: skip
    """All settings worth trying: nothing else is both cheaper and less harmful. Ordered from sound to risky.

    Args:
        probes: probe traces (`record(..., probe=True)` under a policy that skips nothing).
        base: what is not searched (max_skips, gap, warm-up, ...) comes from here; `Policy()` if None.
        objective: "bits" (average activation bits, skipped as 0) or "seconds" (needs `speeds`).
        speeds: from `cost.measure_speeds`, of this machine.
        calibration: the lines that will decide; the probes' own if None.
        steps: what the pipeline will be asked for; the probes' own number if None.

    Returns columns policy, cost, damage. Raises ValueError in a sentence for traces that are no probes.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}.")
    if not probes or any(not probe.meta.probe for probe in probes):
        raise ValueError("Tuning needs at least one probe trace; record one with probe=True first.")
    if objective == "seconds" and speeds is None:
        raise ValueError("Tuning for seconds needs the speeds of this machine; pass cost.measure_speeds(run).")
    base = Policy() if base is None else base
    steps = probes[0].meta.steps if steps is None else steps
    dynamic = base.precision == "dynamic"
    rows = []
    for error_threshold, tdc_threshold in product(
        ERROR_THRESHOLDS if dynamic else (base.error_threshold,), TDC_THRESHOLDS
    ):
        reuse = tdc_threshold > 0
        policy = replace(
            base, error_threshold=error_threshold, tdc=reuse, pdr=base.pdr and reuse,
            tdc_threshold=tdc_threshold if reuse else base.tdc_threshold, tuned_steps=steps,
        )  # fmt: skip
        drafts = [_with_probe_gamma(replay(probe, policy, calibration), probe) for probe in probes]
        if objective == "bits":
            spent = np.mean([draft.report.average_bits for draft in drafts])
        else:
            spent = np.mean([cost.estimate_seconds(draft, speeds) for draft in drafts])
        rows.append((policy, float(spent), float(np.mean([damage(draft) for draft in drafts]))))
    table = pd.DataFrame(rows, columns=["policy", "cost", "damage"]).sort_values(["damage", "cost"], ignore_index=True)
    best_before = table["cost"].cummin().shift(fill_value=np.inf)
    return table[table["cost"] < best_before].reset_index(drop=True)


def tune(
    pipe,
    prompts: Sequence[str],
    keep_quality: float = 0.98,
    *,
    base: Policy | None = None,
    objective: str = "bits",
    steps: int | None = None,
    guidance: float | None = None,
    seed: int = 0,
    probes: Sequence[Trace] | None = None,
    stop: Callable[[], bool] = lambda: False,
    **inputs,
) -> Iterator[Progress | Tuned]:
    """Search, verify, and finally yield a `Tuned`; `Progress` on the way. Closing the iterator stops the work.

    Args:
        pipe: an attached pipeline (`engine.attach`) whose 16-bit weights were kept: the reference needs them.
        prompts: what the quality is measured on; two or three are enough to order candidates.
        keep_quality: wanted share of the SSIM that the packed weights reach at 8 bits without reuse, in (0, 1].
        probes: probe traces made before, one per prompt or any; recorded here when None.
        stop: asked between runs; True ends early with the best verified so far.
        inputs: further arguments of every run, such as image= or video=.

    Where the pipeline has no calibration, one is fitted to the probes, used, and left as the attachment's own. Raises
    ValueError for arguments that make no sense and RuntimeError for a pipeline that is not attached.
    """
    if not 0 < keep_quality <= 1:
        raise ValueError(f"keep_quality must lie in (0, 1], got {keep_quality}; 0.98 keeps 98 % of the SSIM.")
    if not prompts:
        raise ValueError("Tuning needs at least one prompt.")
    from engine.calibrate import fit
    from engine.metrics import ssim
    from engine.run import attachment_of

    handle = attachment_of(pipe)
    if handle is None:
        raise RuntimeError(f"This {type(pipe).__name__} is not attached; call attach(pipe) once, then tune.")
    calibration, asked = handle.calibration, steps

    def video(prompt: str, policy: Policy, index: int, probe: bool = False):
        from engine.stream import Finished, Started, generate

        nonlocal asked
        arguments = {
            "policy": policy, "steps": steps, "guidance": guidance, "seed": seed + index, "probe": probe, **inputs
        }
        for event in generate(pipe, prompt, previews=False, calibration=calibration, **arguments):
            if isinstance(event, Started):
                asked = event.steps
            if isinstance(event, Finished):
                return event
        raise RuntimeError("The run ended without a video; nothing was tuned.")

    references, recorded, runs = [], [], 0.0
    planned = len(prompts) * 7.0

    def progress(message, newest=None):
        return Progress(min(0.99, runs / planned), message, newest)

    for index, prompt in enumerate(prompts):
        yield progress(f"Reference and probe {index + 1} of {len(prompts)}")
        if stop():
            return
        event = video(prompt, Policy.preset("fp16"), index, probe=probes is None)
        references.append(event.frames)
        recorded.append(event.trace)
        runs += 1
    probes = recorded if probes is None else probes
    if calibration is None:
        # The pipeline keeps it: without it the tuned policy would run otherwise than it was verified.
        calibration = handle.calibration = fit(probes, handle.model_hash, asked)

    def judge(policy: Policy) -> tuple[float, list]:
        events = [video(prompt, policy, index) for index, prompt in enumerate(prompts)]
        return float(np.mean([ssim(e.frames, r) for e, r in zip(events, references)])), events

    yield progress("What the packed weights reach at 8 bits without reuse")
    ceiling, events = judge(Policy.preset("w4a8"))
    runs += len(prompts)
    speeds = cost.measure_speeds(*[event.trace for event in events]) if objective == "seconds" else None
    front = candidates(probes, base, objective, speeds, calibration, asked)
    trials: list[Verified] = []
    low, high, best, stopped = 0, len(front) - 1, None, False
    while low <= high:
        if stop():
            stopped = True
            break
        middle = (low + high) // 2
        policy = front["policy"][middle]
        yield progress(
            f"Verifying reuse tolerance {policy.tdc_threshold:g}, 4-bit tolerance {policy.error_threshold:g}"
        )
        value, events = judge(policy)
        runs += len(prompts)
        reports = [event.report for event in events]
        kept = value >= keep_quality * ceiling
        trial = Verified(
            policy, value / ceiling, float(np.mean([r.average_bits for r in reports])),
            float(np.mean([r.average_bits_computed for r in reports])),
            float(np.mean([r.skipped_share for r in reports])),
            float(np.mean([event.seconds["denoise"] for event in events])), kept,
        )  # fmt: skip
        trials.append(trial)
        yield progress("Kept the quality." if kept else "Lost too much; trying a sounder one.", trial)
        if kept:
            best, low = trial, middle + 1
        else:
            high = middle - 1
    if best is None:
        fallback = replace(Policy.preset("w4a8"), tuned_steps=asked)
        cause = "Stopped before a setting kept" if stopped else "No setting of the thresholds kept"
        message = f"{cause} the quality; 8 bits without reuse is the sound choice here."
        yield Tuned(fallback, 1.0, message, tuple(trials))
        return
    message = (
        f"{best.bits:.1f} bits on average ({best.bits_computed:.1f} where computed), {best.skipped:.0%} skipped, "
        f"{best.quality:.1%} of the quality kept over {len(prompts)} prompt{'s' * (len(prompts) > 1)}."
    )
    yield Tuned(best.policy, best.quality, message, tuple(trials))
