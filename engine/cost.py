"""What a run cost: bits, shares and time, counted from its trace.

Average bits are the MAC-weighted mean of activation bits. The paper counts a skipped layer as 0 bits; with much
skipping that figure falls below 6 by itself, so the mean over computed calls alone always stands beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from engine.records import BITS, NAN, PRECISIONS
from engine.trace import Trace

OUTLIER_THRESHOLD = 25.0
"""The paper's r; used for the firing share where the trace's policy names none."""


@dataclass(frozen=True)
class Report:
    """Figures of one trace; shares are of all layer calls (skipped ones included) unless said otherwise, NaN if none.

    * average_bits, average_bits_computed: skipped as 0 bits, and computed calls only.
    * skipped_share: of blocks × steps. purified_share, predictor_share: calls that PDR, that the predictor decided.
    * precision_shares: precision → share. firing: group → share of its measured calls with r over the threshold.
    * known_share: 1.0 but for partial replays.
    * seconds: wall time inside the blocks. NaN where any cell was not timed (as in most replays).
    """

    average_bits: float
    average_bits_computed: float
    skipped_share: float
    purified_share: float
    predictor_share: float
    known_share: float
    precision_shares: Mapping[str, float]
    firing: Mapping[str, float]
    layer_calls: int
    block_calls: int
    macs: float
    macs_computed: float
    seconds: float


def report(trace: Trace) -> Report:
    """Count a trace; an empty one gives NaN, never an error."""
    blocks, layers = trace.blocks, trace.layers
    bits, bits_computed = average_bits(layers)
    computed = layers["precision"].to_numpy(object) != "skipped"
    macs = layers["macs"].to_numpy()
    counts = layers["precision"].value_counts()
    threshold = trace.meta.policy.get("outlier_threshold", OUTLIER_THRESHOLD)
    return Report(
        average_bits=bits,
        average_bits_computed=bits_computed,
        skipped_share=_share(blocks["skipped"]),
        purified_share=_share(layers["purified"]),
        predictor_share=_share(layers["decided_by"] == "predictor"),
        known_share=_share(layers["known"]),
        precision_shares={name: int(counts[name]) / len(layers) for name in PRECISIONS if name in counts},
        firing=firing(layers, threshold),
        layer_calls=len(layers),
        block_calls=len(blocks),
        macs=float(macs.sum()),
        macs_computed=float(macs[computed].sum()),
        seconds=float(blocks["milliseconds"].to_numpy().sum()) / 1e3 if len(blocks) else NAN,
    )


def average_bits(layers: pd.DataFrame) -> tuple[float, float]:
    """MAC-weighted mean activation bits of layer rows: (skipped as 0, computed only); NaN without MACs."""
    bits = layers["precision"].map(BITS).to_numpy(float)
    macs = layers["macs"].to_numpy()
    computed = bits > 0
    return _mean(bits, macs), _mean(bits[computed], macs[computed])


def firing(layers: pd.DataFrame, threshold: float) -> dict[str, float]:
    """Group → share of its calls with r > threshold, among those whose r was measured; NaN where none was."""
    ratio = layers["outlier_ratio"]
    over = (ratio > threshold).where(ratio.notna()).astype(float)
    return {str(group): float(share) for group, share in over.groupby(layers["layer"], sort=False).mean().items()}


@dataclass(frozen=True)
class Speeds:
    """Milliseconds of one block, by (model, block): skipped, and computed entirely at each precision.

    A block that mixes precisions is taken to cost the MAC-weighted mean of its parts; what it does besides linear
    layers (attention, norms) is in every precision's figure. A precision that this block never took is carried over
    from the model's other blocks in proportion; one that no block took is absent.
    """

    milliseconds: Mapping[tuple[str, int], Mapping[str, float]]


def measure_speeds(*traces: Trace) -> Speeds:
    """Fit `Speeds` to the timed cells of recordings made on one machine at one size.

    Probe recordings are left out, as measuring costs more than the block. So is each model's first step, which pays
    for compilation and first allocations, when there are others.
    """
    tables = [_timed(trace) for trace in traces if not trace.meta.probe]
    if not tables:
        return Speeds({})
    found = {}
    for model, cells in pd.concat(tables, ignore_index=True).groupby("model", sort=False):
        scale = cells[cells["skipped"] == 0].groupby("block")["milliseconds"].median()
        pooled = _fit(cells.assign(milliseconds=cells["milliseconds"] / cells["block"].map(scale)))
        for block, own in cells.groupby("block", sort=False):
            carried = {name: cost * float(scale.get(block, NAN)) for name, cost in pooled.items()}
            found[model, block] = {**carried, **_fit(own)}
    return Speeds(found)


def estimate_seconds(trace: Trace, speeds: Speeds) -> float:
    """Seconds inside the blocks that `trace`, usually a replay, would take at `speeds`; NaN if one is not known.

    Compare it with the same estimate for the recording, so that both carry the same model of cost:
    `estimate_seconds(recording, s) / estimate_seconds(draft, s)` times faster, same trajectory assumed.
    """
    cells = _mixtures(trace)
    if cells.empty:
        return NAN
    table = pd.DataFrame.from_dict(dict(speeds.milliseconds), orient="index").reindex(columns=list(PRECISIONS))
    index = pd.MultiIndex.from_frame(cells[["model", "block"]])
    cost = table.reindex(index).to_numpy(float)
    share = cells[list(PRECISIONS)].to_numpy()
    return float(np.where(share > 0, share * cost, 0.0).sum()) / 1e3


def _mixtures(trace: Trace) -> pd.DataFrame:
    """One row per cell: keys and the MAC share of each precision (equal shares where MACs are absent)."""
    layers = trace.layers
    keys = ["call", "model", "branch", "step", "block"]
    macs = layers["macs"].to_numpy()
    weight = macs if np.isfinite(macs).all() and (macs > 0).all() else np.ones(len(layers))
    wide = layers[keys].copy()
    taken = layers["precision"].to_numpy(object)
    for name in PRECISIONS:
        wide[name] = np.where(taken == name, weight, 0.0)
    cells = wide.groupby(keys, sort=False, as_index=False).sum()
    cells[list(PRECISIONS)] = cells[list(PRECISIONS)].div(cells[list(PRECISIONS)].sum(axis=1), axis=0)
    return cells


def _timed(trace: Trace) -> pd.DataFrame:
    keys = ["call", "model", "branch", "step", "block"]
    cells = _mixtures(trace).merge(trace.blocks[[*keys, "milliseconds"]], on=keys)
    cells = cells[np.isfinite(cells["milliseconds"])]
    first = cells["step"] == cells.groupby(["call", "model", "branch"], sort=False)["step"].transform("min")
    return cells if first.all() else cells[~first]


def _fit(cells: pd.DataFrame) -> dict[str, float]:
    """Cost per precision of one block: least squares on the mixtures, held to the mean where they cannot tell."""
    skipped = cells["skipped"] > 0
    costs = {}
    if skipped.any():
        # The median, as a skipped block is so short that one interruption would outweigh all others.
        costs["skipped"] = float(cells.loc[skipped, "milliseconds"].median())
    computed = cells[~skipped]
    used = [name for name in PRECISIONS if name != "skipped" and (computed[name] > 0).any()]
    if used:
        share, cost = computed[used].to_numpy(), computed["milliseconds"].to_numpy()
        middle = float(np.median(cost))
        # A little weight on "all precisions cost the same" settles what collinear mixtures leave open.
        gram = share.T @ share + 0.1 * np.eye(len(used))
        offset = np.linalg.solve(gram, share.T @ (cost - middle))
        costs.update({name: max(0.0, middle + float(x)) for name, x in zip(used, offset, strict=True)})
    return costs


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    total = weights.sum()
    return float((values * weights).sum() / total) if total > 0 else NAN


def _share(flags: pd.Series) -> float:
    return float(flags.mean()) if len(flags) else NAN
