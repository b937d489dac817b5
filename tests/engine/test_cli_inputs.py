"""--image and --video through the real command line, on saved random models."""

import json

import numpy as np
import pandas as pd
import pytest
from diffusers import CogVideoXImageToVideoPipeline, CogVideoXVideoToVideoPipeline
from PIL import Image

from engine.cli import main
from engine.cli_inputs import check_taken, read_inputs
from engine.policy import Policy
from engine.records import Calibration
from engine.trace import Trace
from engine.video import VideoError, read_mp4, write_mp4
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with three models and a picture and a clip to start from, of other sizes than the models'."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, made in (
        ("text", pipelines.cogvideox(layers=1)),
        ("picture", pipelines.cogvideox(CogVideoXImageToVideoPipeline, layers=1)),
        ("clip", pipelines.cogvideox(CogVideoXVideoToVideoPipeline, layers=1)),
        ("wan", pipelines.VARIANTS["wan 2.2 5b i2v"]()),
    ):
        made.save_pretrained(folder / name)
    pipelines.picture(48).save(folder / "first.png")
    frames = np.random.default_rng(3).integers(0, 255, (9, 48, 64, 3), dtype=np.uint8)
    write_mp4(folder / "clip.mp4", frames, 8)
    (folder / "text.png").write_text("no picture")
    return folder


def command(here, name, model, *more):
    return main([name, "--model", str(here / model), "--prompt", pipelines.PROMPT, "--steps", "3", *map(str, more)])


def made(here, target, model, *more):
    """The frames that `generate` writes to `target`."""
    assert command(here, "generate", model, "--seed", "0", "--policy", "w4a8", "--out", target, *more) == 0
    return read_mp4(target)[0]


