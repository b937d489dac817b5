"""The random pipelines of the tests are real: they run, and come back from disk as they were."""

import pytest
import torch

from tests import pipelines


@pytest.mark.parametrize("name", pipelines.VARIANTS)
def test_a_call_gives_finite_latents_that_depend_on_seed_and_prompt(name, one_thread):
    pipe = pipelines.VARIANTS[name]()
    latents = pipelines.latents(pipe, num_inference_steps=2)
    assert latents.isfinite().all() and latents.std() > 0.1
    assert torch.equal(latents, pipelines.latents(pipe, num_inference_steps=2))
    assert not torch.equal(latents, pipelines.latents(pipe, num_inference_steps=2, seed=1))
