"""The folder has the name of a package that diffusers and transformers look for: both must import, and fetch nothing."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

_PROGRAM = """
import kernels, diffusers, transformers
from diffusers import CogVideoXPipeline, CogVideoXTransformer3DModel, WanPipeline
from transformers import T5EncoderModel
print(kernels.__file__, hasattr(kernels, "get_kernel"))
"""


@pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed")
def test_diffusers_and_transformers_import_beside_this_package():
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split() == [str(root / "kernels" / "__init__.py"), "False"]
