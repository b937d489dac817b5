"""The fused block computes what the plain path computes, decides the same, and declines what it does not know."""

import pytest

from engine import fused, fused_cpu, products
from tests.engine.fused_alike import POLICIES, check_alike, check_declines_a_hook, check_stock_is_stock, run_once

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_passes(monkeypatch):
    """Neither side may take the CPU's own fused forward, which has tests of its own."""
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)


@pytest.fixture
def anywhere(monkeypatch):
    """Take the fused forward with the PyTorch twins, on a machine without Triton's device."""
    applied, stock = [], fused.applies

    class Present:
        triton = True

    def applies(module, groups, kwargs, x):
        with monkeypatch.context() as patch:
            patch.setattr(fused.target, "probe", lambda device: Present)
            applied.append(stock(module, groups, kwargs, x))
        return applied[-1]

    monkeypatch.setattr(fused, "applies", applies)
    return applied


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("samples", [1, 2])
def test_equals_the_plain_path(name, samples, anywhere, monkeypatch):
    # Strips of eight tokens end inside the text, at its end and inside the video.
    monkeypatch.setattr(fused, "_SAMPLES", samples)
    monkeypatch.setattr(products, "_TILE_ROWS", 8)
    monkeypatch.setattr(products, "_STRIP_ROWS", 8)
    ours = run_once(POLICIES[name])
    assert anywhere and all(anywhere)
    monkeypatch.undo()
    monkeypatch.setattr(fused_cpu, "applies", lambda *_: False)
    check_alike(name, ours, run_once(POLICIES[name]))


def test_declines_what_it_does_not_know(anywhere):
    check_declines_a_hook(anywhere)


def test_the_stock_preset_never_takes_it(anywhere):
    check_stock_is_stock(anywhere)
