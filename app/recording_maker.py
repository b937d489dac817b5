"""Make a recorded race from the engine: `python -m app.recordings make --slug … --prompt … --seed …`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from app import sprites
from app.look import named
from app.machine import describe
from app.recordings import PANES, VERSION, read
from app.settings import EMBEDDED, RECORDINGS
from engine.settings import Policy

WARMING = 8          # steps of an unrecorded lap: enough that blocks are skipped and recomputed too


class Lap:
    """One run, drained: its times, preview clips, frames and trace."""

    def __init__(self, pipe, prompt: str, policy: Policy, **settings):
        from engine.stream import Finished, Started, Step, generate

        self.times: list[float] = []
        self.clips: list[np.ndarray] = []
        for event in generate(pipe, prompt, policy=policy, **settings):
            if isinstance(event, Started):
                self.started = event
            elif isinstance(event, Step):
                self.times.append(round(event.seconds_total, 4))
                if event.preview is not None:
                    self.clips.append(event.preview)
            elif isinstance(event, Finished):
                self.finished = event
        self.stages = {name: float(value) for name, value in self.finished.seconds.items()}

    @property
    def seconds(self) -> float:
        """Seconds of the whole run, by its stages."""
        return sum(self.stages.values())


def share_decoding(*laps: Lap) -> None:
    """Give all laps the mean of their decoding times: it is the same work after either lane's last step, and what one
    lane happened to meet on the machine there says nothing about a policy."""
    mean = sum(lap.stages["decode"] for lap in laps) / len(laps)
    for lap in laps:
        lap.stages["decode"] = mean


def write(folder: Path, *, prompt: str, seed: int, policy: Policy, reference: Lap, run: Lap, probe, psnr: float,
          ticks: dict[str, list[dict]], title: str = "", order: int = 99, model: str = "tiny") -> None:
    """Write a recording in one step: built beside, then moved into place."""
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        panes: dict[str, Any] = {}
        for pane, lap in zip(PANES, (reference, run)):
            data, shape = sprites.book(lap.clips)
            (building / f"{pane}.webp").write_bytes(data)
            data, final = sprites.book([lap.finished.frames], 90)
            (building / f"{pane}-final.webp").write_bytes(data)
            panes[pane] = {"times": lap.times, "seconds": round(lap.seconds, 3), "sheet": shape, "final": final,
                           "ticks": ticks.get(pane, []), "stages": lap.stages}
        _videos(building, reference, run)
        run.finished.trace.save(building / "run.parquet")
        if probe is not None:
            probe.save(building / "probe.parquet")
        about = {
            "version": VERSION, "title": title, "order": order, "prompt": prompt, "seed": seed, "model": model,
            "policy": policy.to_dict(), "steps": run.started.steps, "guidance": run.started.guidance,
            "fps": run.started.fps, "frames": run.started.frames, "machine": describe(),
            "seconds": {"reference": round(reference.seconds, 3), "run": round(run.seconds, 3)},
            "psnr": round(float(psnr), 2), "panes": panes,
        }
        (building / "recording.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        read(building)
        building.chmod(0o755)
        _exchange(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _exchange(made: Path, folder: Path) -> None:
    """Put a finished folder in place; the old one goes only once the new one is there."""
    if not folder.exists():
        os.replace(made, folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent)) / folder.name
    os.replace(folder, aside)
    try:
        os.replace(made, folder)
    except OSError:
        os.replace(aside, folder)
        raise
    finally:
        shutil.rmtree(aside.parent, ignore_errors=True)


def _videos(building: Path, reference: Lap, run: Lap) -> None:
    from engine.video import write_mp4

    for name, lap in (("fp16.mp4", reference), ("sixbit.mp4", run)):
        write_mp4(building / name, lap.finished.frames, lap.started.fps)


def make(slug: str, prompt: str, seed: int, *, policy: Policy, model: str = "", folder: Path = RECORDINGS,
         title: str = "", order: int = 99, steps: int | None = None) -> Path:
    """Run the reference, the policy and a probe, and write the recording. Returns its folder.

    Before them each policy runs a few steps that are not recorded: first allocations, loaded code and unpacked weights
    would otherwise count as time of whichever lane comes first.
    """
    from app.readback import ticks as read_ticks
    from engine.attach import attach
    from engine.load import load
    from engine.metrics import psnr

    if not slug or any(c not in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in slug):
        raise ValueError(f"Expected a slug of small letters, digits and hyphens; got {slug!r}.")
    pipe = load(model or str(EMBEDDED))
    attach(pipe)
    settings = {"seed": seed, "steps": steps}
    for warming in (Policy.preset("fp16"), policy):
        Lap(pipe, prompt, warming, seed=seed, steps=min(steps or WARMING, WARMING))
    reference = Lap(pipe, prompt, Policy.preset("fp16"), **settings)
    run = Lap(pipe, prompt, policy, **settings)
    share_decoding(reference, run)
    probe = Lap(pipe, prompt, Policy.preset("fp16"), probe=True, previews=False, **settings)
    ticks = {pane: read_ticks(lap.finished.frames, prompt) for pane, lap in zip(PANES, (reference, run))}
    near = psnr(run.finished.frames, reference.finished.frames)
    write(Path(folder) / slug, prompt=prompt, seed=seed, policy=policy, reference=reference, run=run,
          probe=probe.finished.trace, psnr=near, ticks=ticks, title=title, order=order)
    return Path(folder) / slug


def main(argv: list[str] | None = None) -> None:
    """The command line; errors are one sentence on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m app.recordings", description="Make or list recorded races.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("make", help="run the engine and write a recording")
    new.add_argument("--slug", required=True)
    new.add_argument("--prompt", required=True)
    new.add_argument("--seed", type=int, required=True)
    new.add_argument("--policy", default="sixbit", help="a preset's name or a policy file (JSON)")
    new.add_argument("--model", default="")
    new.add_argument("--steps", type=int)
    new.add_argument("--title", default="")
    new.add_argument("--order", type=int, default=99)
    new.add_argument("--out", type=Path, default=RECORDINGS)
    commands.add_parser("list", help="show the recordings")
    given = parser.parse_args(argv)
    try:
        if given.command == "list":
            from app.recordings import find

            for recording in find(RECORDINGS):
                print(f"{recording.slug:24} {recording.title}")
            return
        policy = Policy.load(given.policy) if given.policy.endswith(".json") else named(given.policy)
        print(make(given.slug, given.prompt, given.seed, policy=policy, model=given.model, folder=given.out,
                   title=given.title, order=given.order, steps=given.steps))
    except (ValueError, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
