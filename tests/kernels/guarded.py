"""Memory between two forbidden pages, and Triton's interpreter made to run every launch in it.

The interpreter loads and stores at the addresses that a kernel computes. So, without a GPU, a launch whose tensors end
at a page without any rights, or begin right behind one, dies of the first element it touches past an end. What lies
between the rows of a strided tensor, and on the far side of it, is a canary: a launch that writes there is told of;
one that reads there gives other results under another canary. Memory nobody has written yet holds the canary too.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from typing import Callable, Iterator, NamedTuple

import torch

SUPPORTED = sys.platform in ("linux", "darwin")
_PAGE = mmap.PAGESIZE


class Side(NamedTuple):
    """at_end: tensors end at the forbidden page; otherwise they begin behind it. canary: the byte all around."""

    at_end: bool
    canary: int


# NaN in every float format or -1, and 1.5e16 or 90: not zeros, which are what strays most often.
SIDES = {"end": Side(True, 0xFF), "start": Side(False, 0x5A)}


class OutOfPlace(Exception):
    """A launch wrote where it should not: into a gap between rows, or past the end that no page guards."""


class _Region:
    """`size` bytes against a forbidden page, the rest of the pages around them filled with the canary."""

    def __init__(self, size: int, side: Side):
        self._inner = max(1, -(-size // _PAGE)) * _PAGE
        self._map = mmap.mmap(-1, self._inner + 2 * _PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        first = base + _PAGE
        ctypes.memset(first, side.canary, self._inner)
        for page in (base, first + self._inner):
            _forbid(page)
        whole = _bytes_at(first, self._inner)
        offset = self._inner - size if side.at_end else 0
        self.bytes, self._slack = whole[offset : offset + size], (whole[:offset], whole[offset + size :])
        self.address, self._canary = first + offset, side.canary

    def overrun(self) -> bool:
        """Whether anything was written beside the bytes."""
        return any(bool((part != self._canary).any()) for part in self._slack)


def _bytes_at(address: int, size: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)


def _forbid(page: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect refused to forbid a page")


class _Guarded:
    """A tensor's twin of the same strides in a region of its own; `give_back` carries what was written to the tensor."""

    def __init__(self, tensor: torch.Tensor, side: Side):
        width = tensor.element_size()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        self._original = tensor.as_strided((extent,), (1,)).view(torch.uint8).view(extent, width)
        self._inside = torch.zeros(extent, dtype=torch.bool)
        self._inside[torch.arange(extent).as_strided(tensor.shape, tensor.stride()).reshape(-1)] = True
        self._region = _Region(extent * width, side)
        self._bytes = self._region.bytes.view(extent, width)
        self._bytes[self._inside] = self._original[self._inside]
        self._before = self._bytes.clone()
        memory = (ctypes.c_ubyte * (extent * width)).from_address(self._region.address)
        self.tensor = torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def give_back(self) -> None:
        changed = self._bytes != self._before
        if self._region.overrun() or bool(changed[~self._inside].any()):
            raise OutOfPlace
        # Only what changed: other arguments may be views of the same memory.
        self._original[changed] = self._bytes[changed]


@contextlib.contextmanager
def guarded_launches(side: Side, before: Callable[[str], None]) -> Iterator[None]:
    """Meanwhile every launch of the interpreter has all its tensors guarded, and `torch.empty` gives the canary.

    before: told each launch in words before it begins, so that a process that dies has said of what.
    Raises OutOfPlace, naming the launch and the argument, where a canary was overwritten.
    """
    from triton.runtime import interpreter
    from triton.tools.tensor_descriptor import TensorDescriptor

    stock_call, stock_empty = interpreter.GridExecutor.__call__, torch.empty

    def empty(*size, **options):
        made = stock_empty(*size, **options)
        if made.numel():
            made.view(-1).view(torch.uint8).fill_(side.canary)
        return made

    def call(executor, *arguments, **options):
        held: dict[str, _Guarded] = {}

        def guard(name, argument):
            if isinstance(argument, TensorDescriptor):
                fields = {**vars(argument), "base": guard(name, argument.base)}
                return TensorDescriptor(**fields)
            if not isinstance(argument, torch.Tensor) or not argument.numel():
                return argument
            held[name] = _Guarded(argument, side)
            return held[name].tensor

        names = executor.arg_names
        placed = [guard(name, argument) for name, argument in zip(names, arguments)]
        words = f"{executor.fn.__name__} grid {executor.grid} " + ", ".join(
            f"{name} {tuple(part.tensor.shape)}/{part.tensor.stride()} {part.tensor.dtype}" for name, part in held.items()
        )
        before(words)
        stock_call(executor, *placed, **{name: guard(name, option) for name, option in options.items()})
        for name, part in held.items():
            try:
                part.give_back()
            except OutOfPlace:
                raise OutOfPlace(f"{words}: wrote outside of {name}") from None

    interpreter.GridExecutor.__call__, torch.empty = call, empty
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__, torch.empty = stock_call, stock_empty


@contextlib.contextmanager
def quick_interpreter() -> Iterator[set[str]]:
    """Meanwhile device functions run without setting up the interpreter anew on each call, up to half of its time.

    The set receives the names of all jitted functions that ran, kernels and device functions.
    """
    from triton.runtime import interpreter

    stock_run, stock_call = interpreter.InterpretedFunction.run, interpreter.InterpretedFunction.__call__
    ready: set = set()
    ran: set[str] = set()

    def run(function, *arguments, **options):
        # A launch that ends puts the language back as it was.
        ready.clear()
        ran.add(function.fn.__name__)
        return stock_run(function, *arguments, **options)

    def call(function, *arguments, **options):
        if function.fn not in ready:
            ready.add(function.fn)
            ran.add(function.fn.__name__)
            return stock_call(function, *arguments, **options)
        return function.rewrite()(*arguments, **options)

    interpreter.InterpretedFunction.run, interpreter.InterpretedFunction.__call__ = run, call
    try:
        yield ran
    finally:
        interpreter.InterpretedFunction.run, interpreter.InterpretedFunction.__call__ = stock_run, stock_call
