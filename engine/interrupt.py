"""Ctrl-C where it does no harm: not in the middle of a compilation.

While Numba compiles a loop, LLVM calls back into Python. A KeyboardInterrupt that is raised there never arrives: it is
dropped on the way out of LLVM, and what was being compiled is half a loop, which ends as a sentence that nobody
understands or as a crash of the process. So an interrupt that comes then comes again, until the compilation is over.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

COMPILERS = ("numba", "llvmlite")
AGAIN = 0.02
"""Seconds after which an interrupt that came during a compilation is tried again."""


@contextmanager
def patient_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt in the main thread as always, but never in a frame of COMPILERS.

    One that is still waiting at the end is raised there, in place of what else was on its way out.
    Does nothing on other threads, or where somebody set a handler of his own.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    waiting: list[threading.Timer] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        if not _compiling(frame):
            raise KeyboardInterrupt
        for timer in waiting:
            timer.cancel()
        waiting[:] = [threading.Timer(AGAIN, _thread.interrupt_main)]
        waiting[0].daemon = True
        waiting[0].start()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        late = [timer for timer in waiting if timer.is_alive()]
        for timer in late:
            timer.cancel()
        if late:
            raise KeyboardInterrupt


def _compiling(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] in COMPILERS:
            return True
        frame = frame.f_back
    return False
