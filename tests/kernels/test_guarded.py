"""No kernel touches memory that is not its own: every launch between forbidden pages, without a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kernels.guarded import SUPPORTED

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(not SUPPORTED, reason="pages are forbidden through mprotect, which this system has not"),
]


def run(what: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.guarded_kernels", what],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )


def check(done: subprocess.CompletedProcess) -> None:
    """Fails with the last launch that began, and where in the kernel it ended."""
    before, _, after = done.stderr.rpartition("\nlaunch ")
    assert done.returncode == 0, f"exit status {done.returncode} in {after[-6000:]}" if before else done.stderr[-6000:]


def test_a_faulty_kernel_is_caught():
    done = run("faults")
    check(done)
    outcomes = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    killed = "killed by signal "
    assert outcomes["reads_past_the_end end"].startswith(killed)
    assert outcomes["reads_before_the_start start"].startswith(killed)
    assert outcomes["writes_past_the_end end"].startswith(killed)
    # A read between rows cannot be forbidden, but shows in the result.
    assert outcomes["reads_what_lies_in_gaps end"] != outcomes["reads_what_lies_in_gaps start"]
    for case in ("writes_past_the_end start", "writes_into_gaps end", "writes_into_gaps start"):
        assert outcomes[case] == "out of place"


def test_every_kernel_keeps_to_its_tensors():
    done = run("kernels")
    check(done)
    assert done.stdout.startswith("every function ran")


def test_a_fused_model_keeps_to_its_tensors():
    check(run("model"))
