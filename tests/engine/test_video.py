import ctypes
import json
import subprocess
import sys

import numpy as np
import pytest

from engine.video import VideoError, read_mp4, write_mp4


def clip(frames=17, height=128, width=128):
    """A square of pure red that walks over a grey ground, so that order and colour can be read back."""
    out = np.full((frames, height, width, 3), 96, np.uint8)
    for index in range(frames):
        out[index, 40:80, 8 + 4 * index : 40 + 4 * index] = (220, 30, 30)
    return out


def probe(path):
    command = ["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-of", "json", str(path)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["streams"]


@pytest.mark.parametrize("frames, fps, rate", [(17, 8, "8/1"), (1, 8, "8/1"), (5, 16, "16/1"), (3, 12.5, "25/2")])
def test_a_player_sees_h264_yuv420p_at_the_right_rate_and_count(tmp_path, frames, fps, rate):
    [stream] = probe(write_mp4(tmp_path / "a.mp4", clip(frames), fps))
    assert (stream["codec_name"], stream["pix_fmt"]) == ("h264", "yuv420p")
    assert (stream["width"], stream["height"]) == (128, 128)
    assert stream["r_frame_rate"] == rate and int(stream["nb_read_frames"]) == frames
    assert (stream["color_space"], stream["color_range"]) == ("bt709", "tv")
    assert float(stream["duration"]) == pytest.approx(frames / fps, abs=0.002)


def test_colours_and_order_survive_the_round_trip(tmp_path):
    frames, fps = read_mp4(write_mp4(tmp_path / "a.mp4", clip(), 8))
    assert fps == 8 and frames.shape == (17, 128, 128, 3)
    assert np.abs(frames.astype(int) - clip()).mean() < 2
    assert np.abs(frames[16, 60, 90].astype(int) - (220, 30, 30)).max() <= 8


@pytest.mark.parametrize("name", ["a.mp4", "a.avi", "a", "a.MKV"])
def test_it_is_an_mp4_whatever_its_name(tmp_path, name):
    path = write_mp4(tmp_path / name, clip(3), 8)
    assert path.read_bytes()[4:8] == b"ftyp" and len(read_mp4(path)[0]) == 3


def test_only_the_named_file_is_left_behind_and_it_is_replaced_whole(tmp_path):
    path = tmp_path / "a.mp4"
    write_mp4(path, clip(17), 8)
    write_mp4(path, clip(5), 8)
    assert [item.name for item in tmp_path.iterdir()] == ["a.mp4"]
    assert len(read_mp4(path)[0]) == 5


def test_a_write_that_fails_half_way_keeps_the_old_file(tmp_path, monkeypatch):
    path = write_mp4(tmp_path / "a.mp4", clip(5), 8)
    before = path.read_bytes()

    def full_disk(target, frames, rate):
        target.write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.video._encode", full_disk)
    with pytest.raises(VideoError, match=r"'a.mp4' cannot be written \(No space left on device\)"):
        write_mp4(path, clip(17), 8)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "frames, fps, sentence",
    [
        (np.zeros((2, 8, 8, 3), np.float32), 8, "uint8"),
        (np.zeros((0, 8, 8, 3), np.uint8), 8, "Expected frames"),
        (np.zeros((8, 8, 3), np.uint8), 8, "Expected frames"),
        (np.zeros((2, 7, 8, 3), np.uint8), 8, "even height"),
        (np.zeros((2, 8, 8, 3), np.uint8), 0, "frame rate"),
    ],
)
def test_bad_clips_get_one_sentence(tmp_path, frames, fps, sentence):
    with pytest.raises(VideoError, match=sentence):
        write_mp4(tmp_path / "a.mp4", frames, fps)
    assert not list(tmp_path.iterdir())


def test_missing_folders_and_foreign_or_truncated_files_get_one_sentence(tmp_path):
    with pytest.raises(VideoError, match="does not exist"):
        write_mp4(tmp_path / "no" / "a.mp4", clip(2), 8)
    with pytest.raises(VideoError, match="Expected a video at 'none.mp4', but there is no such file"):
        read_mp4(tmp_path / "none.mp4")
    with pytest.raises(VideoError, match="but that is a folder; give the file itself"):
        read_mp4(tmp_path)
    (tmp_path / "text.mp4").write_text("<script>alert(1)</script>")
    with pytest.raises(VideoError, match="not a readable video"):
        read_mp4(tmp_path / "text.mp4")
    whole = write_mp4(tmp_path / "a.mp4", clip(), 8).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(VideoError):
        read_mp4(tmp_path / "cut.mp4")


@pytest.mark.skipif(sys.platform != "linux", reason="fills freed memory through the C library of Linux")
def test_the_same_frames_are_the_same_file_whatever_memory_held_before(tmp_path):
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    noise = np.random.default_rng(0).normal(0, 12, (9, 32, 32, 3))
    frames = (np.linspace(0, 255, noise.size).reshape(noise.shape) + noise).clip(0, 255).astype(np.uint8)
    files = set()
    for value in (0, 255, 90, 17, 128, 3):
        sizes = [2**power + more for power in range(8, 18) for more in (0, 64, 512, 3000)] * 6
        places = [(library.malloc(size), size) for size in sizes]
        for place, size in places:
            library.memset(place, value, size)
        for place, _ in places:
            library.free(place)
        files.add(write_mp4(tmp_path / "clip.mp4", frames, 8).read_bytes())
    assert len(files) == 1
