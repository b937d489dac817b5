"""The benchmark's own notes, written for engineers in English, in the visitor's words and language."""

from __future__ import annotations

import re

from app.i18n import text

KNOWN = (
    (r"random weights", "random"),
    (r"bf16 eager", "eager"),
    (r"diffusers FirstBlockCache", "fbc"),
    (r"which steps are skipped is given, its code decides nothing else", "given"),
    (
        r"skips of (?P<run>.{1,60}) \(embedded model\), replayed at reuse tolerance (?P<tolerance>[\d.]+), stretched",
        "stretched",
    ),
    (r"the rotation kernel of this commit was faulty, which changes numbers, hardly time", "faulty"),
    (r"torch\.compile of each block", "compiled"),
    (r"torchao FP8 dynamic, rowwise", "torchao"),
    (r"torch\.compile of each block with PyTorch's own settings", "compiled_plainly"),
)


def spoken(note: str, lang: str) -> str:
    """Each part between semicolons by its pattern; an unknown part stays as it was written. Ready for HTML."""
    return text(lang, "compare.semicolon").join(
        _part(part.strip(), lang) for part in note[:400].split(";") if part.strip()
    )


def _part(part: str, lang: str) -> str:
    for pattern, name in KNOWN:
        if found := re.fullmatch(pattern, part):
            return text(lang, f"compare.note_{name}", **found.groupdict())
    return text(lang, "learn.plain", value=part[:200])
