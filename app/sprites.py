"""Clips as sprite sheets: what the canvases on the page draw.

One WebP picture holds a whole preview clip (frames side by side), or all previews of a run (one row per step). At
latent size that is some 40 KB a step, against 400 KB for a video element that would also blink at every change.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

QUALITY = 82
WIDEST = 16_383        # pixels, a limit of the WebP format


def sheet(frames: np.ndarray, quality: int = QUALITY) -> dict[str, Any]:
    """uint8 (F, h, w, 3) → {"src": data URI, "w", "h", "n"}: one row of frames."""
    picture = _row(frames)
    return {"src": uri(encode(picture, quality)), **_shape(frames)}


def book(clips: list[np.ndarray], quality: int = QUALITY) -> tuple[bytes, dict[str, int]]:
    """Clips of one shape → (WebP bytes with one row per clip, {"w", "h", "n"}).

    Raises ValueError where the rows would not fit into one picture; make the previews smaller then.
    """
    if not clips:
        raise ValueError("Expected at least one clip for a sprite book; got none. Record with previews on.")
    height = clips[0].shape[1] * len(clips)
    if height > WIDEST:
        raise ValueError(f"A sprite book of {height} pixels is taller than the {WIDEST} that WebP allows; "
                         "record smaller previews or fewer steps.")
    return encode(np.concatenate([_row(clip) for clip in clips], axis=0), quality), _shape(clips[0])


def encode(picture: np.ndarray, quality: int = QUALITY) -> bytes:
    """uint8 (h, w, 3) → WebP bytes. Method 2 is three times as fast as the default and 5 % larger."""
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(out, "WEBP", quality=quality, method=2)
    return out.getvalue()


def _row(frames: np.ndarray) -> np.ndarray:
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
        raise ValueError(f"Expected frames as uint8 (F, h, w, 3); got {frames.dtype} {frames.shape}.")
    frames = _fit(frames)
    count, height, width, _ = frames.shape
    return frames.transpose(1, 0, 2, 3).reshape(height, count * width, 3)


def _fit(frames: np.ndarray) -> np.ndarray:
    """Halve the clip until a row fits into one picture."""
    while frames.shape[0] * frames.shape[2] > WIDEST:
        frames = frames[:, ::2, ::2]
    return frames


def _shape(frames: np.ndarray) -> dict[str, int]:
    fitted = _fit(frames)
    return {"w": fitted.shape[2], "h": fitted.shape[1], "n": fitted.shape[0]}


def uri(data: bytes) -> str:
    """WebP bytes as an address that needs no file."""
    return "data:image/webp;base64," + base64.b64encode(data).decode()
