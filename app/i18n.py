"""Every word the app shows, in English and Simplified Chinese.

The texts live as data in `app/texts/*.py`, one module per place on the page. Each module
defines `TEXTS = {"en": {key: template}, "zh-CN": {key: template}}` with the same keys and the
same `{placeholders}` in both languages; `tests/app/test_i18n.py` holds that.

    "{last:the last step always computes|the last # steps always compute}"       # by number, # being the value

    text("zh-CN", "learn.lesson", number=4)       # safe to put into HTML: values are escaped
    plain("en", "learn.lesson", number=4)         # for labels, where Gradio escapes by itself
    catalogue("en", "learn.")                     # the templates a browser-side component needs

Templates themselves are ours and may hold simple markup (<b>, <i>, <code>); only the values,
which may come from a visitor's prompt or file name, are escaped.
"""

from __future__ import annotations

import html
import importlib
import pkgutil
import string
from functools import cache
from typing import Any

LANGUAGES = ("en", "zh-CN")
NAMES = {"en": "English", "zh-CN": "中文"}
DEFAULT = "en"


def resolve(wish: str | None) -> str:
    """The language that serves a wish: `?lang=zh`, "zh_Hans", or an Accept-Language header.

    Unknown or absent wishes get English; the first language named that we speak wins.
    """
    for part in str(wish or "").replace("_", "-").lower().split(","):
        name = part.split(";")[0].strip()
        if name == "zh" or name.startswith("zh-"):
            return "zh-CN"
        if name == "en" or name.startswith("en-"):
            return "en"
    return DEFAULT


@cache
def texts() -> dict[str, dict[str, str]]:
    """All templates: {language: {key: template}}, merged over the modules of `app.texts`."""
    import app.texts

    merged: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
    for module in pkgutil.iter_modules(app.texts.__path__):
        part = importlib.import_module(f"app.texts.{module.name}").TEXTS
        for language in LANGUAGES:
            doubled = merged[language].keys() & part[language].keys()
            if doubled:
                raise ValueError(
                    f"app/texts/{module.name}.py repeats the key {sorted(doubled)[0]!r}: "
                    "expected every key in one module only; rename one of them."
                )
            merged[language].update(part[language])
    return merged


def text(lang: str, key: str, **values: Any) -> str:
    """The template `key` in `lang`, its values HTML-escaped: for HTML and Markdown."""
    return _fill(lang, key, {k: html.escape(str(v), quote=True) for k, v in values.items()})


def plain(lang: str, key: str, **values: Any) -> str:
    """The template `key` in `lang`, values as they are: for labels that are shown as text."""
    return _fill(lang, key, {k: str(v) for k, v in values.items()})


def sentences(lang: str, *parts: str) -> str:
    """Sentences in a row; Chinese puts no blank between them."""
    return ("" if resolve(lang) == "zh-CN" else " ").join(part for part in parts if part)


def said(lang: str, sentence: str) -> str:
    """A warning or refusal of the engine in `lang`, by its key; one that this page has no words for stays as it is.
    A field that it names is called what the page calls it, but in English, where its own name says it."""
    words, key = texts()[resolve(lang)], f"lab.notice.{getattr(sentence, 'key', '')}"
    if key not in words:
        return str(sentence)
    values, own = sentence.values, sentence.values.get("name")
    if own is not None and resolve(lang) != "en":
        labels = (f"lab.{place}.{str(own).removesuffix(' prompt')}" for place in ("field", "knob", "sentence"))
        values = {**values, "name": next((words[label] for label in labels if label in words), own)}
    return plain(lang, key, **values)


def catalogue(lang: str, prefix: str = "") -> dict[str, str]:
    """The raw templates whose keys start with `prefix`, for a component that runs in the browser."""
    return {k: v for k, v in texts()[resolve(lang)].items() if k.startswith(prefix)}


def placeholders(template: str) -> set[str]:
    """The names a template expects: "{a} of {b}" -> {"a", "b"}."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


class _Value(str):
    """A value in a template, which may say two things by it: what stands for one, and what for any other number."""

    def __format__(self, spec: str) -> str:
        one, bar, many = spec.partition("|")
        if not bar:
            return super().__format__(spec)
        return (one if self.removeprefix("≈ ") == "1" else many).replace("#", self)


def _fill(lang: str, key: str, values: dict[str, str]) -> str:
    template = texts()[resolve(lang)].get(key)
    if template is None:
        raise KeyError(f"no text for {key!r}: add it to both languages of a module in app/texts/.")
    return template.format_map({name: _Value(value) for name, value in values.items()})
