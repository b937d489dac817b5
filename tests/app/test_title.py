"""The title under which a link to the page is shown elsewhere."""

import re

import app.swift  # noqa: F401  (what it does to the page's template is tested)


def test_every_title_of_the_page_is_its_own():
    from gradio.routes import templates

    for name in ("frontend/index.html", "frontend/share.html"):
        text = templates.env.get_template(name).render(config={"title": "6Bit-Diffusion Lab"}, gradio_api_info={})
        titles = re.findall(r'title"\s+content="([^"]*)"', text)
        assert len(titles) >= 4 and set(titles) == {"6Bit-Diffusion Lab"}
