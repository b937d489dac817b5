"""Every preset on the same prompts in one process: what each costs and what it does to the video.

The FP16 run of a prompt comes first and is the reference of the others. Rows that lose are kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from engine import vocabulary
from engine.settings import PRESETS, Policy

COLUMNS = (
    "preset", "prompt", "seed", "bits", "bits_computed", "skipped", "purified", "predictor", "psnr", "ssim", "flicker",
    "warping_error", "prompt_accuracy", "seconds", "packed_bytes", "reference_seconds",
)  # fmt: skip
CORE_SHARE = 0.8  # of one core: a loop that has the machine for itself gets at least 0.95 on one thread, more on several


def sample_prompts(count: int, seed: int = 0) -> list[str]:
    """Prompts of the embedded model's world: plain with one object, scenic with one, plain with two, in turn."""
    rng = random.Random(seed)
    kinds = (("plain", 1), ("scenic", 1), ("plain", 2))
    return [vocabulary.render(vocabulary.random_scene(rng, *kinds[index % 3])) for index in range(count)]


def compare(
    pipe,
    prompts: Sequence[str],
    presets: Sequence[str] | Mapping[str, Policy] = tuple(PRESETS),
    *,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
    **settings,
) -> Iterator[dict]:
    """Run every preset on every prompt of an attached pipeline; yields one row (COLUMNS, and what `busy` reads) per run.

    presets: names, or policies by name. seed: of the first prompt; the next ones count up. progress: called as
    progress(done, total, "preset, prompt k") after every denoising step. settings: passed on to `generate`.

    Times and figures are of this process on this machine: seconds are of the denoising loop, prompt_accuracy is 1 or
    0 (NaN for a model without a reader), psnr is inf for an exact copy; reference_seconds are those of the FP16 run of
    the same prompt, which is made whether or not it is among the presets. Raises what `generate` raises.
    """
    from engine.stream import Finished, Step, generate

    policies = dict(presets) if isinstance(presets, Mapping) else {name: Policy.preset(name) for name in presets}
    order = {"fp16": Policy.preset("fp16"), **policies}
    total, done = len(prompts) * len(order), 0
    for number, prompt in enumerate(prompts):
        reference = None
        for name, policy in order.items():
            result = None
            for event in generate(pipe, prompt, policy=policy, seed=seed + number, previews=False, **settings):
                if isinstance(event, Step) and progress is not None:
                    progress(done + (event.step + 1) / event.steps, total, f"{name}, prompt {number + 1}")
                if isinstance(event, Finished):
                    result = event
            if reference is None:
                reference = result
            done += 1
            if name in policies:
                yield _row(name, prompt, seed + number, result, reference)


def summary(rows: Sequence[Mapping]) -> pd.DataFrame:
    """Means per preset in the order of first appearance, with the time as a ratio to fp16 (column `speedup`).

    PSNR is the mean over prompts, infinite ones counted as 100 dB only beside finite ones.
    """
    table = pd.DataFrame(list(rows), columns=list(COLUMNS))
    values = table.drop(columns=["prompt", "seed"]).copy()
    exact = values.groupby("preset")["psnr"].transform(lambda column: np.isinf(column).all())
    values.loc[~exact & np.isinf(values["psnr"]), "psnr"] = 100.0
    means = values.groupby("preset", sort=False).mean()
    means["speedup"] = means["reference_seconds"] / means["seconds"]
    return means.reset_index()


def crowded(cpu_seconds: float, seconds: float) -> bool:
    """Whether a run on a CPU got less than CORE_SHARE of one core; False where its CPU seconds are NaN (on a GPU)."""
    return cpu_seconds < CORE_SHARE * seconds


def busy(rows: Sequence[Mapping]) -> str:
    """One sentence if other programs had the cores in runs of these rows, their references included; else ""."""
    runs: dict[tuple, bool] = {}
    for row in rows:
        runs[row["prompt"], row["seed"], "fp16"] = crowded(row["reference_cpu_seconds"], row["reference_seconds"])
        runs[row["prompt"], row["seed"], row["preset"]] = crowded(row["cpu_seconds"], row["seconds"])
    count = sum(runs.values())
    if not count:
        return ""
    return (
        f"The machine was busy: {count} of {len(runs)} runs got less than {CORE_SHARE:.0%} of a core; times and speeds "
        "are unreliable."
    )


def _row(name: str, prompt: str, seed: int, result, reference) -> dict:
    from engine.metrics import flicker, psnr, ssim, warping_error

    report, wanted = result.report, reference.frames
    return {
        "preset": name, "prompt": prompt, "seed": seed, "bits": report.average_bits,
        "bits_computed": report.average_bits_computed, "skipped": report.skipped_share,
        "purified": report.purified_share, "predictor": report.predictor_share,
        "psnr": psnr(result.frames, wanted), "ssim": ssim(result.frames, wanted),
        "flicker": flicker(result.frames, wanted), "warping_error": warping_error(result.frames),
        "prompt_accuracy": _accuracy(result.frames, prompt), "seconds": result.seconds["denoise"],
        # Stock weights use no packed ones, whatever lies ready beside them.
        "packed_bytes": float("nan") if result.trace.meta.policy["precision"] == "stock" else result.memory["packed"],
        "reference_seconds": reference.seconds["denoise"],
        "cpu_seconds": result.cpu_seconds, "reference_cpu_seconds": reference.cpu_seconds,
    }  # fmt: skip


def _accuracy(frames: np.ndarray, prompt: str) -> float:
    from engine.metrics import read_scene

    try:
        return float(read_scene(frames, prompt).all_right)
    except ValueError:
        return float("nan")
