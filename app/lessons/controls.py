"""What a visitor may send from a lesson's controls, made safe.

The browser sends a flat dictionary; anything missing, of the wrong kind or out of range becomes the
lesson's own default or the nearest bound, so that a hand-written request cannot break a lesson.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def number(sent: Mapping[str, Any], name: str, low: float, high: float, default: float) -> float:
    """A finite number in [low, high]; the default where none was sent."""
    value = sent.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return default
    return min(max(float(value), low), high)


def whole(sent: Mapping[str, Any], name: str, low: int, high: int, default: int) -> int:
    """A whole number in [low, high]; the default where none was sent."""
    return round(number(sent, name, low, high, default))


def choice(sent: Mapping[str, Any], name: str, options: Sequence[str], default: str) -> str:
    """One of the options; the default for anything else."""
    value = sent.get(name)
    return value if isinstance(value, str) and value in options else default


def slider(name: str, label: str, value: float, low: float, high: float, step: float, shown: str,
           ends: tuple[str, str] | None = None, hint: str = "") -> dict:
    """A range control for the stage; `shown` is the value as people read it."""
    return {"kind": "range", "id": name, "label": label, "value": value, "min": low, "max": high, "step": step,
            "shown": shown, "ends": list(ends) if ends else None, "hint": hint}  # fmt: skip


def chips(name: str, label: str, value: str, options: Sequence[tuple[str, str]], hint: str = "") -> dict:
    """A few alternatives side by side: (value, text) pairs."""
    return {"kind": "chips", "id": name, "label": label, "value": value, "options": [list(o) for o in options],
            "hint": hint}  # fmt: skip


def pick(name: str, label: str, value: str, options: Sequence[tuple[str, str]], hint: str = "") -> dict:
    """A drop-down of (value, text) pairs."""
    return {"kind": "pick", "id": name, "label": label, "value": value, "options": [list(o) for o in options],
            "hint": hint}  # fmt: skip
