"""Closeness of two clips, pixel by pixel. Frames are uint8 (F, H, W, 3) RGB of one and the same shape."""
from __future__ import annotations

import math

import numpy as np

PEAK = 255.0


def psnr(frames: np.ndarray, reference: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB over the whole clip: 10·log₁₀(255² / MSE); inf for equal clips.

    One MSE for all frames, not a mean of decibels per frame, so that a single black frame cannot hide.
    """
    frames, reference = _same(frames, reference)
    error = np.square(frames.astype(np.float32) - reference.astype(np.float32)).mean(dtype=np.float64)
    return math.inf if error == 0 else 10 * math.log10(PEAK**2 / error)


def ssim(frames: np.ndarray, reference: np.ndarray) -> float:
    """Structural similarity (Wang et al. 2004: Gaussian window, σ 1.5), mean over channels and frames; 1 when equal."""
    from skimage.metrics import structural_similarity

    frames, reference = _same(frames, reference)
    if min(frames.shape[1:3]) < 11:
        raise ValueError(f"SSIM needs frames of at least 11×11 pixels, got {frames.shape[1]}×{frames.shape[2]}.")
    settings = dict(channel_axis=-1, data_range=PEAK, gaussian_weights=True, sigma=1.5, use_sample_covariance=False)
    return float(np.mean([structural_similarity(a, b, **settings) for a, b in zip(frames, reference)]))


def latent_error(latents: np.ndarray, reference: np.ndarray) -> float:
    """Relative L2 distance ‖a − b‖₂ / ‖b‖₂ of two latents of any one shape, as recorded at one denoising step."""
    a, b = np.asarray(latents, np.float64), np.asarray(reference, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"Expected two latents of one shape, got {a.shape} and {b.shape}.")
    scale = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / scale) if scale else math.nan


def _same(frames: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    frames, reference = np.asarray(frames), np.asarray(reference)
    for clip in (frames, reference):
        if clip.ndim != 4 or clip.shape[-1] != 3 or clip.dtype != np.uint8 or not clip.size:
            raise ValueError(f"Expected frames as uint8 (frames, height, width, 3), got {clip.dtype} {clip.shape}.")
    if frames.shape != reference.shape:
        raise ValueError(
            f"Expected two clips of one shape, got {frames.shape} and {reference.shape}; "
            "compare runs of the same size and frame count."
        )
    return frames, reference
