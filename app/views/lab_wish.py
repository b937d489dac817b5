"""What the page asks to run, checked before any work: every refusal is one sentence in the page's language."""

from __future__ import annotations

import math
import secrets
from typing import Any

from app import look as looks
from app.i18n import plain
from app.lanes import Limits, RunWish, lanes_for
from app.settings import EMBEDDED
from app.views.lab_memory import Lab
from engine.settings import Policy

MODES = ("race", "cached", "sixbit")
LABELS = {"seed": "lab.sentence.seed"}
GUIDANCE = (0.0, 100.0)


def read_wish(lab: Lab, ask: dict, lang: str) -> RunWish:
    """Check what the page asks for, before any work. Raises ValueError naming field, value and range."""
    from engine.vocabulary import parse

    prompt = str(ask.get("prompt") or "")
    model = str(ask.get("model") or "tiny")
    policy = Policy.from_dict(ask["policy"]) if ask.get("policy") else looks.named(str(ask.get("preset") or "sixbit"))
    mode = ask.get("mode") if ask.get("mode") in MODES else "race"
    if lab.models.resolve(model, lang) == str(EMBEDDED):
        parse(prompt)
    limits = Limits(lab.settings.max_steps, lab.settings.max_pixels, lab.settings.max_frames)
    steps = whole("steps", ask.get("steps"), 1, limits.steps, lang)
    height, width = (whole(name, ask.get(name), 16, 4096, lang) for name in ("height", "width"))
    frames = whole("frames", ask.get("frames"), 1, limits.frames, lang)
    if height and width and height * width > limits.pixels:
        raise ValueError(plain(lang, "lab.refuse.pixels", most=f"{limits.pixels:,}", width=width, height=height))
    seed = whole("seed", ask.get("seed"), 0, 2**31 - 1, lang)
    probe = bool(ask.get("probe"))
    return RunWish(
        model=model,
        prompt=prompt,
        negative=str(ask.get("negative") or ""),
        lanes=lanes_for(policy, mode, probe),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        steps=steps,
        guidance=_guidance(ask.get("guidance"), lang),
        height=height,
        width=width,
        frames=frames,
        first_alone=probe,
        lang=lang,
        limits=limits,
    )


def whole(name: str, value: Any, low: int, high: int, lang: str) -> int | None:
    """A whole number of the page's, None for an empty field."""
    if value in (None, ""):
        return None
    number = _number(value)
    if not (number.is_integer() and low <= number <= high):
        raise ValueError(
            plain(lang, "lab.refuse.whole", name=_label(name, lang), low=low, high=f"{high:,}", given=str(value)[:40])
        )
    return int(number)


def _guidance(value: Any, lang: str) -> float | None:
    if value in (None, ""):
        return None
    number, (low, high) = _number(value), GUIDANCE
    if not low <= number <= high:
        raise ValueError(
            plain(
                lang,
                "lab.refuse.number",
                name=_label("guidance", lang),
                low=f"{low:g}",
                high=f"{high:g}",
                given=str(value)[:40],
            )
        )
    return number


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _label(name: str, lang: str) -> str:
    return plain(lang, LABELS.get(name, f"lab.field.{name}")).lower()
