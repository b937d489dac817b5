"""What the short import of Gradio leaves behind: the real thing everywhere, only sooner."""

import subprocess
import sys

from app.settings import ROOT

LOOKED_AT = """
import sys, ssl, inspect, jinja2
before = ssl.create_default_context, inspect.getfile, jinja2.Template
from app.swift import gr
assert (ssl.create_default_context, inspect.getfile, jinja2.Template) == before
left = [name for name in ("gradio.cli", "gradio.external", "gradio.workflow", "httpx._main", "torch") if name in sys.modules]
assert not left, left
import gradio.events, gradio.component_meta
assert gradio.events.Template is gradio.component_meta.Template is jinja2.Template
assert "Image" in gr.Image.change.__doc__ and "{{" not in gr.Image.change.__doc__
import gradio.external
assert gradio.external.load.__module__ == "gradio.external" and gr.load is not gradio.external.load
try:
    gr.load("nothing/such", src="nowhere")
except Exception as error:
    print(type(error).__name__)
import httpx
with httpx.Client() as first, httpx.Client() as second:
    assert first._transport is not second._transport
"""


def test_stand_ins_go_and_what_they_stood_for_is_found():
    ran = subprocess.run([sys.executable, "-c", LOOKED_AT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split(), "gr.load reached the real one, which refused"


def test_the_first_race_is_decoded_from_the_head_of_the_page():
    from gradio.routes import templates

    import app.swift  # noqa: F401

    text = templates.env.get_template("frontend/index.html").render(config={"title": "x"}, gradio_api_info={})
    assert text.index("window.gradio_config") < text.index("lab6early") < text.index("<gradio-app")
