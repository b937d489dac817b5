import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import load
from engine.folder import LoadError
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A whole CogVideoX folder with a sharded transformer, and the pipeline it came from."""
    folder = tmp_path_factory.mktemp("models") / "cog"
    pipe = pipelines.cogvideox()
    pipe.save_pretrained(folder, max_shard_size="400KB")
    assert len(list((folder / "transformer").glob("*.safetensors"))) > 1
    return folder, pipe


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "cog")


def refuses(folder, sentence, **options):
    with pytest.raises(LoadError, match=sentence) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_loaded_folder_is_the_saved_pipeline(saved):
    folder, pipe = saved
    told = []
    loaded = load(folder, dtype="float32", progress=lambda done, total: told.append((done, total)))
    assert torch.equal(pipelines.latents(loaded), pipelines.latents(pipe))
    assert told[0] == (0, 3) and told[-1] == (3, 3)
    assert not loaded.transformer.training


def test_wan_keeps_its_autoencoder_in_float32(tmp_path):
    pipelines.wan(two=True).save_pretrained(tmp_path / "wan")
    loaded = load(tmp_path / "wan", dtype=torch.bfloat16)
    assert loaded.vae.dtype == torch.float32 and loaded.transformer_2.dtype == torch.bfloat16


def test_the_cpu_without_native_bfloat16_gets_float32(saved, monkeypatch):
    import kernels.target as target

    real = target.probe("cpu")
    for native, expected in ((False, torch.float32), (True, torch.bfloat16)):
        monkeypatch.setattr(target, "probe", lambda device, native=native: real._replace(native_bf16=native))
        assert load(saved[0], device="cpu").transformer.dtype == expected


def test_folders_that_are_no_pipelines(tmp_path):
    refuses(tmp_path / "nothing", "There is no folder")
    refuses(tmp_path, "is no diffusers pipeline: it holds no model_index.json")
    (tmp_path / "model_index.json").write_text("{ not json")
    refuses(tmp_path, "'model_index.json' is not a pipeline index: it is not valid JSON")
    refuses(tmp_path / "model_index.json", " is a file; give a diffusers pipeline folder")
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    refuses(tmp_path, "'StableDiffusionPipeline' is not supported; supported are CogVideoXPipeline")
    (tmp_path / "model_index.json").write_bytes(b"\xff\xfe")
    refuses(tmp_path, "not UTF-8")
    refuses("", "Expected a model folder")
    refuses("a\0b", "Expected a model folder")
    refuses("../../no/such/folder", "There is no folder")


def test_a_hub_id_without_network_is_one_sentence(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refuses("nobody/no-such-video-model", "no local folder and could not be fetched from the hub")


def test_code_and_pickles_are_never_opened(copy):
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps({**index, "vae": ["my_module", "Evil"]}))
    refuses(copy, "comes from 'my_module'; only classes of diffusers and transformers")
    (copy / "model_index.json").write_text(json.dumps(index))
    for file in (copy / "vae").glob("*.safetensors*"):
        file.unlink()
    (copy / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"\x80\x04.")
    refuses(copy, "holds pickled weights only, which can run code")


def test_missing_parts_shards_and_tensors(copy):
    shutil.rmtree(copy / "text_encoder")
    refuses(copy, "'text_encoder' named in model_index.json has no folder")


def test_a_missing_shard(copy):
    victim = sorted((copy / "transformer").glob("*.safetensors"))[1]
    victim.unlink()
    refuses(copy, f"lacks the file '{victim.name}', which its index names")


def test_a_truncated_shard(copy):
    victim = sorted((copy / "transformer").glob("*.safetensors"))[0]
    victim.write_bytes(victim.read_bytes()[:-100])
    refuses(copy, "is truncated: .* bytes; download the model again")
    victim.write_text("version https://git-lfs.github.com/spec/v1")
    refuses(copy, "is not a safetensors file")


def test_a_tensor_that_no_file_holds(copy):
    """Without an index diffusers would fill it with random numbers and only warn."""
    path = copy / "vae" / "diffusion_pytorch_model.safetensors"
    if not path.exists():
        parts = {}
        for file in (copy / "vae").glob("*.safetensors*"):
            if file.suffix == ".safetensors":
                parts.update(load_file(file))
            file.unlink()
        save_file(parts, path)
    tensors = load_file(path)
    tensors.pop("decoder.conv_in.conv.bias")
    save_file(tensors, path, metadata={"format": "pt"})
    refuses(copy, "decoder.conv_in.conv.bias")


def test_weights_and_configuration_of_different_models(copy):
    path = copy / "transformer" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "text_embed_dim": 32}))
    refuses(copy, "could not be loaded as a CogVideoXPipeline|belong to different models")


def test_bad_devices_and_dtypes(saved):
    refuses(saved[0], "The device 'nowhere' is not available", device="nowhere")
    refuses(saved[0], "dtype must be one of float32, bfloat16, float16; got 'int3'", dtype="int3")


def test_a_custom_tokenizer_file_is_not_run(copy):
    """A tokenizer configuration that names code of its own must not get it executed."""
    path = copy / "tokenizer" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}))
    marker = copy / "ran"
    (copy / "tokenizer" / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    try:
        load(copy, dtype="float32")
    except LoadError:
        pass
    assert not marker.exists()
