"""What the measurements come to, in two sentences above everything else. Every name and number is computed."""

from __future__ import annotations

import math

import pandas as pd

from app.comparison.cells import method_name, number
from app.comparison.points import REFERENCES, Points
from app.lessons import words

HALF = (0.4, 0.55)        # "about half skipped"
NAMED = 2                 # of those level with the best; the dots below name them all
OWN, PACKED = "16-bit", "nvfp4"


def headline(found: Points, rows: pd.DataFrame, lang: str, say) -> list[str]:
    """Sentences on PSNR: 16-bit weights at about half skipped, packed weights, where `sixbit` stands; [] if unknown.

    found: points of "psnr" against "skipped"; rows: the sweep's, with `weights` naming the class of each.
    """
    if "weights" not in rows or found.table.empty:
        return []
    classes = rows.groupby(["method", "setting"])[["bits"]].mean().join(
        rows.groupby(["method", "setting"])["weights"].first()).reset_index()  # fmt: skip
    table = found.table.merge(classes, on=["method", "setting"])
    table = table[~table["method"].isin(REFERENCES)].sort_values("mean", ascending=False)
    return [part for part in (_caches(table, lang, say), _packed(table, lang, say)) if part]


def _half(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["cost"].between(*HALF)].drop_duplicates("method")


def _caches(table: pd.DataFrame, lang: str, say) -> str:
    best = _half(table[table["weights"] == OWN])
    if len(best) < 2:
        return ""
    first, second = best.iloc[0], best.iloc[1]
    return say("headline_caches", best=method_name(lang, first["method"]), psnr=number("psnr", first["mean"]),
               skipped=words.percent(first["cost"]), second=method_name(lang, second["method"]),
               psnr2=number("psnr", second["mean"]), skipped2=words.percent(second["cost"]))  # fmt: skip


def _packed(table: pd.DataFrame, lang: str, say) -> str:
    packed = table[table["weights"] == PACKED]
    best, six = _half(packed), packed[packed["method"] == "sixbit"]
    if best.empty or six.empty:
        return ""
    first, six = best.iloc[0], six.iloc[0]
    level = best.iloc[1:][best["high"].iloc[1:] >= first["mean"]]
    level = level[level["method"] != "sixbit"]["method"].tolist()
    names, more = say("semicolon").join(method_name(lang, name) for name in level[:NAMED]), len(level) - NAMED
    near = say("headline_level", names=names) if level else ""
    if more > 0:
        near = say("headline_level_more", names=names, more=more)
    others = packed[packed["method"] != "sixbit"]
    ahead = int(((others["mean"] >= six["mean"]) & (others["bits"] <= six["bits"])).sum())
    place = say("headline_behind", ahead=ahead, count=len(others)) if ahead else say("headline_ahead")
    if not math.isfinite(six["mean"]):
        return ""
    return say("headline_packed", best=method_name(lang, first["method"]), psnr=number("psnr", first["mean"]),
               level=near, six=number("psnr", six["mean"]), bits=words.bits(six["bits"]), place=place)
