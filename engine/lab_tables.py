"""Writes the quality lab's tables: `theory_*.parquet`, the sensitivity maps, the calibration, summaries, the plot."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from engine import accuracy, agreement, frontier_plot, lab_tasks, methods, recommend, standing, theory
from engine.calibrate import FILE_NAME, fit
from engine.files import write_atomic
from engine.probes import sensitive_lines
from engine.settings import Policy
from engine.sweep import setting, write_parquet
from engine.trace import Trace

SENSITIVITY = "sensitivity.parquet"


def write(probes: Sequence[Trace], out: Path, rows_path: Path | None = None) -> None:
    """Everything that follows from the probe traces, and from the frontier's rows where there are some.

    `calibration.json` is the fit to the probes, for the folder of the model, with the layers' weights where the
    sensitivity map is there.
    """
    limit = Policy().error_threshold
    for name, table in (
        ("predictor", theory.predictor(probes, limit)), ("points", theory.points(probes)),
        ("drift", theory.drift_growth(probes)), ("outliers", theory.outliers(probes)),
    ):  # fmt: skip
        _save(table, out / f"theory_{name}.parquet")
    if rows_path is None:
        return
    rows = pd.read_parquet(rows_path)
    fitted = fit(probes, str(rows["model"].iloc[0]))
    if (out / SENSITIVITY).exists():
        fitted = sensitive_lines(probes, fitted, pd.read_parquet(out / SENSITIVITY))
    fitted.save(out / FILE_NAME)
    single = rows_path.with_name("defaults.parquet")
    everything = pd.concat([rows, pd.read_parquet(single)], ignore_index=True) if single.exists() else rows
    _save(theory.reuse_gain(everything), out / "theory_reuse.parquet")
    lines = recommend.table(everything)
    _save(lines, out / "summary.parquet")
    _save(effects(everything), out / "theory_settings.parquet")
    _save(standing.standing(rows), out / "standing.parquet")
    more = rows_path.with_name("accuracy.parquet")
    judged = pd.read_parquet(more) if more.exists() else rows
    if "prompt_accuracy" in judged:
        _save(accuracy.against(judged), out / "standing_accuracy.parquet")
    write_atomic(out / "recommended.json", json.dumps(advice(lines), indent=1))
    write_atomic(out / "frontier.svg", frontier_plot.draw(rows))
    agreed = rows_path.with_name("replay_agreement.parquet")
    if agreed.exists():
        found = agreement.band(lab_tasks.both_sources(pd.read_parquet(agreed)))
        write_atomic(out / "replay_agreement.json", json.dumps(found, indent=1))


def write_layers(bench, out: Path, count: int) -> None:
    """The layer sensitivity and the rotation's effect at `count` steps spread over the run, on one prompt."""
    from engine import sensitivity

    prompt, seed = methods.prompts(1, held_out=False)[0]
    steps = sorted({round((number + 0.5) * bench.steps / count - 0.5) for number in range(count)})

    def call():
        bench.latents(bench.pipe, prompt, seed)

    _save(sensitivity.rotation(bench.pipe, call, steps), out / "theory_rotation.parquet")
    _save(sensitivity.sensitivity(bench.pipe, call, steps), out / SENSITIVITY)


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """What gap, resume, warm-up, last steps and skip limit do: every one-change setting against its method's own.

    A change is compared with the same method at the same thresholds and nothing else changed, where that was run; an
    extension with the preset that it changes.
    """
    found = []
    known = set(zip(rows["method"], rows["setting"]))
    for method, text in sorted(known):
        values = json.loads(text)
        kept = {name: value for name, value in values.items() if name in ("tdc_threshold", "error_threshold")}
        changed = {name: value for name, value in values.items() if name not in kept}
        base = setting(**kept)
        origin = method if (method, base) in known else methods.OURS.get(method)
        if not changed or "target_bits" in changed or (origin, base) not in known or method not in methods.OURS:
            continue
        here = (rows["method"] == method) & (rows["setting"] == text)
        both = rows[here | (rows["method"] == origin) & (rows["setting"] == base)]
        effect = theory.paired(both, (origin, base), ("psnr", "ssim", "bits_computed", "skipped"))
        mine = (effect["method"] == method) & (effect["setting"] == text) & (effect["prompts"] > 0)
        found.append(effect[mine].assign(base=base, change=setting(**changed)))
    return (
        pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["method", "setting", "base", "change"])
    )


def advice(lines: pd.DataFrame) -> dict:
    """The thresholds at the bend of their curves, for the presets (see `engine.recommend`)."""
    return {
        "rule": "the setting farthest above the chord of quality (PSNR) over saving, both scaled to 0…1",
        "tdc_threshold": {
            m: recommend.recommend(lines, m, "tdc_threshold") for m in ("tdc", "int8_tdc", "dmpq_tdc", "sixbit")
        },
        "error_threshold": recommend.recommend(lines, "dmpq", "error_threshold", saving="bits_computed"),
    }


def _save(table: pd.DataFrame, path: Path) -> None:
    write_parquet(table, path)
    print(f"{path.name}: {len(table)} rows")
