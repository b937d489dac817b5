"""The quality lab's other tasks: replay against reality, and time alone on a machine.

All are `sweep.Task`s, so that one sweep, one store and one `execute` serve them: `agreement` holds a random policy as
its setting and compares a real run with the replay of its prompt's probe; `timing@<device>:<method>` runs a method
without looking at the result, after a short run to warm up.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from engine import agreement, methods
from engine.replay import replay
from engine.settings import Policy
from engine.sweep import COLUMNS, Task, setting

AGREEMENT, TIMING = "agreement", "timing@"


def agreement_tasks(
    count: int, prompts: int, steps: int, guidance: float, model: str, repeats: int = 1
) -> list[Task]:
    """`count` random policies, each on `repeats` of the probes' prompts in turn, prompt by prompt."""
    pairs = methods.prompts(prompts, held_out=False)

    def named(policy: Policy) -> str:
        values = policy.to_dict()
        if values["weighting"] == "none":  # keys of rows that are stored were made before there was a choice
            del values["weighting"]
        return setting(**values)

    tasks = [
        Task(AGREEMENT, named(policy), *pairs[(number + turn * prompts // repeats) % prompts], steps, guidance, model)
        for number, policy in enumerate(agreement.random_policies(count))
        for turn in range(min(repeats, prompts))
    ]
    return sorted(tasks, key=lambda task: task.seed)


def timing_tasks(
    grid: Mapping[str, tuple[dict, ...]], device: str, steps: int, guidance: float, model: str, repeats: int = 2
) -> list[Task]:
    """Every setting of `grid` for `repeats` prompts, to be timed on "cpu" or "cuda"."""
    pairs = methods.prompts(repeats)
    return [
        replace(task, method=f"{TIMING}{device}:{task.method}")
        for task in methods.tasks(grid, pairs, steps, guidance, model)
    ]


def parts(grids: Mapping[str, list[Task]], first: int) -> list[list[Task]]:
    """All grids' tasks, each once, in an order that is fair wherever it is cut: stage by stage, prompt by prompt.

    Stages: the grid `brief`; the frontier and the extensions on the first `first` prompts; what chooses and judges the
    defaults (agreement, defaults, any other grid); the frontier on the other prompts; the finer thresholds; accuracy. A
    part is one prompt of a stage, methods on 16-bit weights apart from the others, as it shares their references.
    """
    staged: dict[tuple[int, int, bool], list[Task]] = {}
    seen: set[str] = set()
    ranks = {name: {"brief": 0, "fine": 4, "accuracy": 5}.get(name, 2) for name in grids}
    for name, found in sorted(grids.items(), key=lambda grid: ranks[grid[0]]):
        places: dict[tuple[str, int], int] = {}
        for task in found:
            number = places.setdefault((task.prompt, task.seed), len(places))
            stage = (1 if number < first else 3) if name in ("frontier", "extended") else ranks[name]
            if task.key not in seen:
                seen.add(task.key)
                staged.setdefault((stage, number, methods.weights_of(task.method) != "16-bit"), []).append(task)
    return [staged[place] for place in sorted(staged)]


def ordered(grids: Mapping[str, list[Task]], first: int) -> list[Task]:
    """The tasks of `parts`, one after the other."""
    return [task for part in parts(grids, first) for task in part]


def execute(bench, task: Task) -> dict:
    """The result columns of any task of the lab; `bench` is a `frontier.Bench`."""
    if task.method == AGREEMENT:
        return _agree(bench, task)
    if not task.method.startswith(TIMING):
        return bench.execute(task)
    device, method = task.method.removeprefix(TIMING).split(":")
    if device != bench.device.type:
        raise ValueError(f"This task is to be timed on {device}; the model is on {bench.device.type}.")
    bench.warm_up()
    return bench.execute(replace(task, method=method), timing_only=True)


def _agree(bench, task: Task) -> dict:
    """Columns of `agreement.compare` for the probe's replay ("") and, prefixed run_, for the last run's replay."""
    policy = Policy(**json.loads(task.setting))
    probe = next((trace for trace in bench.probe_traces if trace.meta.prompt == task.prompt), None)
    if probe is None:
        raise ValueError(f"No probe trace was recorded for the prompt {task.prompt!r}; record the probes again.")
    bench.handle.calibration = bench.calibration
    real, _ = bench.trace(policy, task.prompt, task.seed)
    found = agreement.compare(real, replay(probe, policy, bench.calibration))
    before = getattr(bench, "last_run", None)
    if before is not None and before.meta.prompt == task.prompt:
        other = agreement.compare(real, replay(before, policy, bench.calibration))
        found.update({f"run_{name}": value for name, value in other.items()})
    bench.last_run = real
    return {**found, "seconds": bench.seconds}


def split(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Merged rows of a sweep → tables to publish, if not empty: frontier, defaults, accuracy, replay_agreement, timing.

    `frontier` has the swept methods and the extensions, each class (16-bit or packed weights) on the prompts that all
    of it was run on; `defaults` the single changes; `accuracy` the settings of that grid on all prompts, where it has
    more than the frontier. `target_bits` becomes the error threshold that it was answered with. Times that were taken
    alone replace those that were taken beside other processes: `seconds` then is the median of the timing runs of that
    (method, setting), on the machine named in `seconds_device`, and `seconds_shared` what the run itself took. Without
    timing runs, shards have no `seconds`.
    """
    timed = rows["method"].str.startswith(TIMING)
    timing, agreed = _tidy(rows[timed]), _tidy(rows[rows["method"] == AGREEMENT])
    main = _tidy(rows[~timed & (rows["method"] != AGREEMENT)])
    tables = {"replay_agreement": agreed}
    if len(timing):
        timing["method"] = timing["method"].str.split(":").str[1]
        tables["timing"] = timing
    if "processes" in main and not len(timing):  # beside other processes a second is no second
        shared = main["processes"] > 1
        main = main.assign(seconds_shared=main["seconds"], seconds=main["seconds"].mask(shared))
    if len(timing) and len(main):
        device = "cuda" if (timing["device"] == "cuda").any() else timing["device"].iloc[0]
        alone = timing[timing["device"] == device].groupby(["method", "setting"])["seconds"].median()
        index = pd.MultiIndex.from_frame(main[["method", "setting"]])
        main = main.assign(
            seconds_shared=main["seconds"], seconds=alone.reindex(index).to_numpy(), seconds_device=device
        )
    if len(main):
        grids = (methods.FRONTIER, methods.EXTENDED, methods.FINE, methods.SENSITIVE_REUSE)
        swept = {pair for grid in grids for pair in _settings(grid)}
        judged = pd.Series(
            [pair in _settings(methods.ACCURACY) for pair in zip(main["method"], main["setting"])], main.index
        )
        first = _settings(methods.FRONTIER) | _settings(methods.EXTENDED)
        core = pd.Series([pair in first for pair in zip(main["method"], main["setting"])], main.index)
        published = [pair in swept for pair in zip(main["method"], main["setting"])]
        if "error_threshold" in main:
            main["setting"] = [_answered(*cells) for cells in zip(main["setting"], main["error_threshold"])]
        shown = pd.Series(published, index=main.index)
        packed = main.loc[shown, "method"].map(methods.weights_of) == "nvfp4"
        classes = [_whole(rows, core) for _, rows in main[shown].groupby(packed, sort=True) if len(rows)]
        tables.update(frontier=pd.concat(classes) if classes else main[shown], defaults=main[~shown])
        if main.loc[judged, "prompt"].nunique() > tables["frontier"]["prompt"].nunique():
            tables["accuracy"] = _whole(main[judged])
    return {name: table.reset_index(drop=True) for name, table in tables.items() if len(table)}


def _settings(grid: methods.Grid) -> set[tuple[str, str]]:
    return {(name, setting(**values)) for name, settings in grid.items() for values in settings}


def _whole(rows: pd.DataFrame, core: pd.Series | None = None) -> pd.DataFrame:
    """Without prompts of few settings, and without those at which a sweep was cut short: settings (of `core`, where it
    is given) run on nearly all prompts are run on all that stay. A setting that was run on fewer keeps what it has."""
    settings = rows.groupby(["prompt", "seed"])["setting"].transform("size")
    rows = rows[settings > settings.max() / 2]
    names = rows["method"] + " " + rows["setting"]
    counts = names.value_counts()
    expected = names.isin(counts.index[counts > 0.8 * counts.max()])
    if core is not None:
        expected &= core[rows.index]
    each = expected.groupby([rows["prompt"], rows["seed"]]).transform("sum")
    return rows[each == each.max()]


def _tidy(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[[name for name in rows.columns if rows[name].notna().any() or name in COLUMNS]].copy()


def _answered(text: str, threshold: float) -> str:
    values = json.loads(text)
    return (
        setting(**{name: value for name, value in values.items() if name != "target_bits"}, error_threshold=threshold)
        if "target_bits" in values
        else text
    )


def both_sources(agreed: pd.DataFrame) -> pd.DataFrame:
    """The agreement table in long form: one row per policy and source of the replay ("probe" or "run")."""
    plain = [name for name in agreed.columns if not name.startswith("run_")]
    own = agreed[plain].assign(source="probe")
    marked = [name for name in agreed.columns if name.startswith("run_")]
    if not marked:
        return own
    other = agreed[marked].rename(columns=lambda name: name.removeprefix("run_"))
    other = other.assign(source="run", **{name: agreed[name] for name in ("setting", "prompt") if name in agreed})
    return pd.concat([own, other.dropna(subset=["skips"])], ignore_index=True)
