"""Rows of a compiled loop, shared among the threads on which PyTorch computes.

PyTorch's own threads are asked, where its OpenMP library can be found. They are awake already and wait spinning for
its next operation, so threads besides them would have to wait for a core; and none of them sleeps through a pass to be
late for the product after it. Elsewhere a small pool helps with passes that are long enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

# Below this a thread has less to do than its start costs: PyTorch's own, and one of the pool.
_ELEMENTS_PER_THREAD, _ELEMENTS_PER_HELPER = 1 << 17, 1 << 18


def share_rows(count: int, size: int, work: Callable[[int, int], object], lanes: int = 1) -> None:
    """Call work(first, last) until all `count` rows of `size` values are done, on as many threads as there are.

    lanes: no call gets fewer rows than this. The loop must let go of Python's lock.
    """
    threads = torch.get_num_threads()
    openmp = _openmp() if threads > 1 else None
    fewest = _ELEMENTS_PER_HELPER if openmp is None else _ELEMENTS_PER_THREAD
    parts = max(1, min(threads, count * size // fewest, count // (2 * lanes)))
    if parts == 1:
        work(0, count)
        return
    step = -(-count // (parts * lanes)) * lanes
    edges = [start for start in range(0, count, step) if count - start >= lanes] + [count]
    spans = list(zip(edges, edges[1:]))
    if openmp is None:
        _on_helpers(spans, work)
    else:
        _on_openmp(openmp, threads, spans, work)


def _on_helpers(spans: list[tuple[int, int]], work: Callable[[int, int], object]) -> None:
    others = [_helpers().submit(work, *span) for span in spans[1:]]
    work(*spans[0])
    for other in others:
        other.result()


def _on_openmp(
    openmp: ctypes.CDLL, threads: int, spans: list[tuple[int, int]], work: Callable[[int, int], object]
) -> None:
    # The team may be smaller than asked (OMP_THREAD_LIMIT, OMP_DYNAMIC): whoever is there takes what is left.
    left, came, failed = iter(spans), set(), []

    def body(_) -> None:
        try:
            came.add(threading.get_ident())
            for span in left:
                work(*span)
        except BaseException as error:  # must not leave the library's frame; raised below
            failed.append(error)

    # With the number of threads that PyTorch asks for, its team stays together.
    openmp.GOMP_parallel(_BODY(body), None, threads, 0)
    if failed:
        raise failed[0]
    if threading.get_ident() not in came:  # an interrupt came before `try`, where ctypes swallows it
        raise KeyboardInterrupt


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP library that PyTorch brought and loaded; None where it uses another one."""
    home = Path(torch.__file__).parent
    for path in (*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")):
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            found.GOMP_parallel.argtypes = [_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            found.GOMP_parallel.restype = None
            return found
    return None


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1), thread_name_prefix="rows")