def other_picture(folder):
    """A picture that is kept sideways, as a phone does, with an alpha channel."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGBA", (40, 24), "orange").save(folder / "other.png", exif=exif)
    return folder / "other.png"


@pytest.mark.parametrize("model, size", [("picture", ()), ("wan", ("--height", 32, "--width", 32))])
def test_a_video_from_a_picture(here, tmp_path, model, size):
    first = made(here, tmp_path / "a.mp4", model, "--frames", 9, *size, "--image", here / "first.png")
    other = made(here, tmp_path / "b.mp4", model, "--frames", 9, *size, "--image", other_picture(tmp_path))
    assert first.shape == (9, 32, 32, 3) and not np.array_equal(first, other)


def test_a_video_from_a_clip(here, tmp_path):
    assert made(here, tmp_path / "a.mp4", "clip", "--video", here / "clip.mp4").shape == (9, 32, 32, 3)


def test_compare_runs_every_preset_from_the_picture(here, tmp_path):
    arguments = ["--presets", "w4a8", "--csv", tmp_path / "rows.csv", "--image", here / "first.png"]
    assert command(here, "compare", "picture", *arguments) == 0
    assert list(pd.read_csv(tmp_path / "rows.csv")["preset"]) == ["w4a8"]


@pytest.mark.parametrize("model, option, file", [("picture", "--image", "first.png"), ("clip", "--video", "clip.mp4")])
def test_calibrate_measures_from_it(here, tmp_path, model, option, file):
    assert command(here, "calibrate", model, "--out", tmp_path / "lines.json", option, here / file) == 0
    assert len(Calibration.load(tmp_path / "lines.json").rows) == 4


def test_lines_and_tolerances_fit_the_steps_that_were_asked_for_though_strength_shortens_them(here, tmp_path, capsys):
    clip = ["--video", here / "clip.mp4", "--steps", "5"]
    assert command(here, "calibrate", "clip", "--out", tmp_path / "lines.json", *clip) == 0
    assert "at 5 steps" in capsys.readouterr().out and Calibration.load(tmp_path / "lines.json").steps == 5
    assert command(here, "tune", "clip", "--policy", "tdc", "--out", tmp_path / "policy.json", *clip) == 0
    assert Policy.load(tmp_path / "policy.json").tuned_steps == 5
    told = [
        *clip, "--set", "tuned_steps=5", "--calibration", tmp_path / "lines.json", "--trace", tmp_path / "run.parquet"
    ]
    assert command(here, "generate", "clip", "--policy", "sixbit", "--out", tmp_path / "a.mp4", *told) == 0
    said = capsys.readouterr().err
    assert "calibrated at" not in said and "tuned at" not in said
    assert Trace.load(tmp_path / "run.parquet").blocks["steps"].unique() == [4]


def test_tune_searches_from_it(here, tmp_path):
    arguments = ["--policy", "tdc", "--out", tmp_path / "policy.json", "--image", here / "first.png"]
    assert command(here, "tune", "picture", *arguments) == 0
    assert isinstance(Policy.load(tmp_path / "policy.json"), Policy)


@pytest.mark.parametrize("name", ["generate", "compare", "calibrate", "tune"])
@pytest.mark.parametrize(
    "model, arguments, sentence",
    [
        ("picture", [], "CogVideoXImageToVideoPipeline starts from an image; give --image FILE."),
        ("clip", [], "CogVideoXVideoToVideoPipeline starts from a video; give --video FILE."),
        ("clip", ["--image", "first.png"], "starts from a video; give --video FILE and leave --image out."),
        ("text", ["--video", "clip.mp4"], "CogVideoXPipeline starts from text alone; leave --video out."),
        ("picture", ["--image", "none.png"], "Expected a picture at 'none.png', but there is no such file"),
        ("picture", ["--image", "text"], "Expected a picture at 'text', but that is a folder; give the file itself."),
        (
            "picture", ["--image", "text.png"],
            "'text.png' is no picture that can be read; give a PNG, JPEG or WebP file.",
        ),  # fmt: skip
        ("picture", ["--image", "clip.mp4"], "'clip.mp4' is no picture that can be read"),
        ("clip", ["--video", "none.mp4"], "Expected a video at 'none.mp4', but there is no such file"),
        ("clip", ["--video", "text"], "Expected a video at 'text', but that is a folder; give the file itself."),
        ("clip", ["--video", "text.png"], "text.png is not a readable video; give an mp4 file."),
    ],
)
def test_what_cannot_start_is_one_sentence_before_the_model_loads(
    here, unloaded, tmp_path, monkeypatch, capsys, name, model, arguments, sentence
):
    monkeypatch.chdir(here)
    out = [] if name == "compare" else ["--out", tmp_path / {"generate": "out.mp4"}.get(name, "out.json")]
    assert command(here, name, model, *arguments, *out) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert sentence in told and told.count("error:") == 1 and not list(tmp_path.glob("out.*"))


def test_a_truncated_picture_and_an_endless_clip_are_sentences(here, tmp_path, monkeypatch):
    class Given:
        image, video = tmp_path / "cut.png", None

    whole = (here / "first.png").read_bytes()
    Given.image.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="'cut.png' is no picture that can be read"):
        read_inputs(Given)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1000)
    Given.image = here / "first.png"
    with pytest.raises(ValueError, match="too many pixels"):
        read_inputs(Given)
    assert len(read_mp4(here / "clip.mp4", most=9)[0]) == 9
    with pytest.raises(VideoError, match="more than 8 frames; cut it shorter"):
        read_mp4(here / "clip.mp4", most=8)


def test_a_sideways_picture_stands_upright_and_a_clip_is_pictures(here, tmp_path):
    class Given:
        image, video = other_picture(tmp_path), here / "clip.mp4"

    found = read_inputs(Given)
    assert found["image"].size == (24, 40) and found["image"].mode == "RGB"
    assert [frame.size for frame in found["video"]] == [(64, 48)] * 9


def test_every_supported_class_is_known_and_a_broken_folder_keeps_its_sentence(here, tmp_path, capsys):
    from engine.families import supported

    wanted = {"ImageToVideo": ["image"], "VideoToVideo": ["video"]}
    for name in supported():
        check_taken(name, next((given for part, given in wanted.items() if part in name), []))
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    assert command(tmp_path, "compare", ".", "--image", here / "first.png") == 2
    assert "'FluxPipeline' is not supported" in " ".join(capsys.readouterr().err.split())
