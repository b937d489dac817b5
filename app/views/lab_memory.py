"""The Lab's memory on the server: sessions, recordings, models, and how long runs take here."""

from __future__ import annotations

import logging
import threading
from typing import Any

from app import look as looks
from app.machine import describe
from app.models import Models
from app.recordings import Recording
from app.session import Session, Sessions, Source
from app.settings import Settings
from engine.settings import Policy

log = logging.getLogger("lab")


class Gone(ValueError):
    """A run that is no longer kept."""


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

    def first(self) -> Recording | None:
        """The recording that the page opens with; its traces are not read for this."""
        return next(iter(self.recordings.values()), None)

    def default(self) -> Source | None:
        """The same, read."""
        first = self.first()
        return self.recorded(first.key) if first else None

    def prepare(self) -> None:
        """Read what the page opens with, in the time that a browser takes to load the page."""
        try:
            source = self.default()
            if source is not None:
                self.look(Session(), source, looks.Wish(source.policy), "en")
        except (ValueError, OSError) as error:
            log.warning("the first recording cannot be shown: %s", error)

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
        if a is not None and a.times and progress.beside_reference and not progress.wish.lanes[0].probe:
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


def labelled(race: dict[str, Any] | None, policy: Policy) -> dict[str, Any] | None:
    """A race with the keys of its words; the page puts them into its language."""
    if race is None:
        return None
    own = {"sixbit": "lab.race.policy", "break": "lab.race.broken_policy"}.get(looks.preset_of(policy), "lab.race.own")
    names = {"a": ["lab.race.fp16", {}], "b": [own, {}]}
    panes = {key: {**pane, "label": names[key]} for key, pane in race["panes"].items()}
    return {**race, "panes": panes, "note": ["lab.race.recorded", {"speed": f"{race['speed']:g}"}]}


def estimate(lab: Lab, ask: dict) -> float | None:
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
