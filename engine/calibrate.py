"""Fit the predictor: one line e₄ ≈ α·Γ(t−1) + β per layer group, by least squares on probe traces.

The paper fits offline on calibration prompts and says nothing of groups where the line explains
nothing. There the mean is the honest prediction: α = 0, β = mean of e₄, with the R² that the
line would have had, so that a reader sees why. The sign of α is whatever it is.

An unknown model's first run can be its FP16 reference, its probe and its calibration in one:
record it with `probe=True`, fit, and the result is kept in the user's cache under a hash of the
weights and the configuration.
"""

from __future__ import annotations

import inspect
import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, Iterable, Sequence

import numpy as np
import platformdirs

from .families import transformers_of
from .files import shown
from .records import Calibration, CalibrationError, Coefficient
from .trace import Trace

LEAST_SAMPLES = 8
LEAST_STEPS = 2
LEAST_R2 = 0.05
FILE_NAME = "calibration.json"


def fit(traces: Trace | Iterable[Trace], model_hash: str = "", steps: int | None = None) -> Calibration:
    """The lines that explain the NVFP4 errors measured in probe traces.

    traces: one or more traces recorded with `probe=True`, all of the same number of steps.
    model_hash: names the weights (`engine.identity.model_hash`).
    steps: what the pipeline was asked for, where it made another number of evaluations of it (video-to-video leaves
        some out by its strength); None: as many as the traces have.

    Raises ValueError if there is nothing to fit (no trace, or none with two computed steps in a row), a trace is no
    probe, or step counts differ.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces or not any(len(trace.layers) for trace in traces):
        raise ValueError("There is nothing to fit: give at least one trace recorded with probe=True.")
    if not all(trace.meta.probe for trace in traces):
        raise ValueError("A trace without probe measurements cannot calibrate; record it with probe=True.")
    counts = {int(trace.blocks["steps"].iloc[-1]) for trace in traces if len(trace.blocks)}
    if len(counts) > 1:
        raise ValueError(f"All traces of a calibration must have one step count, got {sorted(counts)}.")
    made = next(iter(counts), 0)
    pairs: dict[tuple[str, int, str], list[np.ndarray]] = {}
    for trace in traces:
        for key, points in _pairs(trace):
            pairs.setdefault(key, []).append(points)
    found = {key: line(np.concatenate(points)) for key, points in pairs.items()}
    rows = {key: row for key, row in found.items() if row is not None}
    if not rows:
        left = "" if steps in (None, made) else f", which is what strength left of {steps}"
        raise ValueError(f"There is nothing to fit: calibration needs at least {LEAST_STEPS} steps, got {made}{left}.")
    guidance = next((trace.meta.guidance for trace in traces if trace.meta.guidance is not None), 0.0)
    return Calibration(
        model_hash=model_hash, steps=made if steps is None else steps, guidance=float(guidance),
        rows=rows,
        prompts=sum(int(trace.blocks["call"].nunique()) for trace in traces), created_by="engine.calibrate",
    )


def line(points: np.ndarray) -> Coefficient | None:
    """The fitted line through points (n, 2) = [Γ(t−1), e₄(t)], or the mean where a line explains
    less than R² = 0.05 or there are fewer than 8 points; None without a finite point."""
    points = points[np.isfinite(points).all(axis=1)]
    count = len(points)
    if count == 0:
        return None
    x, y = points[:, 0], points[:, 1]
    mean, spread_x, spread_y = float(y.mean()), float(((x - x.mean()) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    # Spreads below rounding are no spread; a slope through them would be noise over noise.
    if spread_x <= 1e-12 * max(float((x**2).sum()), 1e-30) or spread_y <= 1e-12 * max(float((y**2).sum()), 1e-30):
        return Coefficient(0.0, mean, 0.0, count)
    covariance = float(((x - x.mean()) * (y - y.mean())).sum())
    r2 = min(1.0, covariance**2 / (spread_x * spread_y))
    if count < LEAST_SAMPLES or r2 < LEAST_R2:
        return Coefficient(0.0, mean, r2, count)
    alpha = covariance / spread_x
    return Coefficient(alpha, mean - alpha * float(x.mean()), r2, count)


def calibrate(
    pipe,
    prompts: Sequence[str],
    *,
    steps: int | None = None,
    guidance: float | None = None,
    seed: int = 0,
    keep: bool = True,
    progress: Callable[[int, int], None] | None = None,
    sensitivity: bool = False,
    **arguments,
) -> Calibration:
    """Run each prompt once in 16 bits with all measurements on, and fit.

    pipe: a diffusers pipeline, attached here if it is not. steps, guidance: the pipeline's own defaults if None.
    seed: of the first prompt; the next ones count up. keep: also store the result in the user's cache; where that
    cannot be written, a warning says so. progress: called as progress(done, total) after each model evaluation.
    sensitivity: also measure how much the model's output minds 4 bits in each group, at a few steps of the first prompt
    (`evaluations_for_weights` says how long that takes), and keep it as the groups' weights, for policies with
    weighting="sensitivity"; without it, weights that are known already stay.
    arguments: passed on to `pipe(...)`, such as height and num_frames.

    The pipeline's handle uses the result from now on. Raises ValueError without a prompt, or if the runs hold no pair
    of neighbouring steps to fit.
    """
    import torch

    from .attach import attach
    from .policy import Policy
    from .probes import sensitive_lines
    from .run import record
    from .sensitivity import Moments, output_errors

    if not prompts:
        raise ValueError("Calibration needs at least one prompt, got none.")
    handle = attach(pipe)
    if steps is not None:
        arguments["num_inference_steps"] = steps
    if guidance is not None:
        arguments["guidance_scale"] = guidance
    arguments.setdefault("output_type", "latent")
    seen, moments = [0], Moments(pipe) if sensitivity else None

    def on_step(record_) -> None:
        seen[0] += 1
        if progress is not None:
            weighing = evaluations_for_weights(handle, record_.steps) if sensitivity else 0
            progress(seen[0], max(seen[0], record_.steps * len(prompts)) + weighing)

    with ExitStack() as stack:
        follow = None if moments is None else stack.enter_context(moments.watched())
        run = stack.enter_context(record(pipe, Policy.preset("fp16"), probe=True, on_step=on_step, overrule=follow))
        for number, prompt in enumerate(prompts):
            pipe(prompt=prompt, generator=torch.Generator().manual_seed(seed + number), **arguments)
    usual = {name: parameter.default for name, parameter in inspect.signature(type(pipe).__call__).parameters.items()}
    run.describe(guidance=float(arguments.get("guidance_scale", usual["guidance_scale"])))
    asked = arguments.get("num_inference_steps", usual["num_inference_steps"])
    if arguments.get("timesteps") is not None:
        asked = None
    found = fit(run.trace, handle.model_hash, asked)
    if moments is not None:
        adopt(handle, found, keep)          # the lines stay, whatever becomes of the weights
        weighed = None if progress is None else lambda done, total: progress(seen[0] + done, seen[0] + total)
        found = sensitive_lines([run.trace], found, output_errors(pipe, moments, progress=weighed))
    adopt(handle, found, keep)
    return handle.calibration


def evaluations_for_weights(handle, steps: int) -> int:
    """The most transformer evaluations that measuring the weights takes, each at a cost between one of a stock call and
    one of a call in 4 bits. steps: of the call that it looks at."""
    from .sensitivity import MOMENTS, WEIGHING

    slots = len(transformers_of(handle.pipe))
    dynamic = sum(not group.static for _, group in handle.groups)
    return min(MOMENTS, steps) * (slots + len(WEIGHING) * dynamic)


def adopt(handle, calibration: Calibration, keep: bool = True) -> Path | None:
    """Let an attachment use a calibration from now on and, with `keep`, store it in the user's cache too. Weights that
    the attachment knew stay where the new lines have none.

    Returns where it is kept. A cache that cannot be written costs a warning, never what was measured.
    """
    handle.calibration = calibration = calibration.weighed_like(handle.calibration)
    if not keep:
        return None
    try:
        return store(calibration)
    except OSError as error:
        warnings.warn(
            f"The calibration is used now but was not kept: {cache_path(calibration.model_hash).parent} cannot be "
            f"written ({error.strerror or error}). Save it yourself (calibrate --out FILE, or its method save), or "
            "name a writable folder in SIXBIT_CACHE.",
            stacklevel=3,
        )
        return None


def find_calibration(pipe, known_hash: str) -> Calibration | None:
    """The calibration that belongs to these weights: the user's own in the cache, else the one beside the model.

    One that was fitted on other weights is passed over, and so is a damaged or an empty file. A user's own that has no
    measured sensitivity takes that of the other.
    """
    folder = Path(str(getattr(pipe, "name_or_path", "") or ""))
    found = [_readable(path, known_hash) for path in (cache_path(known_hash), folder / FILE_NAME)]
    present = [one for one in found if one is not None]
    return present[0].weighed_like(present[-1]) if present else None


def _readable(path: Path, known_hash: str) -> Calibration | None:
    try:
        found = Calibration.load(path) if path.is_file() else None
    except CalibrationError:
        return None
    return found if found is not None and found.model_hash == known_hash and found.rows else None


def load_calibration(path: Path) -> Calibration:
    """The calibration in a file that a person named. Raises CalibrationError for a damaged or an empty one."""
    found = Calibration.load(path)
    if not found.rows:
        raise CalibrationError(f"{shown(path.name)} holds no lines; calibrate again with more steps.")
    return found


def check_fitted_on(calibration: Calibration, known_hash: str, path: Path) -> None:
    """Raise CalibrationError for one that was fitted on other weights. path: where it came from."""
    if calibration.model_hash != known_hash:
        raise CalibrationError(
            f"{shown(path.name)} was fitted on other weights ({calibration.model_hash[:16]}) than this model's "
            f"({known_hash}); calibrate this model."
        )


def store(calibration: Calibration) -> Path:
    """Keep a calibration in the user's cache, where `attach` finds it by the model's hash."""
    path = cache_path(calibration.model_hash)
    path.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(path)
    return path


def cache_path(known_hash: str) -> Path:
    """Where the user's cache (SIXBIT_CACHE, or the system's place) holds this model's calibration."""
    chosen = os.environ.get("SIXBIT_CACHE")
    base = Path(chosen) if chosen else platformdirs.user_cache_path("6bit-diffusion", appauthor=False)
    return base / "calibrations" / f"{known_hash}.json"


def _pairs(trace: Trace) -> Iterable[tuple[tuple[str, int, str], np.ndarray]]:
    keys = ["call", "model", "branch", "block"]
    previous = trace.blocks[[*keys, "step", "gamma"]].copy()
    previous["step"] += 1
    joined = trace.layers.merge(previous, on=[*keys, "step"])
    for (model, block, layer), rows in joined.groupby(["model", "block", "layer"], sort=False):
        yield (str(model), int(block), str(layer)), rows[["gamma", "error_nvfp4"]].to_numpy(dtype=float)
