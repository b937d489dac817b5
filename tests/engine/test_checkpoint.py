import json
import shutil

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import load_file, save_file

from engine import Policy, attach, load, record
from engine.checkpoint import quantize
from engine.folder import LoadError
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")
POLICY = Policy.preset("w4a8")


@pytest.fixture(scope="module", params=["cogvideox", "wan 2.2"])
def packed(request, tmp_path_factory):
    """(source folder, packed folder) of one family."""
    root = tmp_path_factory.mktemp("packed")
    # Saved in bfloat16, as real checkpoints are: packing starts from those values.
    pipe = pipelines.VARIANTS[request.param]()
    pipe.to(torch.bfloat16)
    pipe.save_pretrained(root / "source")
    steps = []
    quantize(root / "source", root / "packed", shard_bytes=1_000_000, progress=lambda *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1] == len(steps)
    return root / "source", root / "packed"


def run(pipe):
    with record(pipe, POLICY) as recorded:
        latents = pipelines.latents(pipe)
    return latents, recorded


def test_a_packed_checkpoint_runs_like_an_attached_pipeline(packed):
    source, folder = packed
    pipe = load(source, device="cpu", dtype="float32")
    handle = attach(pipe)
    loaded = load(folder, device="cpu", dtype="float32")
    expected, _ = run(pipe)
    latents, recorded = run(loaded)
    assert torch.equal(latents, expected)
    assert recorded.owner.model_hash == handle.model_hash
    assert recorded.memory["originals"] == 0
    assert not any(value.is_meta for value in loaded.transformer.parameters())


def test_it_is_smaller_and_holds_no_16_bit_linear(packed):
    source, folder = packed
    sizes = [sum(f.stat().st_size for f in path.glob("transformer/*.safetensors")) for path in packed]
    # 4.5 of 16 bits in the linears; embeddings and norms, a good part of so small a model, stay.
    assert sizes[1] < 0.75 * sizes[0]
    stored = {
        name: value for f in (folder / "transformer").glob("*.safetensors") for name, value in load_file(f).items()
    }
    assert not any("to_q.weight" in name or "ff" in name and name.endswith("weight") for name in stored)
    assert all(f.stat().st_size < 1_100_000 for f in (folder / "transformer").glob("*.safetensors"))


def test_stock_precision_and_detach_say_that_the_originals_are_gone(packed):
    pipe = load(packed[1], device="cpu", dtype="float32")
    with pytest.raises(RuntimeError, match="16-bit weights, which were dropped"):
        with record(pipe, Policy.preset("fp16")):
            pass
    with pytest.raises(RuntimeError, match="dropped"):
        attach(pipe).detach()


def test_stock_diffusers_refuses_it_instead_of_running_empty_weights(packed):
    with pytest.raises(Exception, match="safetensors|no file named|diffusion_pytorch_model"):
        DiffusionPipeline.from_pretrained(packed[1])


def test_what_is_beside_the_model_comes_along(tmp_path):
    pipelines.cogvideox().save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "calibration.json").write_text("{}")
    (tmp_path / "source" / "evil.py").write_text("raise SystemExit")
    quantize(tmp_path / "source", tmp_path / "packed")
    assert (tmp_path / "packed" / "calibration.json").is_file() and not (tmp_path / "packed" / "evil.py").exists()
    with pytest.raises(ValueError, match="exists already"):
        quantize(tmp_path / "source", tmp_path / "packed")
    with pytest.raises(ValueError, match="packed checkpoint already"):
        quantize(tmp_path / "packed", tmp_path / "again")
    with pytest.raises(ValueError, match="does not exist"):
        quantize(tmp_path / "source", tmp_path / "no" / "packed")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["packed", "source"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    pipelines.cogvideox().save_pretrained(tmp_path / "source")

    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.checkpoint._write_shards", full_disk)
    with pytest.raises(OSError, match="No space left"):
        quantize(tmp_path / "source", tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["source"]


def test_damaged_packed_folders_get_one_sentence(packed, tmp_path):
    folder = shutil.copytree(packed[1], tmp_path / "copy")
    shard = next((folder / "transformer").glob("*.safetensors"))
    whole = load_file(shard)

    def refuses(sentence):
        with pytest.raises(LoadError, match=sentence):
            load(folder, device="cpu", dtype="float32")

    name = next(name for name in whole if name.endswith(".codes"))
    save_file({**whole, name: whole[name][:-1].contiguous()}, shard)
    refuses("is missing or malformed")
    save_file({key: value for key, value in whole.items() if key != name}, shard)
    refuses("is missing or malformed")
    rest = next(name for name in whole if name.startswith("rest."))
    save_file({key: value for key, value in whole.items() if key != rest}, shard)
    refuses("lacks the weight")
    save_file(whole, shard)
    shard.write_bytes(shard.read_bytes()[:-8])
    refuses("is truncated")
    about = json.loads((folder / "packed.json").read_text())
    (folder / "packed.json").write_text(json.dumps({**about, "version": 99}))
    refuses("is not the description of a packed checkpoint of version 1")
