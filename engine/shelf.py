"""Reference clips that processes of one machine make once and share, as files."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

Clip = tuple[torch.Tensor, np.ndarray]
"""Latents, and the frames (F, H, W, 3) uint8 that they decode to."""


class Shelf:
    """Clips by name in `folder`; None keeps nothing.

    what: everything else that determines a clip: the kind of device, the weights, steps, guidance, size.
    """

    def __init__(self, folder: Path | None, what: str):
        self._folder, self._what = folder, what

    def clip(self, name: str, device: torch.device, make: Callable[[], Clip]) -> Clip:
        """The clip of this name: read where another process wrote it, else made and written."""
        if self._folder is None:
            return make()
        digest = hashlib.sha256(f"{self._what} {name}".encode()).hexdigest()[:20]
        path = Path(self._folder) / f"{digest}.npz"
        if path.exists():
            with np.load(path) as file:
                dtype = getattr(torch, str(file["dtype"]))
                return torch.from_numpy(file["latents"]).to(device, dtype), file["frames"]
        latents, frames = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}.part")
        with open(scratch, "wb") as file:  # bfloat16 fits into float32 without loss
            dtype = str(latents.dtype).removeprefix("torch.")
            np.savez(file, latents=latents.float().cpu().numpy(), frames=frames, dtype=dtype)
        os.replace(scratch, path)
        return latents, frames
