"""What the Lab's page asks between runs: quick questions, answered outside Gradio's queue.

Every function takes one dictionary from the browser and returns one; whatever goes wrong becomes `{"error": one
sentence}`, so a visitor never sees a traceback and the page never loses its state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from app import look as looks
from app import take
from app.explain import explain
from app.i18n import plain, resolve
from app.machine import chip, describe
from app.models import Models, scene_of
from app.recordings import Recording
from app.session import Session, Sessions, Source
from app.settings import Settings
from app.zero import ZERO
from engine.settings import Policy

log = logging.getLogger("lab")


class Gone(ValueError):
    """A run that is no longer kept."""


def answering(fn: Callable[[dict], dict]) -> Callable[[dict], dict]:
    """Turn every exception into a sentence."""

    @wraps(fn)
    def safe(ask: dict) -> dict:
        try:
            return fn(ask if isinstance(ask, dict) else {})
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            return {"error": sentence(error)}
        except Exception as error:
            log.exception("the page's question %s failed", fn.__name__)
            return {"error": plain(resolve(ask.get("lang") if isinstance(ask, dict) else None), "lab.status.failed",
                                   reason=type(error).__name__)}

    return safe


def sentence(error: BaseException) -> str:
    """An error as one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 700 else text[:700] + "…"


class Lab:
    """The Lab's memory on the server: sessions, recordings, models. One per app."""

    def __init__(self, settings: Settings, recordings: list[Recording], models: Models):
        self.settings, self.models = settings, models
        self.recordings = {r.key: r for r in recordings}
        self.sessions = Sessions()
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()
        self.timing: dict[str, float] = {}
        self._material: Any = None
        self._warming = False

    def session(self, ask: dict) -> Session:
        """The asking tab's session."""
        return self.sessions.get(ask.get("sid", ""))

    def recorded(self, key: str) -> Source:
        """A recording, read once."""
        with self._lock:
            if key not in self._sources:
                self._sources[key] = self.recordings[key].load()
            return self._sources[key]

    def source(self, session: Session, key: str | None) -> Source:
        """The run that the page looks at. Raises Gone where it is not kept any more."""
        for held in (session.current, session.previous, session.file):
            if held is not None and held.key == key:
                return held
        if key in self.recordings:
            return self.recorded(key)
        if session.current is not None and not key:
            return session.current
        raise Gone(key)

    def default(self) -> Source | None:
        """The recording that the page opens with."""
        return self.recorded(next(iter(self.recordings))) if self.recordings else None

    def warm(self) -> None:
        """Load the embedded model in the background, once, so that the first click finds it ready."""
        with self._lock:
            if self._warming or not self.settings.preload:
                return
            self._warming = True
        threading.Thread(target=self._load_quietly, name="lab-warm", daemon=True).start()

    def _load_quietly(self) -> None:
        try:
            self.models.get("tiny", "en")
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            log.warning("the embedded model could not be loaded: %s", error)

    def machine(self) -> str:
        """What this machine is, for the label of a measurement."""
        return describe()

    def remember(self, progress) -> None:
        """Keep the times of a finished run, for the next honest estimate."""
        b, a = progress.main, progress.panes.get("a")
        if not b.times:
            return
        stages = sum(b.stages.values()) if b.stages else b.seconds
        update = {"steps": float(b.total), "run_step": b.times[-1] / max(1, b.total), "fixed": max(0.0, stages - b.times[-1])}
        if a is not None and a.times:
            update["reference_step"] = a.times[-1] / max(1, a.total)
        self.timing = {**self.timing, **update}

    def material(self) -> Any:
        """What the lessons are made of: the first recording, or what a page without recordings has."""
        from app.lessons.material import Film, Material

        source = self.default()
        if source is None:
            return Material()
        if self._material is None:
            sheet = source.race["panes"]["b"]
            film = Film(sheet["sheet"]["path"], len(sheet["times"]), sheet["sheet"]["n"], sheet["sheet"]["w"] / sheet["sheet"]["h"])
            self._material = Material(probe=source.signals, run=source.trace, policy=source.policy, film=film, source=source.key)
        return self._material

    def wish(self, ask: dict, source: Source) -> looks.Wish:
        """Read what the page wants to see; absent parts take the run's own."""
        policy = source.policy
        if ask.get("policy"):
            policy = Policy.from_dict(ask["policy"])
        elif ask.get("preset") and not ask.get("undo"):
            policy = looks.named(str(ask["preset"]))
        view = ask.get("view") if ask.get("view") in looks.VIEWS else "decision"
        against = ask.get("versus") if ask.get("versus") in ("draft", "previous", "file") else "draft"
        return looks.Wish(policy, view, against, str(ask.get("which") or "")[:100])

    def look(self, session: Session, source: Source, wish: looks.Wish, lang: str) -> dict[str, Any]:
        """The answer to "how does it look?"."""
        rivals = {"previous": session.previous, "file": session.file}
        return looks.look(source, wish, lang, {k: s for k, s in rivals.items() if s is not None and s.key != source.key})


