"""Steadiness of a clip over time, by optical flow (OpenCV's DIS). Both figures are in 8-bit grey levels, 0 = steady.

Motion is not flicker: `flicker` looks only where nothing moves, `warping_error` follows what does.
"""
from __future__ import annotations

import numpy as np

STILL = 0.25  # px a frame: less is no motion
REACH = 7  # px around anything moving that is left out, the extent of a DIS patch
AGREEMENT = 1.0  # px by which the flow there and back may miss before a pixel counts as occluded


def flicker(frames: np.ndarray, reference: np.ndarray | None = None) -> float:
    """Mean |luma change| between neighbouring frames over pixels that stand still.

    frames uint8 (F, H, W, 3). What stands still is decided on `reference` where one is given, so that two versions
    of a clip are judged on the same pixels. NaN for a single frame, or where everything moves.
    """
    import cv2

    luma = _luma(frames)
    judge = luma if reference is None else _luma(reference)
    if judge.shape != luma.shape:
        raise ValueError(f"Expected a reference of the same shape, got {luma.shape} and {judge.shape}.")
    around = np.ones((2 * REACH + 1,) * 2, np.uint8)
    total = count = 0.0
    for index in range(len(luma) - 1):
        speed = np.linalg.norm(_flow(judge[index], judge[index + 1]), axis=-1)
        still = cv2.dilate((speed > STILL).astype(np.uint8), around) == 0
        total += np.abs(luma[index + 1].astype(np.float32) - luma[index])[still].sum()
        count += still.sum()
    return float(total / count) if count else float("nan")


def warping_error(frames: np.ndarray) -> float:
    """Mean |frame t − frame t+1 warped back along the flow| over pixels visible in both, all channels.

    After Lai et al. 2018 (blind video temporal consistency), with the occlusion mask from forward-backward
    agreement. frames uint8 (F, H, W, 3). NaN for a single frame.
    """
    import cv2

    luma = _luma(frames)
    rows, columns = np.mgrid[: luma.shape[1], : luma.shape[2]].astype(np.float32)
    total = count = 0.0
    for index in range(len(luma) - 1):
        there, back = _flow(luma[index], luma[index + 1]), _flow(luma[index + 1], luma[index])
        x, y = columns + there[..., 0], rows + there[..., 1]
        returned = there + cv2.remap(back, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        inside = (x >= 0) & (x <= luma.shape[2] - 1) & (y >= 0) & (y <= luma.shape[1] - 1)
        visible = inside & (np.linalg.norm(returned, axis=-1) < AGREEMENT)
        warped = cv2.remap(frames[index + 1], x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        total += np.abs(warped.astype(np.float32) - frames[index]).mean(-1)[visible].sum()
        count += visible.sum()
    return float(total / count) if count else float("nan")


def _luma(frames: np.ndarray) -> np.ndarray:
    """uint8 (F, H, W) brightness of uint8 (F, H, W, 3) RGB frames."""
    import cv2

    frames = np.asarray(frames)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise ValueError(f"Expected frames as uint8 (frames, height, width, 3), got {frames.dtype} {frames.shape}.")
    return np.stack([cv2.cvtColor(np.ascontiguousarray(frame), cv2.COLOR_RGB2GRAY) for frame in frames])


def _flow(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """float32 (H, W, 2): where each pixel of `first` went, as (x, y) in pixels."""
    import cv2

    return cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST).calc(first, second, None)
