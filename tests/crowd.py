"""A machine that other programs use."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_crowded_core(others: int = 3) -> Iterator[None]:
    """This thread, and threads it starts, on one core that `others` further programs use all the time."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    running = []
    try:
        for _ in range(others):
            running.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for other in running:
            other.kill()
            other.wait()
