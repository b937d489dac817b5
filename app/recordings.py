"""Recorded races: what the page plays before any model is loaded, and what Learn and Compare open.

A recording is a folder `assets/recordings/<slug>/`:

    recording.json   what was run, on what, how long each step took, what was read back from the frames
    run.parquet      the trace of the 6-bit run
    probe.parquet    the trace of the same prompt with every signal measured
    a.webp, b.webp   one row of preview frames per step: the reference and the 6-bit run
    a-final.webp, b-final.webp, fp16.mp4, sixbit.mp4

`python -m app.recordings make --slug red-star --prompt "…" --seed 7` makes one from the engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.session import Source
from engine.settings import Policy
from engine.trace import Trace

VERSION = 1
TARGET_SECONDS = 9.0          # a recorded race is played so that its slower side takes about this long
PANES = ("a", "b")


class RecordingError(ValueError):
    """A recording that cannot be used, said in one sentence."""


@dataclass(frozen=True)
class Recording:
    """A recording's description; `load` reads the traces. `path` is its folder."""

    slug: str
    path: Path
    about: dict[str, Any]

    @property
    def title(self) -> str:
        return str(self.about.get("title") or self.about["prompt"])

    @property
    def key(self) -> str:
        return f"recording:{self.slug}"

    @property
    def policy(self) -> Policy:
        return Policy.from_dict(self.about["policy"])

    def load(self) -> Source:
        """Read the traces; raises RecordingError (or TraceError) in one sentence."""
        about = self.about
        run = Trace.load(self.path / "run.parquet")
        probe = self.path / "probe.parquet"
        return Source(
            key=self.key, title=self.title, prompt=about["prompt"], policy=self.policy,
            trace=run, signals=Trace.load(probe) if probe.exists() else None, race=self.race(),
            seconds=dict(about["seconds"]), psnr=about.get("psnr"), machine=about.get("machine", ""),
            video={pane: self.path / name for pane, name in zip(PANES, ("fp16.mp4", "sixbit.mp4"))},
            model=about.get("model", ""), seed=about.get("seed"),
        )

    def race(self) -> dict[str, Any]:
        """What the panes need to play it; sheets are named by path and served as static files."""
        slowest = max(self.about["panes"][pane]["seconds"] for pane in PANES)
        panes = {}
        for pane in PANES:
            given = self.about["panes"][pane]
            panes[pane] = {
                "times": given["times"], "seconds": given["seconds"], "ticks": given.get("ticks", []),
                "sheet": {**given["sheet"], "path": (self.path / f"{pane}.webp").as_posix()},
                "final": {**given["final"], "path": (self.path / f"{pane}-final.webp").as_posix()},
            }
        return {"recorded": True, "run": self.key, "fps": self.about["fps"], "panes": panes,
                "speed": max(1.0, round(slowest / TARGET_SECONDS, 1))}


def find(folder: Path) -> list[Recording]:
    """The recordings in a folder, in the order of their `order` field, then by name. Unreadable ones are left out."""
    found = []
    for path in sorted(Path(folder).glob("*/recording.json")):
        try:
            found.append(read(path.parent))
        except RecordingError:
            continue
    return sorted(found, key=lambda r: (r.about.get("order", 99), r.slug))


def read(path: Path) -> Recording:
    """Read one recording's description and check that it is whole."""
    try:
        about = json.loads((path / "recording.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordingError(
            f"Expected a recording in {path.name}; recording.json cannot be read. Make it again."
        ) from error
    missing = [key for key in ("version", "prompt", "policy", "seconds", "fps", "panes") if key not in about]
    files = [name for name in ("run.parquet", *(f"{p}.webp" for p in PANES), *(f"{p}-final.webp" for p in PANES))
             if not (path / name).exists()]
    if about.get("version") != VERSION or missing or files:
        raise RecordingError(
            f"The recording {path.name} is not whole (missing: {', '.join(missing + files) or 'its version'}). "
            "Make it again."
        )
    return Recording(path.name, path, about)


if __name__ == "__main__":
    from app.recording_maker import main

    main()
