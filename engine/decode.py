"""Decode in tiles where the whole did not fit: the last and hungriest stage must not cost a finished run.

The latents are the argument of the autoencoder's `decode`, so they are still there when it fails; what it left behind
is freed, tiling is switched on, and the same call is made again.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TOO_LITTLE = (torch.OutOfMemoryError, MemoryError)


@contextmanager
def retried_in_tiles(vae) -> Iterator[None]:
    """Within it, `vae.decode` that runs out of memory is repeated tiled, with a warning.

    vae: a diffusers autoencoder, or None. An autoencoder that tiles already, or cannot, raises as before; its own
    setting is put back at the end. Frames of tiles differ a little where tiles meet.
    """
    if vae is None or not hasattr(vae, "enable_tiling"):
        yield
        return
    stock, tiled, absent = vae.decode, getattr(vae, "use_tiling", False), object()
    before = vae.__dict__.get("decode", absent)
    settings = {name: value for name, value in vae.__dict__.items() if name.startswith("tile_")}

    def decode(*args, **kwargs):
        try:
            return stock(*args, **kwargs)
        except TOO_LITTLE:
            if getattr(vae, "use_tiling", False):
                raise
        # Outside of the handler: the exception's frames hold the very tensors that did not fit.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            "The memory was not enough to decode the clip in one piece; it is decoded in tiles.", stacklevel=2
        )
        vae.enable_tiling()
        vae.__dict__.update(_fitting_overlaps(vae))
        return stock(*args, **kwargs)

    vae.decode = decode
    try:
        yield
    finally:
        if before is absent:
            del vae.decode
        else:
            vae.decode = before
        vae.use_tiling = tiled
        vae.__dict__.update(settings)


def _fitting_overlaps(vae) -> dict[str, float]:
    """CogVideoX cuts its tiles by fractions, rounded once in latents and once in pixels: unless both agree, the frames
    come out in another size than asked for. The fraction nearest to the stock sixth for which they do, per axis."""
    found = {}
    for axis in ("height", "width"):
        latent, sample = (getattr(vae, f"tile_{of}_min_{axis}", 0) for of in ("latent", "sample"))
        if not hasattr(vae, f"tile_overlap_factor_{axis}") or not latent or sample % latent:
            continue
        for overlap in sorted(range(1, latent), key=lambda count: abs(count - latent / 6)):
            factor = overlap / latent
            if int(latent * (1 - factor)) * (sample // latent) + int(sample * factor) == sample:
                found[f"tile_overlap_factor_{axis}"] = factor
                break
    return found
