"""The words at the end of Learn: every term once, in both languages, one line each."""

import pytest

from app.i18n import LANGUAGES
from app.lessons.course import open_lesson
from app.lessons.glossary import PAPER, glossary
from app.lessons.material import Material

ASKED = ("block", "layer call", "predictor", "Γ", "drift", "outlier", "reuse cache", "PSNR", "dB", "SSIM", "seed", "trace", "policy", "FP16",
         "NVFP4", "INT8", "W4A16", "DMPQ", "TDC", "PDR", "qkv", "GELU", "R²", "Hadamard", "activations")  # fmt: skip


def test_every_term_that_a_stranger_asked_for_is_there():
    names = " ".join(term for term, _ in glossary("en")["terms"])
    assert not [word for word in ASKED if word not in names]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_each_line_is_one_line(lang):
    part = glossary(lang)
    assert len(part["terms"]) == len(glossary("en")["terms"]) and len({term for term, _ in part["terms"]}) == len(part["terms"])
    assert all(10 < len(line) < 160 for _, line in part["terms"])
    assert part["paper"]["href"] == PAPER == "https://arxiv.org/abs/2603.18742"


def test_the_words_come_with_every_lesson_even_without_a_recording():
    assert open_lesson(Material(), 3, "zh-CN", {})["glossary"]["title"] == "词汇"
