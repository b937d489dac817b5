"""Where the cached deltas of a run live: on the device, or in pinned host memory behind a prefetch.

At CogVideoX-5B's size the 8-bit deltas of all blocks take 4.6 GB, more than the packed weights. Each is needed once per
step, in a known order, so they may wait in host memory: while one block computes (28–40 ms on an H200), the next
block's delta (109 MB, 2 ms over PCIe at 55 GB/s) is copied up on a side stream, and the fresh one is copied down.
A block that is skipped takes less time than its copy; what the copies cannot hide there shows in the step's time.
"""

from __future__ import annotations

from typing import Sequence

import torch

from kernels.residual import CachedDelta

CACHES = ("device", "host")

Entry = tuple[int, list[CachedDelta]]


class DeviceDeltas:
    """Per block the deltas of its last computed steps, newest first, on the device that made them."""

    def __init__(self, blocks: int):
        self._entries: list[list[Entry]] = [[] for _ in range(blocks)]

    def latest(self, index: int) -> Entry | None:
        """(step, one delta per stream) of the block's last computed step, or None."""
        history = self._entries[index]
        return history[0] if history else None

    def history(self, index: int) -> Sequence[Entry]:
        """All that is kept for a block, newest first."""
        return self._entries[index]

    def push(self, index: int, step: int, deltas: list[CachedDelta], keep: int) -> None:
        """Put a new delta in front and keep `keep` of them."""
        history = self._entries[index]
        history.insert(0, (step, deltas))
        del history[keep:]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(delta.nbytes for history in self._entries for _, deltas in history for delta in deltas)

    host_nbytes = 0


class HostDeltas:
    """The newest delta of every block, in pinned host memory; at most three are on the device at once.

    device: a CUDA device. Reading block i starts the copy of block i + 1. Copies run on a stream of their own, ordered
    by events, so no thread waits; values are what `DeviceDeltas` would hold, bit for bit.
    """

    def __init__(self, blocks: int, device: torch.device):
        self._device, self._blocks = device, blocks
        self._stream = torch.cuda.Stream(device)
        self._steps: list[int | None] = [None] * blocks
        self._pinned: list[list[CachedDelta] | None] = [None] * blocks
        self._stored: list[torch.cuda.Event | None] = [None] * blocks
        self._ahead: tuple[int, list[CachedDelta], torch.cuda.Event] | None = None
        self._held: tuple[int, list[CachedDelta]] | None = None

    def latest(self, index: int) -> Entry | None:
        """As `DeviceDeltas.latest`; the tensors are valid until the next block is asked for."""
        if self._steps[index] is None:
            return None
        if self._held is None or self._held[0] != index:
            if self._ahead is None or self._ahead[0] != index:
                self._fetch(index)
            _, deltas, arrived = self._ahead
            torch.cuda.current_stream(self._device).wait_event(arrived)
            self._held, self._ahead = (index, deltas), None
            following = (index + 1) % self._blocks
            if following != index and self._steps[following] is not None:
                self._fetch(following)
        return self._steps[index], self._held[1]

    def history(self, index: int) -> Sequence[Entry]:
        """The newest delta only: probing, which compares older ones, keeps them on the device."""
        newest = self.latest(index)
        return [] if newest is None else [newest]

    def push(self, index: int, step: int, deltas: list[CachedDelta], keep: int = 1) -> None:
        """Copy a new delta down, behind the work that makes it."""
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(made)
            if self._pinned[index] is None:
                self._pinned[index] = [delta.map(_pinned_like) for delta in deltas]
            for source, target in zip(deltas, self._pinned[index]):
                _copy(source, target, self._stream)
            self._stored[index] = torch.cuda.Event()
            self._stored[index].record(self._stream)
        self._steps[index] = step
        if self._held is not None and self._held[0] == index:
            self._held = None

    def _fetch(self, index: int) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._stored[index])
            deltas = [delta.to(self._device, non_blocking=True) for delta in self._pinned[index]]
            arrived = torch.cuda.Event()
            arrived.record(self._stream)
        # Made on the side stream, used on the main one: the allocator must know before it hands the memory on.
        main = torch.cuda.current_stream(self._device)
        for delta in deltas:
            delta.map(lambda part: part.record_stream(main) or part)
        self._ahead = (index, deltas, arrived)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory held between blocks."""
        held = [entry[1] for entry in (self._held, self._ahead) if entry is not None]
        return sum(delta.nbytes for deltas in held for delta in deltas)

    @property
    def host_nbytes(self) -> int:
        """Bytes of pinned host memory."""
        return sum(delta.nbytes for deltas in self._pinned if deltas is not None for delta in deltas)


def _pinned_like(part: torch.Tensor) -> torch.Tensor:
    return torch.empty(part.shape, dtype=part.dtype, pin_memory=True)


def _copy(source: CachedDelta, target: CachedDelta, stream: torch.cuda.Stream) -> None:
    for ours, theirs in (
        (source.codes, target.codes), (source.scale, target.scale), (source.block_scales, target.block_scales)
    ):
        if ours is not None:
            theirs.copy_(ours, non_blocking=True)
            ours.record_stream(stream)
