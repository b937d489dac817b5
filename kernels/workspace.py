"""Where unpacked weights live.

On a GPU a layer's weight is converted once per call into one shared buffer, as large as the
largest layer: only the packed form stays. On a CPU memory is cheap and conversion is not, so the
unpacked weights stay, least recently used out first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Callable

import torch

DEFAULT_BYTES = 1 << 30


class Workspace:
    """Reusable memory for unpacked weights; one per attached pipe.

    budget: bytes of unpacked weights to keep (CPU). The buffer of `buffer` is valid until the next
    call on that device, so one workspace must not serve two CUDA streams at once.
    Safe to use from several CPU threads.
    """

    def __init__(self, budget: int = DEFAULT_BYTES) -> None:
        self.budget = budget
        self._kept: OrderedDict[tuple, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        self._kept_bytes = 0
        self._buffers: dict[torch.device, torch.Tensor] = {}
        self._lock = threading.Lock()

    def unpacked(self, route: str, codes: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The tensor `make()` returns for these codes on this route, made at most once while kept.

        The codes are held too, so their address identifies them for as long as the entry lives; an
        in-place change of them makes a new entry.
        """
        version = 0 if codes.is_inference() else codes._version
        key = (route, codes.data_ptr(), tuple(codes.shape), version)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = (codes, made)
                self._kept_bytes += made.nbytes
            while self._kept_bytes > self.budget and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.nbytes
        return made

    def buffer(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Uninitialised memory of this shape, overwritten by the next call for this device."""
        needed = shape[0] * shape[1] * dtype.itemsize
        held = self._buffers.get(device)
        if held is None or held.numel() < needed:
            # Dropped first, so that the old and the new one never coexist.
            self._buffers.pop(device, None)
            held = None
            self._buffers[device] = torch.empty(needed, dtype=torch.uint8, device=device)
        return self._buffers[device][:needed].view(dtype).view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes held at the moment."""
        return self._kept_bytes + sum(buffer.numel() for buffer in self._buffers.values())

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0
            self._buffers.clear()
