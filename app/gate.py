"""Who may run now. A fair line with a bounded length and a sentence for everyone in it.

Gradio's own queue tells a visitor nothing but "queue full"; here everyone knows how many are ahead, and a newcomer
who would wait too long is told so at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict


class Full(RuntimeError):
    """The line is full."""


class Gate:
    """At most `width` tickets are inside, at most `length` wait, first come first served."""

    def __init__(self, width: int, length: int):
        self.width, self.length = width, length
        self._lock, self._line, self._next = threading.Lock(), OrderedDict(), 0

    def join(self) -> int:
        """Take a ticket. Raises Full when the line is too long; every ticket must be given back with `leave`."""
        with self._lock:
            if len(self._line) >= self.width + self.length:
                raise Full
            self._next += 1
            self._line[self._next] = None
            return self._next

    def ahead(self, ticket: int) -> int:
        """How many must leave before this ticket may run; 0 means now."""
        with self._lock:
            place = list(self._line).index(ticket)
        return max(0, place - self.width + 1)

    def step_back(self, ticket: int) -> None:
        """Let everyone else in the line go first."""
        with self._lock:
            self._line.move_to_end(ticket)

    def leave(self, ticket: int) -> None:
        """Give a ticket back; twice is fine."""
        with self._lock:
            self._line.pop(ticket, None)

    def __len__(self) -> int:
        return len(self._line)
