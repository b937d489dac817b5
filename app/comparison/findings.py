"""What else the quality lab found, for Compare: sensitivity of the layers, and the effect of single settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from app.comparison import sensitivity
from app.comparison.cells import cell, change, method_name
from app.figures import compare_sensitivity
from app.i18n import plain, text
from app.lessons import words
from app.lessons.page import group
from engine.trace import Trace

NEEDED = {"method", "base", "change", "psnr", "psnr_low", "psnr_high", "skipped", "prompts"}
ROW_HEIGHT = 0.95         # em of one layer group in the heat map


def read_settings(path: Path) -> pd.DataFrame | None:
    """`theory_settings.parquet`, or None where it is absent or no such table."""
    if not path.is_file():
        return None
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError):
        return None
    return table if NEEDED <= set(table.columns) and len(table) else None


def sensitivity_card(measured: pd.DataFrame | None, run: Trace | None, lang: str) -> dict[str, Any] | None:
    """The heat map with its sentence; None where nothing was measured."""
    if measured is None:
        return None
    info = sensitivity.facts(measured, run)
    names = {layer: group(lang, layer) for _, layer in info.rows}
    labels = {
        "step": text(lang, "common.step"),
        "block": text(lang, "common.block"),
        "empty": text(lang, "compare.frontier_empty"),
    }
    lead = plain(
        lang, "compare.sensitivity_lead", groups=text(lang, "compare.semicolon").join(dict.fromkeys(names.values()))
    )
    said = ""
    if info.touchy == info.touchy:
        said = text(
            lang, "compare.sensitivity_verdict", touchy=words.percent(info.touchy), robust=words.percent(info.robust)
        )
    return {"title": text(lang, "compare.sensitivity"), "lead": lead, "verdict": said,
            "alt": text(lang, "compare.sensitivity_alt"), "height": round(6 + ROW_HEIGHT * len(info.rows), 1),
            "figure": compare_sensitivity.heat(info, names, labels)}  # fmt: skip


def settings_table(measured: pd.DataFrame | None, lang: str) -> dict[str, Any] | None:
    """One change at a time: what it did to closeness and to skipping, with intervals; None where not measured."""
    if measured is None:
        return None

    def say(key: str, **values: Any) -> str:
        return text(lang, f"compare.{key}", **values)

    columns = [say("col_change"), say("col_against"), say("short_psnr"), say("short_skipped"), say("col_prompts")]
    rows = [
        [cell(text(lang, "learn.plain", value=_plain(row.change))),
         cell(" ".join((method_name(lang, row.method), text(lang, "learn.plain", value=_plain(row.base))))),
         change("psnr", row.psnr, row.psnr_low, row.psnr_high), change("skipped", row.skipped), cell(str(row.prompts))]
        for row in measured.itertuples()
    ]  # fmt: skip
    return {"title": say("settings"), "lead": say("settings_lead"), "columns": columns, "rows": rows}


def _plain(setting: str) -> str:
    try:
        values = json.loads(setting)
    except ValueError:
        return setting[:80]
    return (
        ", ".join(f"{key} {value}" for key, value in values.items())[:120] if isinstance(values, dict) else setting[:80]
    )
