"""Transformer blocks that may be skipped: Y = X + Δ_cached instead of computing.

A block's class is replaced by a subclass of the same name (regional compilation in diffusers
looks blocks up by name) whose forward hands over to the active run. The block itself gains two
attributes, its owner and its place, and loses them again.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import NamedTuple, Sequence

import torch
from torch import nn


class Place(NamedTuple):
    """Where a block stands. model: the transformer's slot; index: the block's number in it;
    streams: (argument name, position) of each residual stream, in the order of the outputs."""

    model: str
    index: int
    streams: tuple[tuple[str, int], ...]


def wrap(block: nn.Module, owner, model: str, index: int, streams: Sequence[str]) -> None:
    """Give `block` the skipping forward, in place. `streams`: its residual arguments by name."""
    names = list(inspect.signature(type(block).forward).parameters)[1:]
    place = Place(model, index, tuple((name, names.index(name)) for name in streams))
    block.__dict__.update(_owner=owner, _place=place, _leftover=block.__dict__.pop("forward", None))
    block.__class__ = _skipping(type(block))


def unwrap(block: nn.Module) -> None:
    """Undo `wrap`: the stock class, and the attributes the block had before."""
    block.__class__ = type(block).__mro__[1]
    leftover = block.__dict__.pop("_leftover")
    del block.__dict__["_owner"], block.__dict__["_place"]
    if leftover is not None:
        block.__dict__["forward"] = leftover


def own_forward(module: nn.Module) -> bool:
    """Whether `module` runs its class's own forward.

    An instance attribute that is the class's own method counts: diffusers leaves one behind
    when a cache is disabled. Anything else there is somebody's hook.
    """
    forward = module.__dict__.get("forward")
    if forward is None:
        return True
    return getattr(forward, "__self__", None) is module and getattr(forward, "__func__", None) is type(module).forward


def streams_in(place: Place, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The residual streams among a block call's arguments, in the order of its outputs."""
    return [kwargs[name] if name in kwargs else args[position] for name, position in place.streams]


@lru_cache(maxsize=None)
def _skipping(cls: type[nn.Module]) -> type[nn.Module]:
    def forward(self, *args, **kwargs):
        run = self._owner.active()
        if run is None:
            return cls.forward(self, *args, **kwargs)
        return run.block(self._place, lambda: cls.forward(self, *args, **kwargs), args, kwargs)

    # Decisions change from step to step: a compiler would guard on them and compile again and again.
    forward = torch.compiler.disable(forward)
    # Code that inspects a block's arguments must find the stock signature.
    forward.__signature__ = inspect.signature(cls.forward)
    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__, "__doc__": cls.__doc__})
