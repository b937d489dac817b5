"""Live runs in a real browser on the embedded model: previews, stop, closed tabs, two visitors at once."""

import time

import numpy as np
import pytest

from app.settings import EMBEDDED
from engine.settings import Policy

pytestmark = pytest.mark.skipif(not (EMBEDDED / "model_index.json").exists(), reason="needs the embedded model in assets/tiny")
PROMPT = "a large red star bounces in a sunset room"


@pytest.fixture(scope="module", autouse=True)
def model(served):
    """Loaded once, so that no test waits for it."""
    return served[1].models.get("tiny", "en")


def prepare(page, steps, mode="sixbit", preset="w4a8", seed=3):
    page.wait_for_function("window.lab6.state.sid")
    page.evaluate("([steps, mode, preset]) => { Object.assign(lab6.state, {steps, mode}); lab6.emit('look', {preset, policy: null}); }", [steps, mode, preset])
    page.fill(".seed-in", str(seed))
    page.wait_for_function("p => lab6.state.preset === p", arg=preset)


def ended(page):
    page.wait_for_function("!lab6.busy", timeout=180_000)


def test_a_run_shows_previews_and_leaves_its_result(tab, served):
    page = tab()
    prepare(page, steps=5, mode="race", preset="sixbit")
    page.evaluate("""() => { const c = [...document.querySelectorAll('.pane canvas')]; window.blank = 0; window.kept = c;
        const look = () => { c.forEach(k => { if (k.getContext('2d').getImageData(k.width / 2, k.height / 4, 1, 1).data[3] === 0) window.blank++; }); requestAnimationFrame(look); }; look(); }""")
    page.click(".run")
    page.wait_for_function("document.querySelector('[data-pane=b] .clock').textContent.startsWith('1/5')", timeout=120_000)
    assert page.is_visible(".stop") and not page.is_visible(".run")
    ended(page)
    assert "Done in" in page.inner_text(".status") and "seed 3" in page.inner_text(".status")
    assert page.evaluate("[window.blank, window.kept.every(k => k.isConnected)]") == [0, True]
    page.wait_for_function("lab6.state.source.startsWith('run:')")
    session = served[1].sessions.get(page.evaluate("lab6.state.sid"))
    assert session.current.video["a"].shape == session.current.video["b"].shape == (17, 128, 128, 3)
    assert len(session.current.trace.blocks) and np.isfinite(session.current.psnr)
    assert page.locator(".ticks li").count() >= 10
    own = page.evaluate("lab6.state.source")
    page.select_option(".runs-pick", "recording:large")
    page.wait_for_function("lab6.state.source === 'recording:large' && document.querySelector('[data-pane=b] .clock').textContent.includes('/50')")
    page.select_option(".runs-pick", own)          # what was run here comes back with its race
    page.wait_for_function("key => lab6.state.source === key && document.querySelector('[data-pane=b] .clock').textContent.startsWith('5/5')", arg=own)
    assert "Your own run again" in page.inner_text(".note") and page.locator(".ticks li").count() >= 10


def test_stop_ends_within_a_step_and_the_next_click_is_not_lost(tab, served):
    page = tab()
    prepare(page, steps=40)
    page.click(".run")
    page.wait_for_function("/^[2-9]\\/40/.test(document.querySelector('[data-pane=b] .clock').textContent)", timeout=120_000)
    at_click = page.evaluate("parseInt(document.querySelector('[data-pane=b] .clock').textContent)")
    page.click(".stop")
    ended(page)
    ran = served[1].sessions.get(page.evaluate("lab6.state.sid")).current.trace.blocks["step"].max() + 1
    assert ran <= at_click + 2              # the step it was in, and one that the page had not heard of yet
    page.click(".run")                      # at once: a queue that still tears down must not drop it
    assert "Stopped after step" in page.inner_text(".status") or page.evaluate("lab6.busy")
    # Its own words: the pane's clock shows the run before until this one's first step.
    page.wait_for_function("/: step [1-9]\\d* of 40/.test(document.querySelector('.status').textContent) && lab6.busy", timeout=120_000)
    session = served[1].sessions.get(page.evaluate("lab6.state.sid"))
    assert session.running
    page.click(".stop")
    ended(page)
    assert not session.running and len(served[1].gate) == 0
    assert session.current.trace.blocks["step"].max() < 39
    page.evaluate("() => { document.querySelector('.run').click(); document.querySelector('.stop').click(); }")          # a double click
    ended(page)
    assert not session.running and session.stopped == page.evaluate("lab6.state.runId")
    assert "left the line" in page.inner_text(".status") or "Stopped" in page.inner_text(".status")


@pytest.mark.parametrize("leave", ["close", "reload"])
def test_closing_or_reloading_the_tab_ends_the_run(tab, served, leave):
    page = tab()
    prepare(page, steps=60)
    page.click(".run")
    page.wait_for_function("/^[1-9]\\/60/.test(document.querySelector('[data-pane=b] .clock').textContent)", timeout=120_000)
    assert len(served[1].gate) == 1
    page.context.close() if leave == "close" else page.reload()
    end = time.monotonic() + 60
    while len(served[1].gate) and time.monotonic() < end:
        time.sleep(0.2)
    assert len(served[1].gate) == 0


def test_two_visitors_at_once_each_get_their_own_run(tab, served, model):
    from engine.stream import Finished, generate

    wishes = [("w4a4", 11, PROMPT), ("int8_tdc", 12, "a small blue ring spins on a gray background")]
    pages = [tab(), tab()]
    for page, (preset, seed, prompt) in zip(pages, wishes):
        prepare(page, steps=6, preset=preset, seed=seed)
        page.evaluate("prompt => lab6.emit('ask', {prompt})", prompt)
    for page in pages:
        page.click(".run")
    for page in pages:
        ended(page)
    for page, (preset, seed, prompt) in zip(pages, wishes):
        session = served[1].sessions.get(page.evaluate("lab6.state.sid"))
        alone = [e for e in generate(model.pipe, prompt, policy=Policy.preset(preset), seed=seed, steps=6) if isinstance(e, Finished)][0]
        assert session.current.seed == seed and session.current.prompt == prompt
        assert np.array_equal(session.current.video["b"], alone.frames)
        assert (session.current.trace.layers["precision"].astype(str).to_numpy() == alone.trace.layers["precision"].astype(str).to_numpy()).all()


def test_the_end_points_work_for_scripts(served, model):
    client_of = pytest.importorskip("gradio_client")
    client = client_of.Client(served[0], verbose=False)
    made = client.predict(PROMPT, "w4a8", 0, 3, "", api_name="/generate")
    assert made["seed"] == 0 and made["report"]["average_bits_computed"] == 8 and len(made["video"]) > 500
    what_if = client.predict(made["run"], '{"precision": "w4a16", "tdc": false, "pdr": false}', api_name="/replay")
    assert what_if["report"]["average_bits"] == 16 and made["report"]["compute_seconds"] > 0
    for broken in ('{"tdc', "[1]", '{"tdc": 7}'):
        with pytest.raises(Exception, match="policy|tdc must be"):
            client.predict(PROMPT, "w4a8", 0, 3, broken, api_name="/generate")
    assert client.predict(made["run"], "csv", api_name="/trace")["name"] == "trace.csv"
    with pytest.raises(Exception, match="knows these words"):
        client.predict("a dragon", "w4a8", 0, 3, "", api_name="/generate")
