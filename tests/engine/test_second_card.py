"""A model on another card than the current one."""

import pytest
import torch

from engine import attach, load, record
from engine.policy import PRESETS
from tests import pipelines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]


@pytest.mark.parametrize("name", ["w4a16", "w4a8", "w4a4", "sixbit"])
def test_every_precision_on_the_second_card_equals_the_first(tmp_path, name):
    pipelines.cogvideox().to(torch.bfloat16).save_pretrained(tmp_path / "model")
    results = []
    for device in ("cuda:0", "cuda:1"):
        pipe = load(tmp_path / "model", device=device)
        attach(pipe)
        assert torch.cuda.current_device() == 0
        with record(pipe, PRESETS[name]):
            results.append(pipelines.latents(pipe).cpu())
    assert torch.equal(*results)
