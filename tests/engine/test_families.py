"""The family table against the real classes: what is supported is found, what is not is refused by name."""

import subprocess
import sys

import pytest
from diffusers import CogVideoXFunControlPipeline, StableDiffusionPipeline, WanAnimatePipeline, WanVACEPipeline
from torch import nn

from engine.families import UnsupportedPipeline, families, family_of, find, supported, transformers_of
from tests import pipelines


@pytest.mark.parametrize(
    ("build", "name", "missing"),
    [
        (lambda: pipelines.cogvideox(layers=1), "CogVideoX", set()),
        (lambda: pipelines.wan(layers=1), "Wan", {"attn2.add_k_proj", "attn2.add_v_proj"}),
        (lambda: pipelines.wan(pipelines.WanImageToVideoPipeline, layers=1, image_context=True), "Wan", set()),
    ],
)
def test_every_path_of_a_row_is_a_linear(build, name, missing):
    pipe = build()
    family = family_of(pipe)
    assert family.name == name
    for block in getattr(pipe.transformer, family.blocks):
        listed = [path for paths in family.groups.values() for path in paths] + [*family.adaln, *family.static]
        found = {path: find(block, path) for path in listed}
        assert {path for path, module in found.items() if module is None} == missing
        assert all(type(module) is nn.Linear for module in found.values() if module is not None)
        every = {module for module in block.modules() if type(module) is nn.Linear}
        assert every == {module for module in found.values() if module is not None}


def test_all_supported_names_exist_in_diffusers():
    import diffusers

    assert all(hasattr(diffusers, name) for name in supported())
    assert {family.name for family in families()} == {"CogVideoX", "Wan"}


@pytest.mark.parametrize(
    "cls", [WanVACEPipeline, WanAnimatePipeline, CogVideoXFunControlPipeline, StableDiffusionPipeline]
)
def test_others_are_refused_by_name(cls):
    with pytest.raises(UnsupportedPipeline) as caught:
        family_of(cls.__new__(cls))
    assert cls.__name__ in str(caught.value) and "WanVideoToVideoPipeline" in str(caught.value)


def test_a_subclass_of_a_supported_pipeline_is_one():
    class Mine(pipelines.WanPipeline):
        pass

    assert family_of(pipelines.wan(Mine, layers=1)).name == "Wan"


def test_a_foreign_or_missing_transformer_is_refused():
    pipe = pipelines.wan(layers=1)
    pipe.transformer = nn.Linear(2, 2)
    with pytest.raises(UnsupportedPipeline, match="must be a WanTransformer3DModel, but it is a Linear"):
        family_of(pipe)
    pipe.transformer = None
    with pytest.raises(UnsupportedPipeline, match="no transformer"):
        family_of(pipe)


def test_transformers_come_in_the_order_in_which_they_run():
    assert list(transformers_of(pipelines.wan(layers=1, two=True))) == ["transformer", "transformer_2"]


def test_the_table_needs_no_torch():
    code = "import engine.families, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
