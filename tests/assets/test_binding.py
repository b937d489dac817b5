"""Binding of two objects: the questions are right, an encoder learns to answer them, training goes on from a package."""

from pathlib import Path

import pytest
import torch

from assets.recipe import models, world
from assets.recipe.binding import CLASSES, IGNORE, are_twins, binding_loss, facts_of, labels, one_hot, with_twins
from assets.recipe.captions import token_ids
from assets.recipe.checkpoint import load_weights, save_weights
from assets.recipe.fast_text import FastText
from assets.recipe.machine import Machine
from assets.recipe.package import package
from assets.recipe.train_dit import Trainer
from assets.recipe.train_text import TextTrainer, held_out_captions, refit_projection
from assets.recipe.unpack import PARTS, read_part, unpack
from engine import vocabulary as V

PROMPT = "a large red ring spins and a small blue star moves up on a navy background"


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """An untrained package, unpacked again."""
    folder, out = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("run")
    package(None, folder)
    unpack(folder, out)
    return folder, out


def small_encoder():
    return models.build_text_encoder(width=64, layers=2, heads=4, inner=96, d_kv=16)


def test_every_word_is_asked_about_its_own_object():
    scenes = world.from_scenes([V.parse(PROMPT)], torch.Generator().manual_seed(0))
    ids = token_ids(scenes)
    found = labels(ids, facts_of(scenes))[0]
    words = PROMPT.split() + ["</s>"]
    whose = dict(zip(words, found[:, 0].tolist()))
    assert whose["red"] == whose["spins"] == 0 and whose["blue"] == whose["up"] == whose["and"] == 1
    assert whose["navy"] == whose["</s>"] == 2
    red, blue = list(V.COLOURS).index("red"), list(V.COLOURS).index("blue")
    assert found[words.index("ring"), [2, 6]].tolist() == [red, blue]
    assert found[words.index("star"), [2, 6]].tolist() == [blue, red]
    assert (found[len(words):] == IGNORE).all() and (found[:len(words), 9] == 2).all()


def test_one_object_has_no_other_and_dropped_prompts_are_not_asked():
    scenes = world.from_scenes([V.parse(V.EXAMPLE)], torch.Generator().manual_seed(0))
    facts = facts_of(scenes)
    assert facts[0, 4:8].tolist() == [len(V.SIZES), len(V.COLOURS), len(V.SHAPES), len(V.MOTIONS)]
    assert (labels(token_ids(scenes), torch.full_like(facts, IGNORE)) == IGNORE).all()


def test_the_loss_of_a_perfect_answer_is_zero_and_of_none_is_the_logarithm():
    ids, facts = held_out_captions(16)
    hit = one_hot(labels(ids, facts))
    assert binding_loss(hit.float() * 50, ids, facts) < 1e-6
    uniform = torch.tensor(CLASSES).float().log().mean()
    assert torch.isclose(binding_loss(torch.zeros(hit.shape), ids, facts), uniform, atol=1e-4)


def test_twins_differ_in_who_has_which_colour_only():
    scenes = with_twins(world.sample(400, torch.Generator().manual_seed(3), two_plain=0.7, two_scenic=0.7))
    assert not any(V.is_held_out(s) for s in world.describe(scenes))
    facts = facts_of(scenes)
    twins = are_twins(facts)
    assert 0.4 < twins.float().mean() < 0.75
    assert torch.equal(scenes.anchor[0::2][twins], scenes.anchor[1::2][twins])
    assert torch.equal(facts[0::2][twins][:, [1, 5]], facts[1::2][twins][:, [5, 1]])


def test_heads_learn_within_a_few_hundred_steps():
    trainer = TextTrainer(Machine(), small_encoder(), batch=24, captions=2048)
    before = trainer.check(64).mean()
    trainer.train(120, 8e-3)
    assert trainer.check(64).mean() > before + 0.35


def test_a_taller_encoder_begins_with_what_the_lower_one_said():
    torch.manual_seed(0)
    old = models.build_text_encoder(layers=3)
    grown, kept = models.grown_text_encoder({n: w.detach() for n, w in old.named_parameters()})
    ids = held_out_captions(4)[0]
    with torch.no_grad():
        assert kept and torch.equal(FastText(old).encode(ids), FastText(grown).encode(ids))
    assert not models.grown_text_encoder({n: w.detach() for n, w in small_encoder().named_parameters()})[1]


def test_the_projection_is_fitted_to_an_encoder_of_another_shape():
    torch.manual_seed(0)
    old, new = small_encoder(), models.build_text_encoder()
    weights = {"patch_embed.text_proj.weight": torch.randn(256, 64), "patch_embed.text_proj.bias": torch.randn(256)}
    assert refit_projection(weights, old, new, captions=128) > 0.3
    assert weights["patch_embed.text_proj.weight"].shape == (256, models.TEXT_WIDTH)
    same = {"patch_embed.text_proj.weight": torch.randn(256, 64), "patch_embed.text_proj.bias": torch.randn(256)}
    assert refit_projection(same, old, old, captions=128) > 0.99


def test_a_package_unpacks_to_the_weights_it_was_made_of(packaged, tmp_path):
    folder, out = packaged
    package(out, tmp_path)
    for part in PARTS:
        first, second = read_part(folder, part), read_part(tmp_path, part)
        assert first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    with pytest.raises(ValueError, match="Expected a packaged model"):
        unpack(out, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_one_step_of_refining_moves_the_weights_it_began_with(packaged):
    _, out = packaged
    torch.manual_seed(0)
    trainer = Trainer(Machine(), 0, False, out, refine=True, shift=2.0)
    began = load_weights(out, "transformer")[0]
    assert torch.equal(trainer.averaged("transformer")["proj_out.weight"], began["proj_out.weight"])
    scenes = with_twins(world.sample(2, torch.Generator().manual_seed(1), two_plain=1.0, two_scenic=1.0))
    z = torch.randn(2, models.LATENT_FRAMES, models.LATENT_CHANNELS, models.LATENT_SIZE, models.LATENT_SIZE)
    inputs = trainer.noised(z, token_ids(scenes), facts_of(scenes), torch.Generator().manual_seed(2), False)
    assert torch.equal(inputs[2][0], inputs[2][1]) == bool(are_twins(facts_of(scenes))[0])
    loss = trainer.loss(*inputs)
    assert loss.shape == (2,) and loss.isfinite().all()
    trainer.optimizer.step(1e-3)
    assert not torch.equal(trainer.averaged("text_encoder")["shared.weight"],
                           load_weights(out, "text_encoder")[0]["shared.weight"])


def test_refining_needs_an_encoder_of_the_right_width(packaged, tmp_path):
    _, out = packaged
    save_weights(tmp_path, "transformer", *load_weights(out, "transformer"))
    with pytest.raises(ValueError, match="train_text"):
        Trainer(Machine(), 0, False, tmp_path, refine=True)


def test_the_published_model_is_a_place_to_go_on_from(tmp_path):
    tiny = Path(__file__).parents[2] / "assets" / "tiny"
    if not (tiny / "model_index.json").is_file():
        pytest.skip("assets/tiny is not packaged here")
    assert models.grown_text_encoder(read_part(tiny, "text_encoder"))[1]
    models.build_transformer().load_state_dict(read_part(tiny, "transformer"))
