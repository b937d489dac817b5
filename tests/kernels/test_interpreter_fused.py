"""Runs test_fused_parity.py where Triton's interpreter is on, in a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_fused_kernels_equal_their_twins_under_the_interpreter():
    script = Path(__file__).with_name("test_fused_parity.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "ignore", str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=script.parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
