"""Starting noise that a caller gives: what fits is used, anything else is one sentence before any work."""

import pytest
import torch

from engine import Policy
from engine.attach import attach
from engine.stream import Finished, generate
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")
GOOD = torch.randn(1, 3, 8, 4, 4, generator=torch.Generator().manual_seed(3))


def run(pipe, latents, **changes):
    size = {"frames": 9, "height": 32, "width": 32, **changes}
    events = generate(
        pipe, pipelines.PROMPT, policy=Policy.preset("w4a8"), steps=2, seed=0, previews=False, latents=latents, **size
    )
    return [event for event in events if isinstance(event, Finished)][0].frames


def test_what_fits_decides_the_clip_whatever_the_seed(pipe):
    assert (run(pipe, GOOD) == run(pipe, GOOD.clone())).all()
    assert (run(pipe, GOOD) != run(pipe, GOOD.flip(1))).any()


@pytest.mark.parametrize(
    "latents, came",
    [
        (GOOD[:, :2], "float32 of shape"), (GOOD[:, :, :7], "float32 of shape"), (GOOD[0], "float32 of shape"),
        (GOOD.double(), "float64 of shape"), (GOOD.half(), "float16 of shape"), (GOOD.long(), "int64 of shape"),
        (GOOD.numpy(), "ndarray"), ("noise", "str"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(pipe, latents, came):
    with pytest.raises(
        ValueError, match=r"Expected latents as a tensor of shape \(1, 3, 8, 4, 4\) and dtype float32 .*; got " + came
    ):
        run(pipe, latents)


def test_wan_has_its_channels_first():
    pipe = pipelines.wan()
    attach(pipe)
    with pytest.raises(ValueError, match="Expected latents as a tensor of shape .* a floating dtype"):
        run(pipe, GOOD)
    shape = (
        1, pipe.transformer.config.out_channels, 3, 32 // pipe.vae_scale_factor_spatial,
        32 // pipe.vae_scale_factor_spatial,
    )  # fmt: skip
    assert len(run(pipe, torch.randn(shape, generator=torch.Generator().manual_seed(3)))) == 9
