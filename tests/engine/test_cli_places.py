"""Where the commands write, and which models they take: one rule for all of them, told before a model loads."""

from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from diffusers import CogVideoXImageToVideoPipeline

from engine.checkpoint import quantize
from engine.cli import main
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with models: "text", the same packed, "picture" (image-to-video) and "wan"."""
    folder = tmp_path_factory.mktemp("models")
    pipelines.cogvideox(layers=1).save_pretrained(folder / "text")
    pipelines.cogvideox(CogVideoXImageToVideoPipeline, layers=1).save_pretrained(folder / "picture")
    pipelines.wan(layers=1).save_pretrained(folder / "wan")
    quantize(folder / "text", folder / "packed")
    return folder


PLACES = [
    (["generate", "--prompt", pipelines.PROMPT, "--out", "no/such/out.mp4"], "its folder does not exist"),
    (["generate", "--prompt", pipelines.PROMPT, "--trace", "no/such/run.parquet"], "its folder does not exist"),
    (["compare", "--csv", "no/such/rows.csv"], "its folder does not exist"),
    (["calibrate", "--out", "no/such/lines.json"], "its folder does not exist"),
    (["tune", "--out", "no/such/policy.json"], "its folder does not exist"),
    (["bench", "--layers", "1", "--out", "no/such/rows.csv"], "its folder does not exist"),
    (["frontier", "--out", "no/such/f.parquet"], "its folder does not exist"),
    (["frontier", "--out", "f.parquet", "--share", "no/such"], "the folder above it does not exist"),
    (["theory", "--out", "no/such"], "the folder above it does not exist"),
    (["theory", "--out", "made", "--record", "1", "--probes", "no/such"], "the folder above it does not exist"),
    (["quantize", "text", "no/such"], "does not exist; create it first"),
    (["quantize", "text", "/proc/packed"], "takes no new file"),
]


@pytest.mark.parametrize("arguments, sentence", PLACES)
def test_missing_folders_are_refused_by_every_command_and_made_by_none(
    here, unloaded, tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    model = [] if arguments[0] in ("quantize", "bench") else ["--model", str(here / "text")]
    assert main([*arguments, *model]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert sentence in told and told.count("error:") == 1 and not Path("no").exists()


@pytest.mark.parametrize("command", [["frontier", "--out", "f.parquet"], ["theory", "--out", ".", "--record", "1"]])
@pytest.mark.parametrize(
    "model, sentence",
    [
        (
            "picture",
            "measure models that make a video from text (CogVideoXPipeline); this is a CogVideoXImageToVideoPipeline.",
        ),
        ("wan", "measure models that make a video from text (CogVideoXPipeline); this is a WanPipeline."),
        ("packed", "need the 16-bit weights; give --model the model that this one was packed from."),
    ],
)
def test_what_the_quality_lab_cannot_measure_is_refused(
    here, unloaded, tmp_path, monkeypatch, capsys, command, model, sentence
):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--model", str(here / model)]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split()) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ["compare"],
        ["calibrate", "--out", "lines.json"],
        ["tune"],
        ["generate", "--policy", "fp16", "--prompt", pipelines.PROMPT],
        ["generate", "--policy", "tdc", "--prompt", pipelines.PROMPT],
    ],
)
def test_a_packed_checkpoint_is_refused_by_what_it_says_of_itself(
    here, unloaded, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--model", str(here / "packed")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "needs the 16-bit weights, and a packed checkpoint does not hold them" in told
    assert not list(tmp_path.iterdir())


def test_what_is_packed_is_not_packed_again(here, unloaded, tmp_path, capsys):
    assert main(["quantize", str(here / "packed"), str(tmp_path / "again")]) == 2
    assert "is a packed checkpoint already" in capsys.readouterr().err


EVERY = ("generate", "compare", "calibrate", "tune")


@pytest.mark.parametrize(
    "commands, arguments, sentence",
    [
        (EVERY, ["--prompt", " \n"], "The prompt is empty; describe the video in a sentence."),
        (EVERY, ["--prompt", "x" * 20_001], "The prompt has 20,001 characters, more than 20,000; shorten it."),
        (EVERY, ["--steps", "0"], "steps must be a whole number from 1 to 1,000; got 0."),
        (EVERY, ["--guidance", "nan"], "guidance must be a number from 0 to 100; got nan."),
        (EVERY, ["--guidance", "-1"], "guidance must be a number from 0 to 100; got -1.0."),
        (EVERY, ["--seed", "-1"], "seed must be a whole number from 0"),
        (EVERY, ["--device", "meta"], "The device 'meta' is not available here; leave it out, or choose cpu"),
        (["generate"], ["--negative-prompt", " "], "The negative prompt is empty"),
        (["generate"], ["--height", "0"], "height must be a whole number from 16 to 4,096; got 0."),
        (["generate"], ["--width", "99999"], "width must be a whole number from 16 to 4,096; got 99999."),
        (["generate"], ["--frames", "0"], "frames must be a whole number from 1 to 1,025; got 0."),
        (["calibrate"], ["--steps", "1"], "--steps must be at least 2 to calibrate, got 1"),
        (EVERY[1:], ["--prompts", "0"], "--prompts must be from 1 to 1,000; got 0."),
    ],
)
def test_what_no_model_can_be_asked_for_is_refused_before_one_loads(
    here, monkeypatch, tmp_path, capsys, commands, arguments, sentence
):
    monkeypatch.setattr(import_module("engine.load"), "assemble", lambda *_, **__: pytest.fail("the model was loaded"))
    monkeypatch.chdir(tmp_path)
    prompt = [] if {"--prompt", "--prompts"} & set(arguments) else ["--prompt", pipelines.PROMPT]
    for command in commands:
        assert main([command, "--model", str(here / "text"), *prompt, *arguments]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert sentence in told and not list(tmp_path.iterdir())


WITHOUT_STOCK = "is a packed checkpoint without them; give --model the folder that it was packed from."


@pytest.mark.parametrize("model, sentence", [
    ("picture", "make a video from text (CogVideoXPipeline), and 'picture' holds a CogVideoXImageToVideoPipeline; give"),
    ("wan", "make a video from text (CogVideoXPipeline), and 'wan' holds a WanPipeline; give --model the folder"),
    ("packed", WITHOUT_STOCK),
    (".", "'.' is no diffusers pipeline: it holds no model_index.json"),
])  # fmt: skip
@pytest.mark.parametrize("how", [["--blocks"], ["--methods", "stock", "w4a8"], ["--methods", "none", "--errors"]])
def test_bench_says_which_folders_it_times(here, unloaded, monkeypatch, capsys, how, model, sentence):
    monkeypatch.chdir(here)
    assert main(["bench", *how, "--model", model]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert sentence in told and told.count("error:") == 1


def test_bench_times_a_packed_folder_beside_nothing_stock(here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    quick = ["--no-profile", "--device", "cpu", "--steps", "4"]
    assert main(["bench", "--model", "packed", "--methods", "w4a8", *quick]) == 0
    printed = capsys.readouterr().out
    assert "ms a step" in printed and "nan" not in printed
    assert main(["bench", "--model", "text", "--methods", "w4a8", "--layers", "1"]) == 2
    assert "a folder runs whole, so leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["frontier", "--out", "f.parquet", "--methods", "nonsense"], "no method 'nonsense'"),
        (["theory", "--out", ".", "--record", "0"], "--record must be at least 1, got 0"),
        (["theory", "--out", ".", "--layers", "-1"], "--layers must be at least 0, got -1"),
        (
            ["theory", "--out", ".", "--rows", "none.parquet"],
            "Expected a table of frontier (.parquet) at 'none.parquet'",
        ),
        (["theory", "--out", ".", "--record", "1", "--rows", "junk.parquet"], "'junk.parquet' is not a table of frontier"),
        (["theory", "--out", ".", "--record", "1", "--rows", "other.parquet"], "has no column method, prompt, psnr, setting"),
        (["theory", "--out", ".", "--record", "1", "--steps", "1"], "--steps must be at least 2 to record probes, got 1"),
        (["tune", "--keep-quality", "1.5"], "--keep-quality must be above 0 and at most 1, got 1.5"),
        (["tune", "--keep-quality", "nan"], "--keep-quality must be above 0 and at most 1, got nan"),
    ],
)
def test_numbers_and_names_are_checked_before_the_model_loads(
    here, unloaded, tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    Path("junk.parquet").write_bytes(b"junk")
    pd.DataFrame({"a": [1]}).to_parquet("other.parquet")
    assert main([*arguments, "--model", str(here / "text")]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
