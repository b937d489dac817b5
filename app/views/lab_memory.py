"""The Lab's memory on the server: sessions, recordings, models, references, and how long runs took here."""

from __future__ import annotations

import logging
import threading
from typing import Any

from app import look as looks
from app import reels
from app.machine import describe
from app.models import Models
from app.recordings import Recording
from app.references import References
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
        self.timing: dict[Any, Any] = {}          # what runs took here, kept by `app.views.lab_estimate`
        self.references = References()
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
        held = session.find(key)
        if held is not None:
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

    def material(self) -> Any:
        """What the lessons are made of: the first recording, or what a page without recordings has."""
        from app.lessons.material import Film, Material

        source = self.default()
        if source is None:
            return Material()
        if self._material is None:
            sheet = source.race["panes"]["b"]
            film = Film(
                sheet["sheet"]["path"],
                len(sheet["times"]),
                sheet["sheet"]["n"],
                sheet["sheet"]["w"] / sheet["sheet"]["h"],
            )
            self._material = Material(
                probe=source.signals, run=source.trace, policy=source.policy, film=film, source=source.key
            )
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
        told = looks.look(
            source, wish, lang, {k: s for k, s in rivals.items() if s is not None and s.key != source.key}
        )
        told["about"]["own"] = [[held.key, held.title, looks.label_of(held.policy)] for held in session.own]
        return told


def race_of(source: Source) -> dict[str, Any] | None:
    """What the panes play when a source is opened: its recorded race, or the race of a run made here; None without
    one."""
    if source.race is not None:
        return labelled(source.race, source.policy)
    made = reels.race(source.key, source.reels, float(source.trace.meta.fps or 8))
    return made and {
        **made,
        "fair": source.signals is None,
        "busy": source.busy,
        "note": ["lab.race.replayed", {"speed": f"{made['speed']:g}"}],
    }


def labelled(race: dict[str, Any] | None, policy: Policy) -> dict[str, Any] | None:
    """A recorded race with the keys of its words; the page puts them into its language."""
    if race is None:
        return None
    names = {"a": [looks.label_of(None), {}], "b": [looks.label_of(policy), {}]}
    panes = {key: {**pane, "label": names[key]} for key, pane in race["panes"].items()}
    return {**race, "panes": panes, "note": ["lab.race.recorded", {"speed": f"{race['speed']:g}"}]}
