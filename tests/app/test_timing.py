"""How long a visitor waits: until a recorded race is on the page, and until a moved knob has redrawn the map.

`python -m pytest tests/app/test_timing.py -q -s` prints the figures. The bounds are the ones to hold on a quiet machine,
where the best of three rounds must keep them; a machine that does other things besides gets longer, as its load says.
"""

import os
import socket
import subprocess
import sys
import time

import pytest

from app.settings import EMBEDDED, ROOT

pytestmark = pytest.mark.quiet
SOURCES = {"12x30x4": "recording:red-star", "42x50x4": "recording:large"}
MOVES = """async ([name, values]) => {
    const hub = document.querySelector('#lab-hub [data-looked]'), map = document.querySelector('#lab-map [data-seen]');
    const knob = document.querySelector(`#knob-${name}`), times = [], frame = () => new Promise(requestAnimationFrame);
    for (const value of values) {
        const before = Number(hub.dataset.looked), began = performance.now();
        knob.value = value; knob.dispatchEvent(new Event('input', {bubbles: true}));
        while (Number(hub.dataset.looked) === before || Number(map.dataset.seen) < Number(hub.dataset.looked)) await frame();
        times.push(performance.now() - began);
        await new Promise(r => setTimeout(r, 30));
    }
    return times; }"""


def slack():
    """1 on a quiet machine; on one that is busy with something else, twice the number of programs per core."""
    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return 1 if busy < 0.75 else max(2, 2 * busy)


def moves(page, label, rounds=3, count=20):
    """(p50, p95) in milliseconds of the best round; the least of all says what a quiet moment would give."""
    found = []
    for r in range(rounds):
        values = [round(0.1 + 0.004 * i + 0.0005 * r, 4) for i in range(count)]
        times = sorted(page.evaluate(MOVES, ["tdc_threshold", values]))
        found.append((times[count // 2], times[int(0.95 * count)], times[0]))
    best = min(found, key=lambda pair: pair[1])
    print(f"\nknob to redrawn map, {label}: p50 {best[0]:.0f} ms, p95 {best[1]:.0f} ms (rounds: "
          f"{', '.join(f'{a:.0f}/{b:.0f}' for a, b, _ in found)}; least {min(c for *_, c in found):.0f}; "
          f"load {os.getloadavg()[0]:.1f})")
    return best


def opened(page, key):
    page.evaluate("key => lab6.open(key)", key)
    page.wait_for_function("key => lab6.state.source === key && document.querySelector('#lab-map [data-seen]')", arg=key)


@pytest.mark.parametrize("size", SOURCES)
def test_a_knob_redraws_the_map_at_once(tab, size):
    limit = 300 * slack()
    page = tab()
    opened(page, SOURCES[size])
    assert moves(page, size)[1] < limit


@pytest.mark.skipif(not (EMBEDDED / "model_index.json").exists(), reason="needs the embedded model in assets/tiny")
@pytest.mark.parametrize("size", SOURCES)
def test_and_while_a_run_is_going(tab, served, size):
    served[1].models.get("tiny", "en")
    limit = 300 * slack()
    page = tab()
    opened(page, SOURCES[size])
    page.wait_for_function("lab6.state.sid")
    page.evaluate("Object.assign(lab6.state, {steps: 60, mode: 'sixbit'})")
    page.click(".run")
    page.wait_for_function("/^[2-9]\\/60/.test(document.querySelector('[data-pane=b] .clock').textContent)", timeout=120_000)
    best = moves(page, f"{size} while a run is going", rounds=2, count=12)
    page.wait_for_timeout(700)                # several events later the map is still the visitor's draft
    assert page.evaluate("document.querySelector('#lab-map [data-seen]').dataset.seen === document.querySelector('#lab-hub [data-looked]').dataset.looked")
    running = page.evaluate("lab6.busy && lab6.state.aside")
    page.click(".stop")
    page.wait_for_function("!lab6.busy", timeout=120_000)
    assert running and best[1] < limit


def test_a_recorded_race_is_on_the_page_within_five_seconds(chromium):
    limit = 5 * slack()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    env = {**os.environ, "GRADIO_SERVER_PORT": str(port), "LAB_PRELOAD": "0"}
    began, marks = time.perf_counter(), {}
    server = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    try:
        while server.poll() is None and time.perf_counter() - began < 60:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        marks["served"] = time.perf_counter() - began
        page.goto(f"http://127.0.0.1:{port}/", wait_until="commit")
        for name, what in (("race", ".pane canvas[data-shown]"), ("map", "#lab-map [data-drawn]"), ("run", ".run:enabled")):
            page.wait_for_selector(what, timeout=60_000)
            marks[name] = time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()
        context.close()
    print("\nseconds from `python app.py`: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in marks.items()))
    assert marks["race"] < limit and marks["run"] < 15
