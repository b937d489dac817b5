"""A sentence that can be said in another language: English text that remembers what it says."""

from __future__ import annotations

from typing import Any


class Notice(str):
    """A warning as a string. `key` names what it says and `values` what is filled in, so that a page which speaks
    another language finds its own words; whoever only prints it needs to know neither."""

    key: str
    values: dict[str, Any]

    def __new__(cls, text: str, key: str = "", values: dict[str, Any] | None = None) -> Notice:
        made = super().__new__(cls, text)
        made.key, made.values = key, values or {}
        return made


def notice(key: str, template: str, **values: Any) -> Notice:
    """The English template, filled in, with its key and values."""
    return Notice(template.format(**values), key, values)
