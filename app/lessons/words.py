"""Numbers as the lessons write them."""

from __future__ import annotations

import math

from engine.trace import Trace

NARROW = "\u202f"


def percent(value: float) -> str:
    """0.084 -> "8.4 %", 0.84 -> "84 %", NaN -> "–"; small values keep two digits."""
    if not math.isfinite(value):
        return "–"
    size = abs(value) * 100
    digits = 0 if size >= 9.95 or size == 0 else 1 if size >= 0.95 else 2
    return f"{value * 100:.{digits}f}{NARROW}%"


def bits(value: float) -> str:
    """One decimal, NaN -> "–"."""
    return f"{value:.1f}" if math.isfinite(value) else "–"


def times(value: float) -> str:
    """A ratio: "1.8", "12"."""
    return "–" if not math.isfinite(value) else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def ratio(value: float) -> str:
    """max/mean: "31 ×"."""
    return f"{times(value)}{NARROW}×"


def origin(trace: Trace | None) -> dict[str, object]:
    """The values of the sentence that says where the numbers come from."""
    meta = trace.meta
    return {
        "model": meta.model or "?", "prompt": shortened(meta.prompt), "steps": meta.steps,
        "blocks": trace.blocks["block"].nunique(), "device": meta.device or "?",
    }  # fmt: skip


def shortened(text: str, limit: int = 160) -> str:
    """Text of a visitor, cut to what fits a note."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
