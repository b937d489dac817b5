"""Rows of a compiled pass, shared among the threads on which PyTorch computes.

PyTorch's own threads are asked, where its OpenMP library can be found. They are awake already and wait spinning for
its next operation, so threads besides them would have to wait for a core; and none of them sleeps through a pass to be
late for the product after it. They run compiled code alone: each would wait longer for Python's lock than a pass takes.
Elsewhere a small pool helps with passes that are long enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import torch

# Below this a thread has less to do than its start costs: PyTorch's own, and one of the pool.
_ELEMENTS_PER_THREAD, _ELEMENTS_PER_HELPER = 1 << 14, 1 << 18
# Parts that a thread takes one after the other: who comes late takes fewer.
_PARTS = 4
_memory = threading.local()


def share_rows(loop: Callable[[tuple, tuple], object], count: int, size: int, operands: tuple, room: int = 0) -> None:
    """Have all `count` rows of `size` values done by an entry of `cpu_rows.py`, on as many threads as there are.

    room: float32 values of memory that a thread needs for itself.
    """
    threads = torch.get_num_threads()
    openmp = _openmp() if threads > 1 else 0
    wanted = min(threads, count * size // (_ELEMENTS_PER_THREAD if openmp else _ELEMENTS_PER_HELPER))
    if wanted < 2:
        loop((0, 1, count, count, np.zeros(2, np.int64), _work(1, room)), operands)
        return
    # With the number of threads that PyTorch asks for, its team stays together. It may be smaller than asked
    # (OMP_THREAD_LIMIT, OMP_DYNAMIC): whoever is there takes what is left.
    team = openmp, threads, count, -(-count // (wanted * _PARTS)), np.zeros(2, np.int64), _work(threads, room)
    if openmp:
        loop(team, operands)
        return
    others = [_helpers().submit(loop, team, operands) for _ in range(threads - 1)]
    try:
        loop(team, operands)
    finally:
        # Whatever ended the caller's part: the next pass takes the same memory.
        wait(others)
    for other in others:
        other.result()


def _work(threads: int, room: int) -> np.ndarray:
    """Memory (threads, room) that is the calling thread's until its next pass."""
    held = getattr(_memory, "work", None)
    if held is None or held.size < threads * room:
        held = _memory.work = np.empty(threads * room, np.float32)
    return held[: threads * room].reshape(threads, room)


@functools.cache
def _openmp() -> int:
    """Address of GOMP_parallel in GNU's OpenMP library that PyTorch brought and loaded; 0 where it uses another one."""
    home = Path(torch.__file__).parent
    for path in (*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")):
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return ctypes.cast(found.GOMP_parallel, ctypes.c_void_p).value or 0
    return 0


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="rows")
