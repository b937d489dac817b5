"""Recordings, a served page and a real browser for the app's tests."""

from __future__ import annotations

import os
import shutil
import socket

import pytest

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from app.recordings import read  # noqa: E402
from app.settings import read as read_settings  # noqa: E402
from tests.app.standin import record  # noqa: E402


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """A folder with two stand-in recordings: 12 blocks × 30 steps, and 42 × 50."""
    folder = tmp_path_factory.mktemp("recordings")
    record(folder, "red-star", order=1)
    record(folder, "large", blocks=42, steps=50, order=2)
    return folder


@pytest.fixture(scope="session")
def source(recordings):
    """The small recording, loaded."""
    return read(recordings / "red-star").load()


@pytest.fixture(scope="session")
def large(recordings):
    """The large recording, loaded."""
    return read(recordings / "large").load()


@pytest.fixture(scope="session")
def settings(recordings):
    """Settings of a local page that plays the stand-in recordings."""
    return read_settings({"LAB_RECORDINGS": str(recordings), "LAB_PRELOAD": "0", "LAB_CONCURRENCY": "2"})


@pytest.fixture(scope="session")
def served(settings):
    """(address of the page, its Lab): served in this process."""
    from app.shell import build, launch_options

    demo = build(settings)
    demo.queue(default_concurrency_limit=None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, server_port=port, server_name="127.0.0.1", **launch_options())
    yield url, demo.lab
    demo.close()


@pytest.fixture(scope="session")
def page_url(served):
    """The page's address."""
    return served[0]


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium; tests that need it are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs the chromium program")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium, page_url):
    """Open the page: tab(width=…, height=…, dark=…, query=…), `before` run ahead of its own scripts, and wait for its map
    where it is to be `drawn`. Errors of the page's scripts fail the test."""
    yield from _tabs(chromium, page_url)


@pytest.fixture(scope="module")
def lasting(chromium, page_url):
    """`tab` of a page that the tests of a file share: a page load is the dearest thing here."""
    yield from _tabs(chromium, page_url)


def _tabs(chromium, page_url):
    opened, errors = [], []

    def open_tab(width: int = 1440, height: int = 900, dark: bool = False, query: str = "",
                 before: str = "", drawn: bool = True, **context):
        made = chromium.new_context(viewport={"width": width, "height": height},
                                    color_scheme="dark" if dark else "light", **context)
        made.set_default_timeout(180_000)
        opened.append(made)
        page = made.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        if before:
            page.add_init_script(f"({before})()")
        page.goto(page_url + query)
        page.wait_for_selector("#lab-map [data-drawn]" if drawn and "tab=" not in query else "#tab-lab")
        return page

    yield open_tab
    for made in opened:
        made.close()
    assert not errors, errors
