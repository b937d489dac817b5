"""A part of the page: `<name>.html` and `<name>.js` beside this file, wrapped as one gr.HTML.

Markup is static and every word is put in by the script as text, never as markup; so nothing a visitor writes can
become HTML, and a canvas or a plot survives every update of a property.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import gradio as gr

HERE = Path(__file__).parent


@cache
def source(name: str) -> str:
    """The text of a file in this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def part(name: str, *, also: tuple[str, ...] = (), server_functions: list[Callable] | None = None, **props) -> gr.HTML:
    """Place the part `name`; `props` reach its script as `props`; `also` names scripts that it builds on."""
    return gr.HTML(
        None,
        html_template=source(f"{name}.html"),
        js_on_load="".join(source(f"{script}.js") for script in ("bus", *also, name)),
        server_functions=server_functions,
        apply_default_css=False,
        elem_id=f"lab-{name}",
        elem_classes=["lab-part", f"part-{name}"],
        **props,
    )
