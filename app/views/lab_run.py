"""A run as the page sees it: wait in line, race, stop, and what is left afterwards.

The handler only drains `app.lanes.drive` and turns each beat into one small event for the browser. Events carry the
whole state of the run but for the sprite sheets, so one that is lost between two frames of the browser costs nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from app import look as looks
from app.gate import Full, Gate
from app.i18n import plain, resolve
from app.lanes import LaneWish, RunWish, drive
from app.references import References
from app.session import Session
from app.views.lab_memory import Lab
from app.views.lab_progress import Progress
from app.views.lab_server import sentence
from engine.settings import BREAK_IT, Policy, needs_calibration

log = logging.getLogger("lab")
PAUSE = 0.1            # seconds between two events: ten a second is what a browser on two cores takes
MODES = ("race", "cached", "sixbit")


def wire(lab: Lab, hub: gr.HTML) -> None:
    """Connect the hub's run event. `multiple`: a click right after a stop must never be dropped; who runs when is
    decided by the gate and by the session."""
    gate, references = Gate(lab.settings.concurrency, lab.settings.queue), References()
    lab.gate = gate

    def run(request: gr.Request, ask: gr.EventData):
        for event in events(lab, gate, references, dict(ask._data or {}), request.session_hash or ""):
            yield gr.HTML(event=event)

    hub.run(run, None, hub, show_progress="hidden", trigger_mode="multiple", concurrency_limit=None,
            api_visibility="private")


def events(lab: Lab, gate: Gate, references: References, ask: dict, key: str) -> Iterator[dict[str, Any]]:
    """All events of one run, from the first word to the last; never raises."""
    lang, run_id = resolve(ask.get("lang")), str(ask.get("id", ""))[:64]
    session = lab.sessions.get(key or ask.get("sid", ""))
    if session.running:
        session.stop.set()
        for _ in _until_free(session):
            yield {"id": run_id, "status": {"sentence": plain(lang, "lab.status.stopping"), "tone": "info"}}
    session.running = True
    session.stop.clear()
    ticket = None
    try:
        wish = read_wish(lab, ask, lang)
        ticket = gate.join()
        yield from _wait(gate, ticket, session, lang, run_id)
        if not session.stop.is_set():
            yield from _drive(lab, references, session, wish, ask, lang, run_id)
    except Full:
        yield _last(run_id, plain(lang, "lab.status.full", queue=gate.length), "bad")
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        log.info("a run ended: %s", error)
        yield _last(run_id, sentence(error, lang), "bad")
    except Exception as error:
        log.exception("a run broke")
        yield _last(run_id, plain(lang, "lab.status.failed", reason=type(error).__name__), "bad")
    finally:
        if ticket is not None:
            gate.leave(ticket)
        session.running = False
    yield {"id": run_id, "over": True}


def read_wish(lab: Lab, ask: dict, lang: str) -> RunWish:
    """Check what the page asks for, before any work. Raises ValueError naming field, value and range."""
    from engine.vocabulary import parse

    prompt = str(ask.get("prompt") or "")
    model = str(ask.get("model") or "tiny")
    policy = Policy.from_dict(ask["policy"]) if ask.get("policy") else looks.named(str(ask.get("preset") or "sixbit"))
    mode = ask.get("mode") if ask.get("mode") in MODES else "race"
    if str(lab.models.resolve(model, lang)).endswith("tiny"):
        parse(prompt)
    limits = lab.settings
    steps = _whole("steps", ask.get("steps"), 1, limits.max_steps)
    height, width = (_whole(name, ask.get(name), 16, 4096) for name in ("height", "width"))
    frames = _whole("frames", ask.get("frames"), 1, limits.max_frames)
    if height and width and height * width > limits.max_pixels:
        raise ValueError(f"Expected at most {limits.max_pixels:,} pixels here; got {width} × {height}. Choose a smaller size.")
    seed = _whole("seed", ask.get("seed"), 0, 2**31 - 1)
    # "Break it" is shown beside the sound setting; everything else beside the model as it is.
    beside = "sixbit" if policy == BREAK_IT and mode == "race" and not ask.get("probe") else "fp16"
    reference = LaneWish("a", Policy.preset(beside), probe=bool(ask.get("probe")))
    lanes = (LaneWish("b", policy),) if mode == "sixbit" and not ask.get("probe") else (reference, LaneWish("b", policy))
    guidance = ask.get("guidance")
    return RunWish(model=model, prompt=prompt, negative=str(ask.get("negative") or ""), lanes=lanes,
                   seed=secrets.randbelow(2**31) if seed is None else seed, steps=steps,
                   guidance=None if guidance in (None, "") else float(guidance), height=height, width=width, frames=frames,
                   first_alone=bool(ask.get("probe")), lang=lang)


def _drive(lab: Lab, references: References, session: Session, wish: RunWish, ask: dict, lang: str,
           run_id: str) -> Iterator[dict[str, Any]]:
    if not lab.models.ready(wish.model, lang):
        yield {"id": run_id, "status": {"sentence": plain(lang, "lab.status.loading"), "tone": "info"}}
    loaded = lab.models.get(wish.model, lang)
    policy = wish.lanes[-1].policy
    if loaded.handle.calibration is None and needs_calibration(policy) and wish.lanes[0].is_reference and len(wish.lanes) == 2:
        lanes = (LaneWish("a", wish.lanes[0].policy, probe=True), wish.lanes[1])
        wish = RunWish(**{**vars(wish), "lanes": lanes, "first_alone": True})
    held = references.get(wish) if ask.get("mode") == "cached" and not wish.first_alone else None
    if held is not None:
        wish = RunWish(**{**vars(wish), "lanes": wish.lanes[-1:]})
    progress = Progress(wish, run_id, lang, held, loaded.handle.calibration)
    beats = drive(wish)
    spoken = 0.0
    try:
        yield progress.event()
        for beat in beats:
            progress.take(beat)
            if session.stop.is_set():
                break
            if progress.urgent or time.perf_counter() - spoken >= PAUSE:
                told = progress.event()
                session.live = progress.live
                spoken = time.perf_counter()
                yield told
    finally:
        beats.close()
        session.live = None
        if progress.finished:
            session.show(progress.source(lab.machine()))
            lab.remember(progress)
        elif progress.step:
            session.show(progress.partial())
    if progress.reference_done:
        references.put(wish, progress.reference())
    if not progress.finished:
        yield {**progress.stopped(), "look": _look(lab, session, lang, ask)}
        return
    yield {**progress.event(), "look": _look(lab, session, lang, ask), "status": progress.done()}


def _look(lab: Lab, session: Session, lang: str, ask: dict) -> dict[str, Any] | None:
    source = session.current
    if source is None or source.key != f"run:{ask.get('id')}":
        return None
    return lab.look(session, source, looks.Wish(source.policy), lang)


def _wait(gate: Gate, ticket: int, session: Session, lang: str, run_id: str) -> Iterator[dict[str, Any]]:
    told = -1
    while (ahead := gate.ahead(ticket)) and not session.stop.is_set():
        if ahead != told:
            told = ahead
            yield {"id": run_id, "status": {"sentence": plain(lang, "lab.status.waiting", ahead=ahead), "tone": "info"}}
        else:
            yield {"id": run_id}         # a heartbeat: a closed tab is noticed at a yield
        time.sleep(0.2)


def _until_free(session: Session, seconds: float = 120.0) -> Iterator[None]:
    end = time.monotonic() + seconds
    while session.running and time.monotonic() < end:
        yield None
        time.sleep(0.05)


def _whole(name: str, value: Any, low: int, high: int) -> int | None:
    if value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if number != number or not number.is_integer() or not low <= number <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high:,} here; got {str(value)[:40]}.")
    return int(number)


def _last(run_id: str, words: str, tone: str) -> dict[str, Any]:
    return {"id": run_id, "status": {"sentence": words, "tone": tone}}
