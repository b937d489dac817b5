import math

import numpy as np
import pytest

from engine.metrics import flicker, latent_error, psnr, ssim, warping_error


def texture(seed=0, size=64):
    """Smooth noise, so that optical flow has something to hold on to."""
    coarse = np.random.default_rng(seed).uniform(40, 215, (size // 8, size // 8, 3))
    import cv2

    return cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC).clip(0, 255)


def sliding(frames=6, step=2):
    rolled = [np.roll(texture(size=96), step * index, 1)[16:80, 16:80] for index in range(frames)]
    return np.stack(rolled).astype(np.uint8)


def test_psnr_by_hand_and_for_equal_clips():
    clip = np.full((3, 16, 16, 3), 100, np.uint8)
    assert psnr(clip, clip) == math.inf
    # every value off by 5: MSE 25, 10·log10(65025 / 25) = 34.1514 dB
    assert psnr(clip + np.uint8(5), clip) == pytest.approx(34.1514, abs=1e-4)


def test_psnr_pools_the_error_of_all_frames():
    clip = np.zeros((4, 16, 16, 3), np.uint8)
    other = clip.copy()
    other[0] = 255
    assert psnr(other, clip) == pytest.approx(10 * math.log10(4), abs=1e-6)


def test_ssim_is_one_for_equal_clips_and_falls_with_structure_not_with_a_shift():
    clip = sliding()
    noisy = (clip + np.random.default_rng(0).normal(0, 25, clip.shape)).clip(0, 255).astype(np.uint8)
    brighter = (clip.astype(int) + 10).clip(0, 255).astype(np.uint8)
    assert ssim(clip, clip) == pytest.approx(1)
    assert ssim(noisy, clip) < 0.8 < ssim(brighter, clip) < 1


def test_flicker_ignores_motion_and_sees_a_blinking_background():
    moving = np.full((6, 96, 96, 3), 90, np.uint8)
    for index in range(6):
        moving[index, 10:30, 6 * index + 4 : 6 * index + 24] = 230
    blinking = moving.copy()
    blinking[1::2, 60:] += 6
    assert flicker(moving) == pytest.approx(0, abs=0.05)
    assert flicker(blinking, reference=moving) > 1.5


def test_warping_error_follows_motion_and_sees_boiling():
    still = sliding(step=0)
    boiling = (still + np.random.default_rng(1).normal(0, 12, still.shape)).clip(0, 255).astype(np.uint8)
    assert warping_error(still) == 0
    assert warping_error(sliding(step=2)) < 1.5
    assert warping_error(boiling) > 4


def test_one_frame_has_no_flicker_and_no_warping_error():
    assert math.isnan(flicker(sliding(1))) and math.isnan(warping_error(sliding(1)))


def test_latent_error_is_relative():
    a = np.ones((2, 3))
    assert latent_error(a * 1.1, a) == pytest.approx(0.1)
    assert math.isnan(latent_error(a, a * 0))
    with pytest.raises(ValueError, match="one shape"):
        latent_error(a, np.ones((3, 2)))


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_unequal_or_foreign_clips_get_one_sentence(measure):
    clip = np.zeros((3, 16, 16, 3), np.uint8)
    with pytest.raises(ValueError, match="one shape"):
        measure(clip, clip[:2])
    with pytest.raises(ValueError, match="uint8"):
        measure(clip / 255, clip)
