"""What the Lab's page asks between runs: quick questions, answered outside Gradio's queue.

Every function takes one dictionary from the browser and returns one; whatever goes wrong becomes `{"error": one
sentence}`, so a visitor never sees a traceback and the page never loses its state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import wraps

from starlette.responses import Response

from app import look as looks
from app import take
from app.explain import explain, explain_in
from app.i18n import plain, resolve, said, sentences
from app.machine import chip
from app.session import Source
from app.views.lab_estimate import estimate as seconds_of
from app.views.lab_memory import Gone, Lab, race_of
from app.zero import ZERO
from engine.notice import Notice
from engine.settings import Policy

log = logging.getLogger("lab")


def answering(fn: Callable[[dict], dict]) -> Callable[[dict], dict]:
    """Turn every exception into a sentence."""

    @wraps(fn)
    def safe(ask: dict) -> dict:
        ask = ask if isinstance(ask, dict) else {}
        lang = resolve(ask.get("lang"))
        try:
            return fn(ask)
        except Gone:
            return {"error": plain(lang, "lab.status.gone")}
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            return {"error": sentence(error, lang)}
        except Exception:
            log.exception("the page's question %s failed", fn.__name__)
            return {"error": plain(lang, "lab.status.question")}

    return safe


def encoded(fn: Callable[[dict], dict]) -> Callable[[dict], Response]:
    """The answer as a finished response: the web framework would walk through every value of a map, and the run beside
    it waits for the interpreter meanwhile."""

    @wraps(fn)
    def written(ask: dict) -> Response:
        return Response(
            json.dumps(fn(ask), ensure_ascii=False, allow_nan=False, separators=(",", ":")),
            media_type="application/json",
        )

    return written


def sentence(error: BaseException, lang: str) -> str:
    """An error as one line of bounded length, in the page's language where the page has words for it."""
    told = said(lang, error.args[0]) if error.args and isinstance(error.args[0], Notice) else str(error)
    text = " ".join(told.split()) or plain(lang, "lab.status.failed")
    return text if len(text) <= 700 else text[:700] + "…"


def functions(lab: Lab) -> list[Callable[[dict], dict]]:
    """The server functions of the page, bound to one Lab."""

    @answering
    def look(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        source = lab.source(session, ask.get("source"))
        return lab.look(session, source, lab.wish(ask, source), lang)

    @answering
    def explain_cell(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        if ask.get("live") and session.live is not None:
            grid, policy, trace = session.live
            return explain(grid, grid, trace, policy, int(ask["block"]), int(ask["step"]), lang)
        source = lab.source(session, ask.get("source"))
        wish = lab.wish(ask, source)
        return explain_in(source, wish, int(ask["block"]), int(ask["step"]), lang)

    @answering
    def open_run(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        source = lab.source(session, ask.get("source"))
        session.show(source)
        return {"look": lab.look(session, source, looks.Wish(source.policy), lang), "race": race_of(source),
                "ask": {"prompt": source.prompt, "seed": source.seed}}

    @answering
    def estimate(ask: dict) -> dict:
        return {"seconds": seconds_of(lab, ask, resolve(ask.get("lang")))}

    @answering
    def stop(ask: dict) -> dict:
        session = lab.session(ask)
        session.halt(str(ask.get("id") or "")[:64])
        return {"running": session.running}

    @answering
    def alive(ask: dict) -> dict:
        return {"running": lab.session(ask).running}

    @answering
    def take_home(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        source = lab.source(session, ask.get("source"))
        found = take.package(source, str(ask.get("kind")), lab.wish(ask, source).policy)
        return take.encoded(found) if found else {"error": plain(lang, "lab.take.none")}

    @answering
    def python(ask: dict) -> dict:
        source = lab.source(lab.session(ask), ask.get("source"))
        length = lab.models.text_length(source.model, resolve(ask.get("lang")))
        return {"code": take.python_code(lab.wish(ask, source).policy, source, length)}

    @answering
    def opened(ask: dict) -> dict:
        from gradio.utils import get_upload_folder

        session = lab.session(ask)
        name = str(ask.get("name", ""))[:200]
        found = take.opened(
            str(ask.get("path", "")),
            name,
            upload_folder=get_upload_folder(),
            max_bytes=lab.settings.upload_bytes,
            max_rows=lab.settings.upload_rows,
            lang=resolve(ask.get("lang")),
        )
        if isinstance(found, Policy):
            return {"policy": found.to_dict()}
        policy = Policy.from_dict(found.meta.policy) if found.meta.policy else Policy.preset("fp16")
        session.file = Source(key=session.file_key(name), title=name, prompt=found.meta.prompt, policy=policy,
                              trace=found, signals=found if found.meta.probe else None, model=found.meta.model,
                              seed=found.meta.seed)
        here = lab.source(session, ask.get("source")) if ask.get("source") else None
        comparable = here is not None and len(here.trace.layers) == len(found.layers)
        return {"versus": "file"} if comparable else {"versus": "draft", "source": session.file.key}

    @answering
    def fits(ask: dict) -> dict:
        return {"sentence": lab.models.fits(str(ask.get("model", "")), resolve(ask.get("lang")))}

    @answering
    def load(ask: dict) -> dict:
        lang = resolve(ask.get("lang"))
        loaded = lab.models.get(str(ask.get("model", "")), lang)
        said = plain(lang, "lab.model.loaded", name=loaded.name)
        if loaded.handle.calibration is None:
            said = sentences(lang, said, plain(lang, "lab.model.first"))
        return {"sentence": said, "name": str(ask.get("model") or loaded.name), "embedded": loaded.embedded}

    @answering
    def loading(ask: dict) -> dict:
        lang, told = resolve(ask.get("lang")), lab.models.progress
        if told is None:
            return {"sentence": ""}
        stage = plain(lang, f"lab.model.stage.{told[0]}")
        return {"sentence": plain(lang, "lab.model.progress", stage=stage, done=told[1], total=told[2])}

    @answering
    def warm(ask: dict) -> dict:
        lab.warm()
        return {}

    @answering
    def machine(ask: dict) -> dict:
        return chip(ZERO)

    named = {"look": look, "explain": explain_cell, "open": open_run, "take": take_home}
    for name, fn in named.items():
        fn.__name__ = name
    return [
        look,
        explain_cell,
        open_run,
        estimate,
        stop,
        alive,
        take_home,
        python,
        opened,
        fits,
        load,
        loading,
        warm,
        machine,
    ]
