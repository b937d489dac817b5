"""The hardware advice: where 4 bits are native, and what is said where they are not."""

import pytest

from app.i18n import said
from engine import advice
from engine.cli import read_policy
from engine.settings import PRESETS
from kernels import target

HOPPER = target.Target("cuda", (9, 0), True, False, True, True, "no FP4")
BLACKWELL = target.Target("cuda", (12, 0), True, True, True, True, "FP4")


@pytest.mark.parametrize(("here", "name"), [(HOPPER, "int8_tdc"), (BLACKWELL, "sixbit"), (None, "int8_tdc")])
def test_the_preset_that_suits_a_device(monkeypatch, here, name):
    if here is not None:
        monkeypatch.setattr(target, "probe", lambda device: here)
    assert advice.preset_for("cpu") == name

    class Given:
        policy, set, device = "auto", None, "cpu"

    assert read_policy(Given) == PRESETS[name]


def test_simulated_four_bits_are_said(monkeypatch):
    monkeypatch.setattr(target, "probe", lambda device: HOPPER)
    for name in ("sixbit", "dmpq", "w4a4"):
        (sentence,) = advice.about(PRESETS[name], "cuda")
        assert "int8_tdc is faster and more accurate here" in sentence
        assert "INT8 + TDC" in said("en", sentence) and "Blackwell" in said("zh-CN", sentence)
    for name in ("fp16", "w4a16", "w4a8", "int8_tdc", "tdc"):
        assert not advice.about(PRESETS[name], "cuda")
    monkeypatch.setattr(target, "probe", lambda device: BLACKWELL)
    assert not advice.about(PRESETS["sixbit"], "cuda")


def test_a_cpu_is_left_in_peace():
    assert not advice.about(PRESETS["sixbit"], "cpu")
