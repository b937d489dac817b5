"""Both languages say the same things, and a visitor's text can never become markup."""

import re
from pathlib import Path

import pytest

from app import i18n

CJK = re.compile(r"[\u4e00-\u9fff]")
APP = Path(i18n.__file__).parent


def test_both_languages_have_the_same_keys():
    english, chinese = (set(i18n.texts()[lang]) for lang in i18n.LANGUAGES)
    assert english == chinese


def test_both_languages_expect_the_same_values():
    english, chinese = (i18n.texts()[lang] for lang in i18n.LANGUAGES)
    for key in english:
        assert i18n.placeholders(english[key]) == i18n.placeholders(chinese[key]), key


def test_chinese_is_translated_and_uses_its_own_punctuation():
    for key, template in i18n.texts()["zh-CN"].items():
        assert template.strip(), key
        assert not re.search(r"[\u4e00-\u9fff][,:;?!]", template), key
        assert not re.search(r"[,:;?!][\u4e00-\u9fff]", template), key
        assert not re.search(r"\}[,:;?!]\{", template), key


SPEC = re.compile(r"\{\w+:([^{}]*)\}")


def test_words_go_by_their_number():
    assert i18n.plain("en", "lab.why.final_steps", last=1).startswith("the last step always computes,")
    assert i18n.plain("en", "lab.why.final_steps", last=2).startswith("the last 2 steps always compute,")
    assert i18n.plain("en", "lab.why.skip_limit", max_skips=1) == "the step before was skipped; one in a row is the limit (set under Advanced)"
    assert i18n.plain("en", "lab.verdict.score", right="≈ 1", total="≈ 1") == "≈ 1 of ≈ 1 choice right."
    assert i18n.plain("zh-CN", "lab.why.final_steps", last=1).startswith("最后 1 步总是计算")
    named = re.compile(r"(?<!of )(?<!of the )(?<!of our )\{\w+\} (?:\w+ )?(?:steps|cells|choices|prompts|frames|skips|blocks|points|runs|policies|tokens|measurements|settings)\b")
    assert not {key: said for key, said in i18n.texts()["en"].items() if named.search(said)}
    for lang in i18n.LANGUAGES:
        assert all(spec.count("|") == 1 for said in i18n.texts()[lang].values() for spec in SPEC.findall(said))


def test_english_holds_no_chinese():
    allowed = {"common.language"}
    for key, template in i18n.texts()["en"].items():
        assert key in allowed or not CJK.search(template), key


def test_every_key_that_the_code_names_exists():
    known = i18n.texts()["en"]
    used = re.compile(r"""\b(?:text|plain)\(\s*\w+,\s*["']([a-z0-9_.]+)["']""")
    for file in APP.rglob("*.py"):
        for key in used.findall(file.read_text(encoding="utf-8")):
            assert key in known, f"{file.name} names {key!r}"


@pytest.mark.parametrize("lang", i18n.LANGUAGES)
def test_values_are_escaped_for_html_but_not_for_labels(lang, monkeypatch):
    hostile = "<script>alert('x')</script>\"../" + "a" * 10_000
    table = {language: {"t": "<b>{name}</b>"} for language in i18n.LANGUAGES}
    monkeypatch.setattr(i18n, "texts", lambda: table)
    shown = i18n.text(lang, "t", name=hostile)
    assert shown.startswith("<b>&lt;script&gt;") and "<script" not in shown and "&quot;" in shown
    assert i18n.plain(lang, "t", name=hostile) == f"<b>{hostile}</b>"


def test_a_value_with_braces_is_not_a_template(monkeypatch):
    table = {language: {"t": "{name}"} for language in i18n.LANGUAGES}
    monkeypatch.setattr(i18n, "texts", lambda: table)
    assert i18n.text("en", "t", name="{0.__class__} {other}") == "{0.__class__} {other}"


@pytest.mark.parametrize(
    "wish, language",
    [
        ("zh", "zh-CN"), ("zh-CN", "zh-CN"), ("zh_Hans", "zh-CN"), ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("fr-FR,zh;q=0.5", "zh-CN"), ("de", "en"), ("", "en"), (None, "en"), ("<script>", "en"),
    ],
)
def test_resolve_finds_the_language_a_visitor_wishes(wish, language):
    assert i18n.resolve(wish) == language


def test_an_unknown_key_says_where_to_add_it():
    with pytest.raises(KeyError, match="app/texts"):
        i18n.text("en", "no.such.key")


def test_catalogue_gives_one_part_in_one_language():
    part = i18n.catalogue("zh-CN", "group.")
    assert part["group.down"] == "前馈下投影" and all(key.startswith("group.") for key in part)


def test_chinese_has_one_word_for_bit_and_for_tolerance_and_no_blank_after_a_full_stop():
    chinese = i18n.texts()["zh-CN"]
    assert not [key for key, said in chinese.items() if re.search(r"[\d}] ?位(?!置)|(?<![比特单])位数|容差|(?<=\S)[。！？；，] ", said)]
    assert i18n.sentences("zh-CN", "一。", "", "二。") == "一。二。" and i18n.sentences("en", "One.", "", "Two.") == "One. Two."
