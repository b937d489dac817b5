"""Processes of one machine that take the work of a sweep in turn, part by part, in the order that was wished for.

A fixed split leaves some processes idle while others are behind; here whoever is free takes the next part, so that a
sweep that is cut short has done the first parts of the list and none of the last. A part is taken by a lock on a file
of the shared folder: a process that dies lets go of it, and who comes later takes it up again. Any number of
processes may join at any time.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from engine import sweep
from engine.sweep import Task

DONE = b"done"


class Claim:
    """What `take` yields: true while the part is ours; `state` is "ours", "busy" or "done"."""

    def __init__(self, state: str, file=None):
        self.state, self._file = state, file

    def __bool__(self) -> bool:
        return self.state == "ours"

    def finished(self) -> None:
        """Note that nothing of the part is left to do."""
        os.pwrite(self._file, DONE, 0)


@contextmanager
def take(folder: Path, part: Iterable[Task]) -> Iterator[Claim]:
    """Whether `part` is this process's while the context lasts: not if another works on it, or it is done.

    Raises RuntimeError where the system has no file locks.
    """
    try:
        import fcntl
    except ImportError:
        raise RuntimeError(
            "Sharing a sweep's work needs file locks as Linux and macOS have them; use --shard i/n here."
        ) from None
    digest = hashlib.sha256(" ".join(task.key for task in part).encode()).hexdigest()[:20]
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / f"{digest}.part", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield Claim("busy")
            return
        yield Claim("done") if os.pread(file, len(DONE), 0) == DONE else Claim("ours", file)
    finally:
        os.close(file)  # lets go of the lock too


def run(
    parts: Iterable[list[Task]], folder: Path, store: sweep.Store, execute: Callable[[Task], dict],
    done: Set[str] = frozenset(), ready: Callable[[Task], bool] = lambda task: True,
    budget_seconds: float | None = None, patience: float = 300.0, **options,
) -> int:  # fmt: skip
    """`sweep.run` on one part after the other, each taken from `folder`; returns how many rows were added.

    A part of which some task is not ready waits for the next look at the list. The run ends when every part is done or
    another process's, when `patience` seconds passed with nothing ready, or with the budget. Tasks whose keys are in
    `done` are left out; the parts themselves must be the same in all processes, whenever these begin.
    """
    waiting, started, added, idle = list(parts), time.monotonic(), 0, sweep.Patience(patience)
    while waiting:
        left = None if budget_seconds is None else budget_seconds - (time.monotonic() - started)
        if left is not None and left < 0:
            break
        ripe = [part for part in waiting if all(map(ready, part))]
        for part in ripe:
            with take(folder, part) as claim:
                if claim.state != "busy":
                    waiting.remove(part)
                if claim:
                    todo = [task for task in part if task.key not in done]
                    added += sweep.run(todo, store, execute, budget_seconds=left, **options)
                    if all(task in store for task in todo):
                        claim.finished()
                    break
        else:  # nothing to take: what is left is busy elsewhere, or waits for a file
            if len(ripe) == len(waiting) or not idle.wait():
                break
            continue
        idle.renew()
    return added
