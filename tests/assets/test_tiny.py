"""The checkpoint in assets/tiny is a plain diffusers folder that a plain git push accepts."""

from pathlib import Path

import pytest
import torch

from engine.preview import PreviewDecoder

TINY = Path(__file__).parents[2] / "assets" / "tiny"
pytestmark = pytest.mark.skipif(not (TINY / "model_index.json").is_file(), reason="assets/tiny is not packaged here")


@pytest.fixture(scope="module")
def pipe():
    from diffusers import CogVideoXPipeline
    pipe = CogVideoXPipeline.from_pretrained(TINY, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_every_file_is_below_ten_megabytes_and_nothing_is_pickled():
    files = [f for f in TINY.rglob("*") if f.is_file()]
    assert max(f.stat().st_size for f in files) < 9.5e6
    assert sum(f.stat().st_size for f in files) < 45e6
    assert not [f for f in files if f.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")]


def test_the_weights_are_stored_as_bf16():
    from safetensors import safe_open
    for path in TINY.rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert {file.get_slice(k).get_dtype() for k in file.keys()} == {"BF16"}, path.name


def test_a_stock_call_with_nothing_but_a_prompt_gives_a_clip(pipe):
    frames = pipe("a large red circle moves right on a black background", num_inference_steps=2,
                  generator=torch.Generator().manual_seed(0), output_type="np").frames
    assert frames.shape == (1, 17, 128, 128, 3)
    assert 0 <= frames.min() and frames.max() <= 1 and frames.std() > 0.01


def test_the_preview_decoder_is_small_and_reads_the_pipelines_latents():
    decoder = PreviewDecoder.load(TINY / "preview")
    assert sum(p.numel() for p in decoder.parameters()) <= 200_000
    clip = decoder(torch.randn(1, 5, 16, 16, 16))
    assert clip.shape == (1, 17, 128, 128, 3) and clip.dtype == torch.float32
    assert 0 <= clip.min() and clip.max() <= 1


def test_a_folder_without_a_preview_decoder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="preview decoder"):
        PreviewDecoder.load(tmp_path)
    with pytest.raises(ValueError, match="Expected latents"):
        PreviewDecoder(16)(torch.randn(1, 5, 8, 16, 16))
