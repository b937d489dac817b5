"""The training recipe's fast paths equal the stock modules, and the drawing keeps its promises."""

import pytest
import torch

from assets.recipe import models, world
from assets.recipe.captions import empty_ids, token_ids
from assets.recipe.checkpoint import load_shards, save_shards
from assets.recipe.fast_text import FastText
from assets.recipe.fast_vae import FastVAE
from assets.recipe.optimizer import FlatOptimizer, learning_rate, orthogonalize
from engine import vocabulary as V


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    module = models.build_vae().eval()
    for p in module.parameters():
        if p.ndim == 1:
            p.data.add_(0.2 * torch.randn_like(p))                # norms must not be trivial
    return module


@pytest.mark.parametrize("stacked", [False, True])
def test_fast_autoencoder_equals_the_stock_one(vae, stacked):
    clip = torch.rand(1, 17, 64, 64, 3) * 2 - 1
    latents = torch.randn(1, 5, 8, 8, models.LATENT_CHANNELS)
    fast = FastVAE(vae, stacked=stacked)
    with torch.no_grad():
        stock = vae.encode(clip.permute(0, 4, 1, 2, 3)).latent_dist
        mean, logvar = fast.encode(clip)
        assert (mean.permute(0, 4, 1, 2, 3) - stock.mean).abs().max() < 1e-4
        assert (logvar.permute(0, 4, 1, 2, 3) - stock.logvar).abs().max() < 1e-4
        frames = vae.decode(latents.permute(0, 4, 1, 2, 3)).sample.permute(0, 2, 3, 4, 1)
        assert (fast.decode(latents) - frames).abs().max() < 2e-4


def test_fast_text_encoder_equals_the_stock_one():
    torch.manual_seed(0)
    encoder = models.build_text_encoder().eval()
    ids = torch.randint(len(V.WORDS), (2, V.MAX_WORDS))
    with torch.no_grad():
        assert (encoder(ids)[0] - FastText(encoder).encode(ids)).abs().max() < 1e-4


def test_token_ids_equal_the_tokenizer():
    scenes = world.sample(200, torch.Generator().manual_seed(1))
    prompts = [V.render(s) for s in world.describe(scenes)]
    tokenizer = models.build_tokenizer()
    wanted = tokenizer(prompts + [""], padding="max_length", max_length=V.MAX_WORDS, truncation=True,
                       return_tensors="pt").input_ids
    assert torch.equal(wanted, torch.cat([token_ids(scenes), empty_ids()[None]]))


def test_training_never_shows_what_is_held_out():
    assert not any(V.is_held_out(s) for s in world.describe(world.sample(3000, torch.Generator().manual_seed(2))))


def test_scenes_of_prompts_come_back_as_the_same_words():
    wanted = [V.parse("a small red ring spins and a large blue star moves up in a mint room"), V.parse(V.EXAMPLE)]
    assert world.describe(world.from_scenes(wanted, torch.Generator().manual_seed(0))) == wanted


def test_objects_stay_inside_and_looping_clips_close():
    wanted = [V.Scene("plain", "black", (V.Object("large", "green", shape, motion),))
              for shape, motion in zip(V.SHAPES, V.LOOPING + ("moves right",))]
    clips, cover = world.Painter().paint(world.from_scenes(wanted, torch.Generator().manual_seed(4)))
    assert clips.shape == (6, 17, 128, 128, 3) and 0 <= clips.min() and clips.max() <= 1
    border = torch.cat([cover[..., 0], cover[..., -1], cover[..., 0, :], cover[..., -1, :]], -1)
    assert border.max() == 0
    assert (clips[:5, 0] - clips[:5, -1]).abs().max() < 0.02       # float32 sine of a whole turn


def test_the_smallest_object_is_36_pixels_across_when_drawn():
    wanted = [V.Scene("plain", "black", (V.Object("small", "white", shape, "stays still"),)) for shape in V.SHAPES]
    _, cover = world.Painter().paint(world.from_scenes(wanted, torch.Generator().manual_seed(5)))
    for picture in cover[:, 0]:
        assert picture.amax(0).sum() > 35.5 and picture.amax(1).sum() > 35.5


def test_two_objects_never_cover_each_other_wholly():
    gen = torch.Generator().manual_seed(6)
    scenes = world.sample(12, gen, scenic=0.0, two_plain=1.0)
    both = world.Painter().paint(scenes)[1].sum((2, 3))
    scenes.two[:] = False
    first = world.Painter().paint(scenes)[1].sum((2, 3))
    assert ((both - first) > 300).all()                            # pixels of the second outside the first


def test_the_same_seed_draws_the_same_scenes():
    a, b = (world.sample(50, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(a.anchor, b.anchor) and torch.equal(a.colour, b.colour)


def test_optimizer_learns_and_resumes_exactly():
    torch.manual_seed(0)

    def make():
        return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16),
                                   torch.nn.Tanh(), torch.nn.Linear(16, 2))

    x, y = torch.randn(64, 6), torch.randn(64, 2)

    def run(model, optimizer, steps):
        for n in range(steps):
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step(learning_rate(n, 80, 1e-2, 5))
        return loss.item()

    def is_matrix(name, parameter):
        return name == "2.weight"

    model = make()
    optimizer = FlatOptimizer(list(model.named_parameters()), torch.float32, is_matrix)
    first = run(model, optimizer, 1)
    assert run(model, optimizer, 40) < 0.9 * first
    state = {k: v.clone() for k, v in optimizer.state().items()}
    other = make()
    resumed = FlatOptimizer(list(other.named_parameters()), torch.float32, is_matrix)
    resumed.load_state(state)
    assert run(model, optimizer, 10) == run(other, resumed, 10)
    with pytest.raises(ValueError, match="Expected a training state"):
        resumed.load_state(state | {"master": torch.zeros(3)})


def test_orthogonalize_evens_out_the_singular_values():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 24, 64)))
    assert values.min() > 0.5 and values.max() < 1.3


def test_shards_come_back_and_a_missing_one_is_named(tmp_path):
    tensors = {"a": torch.randn(3, 5), "big": torch.arange(9_000_000, dtype=torch.float32).view(3000, 3000)}
    save_shards(tmp_path, "part", tensors, {"step": 7})
    assert all(f.stat().st_size <= 16 * 2 ** 20 for f in tmp_path.iterdir())
    found, facts = load_shards(tmp_path, "part")
    assert facts["step"] == 7 and all(torch.equal(found[k], tensors[k]) for k in tensors)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match="missing"):
        load_shards(tmp_path, "part")
    assert load_shards(tmp_path, "never trained") is None
