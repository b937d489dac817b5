"""Does a method still show what was asked for? Clip by clip against the 16-bit model, no torch.

A clip is right when everything that its prompt names is read back from the frames. Most clips are right in both, so the
clips in which the two differ decide: their exact two-sided McNemar test, and an interval for the difference that does
not shrink to nothing where no clip differs.
"""

import math
from statistics import NormalDist

import pandas as pd

from engine.theory import pair_keys

COLUMNS = ("method", "setting", "prompts", "right", "right_base", "gained", "lost", "change", "low", "high", "p")


def against(rows: pd.DataFrame, base: str = "fp16") -> pd.DataFrame:
    """One row per (method, setting), paired with `base` by prompt, seed and device.

    rows: a sweep's, with `prompt_accuracy` 0 or 1 per run. Columns of the result: prompts (pairs); right, right_base
    (shares); gained, lost (clips right in one only); change (right − right_base) with its 95 % interval low … high
    (`interval`); p (McNemar, exact).
    """
    keys, found = pair_keys(rows), []
    anchor = rows[rows["method"] == base][[*keys, "prompt_accuracy"]].dropna()
    for (method, setting), group in rows[rows["method"] != base].groupby(["method", "setting"], sort=False):
        both = group[[*keys, "prompt_accuracy"]].dropna().merge(anchor, on=keys, suffixes=("", "_base"))
        mine, other = both["prompt_accuracy"] > 0.5, both["prompt_accuracy_base"] > 0.5
        count, gained, lost = len(both), int((mine & ~other).sum()), int((other & ~mine).sum())
        if count:
            low, high = interval(count, gained, lost)
            shares = float(mine.mean()), float(other.mean())
            line = (
                method, setting, count, *shares, gained, lost, (gained - lost) / count, low, high,
                mcnemar(gained, lost),
            )  # fmt: skip
            found.append(line)
    return pd.DataFrame(found, columns=list(COLUMNS))


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p of as uneven a split of the clips that differ, were both equally likely; 1 where none does."""
    total = gained + lost
    tail = sum(math.comb(total, number) for number in range(min(gained, lost) + 1)) / 2**total
    return min(1.0, 2 * tail)


def interval(count: int, gained: int, lost: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of the difference of two paired shares: Agresti and Min (2005), half a clip added to each of the four
    cells of the table, then Wald's."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    total, plus, minus = count + 2, gained + 0.5, lost + 0.5
    change = (plus - minus) / total
    half = z * math.sqrt((plus + minus) - (plus - minus) ** 2 / total) / total
    return max(-1.0, change - half), min(1.0, change + half)