def functions(lab: Lab) -> list[Callable[[dict], dict]]:
    """The server functions of the page, bound to one Lab."""

    @answering
    def look(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        try:
            source = lab.source(session, ask.get("source"))
        except Gone:
            return {"error": plain(lang, "lab.status.gone")}
        wish = lab.wish(ask, source)
        session.draft = wish.policy
        return lab.look(session, source, wish, lang)

    @answering
    def explain_cell(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        if ask.get("live") and session.live is not None:
            grid, policy, trace = session.live
            return explain(grid, grid, trace, policy, int(ask["block"]), int(ask["step"]), lang)
        source = lab.source(session, ask.get("source"))
        wish = lab.wish(ask, source)
        pair = looks.drawn(source, wish.policy, {}, "draft")
        basis = source.signals or source.trace
        return explain(looks.grid_of(pair.shown, wish.which), looks.grid_of(basis, wish.which), basis,
                       wish.policy, int(ask["block"]), int(ask["step"]), lang)

    @answering
    def open_run(ask: dict) -> dict:
        session, lang = lab.session(ask), resolve(ask.get("lang"))
        try:
            source = lab.source(session, ask.get("source"))
        except Gone:
            return {"error": plain(lang, "lab.status.gone")}
        session.show(source)
        return {"look": lab.look(session, source, looks.Wish(source.policy), lang), "race": labelled(source),
                "ask": {"prompt": source.prompt, "seed": source.seed, "scene": scene_of(source.prompt)}}

    @answering
    def estimate(ask: dict) -> dict:
        return {"seconds": lab_estimate(lab, ask)}

    @answering
    def stop(ask: dict) -> dict:
        session = lab.session(ask)
        session.stop.set()
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
        return {"code": take.python_code(lab.wish(ask, source).policy, source.model, source.prompt, source.seed)}

    @answering
    def opened(ask: dict) -> dict:
        from gradio.utils import get_upload_folder

        session = lab.session(ask)
        name = str(ask.get("name", ""))[:200]
        found = take.opened(str(ask.get("path", "")), name, upload_folder=get_upload_folder(),
                            max_bytes=lab.settings.upload_bytes, max_rows=lab.settings.upload_rows)
        if isinstance(found, Policy):
            return {"policy": found.to_dict()}
        policy = Policy.from_dict(found.meta.policy) if found.meta.policy else Policy.preset("fp16")
        session.file = Source(key=f"file:{name}", title=name, prompt=found.meta.prompt, policy=policy, trace=found,
                              signals=found if found.meta.probe else None, model=found.meta.model, seed=found.meta.seed)
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
            said += " " + plain(lang, "lab.model.first")
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
    return [look, explain_cell, open_run, estimate, stop, alive, take_home, python, opened, fits, load, loading, warm, machine]


def labelled(source: Source) -> dict[str, Any] | None:
    """A race with the keys of its words; the page puts them into its language."""
    if source.race is None:
        return None
    own = "lab.race.policy" if looks.preset_of(source.policy) == "sixbit" else "lab.race.own"
    names = {"a": ["lab.race.fp16", {}], "b": [own, {}]}
    panes = {key: {**pane, "label": names[key]} for key, pane in source.race["panes"].items()}
    return {**source.race, "panes": panes, "note": ["lab.race.recorded", {"speed": f"{source.race['speed']:g}"}]}


def lab_estimate(lab: Lab, ask: dict) -> float | None:
    """Seconds that a run would take, from the last measured run of the kind on this machine; None where unknown."""
    timing = lab.timing or from_recording(lab.default())
    steps = ask.get("steps") or timing.get("steps")
    reference, run = timing.get("reference_step"), timing.get("run_step")
    if not steps or not run:
        return None
    lanes = {"sixbit": [run], "cached": [run]}.get(str(ask.get("mode")), [run, reference or run])
    return round(float(steps) * sum(lanes) + timing.get("fixed", 0.0) * len(lanes), 1)


def from_recording(source: Source | None) -> dict[str, float]:
    """The times of a recorded race, until this machine has its own."""
    if source is None or source.race is None:
        return {}
    a, b = (source.race["panes"][pane] for pane in "ab")
    steps = len(b["times"])
    return {"steps": float(steps), "run_step": b["times"][-1] / steps, "reference_step": a["times"][-1] / steps,
            "fixed": b["seconds"] - b["times"][-1]}
