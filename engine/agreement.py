"""How far can a what-if be believed? Replays against real runs of the same policy, prompt and seed.

`random_policies` draws settings a person could set; `compare` says how alike a replay and the run are, cell by cell;
`band` sums up what the app prints beside its knobs.
"""

import random
from collections.abc import Sequence

import numpy as np
import pandas as pd

from engine.settings import GAP_CHOICES, RESUME_CHOICES, Policy
from engine.trace import KEYS, Trace


def random_policies(count: int, seed: int = 0) -> list[Policy]:
    """`count` policies with reuse on, drawn over the ranges that the knobs cover; the same on every machine."""
    generator, found = random.Random(f"{seed} agreement"), []
    for _ in range(count):
        found.append(
            Policy(
                precision=generator.choice(("dynamic", "dynamic", "dynamic", "int8", "nvfp4")),
                error_threshold=round(generator.uniform(0.07, 0.16), 3),
                tdc_threshold=round(generator.uniform(0.05, 0.25), 3),
                max_skips=generator.choice((1, 2, 2, 3)),
                pdr=generator.random() < 0.7,
                outlier_threshold=round(generator.uniform(15.0, 40.0), 1),
                gap=generator.choice(GAP_CHOICES),
                resume=generator.choice(RESUME_CHOICES),
                warmup_steps=generator.randint(1, 6),
                protect_last=generator.randint(0, 3),
            )
        )
    return found


def compare(real: Trace, draft: Trace) -> dict:
    """How alike the replay `draft` and the `real` run are.

    skips: share of block cells whose skip agrees; skips_by_chance: what independent skips at the same rates would
    reach; precision: share of layer calls of equal precision; known: share of cells that the replay could decide;
    skips_known: agreement among those only. Then the figures that the app shows, both ways (`…_real`, `…_draft`).
    """
    keys = list(KEYS)
    blocks = real.blocks[[*keys, "skipped"]].merge(
        draft.blocks[[*keys, "skipped", "known"]], on=keys, suffixes=("", "_draft")
    )
    layers = real.layers[[*keys, "layer", "precision"]].merge(
        draft.layers[[*keys, "layer", "precision"]], on=[*keys, "layer"], suffixes=("", "_draft")
    )
    if len(blocks) != len(real.blocks) or len(layers) != len(real.layers):
        raise ValueError("The replay and the run have different cells; compare runs of one model, size and step count.")
    same = (blocks["skipped"] == blocks["skipped_draft"]).to_numpy()
    known = blocks["known"].to_numpy(bool)
    a, b = blocks["skipped"].mean(), blocks["skipped_draft"].mean()
    figures = real.report, draft.report
    return {
        "skips": float(same.mean()), "skips_by_chance": float(a * b + (1 - a) * (1 - b)),
        "precision": float((layers["precision"] == layers["precision_draft"]).mean()),
        "known": float(known.mean()), "skips_known": float(same[known].mean()) if known.any() else float("nan"),
        **{f"{name}_{side}": getattr(figure, attribute)
           for name, attribute in (("skipped", "skipped_share"), ("bits", "average_bits"),
                                   ("bits_computed", "average_bits_computed"), ("purified", "purified_share"))
           for side, figure in zip(("real", "draft"), figures)},
        "label": draft.meta.replay,
    }  # fmt: skip


def band(rows: pd.DataFrame) -> dict:
    """What to print beside the knobs: runs, skip_low, skip_high (10 % and 90 % quantile of the cell agreement of
    replayed probes with real runs), and more per source of the replay ("probe", "run"): quantiles over runs, and how
    many different policies they were.

    skips, precision: 10 %, 50 % and 90 % quantile of the cell agreement; skipped_error, bits_error: the 90 % quantile
    of |draft − real|, for "38 % ± 4 % skipped".
    """
    found = {}
    for source, group in rows.groupby("source", sort=False):
        found[str(source)] = {
            "runs": len(group), "policies": group["setting"].nunique() if "setting" in group else len(group),
            **{name: _quantiles(group[name], (0.1, 0.5, 0.9)) for name in ("skips", "precision", "known")},
            "skipped_error": _quantiles((group["skipped_draft"] - group["skipped_real"]).abs(), (0.5, 0.9)),
            "bits_error": _quantiles((group["bits_draft"] - group["bits_real"]).abs(), (0.5, 0.9)),
        }
    shown = found.get("probe") or next(iter(found.values()))
    return {
        "runs": shown["runs"], "policies": shown["policies"], "skip_low": shown["skips"][0],
        "skip_high": shown["skips"][2], **found,
    }  # fmt: skip


def _quantiles(values: pd.Series, at: Sequence[float]) -> list[float]:
    return [round(float(value), 4) for value in np.nanquantile(values.to_numpy(float), at)]
