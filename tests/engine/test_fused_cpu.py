"""The CPU's fused block computes what the plain path computes, decides the same, and declines what it does not know."""

import pytest
import torch

from engine import fused_cpu
from engine.policy import PRESETS
from kernels import cpu_fused
from tests import pipelines
from tests.engine.fused_alike import POLICIES, check_alike, check_declines_a_hook, check_stock_is_stock, run_once

pytestmark = [
    pytest.mark.usefixtures("one_thread"), pytest.mark.skipif(not cpu_fused.usable(), reason="needs Numba"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(cpu_fused, "_FEWEST", 1)


@pytest.fixture
def taken(monkeypatch):
    asked, applies = [], fused_cpu.applies

    def noted(*arguments):
        asked.append(applies(*arguments))
        return asked[-1]

    monkeypatch.setattr(fused_cpu, "applies", noted)
    return asked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", POLICIES)
def test_equals_the_plain_path(name, dtype, taken, monkeypatch):
    ours = run_once(POLICIES[name], dtype)
    assert taken and all(taken)
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)
    check_alike(name, ours, run_once(POLICIES[name], dtype))


def test_the_same_seed_gives_the_same_bits():
    assert torch.equal(run_once(PRESETS["w4a8"])[0], run_once(PRESETS["w4a8"])[0])


def test_declines_what_it_does_not_know(taken, monkeypatch):
    pipe = check_declines_a_hook(taken)
    # What would hold too much memory at once goes the way that cuts it.
    monkeypatch.setattr(fused_cpu, "_MOST_SUMS", 100)
    taken.clear()
    pipelines.latents(pipe)
    assert not any(taken)


def test_the_stock_preset_never_takes_it(taken):
    check_stock_is_stock(taken)
