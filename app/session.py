"""What one browser tab has: its runs, its uploaded file, its stop switch. Two tabs never see each other.

Sessions live in one bounded registry, keyed by Gradio's session hash, and go when the tab closes. Every object in
a session is replaced, not changed, so a handler that reads while a run writes sees one state or the next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from engine.settings import Policy
from engine.trace import Trace

LIMIT = 64          # sessions kept; the one unused for longest goes first


@dataclass(frozen=True)
class Source:
    """One run to look at: what really happened, and the signals that let a what-if be computed.

    trace: the run under `policy`. signals: a run of the same prompt with everything observed (a probe), or None.
    reference: the FP16 run's own trace, for its speed.
    race: what the panes need to play it again. seconds: {"reference": s, "run": s} of whole runs where measured.
    psnr: dB against the reference. ticks: {"a": [...], "b": [...]} as the panes show them. video: {pane: frames or path}.
    """

    key: str
    title: str
    prompt: str
    policy: Policy
    trace: Trace
    signals: Trace | None = None
    reference: Trace | None = None
    race: dict | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    psnr: float | None = None
    video: dict[str, Any] = field(default_factory=dict)
    machine: str = ""
    model: str = ""
    seed: int | None = None


@dataclass
class Session:
    """The state of one tab."""

    key: str = ""
    current: Source | None = None
    previous: Source | None = None
    file: Source | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    running: bool = False
    live: Any = None          # (grid, policy, trace so far) of the run in progress
    lock: threading.Lock = field(default_factory=threading.Lock)
    model: str = "tiny"

    def show(self, source: Source) -> None:
        """Make a source the one on the page; the one before it stays for comparison."""
        if self.current is not None and self.current.key != source.key:
            self.previous = self.current
        self.current = source


class Sessions:
    """A bounded, locked registry. `close` also stops the tab's run."""

    def __init__(self, limit: int = LIMIT):
        self._limit, self._lock, self._all = limit, threading.Lock(), OrderedDict()

    def get(self, key: str) -> Session:
        """The session of a tab, made on first sight. Keys are opaque and cut to a sane length."""
        key = str(key or "")[:64]
        with self._lock:
            session = self._all.get(key)
            if session is None:
                session = self._all[key] = Session(key)
            self._all.move_to_end(key)
            while len(self._all) > self._limit:
                oldest = next((k for k, s in self._all.items() if not s.running), None)
                if oldest is None or oldest == key:
                    break
                del self._all[oldest]
        return session

    def close(self, key: str) -> None:
        """The tab has gone: stop its run and forget it."""
        with self._lock:
            session = self._all.pop(str(key or "")[:64], None)
        if session is not None:
            session.stop.set()

    def __len__(self) -> int:
        return len(self._all)
