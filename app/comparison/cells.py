"""Table cells of Compare: names, numbers and intervals, ready for HTML."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from app.comparison import points as measured
from app.i18n import text, texts
from app.lessons.words import NARROW


def method_name(lang: str, method: str) -> str:
    """A method as people call it; an unknown one keeps its own name, escaped."""
    known = f"method.{method}" in texts()[lang]
    return text(lang, f"method.{method}") if known else text(lang, "learn.plain", value=method[:60])


def number(name: str, value: Any) -> str:
    """A measure as it is written, "–" where there is none."""
    value = float(value) if isinstance(value, int | float) or pd.notna(value) else math.nan
    if not math.isfinite(value):
        return "–"
    if name in ("skipped", "prompt_accuracy"):
        return f"{value:.0%}".replace("%", f"{NARROW}%")
    if name == "faster":
        return f"{value:.2f}{NARROW}×"
    if name == "psnr" and value >= measured.EXACT:
        return "="
    digits = {"ssim": 3, "flicker": 3, "step": 3, "seconds": 2}.get(name, 1)
    return f"{value:.{digits}f}"


def cell(words: str) -> dict[str, str]:
    """One table cell; `words` is ready for HTML."""
    return {"text": words}


def quiet(shown: dict[str, Any], say) -> dict[str, Any]:
    """A cell of a time that simulated arithmetic took: grey, and it says so. A cell without a number stays."""
    return shown if shown["text"] == "–" else {**shown, "small": say("simulated"), "quiet": True}


def interval(name: str, values: tuple[float, float, float], same: str = "=") -> dict[str, str]:
    """A mean with its interval in small type, where there is one; `same` is said of a clip compared with itself."""
    mean, low, high = values
    if number(name, mean) == "=":
        return {"text": same}
    shown = {"text": number(name, mean)}
    if math.isfinite(mean) and high > low:
        shown["small"] = f"{number(name, low)}–{number(name, high)}"
    return shown


def change(name: str, value: float, low: float = math.nan, high: float = math.nan) -> dict[str, str]:
    """A difference with its sign: "+0.31" dB, or "+4" percentage points for shares; "–" where there is none."""
    if not math.isfinite(float(value)):
        return cell("–")

    def shown(number: float) -> str:
        return f"{number * 100:+.0f}{NARROW}%" if name == "skipped" else f"{number:+.2f}"

    made = cell(shown(float(value)))
    if math.isfinite(low) and math.isfinite(high):
        made["small"] = f"{shown(low)} … {shown(high)}"
    return made
