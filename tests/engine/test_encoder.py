"""A packed T5 encoder says nearly what the stock one says, from a third of the memory, in place and from a checkpoint."""

import pytest
import torch

from engine import Policy, attach, load, record
from engine.checkpoint import quantize
from engine.encoder import pack_text_encoder, packed_linears
from engine.folder import LoadError
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")


def said(pipe):
    tokens = torch.arange(12)[None] % 7
    with torch.no_grad():
        return pipe.text_encoder(tokens)[0]


@pytest.mark.parametrize("build", [pipelines.cogvideox, pipelines.wan], ids=["T5", "UMT5"])
def test_packed_in_place(build):
    pipe = build(dtype=torch.float32)
    expected = said(pipe)
    assert not packed_linears(pipe.text_encoder)
    size = pack_text_encoder(pipe)
    assert size["after"] < 0.35 * size["before"]  # float32 here; 4.5 bits and row scales
    found = said(pipe)
    assert 0 < (found - expected).norm() / expected.norm() < 0.2
    assert pipe.text_encoder.dtype == torch.float32 and len(packed_linears(pipe.text_encoder)) > 5
    attach(pipe)
    with record(pipe, Policy.preset("w4a8")):
        assert pipelines.latents(pipe).isfinite().all()
    with pytest.raises(ValueError, match="packed already"):
        pack_text_encoder(pipe)


def test_casts_do_not_touch_the_codes():
    pipe = pipelines.cogvideox(dtype=torch.float32)
    pack_text_encoder(pipe)
    before = {name: packed.codes.clone() for name, packed in packed_linears(pipe.text_encoder).items()}
    pipe.to(torch.bfloat16)
    assert said(pipe).dtype == torch.bfloat16 and said(pipe).isfinite().all()
    assert all(torch.equal(packed.codes, before[name]) for name, packed in packed_linears(pipe.text_encoder).items())


def test_other_encoders_are_refused_in_a_sentence():
    pipe = pipelines.cogvideox()
    pipe.text_encoder = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="T5EncoderModel"):
        pack_text_encoder(pipe)


def test_a_checkpoint_with_a_packed_encoder(tmp_path):
    pipe = pipelines.cogvideox()
    pipe.to(torch.bfloat16)
    pipe.save_pretrained(tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "packed", text_encoder="w4a16")
    sizes = [
        sum(f.stat().st_size for f in (tmp_path / of / "text_encoder").glob("*.safetensors"))
        for of in ("source", "packed")
    ]
    assert sizes[1] < 0.75 * sizes[0]
    loaded = load(tmp_path / "packed", device="cpu", dtype="float32")
    stock = load(tmp_path / "source", device="cpu", dtype="float32")
    pack_text_encoder(stock)
    assert torch.equal(said(loaded), said(stock))
    assert not any(value.is_meta for value in loaded.text_encoder.parameters())
    attach(stock)
    with record(stock, Policy.preset("w4a8")):
        expected = pipelines.latents(stock)
    with record(loaded, Policy.preset("w4a8")):
        assert torch.equal(pipelines.latents(loaded), expected)
    next((tmp_path / "packed" / "text_encoder").glob("packed-*.safetensors")).unlink()
    with pytest.raises(LoadError, match="download the model again|quantize the model again"):
        load(tmp_path / "packed", device="cpu", dtype="float32")


def test_an_unknown_choice_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ValueError, match="text_encoder must be one of stock, w4a16"):
        quantize(tmp_path, tmp_path / "packed", text_encoder="int2")
