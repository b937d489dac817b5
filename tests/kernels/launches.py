"""What Triton would compile for the launches of a stretch of work, found without a GPU: each is noted, none runs."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch


@contextlib.contextmanager
def recorded_launches() -> Iterator[set[tuple]]:
    """Meanwhile no kernel runs; the set receives, for each launch, the key by which Triton would look for its binary.

    That is the kernel, its constants, the types of its other arguments with what Triton specializes on (an integer of
    1 or a multiple of 16, an aligned pointer), and the launch's options. Fresh memory is zero instead of arbitrary, so
    that work which goes on with results that no kernel wrote is the same every time.
    """
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime import jit

    found: set[tuple] = set()
    stock_run, stock_empty = jit.JITFunction.run, torch.empty
    binders: dict = {}

    def run(kernel, *arguments, grid, warmup, **options):
        if kernel not in binders:
            binders[kernel] = jit.create_function_from_signature(kernel.signature, kernel.params, CUDABackend)
        _, specialization, rest = binders[kernel](*arguments, **options)
        names = [parameter.name for parameter in kernel.params]
        found.add((kernel.fn.__name__, *zip(names, map(_plain, specialization)), *sorted(rest.items())))

    def empty(*size, **options):
        return stock_empty(*size, **options).zero_()

    jit.JITFunction.run, torch.empty = run, empty
    try:
        yield found
    finally:
        jit.JITFunction.run, torch.empty = stock_run, stock_empty


def _plain(kind: tuple) -> tuple:
    # A constant's or an option's value may be a list.
    return tuple(tuple(part) if isinstance(part, list) else part for part in kind)


def told(launch: tuple) -> str:
    """A launch in words, for a failed test."""
    name, *parts = launch
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in parts)
