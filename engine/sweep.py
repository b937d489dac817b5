"""Resumable sweeps: one row per (method, setting, prompt, seed), keyed by a hash of everything that determines it.

A killed process loses at most the run it was in and repeats nothing: rows are appended to a JSON-lines file as they
come, a half-written last line is dropped on the next start. `execute` runs one task and knows nothing of the store, so
a distributed runner can call it as it is; ``--shard 2/8`` splits the same list over processes without coordination, and
`engine.dealing` lets processes of one machine take from it in turn.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from engine.files import write_atomic

COLUMNS = (
    "method", "setting", "prompt", "seed", "psnr", "ssim", "flicker", "prompt_accuracy", "seconds", "bits",
    "bits_computed", "skipped",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One run. `setting` is the method's own parameters as canonical JSON; `model` is the hash of the weights."""

    method: str
    setting: str
    prompt: str
    seed: int
    steps: int
    guidance: float
    model: str

    @property
    def key(self) -> str:
        """Hex digest that names this task: equal tasks on equal weights have equal keys on every machine."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:20]


def setting(**values) -> str:
    """Canonical JSON of a method's parameters, so that equal settings are equal strings."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


class Store:
    """Rows of a sweep in a JSON-lines file, one line a row, appended and flushed to disk at once."""

    def __init__(self, path):
        self.path = Path(path)
        self._keys: set[str] = set()
        if self.path.exists():
            self._drop_broken_tail()
            self._keys = {row["key"] for row in self._rows()}

    def _drop_broken_tail(self) -> None:
        text = self.path.read_bytes()
        if text and not text.endswith(b"\n"):
            whole = text.rfind(b"\n") + 1
            with open(self.path, "r+b") as file:
                file.truncate(whole)

    def _rows(self) -> Iterator[dict]:
        with open(self.path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(
                        f"{self.path.name} line {number} is not JSON: expected a sweep's own file; "
                        "move it away to start afresh."
                    ) from error

    def __contains__(self, task: Task) -> bool:
        return task.key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def append(self, task: Task, result: dict) -> None:
        """Write one row. A row that is already there is left as it is."""
        if task.key in self._keys:
            return
        line = json.dumps({"key": task.key, **asdict(task), **result}) + "\n"
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._keys.add(task.key)

    def frame(self) -> pd.DataFrame:
        """All rows, the published columns first."""
        rows = list(self._rows()) if self.path.exists() else []
        table = pd.DataFrame(rows, columns=None if rows else list(COLUMNS))
        first = [name for name in COLUMNS if name in table.columns]
        return table[first + [name for name in table.columns if name not in first]]


def keys_in(path) -> set[str]:
    """The keys in another process's file, which may be writing its last line right now; nothing is changed."""
    found = set()
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            found.add(json.loads(line)["key"])
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return found


def shard(tasks: Iterable[Task], index: int, count: int, together: bool = True) -> list[Task]:
    """Part `index` of `count` of the tasks: by (prompt, seed) in turn, so that a process keeps one reference video,
    or one by one where `together` is False."""
    if not 0 <= index < count:
        raise ValueError(f"shard index must lie in 0..{count - 1}, got {index}.")
    if not together:
        return list(tasks)[index::count]
    places: dict[tuple[str, int], int] = {}
    return [task for task in tasks if places.setdefault((task.prompt, task.seed), len(places)) % count == index]


class Patience:
    """How long a sweep waits in one stretch while nothing is ready: `seconds`, and then no more."""

    def __init__(self, seconds: float):
        self._seconds, self._since = seconds, None

    def wait(self) -> bool:
        """Half a second of it; False, at once, where the stretch has been long enough."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._seconds:
            return False
        time.sleep(0.5)
        return True

    def renew(self) -> None:
        """Something was ready: the next stretch begins anew."""
        self._since = None


def run(
    tasks: Iterable[Task],
    store: Store,
    execute: Callable[[Task], dict],
    progress: Callable[[int, int, Task], None] | None = None,
    stop: Callable[[], bool] | None = None,
    budget_seconds: float | None = None,
    failed: Callable[[Task, Exception], None] | None = None,
    ready: Callable[[Task], bool] = lambda task: True,
    patience: float = 300.0,
) -> int:
    """Execute what the store lacks, in order; returns how many rows were added.

    Args:
        execute: one task → its result columns. An exception ends the sweep; finished rows stay.
        failed: told of a ValueError or RuntimeError of one task, after which the sweep goes on with the next.
        progress: called before each run with (done, total, task).
        stop: asked before each run; True ends the sweep cleanly.
        budget_seconds: no run starts after this many seconds.
        ready: whether what a task needs is there by now. Others go before one that is not; where nothing else is
            left, the sweep waits `patience` seconds, then gives the rest up: a later start will find it to do.
    """
    tasks = list(tasks)
    waiting = [task for task in tasks if task not in store]
    started, added, done = time.monotonic(), 0, len(tasks) - len(waiting)
    idle = Patience(patience)
    while waiting:
        if stop is not None and stop():
            break
        if budget_seconds is not None and time.monotonic() - started > budget_seconds:
            break
        task = next((task for task in waiting if ready(task)), None)
        if task is None:
            if idle.wait():
                continue
            break
        idle.renew()
        waiting.remove(task)
        if progress is not None:
            progress(done, len(tasks), task)
        done += 1
        try:
            result = execute(task)
        except (ValueError, RuntimeError) as error:
            if failed is None:
                raise
            failed(task, error)
            continue
        store.append(task, result)
        added += 1
    return added


def summary(rows: pd.DataFrame, metric: str, resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Mean of `metric` per (method, setting) with its 95 % bootstrap interval over prompts.

    Returns columns method, setting, mean, low, high, runs; infinite values (an exact copy has infinite PSNR) are
    clipped to 100 first, as a mean needs finite numbers.
    """
    import numpy as np

    if metric not in rows.columns:
        raise ValueError(f"the table has no column {metric!r}; it has {', '.join(rows.columns)}.")
    generator, out = np.random.default_rng(seed), []
    for (method, configuration), group in rows.groupby(["method", "setting"], sort=False):
        values = group[metric].astype(float).clip(upper=100.0).dropna().to_numpy()
        if len(values) == 0:
            continue
        means = generator.choice(values, (resamples, len(values))).mean(1)
        low, high = np.quantile(means, [0.025, 0.975])
        out.append((method, configuration, values.mean(), low, high, len(values)))
    return pd.DataFrame(out, columns=["method", "setting", "mean", "low", "high", "runs"])


def write_parquet(rows: pd.DataFrame, path) -> None:
    """Write the rows as one Parquet file, whole or not at all; an OSError in one sentence where that fails."""
    write_atomic(path, lambda scratch: rows.to_parquet(scratch, index=False, compression="zstd"))
