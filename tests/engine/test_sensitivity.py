"""One group at a time on a real small pipeline."""

import pytest
import torch

from engine import sensitivity
from tests import pipelines


@pytest.fixture(scope="module")
def pipe(one_thread_throughout):
    return pipelines.cogvideox(layers=2)


def test_every_group_has_its_own_output_error_and_the_pipeline_stays_stock(pipe):
    before = pipelines.latents(pipe, num_inference_steps=3)
    table = sensitivity.sensitivity(pipe, lambda: pipelines.latents(pipe, num_inference_steps=3), [0, 2])
    assert len(table) == 2 * 4 * 2 * 3
    means = table.groupby("precision")["output_error"].mean()
    assert means["nvfp4"] > means["int8"] > 0 and abs(means["int8"] / means["w4a16"] - 1) < 0.2
    assert torch.equal(pipelines.latents(pipe, num_inference_steps=3), before)


def test_rotation_is_measured_with_weights_packed_for_it(pipe):
    # Six columns that are far larger than the rest are what a rotation is for.
    with torch.no_grad():
        pipe.transformer.transformer_blocks[1].norm1.norm.weight[:6] *= 40
    table = sensitivity.rotation(pipe, lambda: pipelines.latents(pipe, num_inference_steps=3), [1])
    error = table.query("block == 1 and layer == 'qkv' and quantized == 'activations'").set_index(
        ["precision", "rotated"]
    )
    assert error.loc[("int8", True), "error"] < error.loc[("int8", False), "error"]
    assert set(table["quantized"]) == {"activations", "weights", "both"} and len(table) == 2 * 4 * 2 * 5
