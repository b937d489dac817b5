"""One hash for weights, loaded or not, and what is refused by it before anything is loaded."""

import shutil
from pathlib import Path

import pytest
import torch

from engine import load
from engine.calibrate import FILE_NAME
from engine.checkpoint import quantize
from engine.cli import main
from engine.folder import PACKED, LoadError
from engine.identity import folder_hash, model_hash
from engine.records import Calibration, Coefficient
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = Path(__file__).resolve().parents[2] / "assets" / "tiny"
LINES = {("transformer", 0, "qkv"): Coefficient(0.0, 0.1, 0.0, 8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "cog"
    pipelines.cogvideox(layers=1).save_pretrained(path)
    return path


@pytest.mark.parametrize("make", [pipelines.cogvideox, lambda: pipelines.wan(layers=1, two=True)])
def test_a_folder_has_the_hash_of_what_it_loads_as(make, tmp_path):
    make().save_pretrained(tmp_path / "model", max_shard_size="400KB")
    for dtype in (torch.float32, torch.bfloat16):
        assert folder_hash(tmp_path / "model", dtype) == model_hash(load(tmp_path / "model", "cpu", dtype))
    assert folder_hash(tmp_path / "model", torch.float16) is None


def test_the_embedded_models_lines_are_known_as_its_own_from_its_files():
    assert folder_hash(TINY, torch.float32) == Calibration.load(TINY / FILE_NAME).model_hash


def test_a_packed_folder_has_the_hash_of_what_it_was_packed_from(folder, tmp_path):
    quantize(folder, tmp_path / "packed")
    assert folder_hash(tmp_path / "packed", torch.float16) == folder_hash(folder, torch.bfloat16)


@pytest.mark.parametrize("text", ["", "[]", "{", "{" * 100_000])
def test_a_damaged_description_is_a_folder_that_cannot_be_loaded(folder, tmp_path, text):
    packed = tmp_path / "packed"
    shutil.copytree(folder, packed)
    (packed / PACKED).write_text(text)
    with pytest.raises(LoadError, match="is not the description of a packed checkpoint"):
        folder_hash(packed, torch.float32)


@pytest.mark.parametrize("command", ["generate", "compare"])
@pytest.mark.parametrize(
    "calibration, sentence",
    [
        (
            Calibration("0" * 16, 4, 3.0, LINES),
            "'lines.json' was fitted on other weights (0000000000000000) than this model's",
        ),
        (Calibration("0" * 16, 4, 3.0), "'lines.json' holds no lines"),
        (None, "Expected a calibration file at 'lines.json', but there is no such file"),
    ],
)
def test_lines_that_cannot_be_used_are_refused_before_the_model_loads(
    folder, unloaded, tmp_path, monkeypatch, capsys, command, calibration, sentence
):
    monkeypatch.chdir(tmp_path)
    if calibration is not None:
        calibration.save(tmp_path / "lines.json")
    assert main([command, "--model", str(folder), "--prompt", pipelines.PROMPT, "--calibration", "lines.json"]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
