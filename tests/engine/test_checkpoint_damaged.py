"""A packed folder whose description or weights do not fit each other gets one sentence, before anything runs."""

import json
import shutil

import pytest
import torch

from engine import load
from engine.checkpoint import quantize
from engine.folder import LoadError
from tests import pipelines


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    pipelines.cogvideox(layers=1).save_pretrained(root / "source")
    return quantize(root / "source", root / "packed")


def first(about):
    return next(iter(about["groups"]))


CHANGES = {
    "a foreign slot": (lambda about: about.update(transformers=["nope"]), r"lists the transformers \['nope'\]"),
    "a slot that is no name": (lambda about: about.update(transformers=[["transformer"]]), "lists the transformers"),
    "no slot": (lambda about: about.update(transformers=[]), "and the pipeline has transformer;"),
    "a null group": (lambda about: about["groups"].update({first(about): None}), "is not the description"),
    "a removed group": (lambda about: about["groups"].pop(first(about)), "lacks the packed weight 'transformer"),
    "a removed AdaLN group": (
        lambda about: about["groups"].pop(next(path for path in about["groups"] if "norm1" in path)), "lacks the packed weight"
    ),
    "no groups": (lambda about: about.update(groups={}), "lacks the packed weight"),
    "another rotation": (lambda about: about["groups"][first(about)].update(hadamard=7), "missing or malformed"),
    "another shape": (lambda about: about["groups"][first(about)].update(shape=[64, 64]), "missing or malformed"),
    "no hash": (lambda about: about.pop("model_hash"), "is not the description"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_description_is_refused_in_a_sentence(packed, tmp_path, name):
    change, sentence = CHANGES[name]
    folder = shutil.copytree(packed, tmp_path / "copy")
    about = json.loads((folder / "packed.json").read_text())
    change(about)
    (folder / "packed.json").write_text(json.dumps(about))
    with pytest.raises(LoadError, match=sentence):
        load(folder, device="cpu", dtype="float32")


def test_a_configuration_of_another_size_is_refused(packed, tmp_path):
    folder = shutil.copytree(packed, tmp_path / "copy")
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_layers": 2}))
    with pytest.raises(LoadError, match="lacks the packed weight 'transformer.transformer_blocks.1"):
        load(folder, device="cpu", dtype="float32")


def test_too_little_memory_for_a_packed_checkpoint_is_a_sentence(packed, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("engine.checkpoint.load_packed", full)
    with pytest.raises(LoadError, match="does not fit on cpu: CUDA out of memory"):
        load(packed, device="cpu")
