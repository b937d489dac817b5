"""Plain `pipe(...)` calls of an attached pipeline, outside `record`: which policy each of them follows.

A call follows what the handle says when its first forward begins, to its end. So a policy or a calibration that is set
meanwhile, from a callback or from another thread, waits for the next call instead of starting a run in the middle,
with its first step counted as a call's first and its last steps never protected.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial

from .position import Position, Tracker
from .run import Run


class StockCall:
    """A thread's current stock call, which decides nothing: only whether it is under way, for who wants to detach."""

    def __init__(self):
        self._open: set[str] = set()
        self._position: Position | None = None

    @property
    def under_way(self) -> bool:
        """Whether the call has begun and neither ended nor let go of its prompt."""
        return bool(self._open)

    def enter(self, position: Position) -> None:
        """A transformer forward begins."""
        if position.new_call:
            self._open.clear()
        self._open.add(position.branch)
        self._position = position

    def leave(self) -> None:
        """A transformer forward is over."""
        if self._position is not None and self._position.step + 1 >= self._position.steps:
            self._open.discard(self._position.branch)

    def forget(self) -> None:
        """The call is over."""
        self._open.clear()


class PlainCalls(threading.local):
    """The plain calls of each thread: its position in them, and the run of the current one.

    owner: the `engine.handle.Handle` whose policy and calibration decide.
    """

    def __init__(self, owner):
        self._owner = owner
        # Embeddings may be collected on another thread, which sees no attribute of this one but what it is given.
        self._current, self._stock = [], StockCall()
        self._tracker = Tracker(owner.pipe, owner.family, partial(_forget, self._current, self._stock))

    @property
    def run(self) -> Run | None:
        """The run of this thread's current call; None where it is stock."""
        return self._current[0] if self._current else None

    def announce(self, branch: str | None) -> None:
        """The branch name that the pipeline gives to its next forwards."""
        self._tracker.announce(branch)

    def enter(self, model: str, arguments: Mapping) -> None:
        """A transformer forward begins."""
        position = self._tracker.enter(model, arguments)
        if position.new_call:
            self._choose()
        if self.run is not None:
            self.run.enter(model, arguments, position)
        else:
            self._stock.enter(position)

    def leave(self) -> None:
        """A transformer forward is over."""
        (self._stock if self.run is None else self.run).leave()

    def _choose(self) -> None:
        self._stock.forget()
        owner, run = self._owner, self.run
        policy, calibration = owner.policy, owner.calibration
        if policy is None or (policy.precision == "stock" and not policy.tdc):
            self._current.clear()
            owner.called(self._stock)
        elif run is None or run.policy is not policy or run.calibration is not calibration:
            self._current[:] = [Run(owner, owner.pipe, policy, calibration, tracker=self._tracker)]
            owner.called(self._current[0])


def _forget(runs: list[Run], stock: StockCall) -> None:
    for call in (*runs, stock):
        call.forget()
