"""What one browser tab has: its runs, its uploaded file, its stop switch. Two tabs never see each other.

Sessions live in one bounded registry, keyed by Gradio's session hash, and go when the tab closes. Every object in
a session is replaced, not changed, so a handler that reads while a run writes sees one state or the next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine.settings import Policy
from engine.trace import Trace

LIMIT = 64          # sessions kept; the one unused for longest goes first
OWN, OWN_BYTES = 3, 256 * 2**20          # runs of its own that a tab keeps, and what their pictures may take


@dataclass(frozen=True)
class Source:
    """One run to look at: what really happened, and the signals that let a what-if be computed.

    trace: the run under `policy`. signals: a run of the same prompt with everything observed (a probe), or None.
    reference: the FP16 run's own trace, for its speed.
    race: what the panes need to play it again. seconds: {"reference": s, "run": s} of whole runs where measured.
    beside: the policy of pane a, None for the model as it is. psnr: dB against the reference. video: {pane: frames
    or path}. reels: {pane: `app.reels.Reel`} of a run made here. busy: other programs had the cores during a pane's run,
    so its seconds do not compare.
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
    reels: dict[str, Any] = field(default_factory=dict)
    beside: Policy | None = None
    busy: bool = False

    @property
    def lanes(self) -> dict[str, Policy | None]:
        """What decides in each pane; None: the model as it is."""
        return {"a": self.beside, "b": self.policy}

    @property
    def nbytes(self) -> int:
        """Bytes of the pictures that are held in memory for this source."""
        frames = sum(getattr(held, "nbytes", 0) for held in self.video.values())
        return frames + sum(reel.nbytes for reel in self.reels.values())


@dataclass
class Session:
    """The state of one tab. `own` are the runs made in it, the newest first."""

    key: str = ""
    current: Source | None = None
    previous: Source | None = None
    file: Source | None = None
    own: tuple[Source, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    running: bool = False
    live: Any = None          # (grid, policy, trace so far) of the run in progress
    stopped: str | None = None          # the run that the visitor stopped last, which may not have begun yet
    _run: str = ""
    _openings: Iterator[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, run: str) -> bool:
        """Take the tab for a run; False while another run has it. A stop that came before its run is kept."""
        with self._lock:
            if self.running:
                return False
            self.running, self._run = True, run
            if self.stopped == run:
                self.stop.set()
            else:
                self.stop.clear()
            return True

    def end(self) -> None:
        """Give the tab back."""
        self.running = False

    def halt(self, run: str = "") -> None:
        """Stop a run by its name, or whichever is going; one that has not begun yet will end at once."""
        with self._lock:
            self.stopped = run or self._run
            if self.stopped == self._run:
                self.stop.set()

    def show(self, source: Source) -> None:
        """Make a source the one on the page; the one before it stays for comparison."""
        if self.current is not None and self.current.key != source.key:
            self.previous = self.current
        self.current = source

    def keep(self, source: Source) -> None:
        """Keep a run of this tab, and show it; the oldest ones make room."""
        kept = [source, *(held for held in self.own if held.key != source.key)][:OWN]
        while len(kept) > 1 and sum(held.nbytes for held in kept) > OWN_BYTES:
            kept.pop()
        self.own = tuple(kept)
        self.show(source)

    def file_key(self, name: str) -> str:
        """A new key for a file that is being opened: one of the same name may still be on the page."""
        return f"file:{next(self._openings)}:{name}"

    def find(self, key: str | None) -> Source | None:
        """A run or file of this tab by its key."""
        held = (self.current, self.previous, self.file, *self.own)
        return next((source for source in held if source is not None and source.key == key), None)


class Sessions:
    """A bounded, locked registry. `close` also stops the tab's run."""

    def __init__(self, limit: int = LIMIT):
        self._limit, self._lock, self._all = limit, threading.Lock(), OrderedDict()

    def get(self, key: str) -> Session:
        """The session of a tab, made on first sight. Keys are opaque and cut to a sane length."""
        key = str(key or "")[:64]
        if not key:
            return Session()              # a page that has no name yet shares nothing with another one
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
