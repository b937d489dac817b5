"""Tune as an expert would at the page: a few knob moves on a recorded run, then two real runs.

    python -m app.expert                      # all recordings of assets/recordings, and one more prompt
    python -m app.expert --only sunset-star   # one of them

For each prompt it starts from the default policy and looks at what the page shows: the replay of the recorded signals
and the time that they predict here (`engine.cost`). At most MOVES knob moves are tried, the least risky first, and kept
where the prediction falls; then the found policy runs for real. If a tick was lost, the last move is half taken
back; if it is too slow, the search goes on; and a second run decides. Found means: at least GOAL less time for the
whole clip than the default policy takes, and no tick of the default's lost. On a CPU the time is the process's CPU
time, so that a machine which does other things besides measures the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from app import look as looks
from app.look_words import count, estimate_seconds
from app.recordings import find
from app.session import Source
from app.settings import EMBEDDED, RECORDINGS
from engine import cost
from engine.settings import RANGES, Policy

MOVES, RUNS, GOAL = 10, 2, 0.10
MARGIN = 0.04                 # what a prediction must promise beyond the goal: it assumes the trajectory unchanged
EXTRA = ("two-objects", "a small green cross spins and a large yellow square stays still on a navy background", 3)
# Least risky first: what PDR adds, what the forecast adds, then more reuse. More skips in a row than the recording
# measured drift over are the one move that no replay can foresee: it is made in good faith, last, and a run tells.
STEPS = (("outlier_threshold", 2.0), ("error_threshold", 0.8), ("error_threshold", 1.3), ("tdc_threshold", 1.2),
         ("tdc_threshold", 1.2), ("tdc_threshold", 1.2), ("max_skips", 1), ("max_skips", 1))


class Outcome(NamedTuple):
    """One real run: seconds of the whole clip, of which denoising; CPU or wall (see above); ticks as the page shows."""

    seconds: float
    denoising: float
    ticks: list[dict]
    skipped: float


class Tuner:
    """The knob moves on one recorded run: `policy` is where the knobs stand, `moves` how many were made."""

    def __init__(self, source: Source):
        self.source, self.policy, self.moves, self.log = source, source.policy, 0, []
        self._speeds = cost.measure_speeds(*[t for t in (source.trace, source.reference) if t is not None])
        self._own = estimate_seconds(looks.own_replay(source), self._speeds)
        self._whole = source.seconds["run"]
        self._steps = iter(STEPS)

    def saving(self, policy: Policy) -> float | None:
        """The share of the clip's time that the page predicts `policy` to save against the default; None where the
        replay is partial: it hangs on drift over more skips in a row than were recorded."""
        draft = looks.drawn(self.source, policy, {}, "draft").shown
        if draft.meta.replay == "partial":
            return None
        return (self._own - estimate_seconds(draft, self._speeds)) / self._whole

    def search(self, goal: float) -> None:
        """Move knobs until the predicted saving reaches `goal`, the moves are used up, or nothing is left to try."""
        here = self.saving(self.policy) or 0.0
        for name, by in self._steps:
            if here >= goal or self.moves >= MOVES:
                return
            tried = moved(self.policy, name, by)
            self.moves += 1
            gain = self.saving(tried)
            kept = gain is None or gain > here + 0.003
            self.log.append(f"{name} {getattr(tried, name):g}: {percent(gain)}" + ("" if kept else ", put back"))
            if kept:
                self.policy = tried
            if gain is None:
                return
            here = max(here, gain)

    def back_off(self) -> None:
        """Take the reuse tolerance half way back to the default: the way to lose a tick is too much reuse."""
        start = self.source.policy
        self.moves += 1
        self.policy = replace(
            self.policy, tdc_threshold=round((self.policy.tdc_threshold + start.tdc_threshold) / 2, 4)
        )
        self.log.append(f"back to tdc_threshold {self.policy.tdc_threshold:g}: {percent(self.saving(self.policy))}")


def percent(saved: float | None) -> str:
    """A saving as the log says it."""
    return "not to be foreseen" if saved is None else f"{100 * saved:+.1f} %"


def moved(policy: Policy, name: str, by: float) -> Policy:
    """One knob moved: thresholds by a factor, counts by a difference, never out of range."""
    value = getattr(policy, name)
    low, high = RANGES[name]
    new = value + int(by) if isinstance(value, int) else round(value * by, 4)
    return replace(policy, **{name: type(value)(min(high, max(low, new)))})


def measure(pipe, prompt: str, seed: int, policy: Policy) -> Outcome:
    """One real run."""
    from app.readback import ticks
    from engine.stream import Decoding, Finished, Started, generate

    clock = time.process_time if str(pipe.device) == "cpu" else time.perf_counter
    began, marks = clock(), {}
    for event in generate(pipe, prompt, policy=policy, seed=seed, previews=False):
        marks[type(event)] = clock()
        if isinstance(event, Finished):
            found = event
    skipped = count([looks.grid_of(found.trace)]).skipped
    return Outcome(marks[Finished] - began, marks[Decoding] - marks[Started], ticks(found.frames, prompt), skipped)


def lost(outcome: Outcome, default: Outcome) -> list[str]:
    """The words whose tick the default has and this run has not."""
    return [a["word"] for a, b in zip(default.ticks, outcome.ticks) if a["ok"] and not b["ok"]]


def tune(pipe, source: Source) -> dict[str, Any]:
    """The whole way for one prompt, as a plain record."""
    tuner, seed = Tuner(source), source.seed or 0
    default = measure(pipe, source.prompt, seed, source.policy)
    tuner.search(GOAL + MARGIN)
    tried, best = [], None
    for _ in range(RUNS):
        outcome = measure(pipe, source.prompt, seed, tuner.policy)
        saved, missing = 1 - outcome.seconds / default.seconds, lost(outcome, default)
        tried.append({"policy": tuner.policy.to_dict(), "seconds": round(outcome.seconds, 2), "saved": round(saved, 4),
                      "denoising": round(outcome.denoising, 2), "skipped": round(outcome.skipped, 4), "lost": missing,
                      "predicted": tuner.saving(tuner.policy)})
        if not missing and saved >= GOAL:
            best = tried[-1]
            break
        if missing:
            tuner.back_off()
        else:
            tuner.search(1.0)
    return {"prompt": source.prompt, "seed": seed, "moves": tuner.moves, "log": tuner.log, "found": best is not None,
            "default": {"seconds": round(default.seconds, 2), "denoising": round(default.denoising, 2),
                        "skipped": round(default.skipped, 4), "ticks": [t["ok"] for t in default.ticks]}, "runs": tried}


def sources(folder: Path, only: str | None, load) -> Iterator[tuple[str, Source]]:
    """The recordings, then one prompt that was not recorded: its default run and probe are made first."""
    for recording in find(folder):
        if only in (None, recording.slug):
            yield recording.slug, recording.load()
    name, prompt, seed = EXTRA
    if only in (None, name):
        from app.recording_maker import Lap

        laps = [Lap(load(), prompt, policy, seed=seed, previews=False, probe=probe)
                for policy, probe in ((Policy(), False), (Policy.preset("fp16"), True))]
        yield name, Source(name, prompt, prompt, Policy(), laps[0].finished.trace, laps[1].finished.trace,
                           seconds={"run": laps[0].seconds}, seed=seed)


def say(name: str, made: dict[str, Any]) -> str:
    """A prompt's result as lines."""
    default = made["default"]
    lines = [f"{name}: {made['prompt']} (seed {made['seed']})",
             f"  default: {default['seconds']} s, {100 * default['skipped']:.0f} % skipped, "
             f"{sum(default['ticks'])} of {len(default['ticks'])} ticks"]
    lines += [f"  move {i}: {line}" for i, line in enumerate(made["log"], 1)]
    lines += [
        f"  run {i}: {run['seconds']} s, {100 * run['saved']:+.1f} % saved (predicted: "
        f"{percent(run['predicted'])}), {100 * run['skipped']:.0f} % skipped, "
        + (f"lost: {', '.join(run['lost'])}" if run["lost"] else "no tick lost")
        for i, run in enumerate(made["runs"], 1)
    ]
    return "\n".join([*lines, f"  {'found' if made['found'] else 'not found'}"])


def main(argv: list[str] | None = None) -> None:
    """The command line; errors are one sentence on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m app.expert", description=__doc__.split("\n")[0])
    parser.add_argument("--only", help=f"a recording's name, or {EXTRA[0]}")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--out", type=Path, help="a JSON file that results are added to")
    given = parser.parse_args(argv)
    from engine.attach import attach
    from engine.load import load
    from engine.stream import generate

    try:
        pipe = load(str(EMBEDDED))
        attach(pipe)
        for policy in (Policy(), Policy.preset("fp16")):      # first allocations and unpacked weights are nobody's time
            list(generate(pipe, EXTRA[1], policy=policy, steps=6, seed=0, previews=False))
        kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.exists() else {}
        for name, source in sources(given.recordings, given.only, lambda: pipe):
            kept[name] = tune(pipe, source)
            print(say(name, kept[name]), flush=True)
            if given.out:
                given.out.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        if kept:
            print(f"found for {sum(made['found'] for made in kept.values())} of {len(kept)} prompts")
    except (ValueError, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
