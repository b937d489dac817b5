"""A run as the page sees it: wait in line, race, stop, and what is left afterwards.

The handler only drains `app.lanes.drive` and turns each beat into one small event for the browser. Events carry the
whole state of the run but for the sprite sheets, so one that is lost between two frames of the browser costs nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import gradio as gr

from app import look as looks
from app.gate import Full, Gate
from app.i18n import plain, resolve
from app.lanes import RunWish, drive
from app.models import Loaded
from app.session import Session
from app.views.lab_estimate import alone, remember
from app.views.lab_memory import Lab
from app.views.lab_progress import Progress
from app.views.lab_server import sentence
from app.views.lab_wish import read_wish

log = logging.getLogger("lab")
PAUSE = 0.1            # seconds between two events: ten a second is what a browser on two cores takes
Told = dict[str, Any]


def wire(lab: Lab, hub: gr.HTML) -> None:
    """Connect the hub's run event. `multiple`: a click right after a stop must never be dropped; who runs when is
    decided by the gate and by the session."""
    gate = lab.gate = Gate(lab.settings.concurrency, lab.settings.queue)

    def run(request: gr.Request, ask: gr.EventData):
        for event in events(lab, gate, dict(ask._data or {}), request.session_hash or ""):
            yield gr.HTML(event=event)

    hub.run(run, None, hub, show_progress="hidden", trigger_mode="multiple", concurrency_limit=None,
            api_visibility="private")


def events(lab: Lab, gate: Gate, ask: dict, key: str) -> Iterator[Told]:
    """All events of one run, from the first word to the last, which says how it ended; never raises."""
    lang, run_id = resolve(ask.get("lang")), str(ask.get("id", ""))[:64]
    session = lab.sessions.get(key or ask.get("sid", ""))
    while not session.begin(run_id):
        session.stop.set()               # the tab's older run gives way
        yield {"id": run_id, "status": _status(plain(lang, "lab.status.stopping"))}
        time.sleep(0.05)
    last: Told = {}
    try:
        last = yield from _run(lab, gate, session, ask, lang, run_id)
    except Exception as error:
        last = {"status": _broken(error, lang, gate)}
    finally:
        session.end()
    yield {"id": run_id, **last, "over": True}


def _run(lab: Lab, gate: Gate, session: Session, ask: dict, lang: str, run_id: str) -> Iterator[Told]:
    """One checked run, in its turn; returns what the last event says."""
    wish = read_wish(lab, ask, lang)
    ticket = gate.join()
    try:
        loading = yield from _turn(lab, gate, ticket, session, wish, run_id)
        if loading is None:
            return {"status": _status(plain(lang, "lab.status.left_line"))}
        return (yield from _drive(lab, gate, session, wish, loading.result(), ask, run_id))
    finally:
        gate.leave(ticket)


def _turn(lab: Lab, gate: Gate, ticket: int, session: Session, wish: RunWish, run_id: str) -> Iterator[Told]:
    """Wait for the turn, then for the model, letting others go first meanwhile; returns the model, None after a
    stop."""
    loading: Future[Loaded] | None = None
    said = ""
    while not session.stop.is_set():
        ahead = gate.ahead(ticket)
        if not ahead:
            loading = loading or lab.models.start(wish.model, wish.lang)
            if loading.done():
                return loading
            gate.step_back(ticket)
        words = plain(wish.lang, "lab.status.waiting", ahead=ahead) if ahead else plain(wish.lang, "lab.status.loading")
        # Without anything new to say it is a heartbeat: a closed tab is noticed at a yield.
        yield {"id": run_id, **({"status": _status(words)} if words != said else {})}
        said = words
        time.sleep(0.1)
    return None


def _drive(
    lab: Lab, gate: Gate, session: Session, wish: RunWish, loaded: Loaded, ask: dict, run_id: str
) -> Iterator[Told]:
    """The run itself; returns what the last event says, also where the run broke midway."""
    if wish.needs_measuring(loaded.handle.calibration):
        wish = wish.measuring()
    held = lab.references.get(wish) if ask.get("mode") == "cached" and not wish.first_alone else None
    if held is not None:
        wish = alone(wish)
    progress = Progress(wish, run_id, wish.lang, held, loaded.handle.calibration)
    broken = None
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
    except Exception as error:          # told once what was made so far has been put away
        broken = _broken(error, wish.lang, gate)
    finally:
        beats.close()
        session.live = None
        if progress.finished:
            session.keep(progress.source(lab.machine()))
        elif progress.step:
            session.keep(progress.partial())
    if progress.reference_done:
        lab.references.put(wish, progress.reference())
    if progress.complete and broken is None:
        remember(lab, progress)
        return {**progress.event(), "look": _look(lab, session, ask, wish.lang), "status": progress.done()}
    return {**progress.stopped(), "look": _look(lab, session, ask, wish.lang), **({"status": broken} if broken else {})}


def _look(lab: Lab, session: Session, ask: dict, lang: str) -> Told | None:
    source = session.current
    if source is None or source.key != f"run:{ask.get('id')}":
        return None
    return lab.look(session, source, looks.Wish(source.policy), lang)


def _broken(error: Exception, lang: str, gate: Gate) -> dict[str, str]:
    """The status of a run that ended by an error: its sentence, or that the program failed."""
    if isinstance(error, Full):
        return _status(plain(lang, "lab.status.full", queue=gate.length), "bad")
    if isinstance(error, (ValueError, RuntimeError, OSError, ImportError)):
        log.info("a run ended: %s", error)
        return _status(sentence(error, lang), "bad")
    log.error("a run broke", exc_info=error)
    return _status(plain(lang, "lab.status.failed"), "bad")


def _status(words: str, tone: str = "info") -> dict[str, str]:
    return {"sentence": words, "tone": tone}
