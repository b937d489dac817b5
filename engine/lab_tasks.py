"""The quality lab's other tasks: replay against reality, and time alone on a machine.

All are `sweep.Task`s, so that one sweep, one store and one `execute` serve them: `agreement` holds a random policy as
its setting and compares a real run with the replay of its prompt's probe; `timing:<method>` runs a method without
looking at the result, after one run to warm up.
"""

import json
from collections.abc import Mapping

import pandas as pd

from engine import agreement, methods
from engine.replay import replay
from engine.settings import Policy
from engine.sweep import Task, setting

AGREEMENT, TIMING = "agreement", "timing:"


def agreement_tasks(count: int, prompts: int, steps: int, guidance: float, model: str) -> list[Task]:
    """`count` random policies over the probes' prompts in turn, prompt by prompt."""
    pairs = methods.prompts(prompts, held_out=False)
    tasks = [
        Task(AGREEMENT, setting(**policy.to_dict()), *pairs[number % prompts], steps, guidance, model)
        for number, policy in enumerate(agreement.random_policies(count))
    ]
    return sorted(tasks, key=lambda task: task.seed)


def timing_tasks(
    grid: Mapping[str, tuple[dict, ...]], steps: int, guidance: float, model: str, repeats: int = 2
) -> list[Task]:
    """Every setting of the frontier, `repeats` prompts each."""
    pairs = methods.prompts(repeats)
    return [
        Task(TIMING + task.method, task.setting, task.prompt, task.seed, steps, guidance, model)
        for task in methods.tasks(grid, pairs, steps, guidance, model)
    ]


def execute(bench, task: Task) -> dict:
    """The result columns of any task of the lab; `bench` is a `frontier.Bench`."""
    if task.method == AGREEMENT:
        return _agree(bench, task)
    if not task.method.startswith(TIMING):
        return bench.execute(task)
    plain = Task(task.method.removeprefix(TIMING), task.setting, task.prompt, task.seed, task.steps, task.guidance, task.model)
    if not getattr(bench, "warm", False):
        bench.execute(plain, timing_only=True)
        bench.warm = True
    return bench.execute(plain, timing_only=True)


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
    """Merged rows of a sweep → the tables to publish: frontier, agreement, timing (those that are not empty).

    Times that were taken alone replace those that were taken beside other processes: `seconds` then is the median
    of the timing runs of that (method, setting), and `seconds_shared` what the run itself took.
    """
    timing = rows[rows["method"].str.startswith(TIMING)].dropna(axis=1, how="all")
    agreed = rows[rows["method"] == AGREEMENT].dropna(axis=1, how="all")
    main = rows[~rows["method"].str.startswith(TIMING) & (rows["method"] != AGREEMENT)]
    main = main[[name for name in main.columns if main[name].notna().any()]].reset_index(drop=True)
    tables = {}
    if len(timing):
        timing = timing.assign(method=timing["method"].str.removeprefix(TIMING)).reset_index(drop=True)
        tables["timing"] = timing
        alone = timing[timing["device"] == timing["device"].iloc[0]].groupby(["method", "setting"])["seconds"].median()
        if len(main):
            index = pd.MultiIndex.from_frame(main[["method", "setting"]])
            main = main.assign(seconds_shared=main["seconds"], seconds=alone.reindex(index).to_numpy())
    if len(agreed):
        tables["replay_agreement"] = agreed.reset_index(drop=True)
    if len(main):
        tables["frontier"] = main
    return tables


def both_sources(agreed: pd.DataFrame) -> pd.DataFrame:
    """The agreement table in long form: one row per policy and source of the replay ("probe" or "run")."""
    plain = [name for name in agreed.columns if not name.startswith("run_")]
    own = agreed[plain].assign(source="probe")
    marked = [name for name in agreed.columns if name.startswith("run_")]
    if not marked:
        return own
    other = agreed[marked].rename(columns=lambda name: name.removeprefix("run_")).dropna(subset=["skips"])
    return pd.concat([own, other.assign(source="run")], ignore_index=True)
