"""Plain `pipe(...)` calls of an attached pipeline, outside `record`: which policy each of them follows.

A call follows what the handle says when its first forward begins, to its end. So a policy or a calibration that is set
meanwhile, from a callback or from another thread, waits for the next call instead of starting a run in the middle,
with its first step counted as a call's first and its last steps never protected.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from .position import Tracker
from .run import Run


class PlainCalls(threading.local):
    """The plain calls of each thread: its position in them, and the run of the current one.

    owner: the `engine.handle.Handle` whose policy and calibration decide.
    """

    def __init__(self, owner):
        self._owner = owner
        # Embeddings may be collected on another thread, which sees no attribute of this one but what it is given.
        self._current = current = []
        self._tracker = Tracker(owner.pipe, owner.family, lambda: [run.forget() for run in current])

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

    def leave(self) -> None:
        """A transformer forward is over."""
        if self.run is not None:
            self.run.leave()

    def _choose(self) -> None:
        owner, run = self._owner, self.run
        policy, calibration = owner.policy, owner.calibration
        if policy is None or (policy.precision == "stock" and not policy.tdc):
            self._current.clear()
        elif run is None or run.policy is not policy or run.calibration is not calibration:
            self._current[:] = [Run(owner, owner.pipe, policy, calibration, tracker=self._tracker)]
            owner.called(self._current[0])
