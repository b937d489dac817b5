"""FP16 results that were made already: the "cached reference" mode plays them beside a new run.

Bounded in bytes; the one unused for longest goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from app.lanes import RunWish
from app.reels import Reel

BUDGET = 256 * 2**20


class Reference(NamedTuple):
    """A finished FP16 run: frames uint8 (F, H, W, 3), its trace, compute seconds, ticks, its pane's reel, and whether
    other programs had the cores."""

    frames: np.ndarray
    trace: Any
    seconds: float
    ticks: list[dict]
    steps: int
    reel: Reel | None = None
    busy: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its pictures."""
        return self.frames.nbytes + (self.reel.nbytes if self.reel else 0)


def key(wish: RunWish) -> tuple:
    """What decides an FP16 result."""
    return (
        wish.model,
        wish.prompt,
        wish.seed,
        wish.steps,
        wish.guidance,
        wish.height,
        wish.width,
        wish.frames,
        wish.negative,
    )


class References:
    """A locked cache of references."""

    def __init__(self, budget: int = BUDGET):
        self._budget, self._lock, self._held = budget, threading.Lock(), OrderedDict()

    def get(self, wish: RunWish) -> Reference | None:
        """The reference of a wish, if it was made."""
        with self._lock:
            found = self._held.get(key(wish))
            if found is not None:
                self._held.move_to_end(key(wish))
            return found

    def put(self, wish: RunWish, reference: Reference) -> None:
        """Keep a reference; old ones make room."""
        with self._lock:
            self._held[key(wish)] = reference
            self._held.move_to_end(key(wish))
            while len(self._held) > 1 and sum(r.nbytes for r in self._held.values()) > self._budget:
                self._held.popitem(last=False)
