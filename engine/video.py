"""Clips in and out of mp4 files: h264, yuv420p, BT.709 limited range, constant frame rate.

Those four are what every browser plays at the right speed and in the right colours; a file says all of them in its
header, so that no player has to guess.
"""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np

from engine.files import NotWritten, existing, write_atomic

BT709 = 1
# Below this, x264's look-ahead works on pictures so narrow that its AVX-512 code reads memory that nothing was written
# to, and the same frames become different files.
SMALLEST_AHEAD = 64
NO_LOOK_AHEAD = {"x264-params": "rc-lookahead=0:mbtree=0:sync-lookahead=0"}
LIMITED_RANGE = 1


class VideoError(ValueError):
    """A clip that cannot be written or a file that is no readable clip, said in one sentence."""


def write_mp4(path: str | os.PathLike, frames: np.ndarray, fps: float) -> Path:
    """Write frames, uint8 (F, H, W, 3) RGB with even H and W, as an h264 mp4 of exactly F frames at `fps`.

    Returns the path; the file appears whole or not at all. Raises VideoError for another shape, dtype or rate, and for
    a place that cannot be written.
    """
    frames = np.asarray(frames)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or not frames.size:
        raise VideoError(f"Expected frames as uint8 (frames, height, width, 3), got {frames.dtype} {frames.shape}.")
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise VideoError(f"Expected an even height and width for yuv420p, got {frames.shape[1]}×{frames.shape[2]}.")
    if not 0 < fps <= 240:
        raise VideoError(f"Expected a frame rate between 0 and 240, got {fps}.")
    rate = Fraction(fps).limit_denominator(1001)
    try:
        return write_atomic(path, lambda partial: _encode(partial, frames, rate))
    except NotWritten as error:
        raise VideoError(str(error)) from error


def _encode(path: Path, frames: np.ndarray, rate: Fraction) -> None:
    import av
    from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        ahead = {} if min(frames.shape[1:3]) >= SMALLEST_AHEAD else NO_LOOK_AHEAD
        stream = container.add_stream("libx264", rate=rate, options={"crf": "14", "preset": "medium", **ahead})
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = LIMITED_RANGE
        context.time_base = 1 / rate
        convert = VideoReformatter()
        for index, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture = convert.reformat(
                picture,
                format="yuv420p",
                dst_colorspace=Colorspace.ITU709,
                src_color_range=ColorRange.JPEG,
                dst_color_range=ColorRange.MPEG,
            )
            picture.pts, picture.time_base = index, 1 / rate
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def read_mp4(path: str | os.PathLike, most: int | None = None) -> tuple[np.ndarray, float]:
    """Read the first video stream of a file: frames uint8 (F, H, W, 3) RGB, and its average rate in frames a second.

    Raises VideoError for a missing file, a file that is no video, a truncated one, and one of more than `most` frames,
    of which no more are decoded.
    """
    import av

    path = existing(path, "a video", VideoError)
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            wanted = islice(container.decode(stream), None if most is None else most + 1)
            frames = [frame.to_ndarray(format="rgb24") for frame in wanted]
            rate, promised = stream.average_rate, stream.frames
    except (av.FFmpegError, IndexError) as error:
        raise VideoError(f"{path} is not a readable video; give an mp4 file.") from error
    if most is not None and len(frames) > most:
        raise VideoError(f"{path} has more than {most:,} frames; cut it shorter.")
    if not frames or len(frames) < promised:
        raise VideoError(f"{path} is truncated: {len(frames)} of {promised} frames could be read.")
    return np.stack(frames), float(rate)
