"""The strips of the fused block: they cover what they should, and the Triton branch computes what the PyTorch one does."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import products


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_both_branches_agree_under_the_interpreter():
    script = Path(__file__).with_name("interpreted_feed_forward.py")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.engine.interpreted_feed_forward"],
        env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=script.parents[2], capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


@pytest.mark.parametrize("columns", [3072, 9216, 12288])
def test_strips_fill_whole_waves(monkeypatch, columns):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    strips = products._strips(slice(0, 17776), columns, torch.device("cuda"))
    assert [strip.start for strip in strips[1:]] == [strip.stop for strip in strips[:-1]]
    assert strips[0].start == 0 and strips[-1].stop == 17776
    for strip in strips[:-1]:
        assert (strip.stop - strip.start) // 128 * (columns // 256) % 132 == 0
    whole, cut = (sum(-(-(-(-(s.stop - s.start) // 128) * (columns // 256)) // 132) for s in found)
                  for found in ([slice(0, 17776)], strips))  # fmt: skip
    assert cut <= whole + 1


def test_strips_without_a_gpu():
    assert products._strips(slice(5, 7), 64, torch.device("cpu")) == [slice(5, 7)]
