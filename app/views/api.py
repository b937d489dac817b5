"""End points for scripts and tools: generate, replay, trace. Typed and documented, and nothing else is exposed.

    from gradio_client import Client
    lab = Client("http://127.0.0.1:7860")
    made = lab.predict("a large red circle moves right on a black background", "sixbit", api_name="/generate")
    what_if = lab.predict(made["run"], '{"tdc_threshold": 0.2}', api_name="/replay")
"""

from __future__ import annotations

import base64
import math
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import gradio as gr

from app import look as looks
from app import take
from app.gate import Full, Gate
from app.lanes import drive
from app.session import Source
from app.views.lab_memory import Lab
from app.views.lab_server import sentence
from app.views.lab_wish import read_wish
from engine.cost import report
from engine.replay import replay as decide_anew
from engine.settings import Policy

KEPT = 16           # runs kept for `replay` and `trace`; their names cannot be guessed


class Runs:
    """The latest runs made through the end points."""

    def __init__(self):
        self._lock, self._held = threading.Lock(), OrderedDict()

    def put(self, source: Source) -> str:
        """Keep a run; returns the name to ask for it by."""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._held[name] = source
            while len(self._held) > KEPT:
                self._held.popitem(last=False)
        return name

    def get(self, name: str) -> Source | None:
        """A kept run, or None."""
        with self._lock:
            return self._held.get(name)


def wire(lab: Lab, gate: Gate) -> None:
    """Place the three end points into the Blocks at hand."""
    runs = Runs()

    def find(run: str) -> Source:
        found = runs.get(run)
        if found is not None:
            return found
        if f"recording:{run}" in lab.recordings:
            return lab.recorded(f"recording:{run}")
        known = ", ".join(key.removeprefix("recording:") for key in lab.recordings) or "none"
        raise gr.Error(f"Expected a run that /generate returned, or a recorded race (here: {known}); got {run[:80]!r}.")

    def generate(
        prompt: str, preset: str = "sixbit", seed: int = 0, steps: int = 30, policy: str = ""
    ) -> dict[str, Any]:
        """Generate a short video with the quantized engine and say what it took.

        Args:
            prompt: What to draw, in the small model's words: "a large red circle moves right on a black background".
            preset: A policy: fp16, w4a16, w4a8, w4a4, dmpq, dmpq_sensitive, tdc, dmpq_tdc, sixbit or int8_tdc.
            seed: A whole number; the same seed gives the same video.
            steps: Denoising steps.
            policy: A policy as JSON; where given, it replaces the preset.

        Returns:
            run (a name for /replay and /trace), seed, report (bits, shares, compute_seconds without waiting), video
            (an mp4 as base64).
        """
        ask = {"prompt": prompt, "seed": seed, "steps": steps, "preset": preset, "mode": "sixbit"}
        try:
            ask["policy"] = Policy.from_json(policy).to_dict() if policy.strip() else None
            wish = read_wish(lab, ask, "en")
            source = _made(lab, gate, wish)
        except Full:
            raise gr.Error(f"Too many runs are waiting ({gate.length}); try again in a minute.") from None
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            raise gr.Error(sentence(error, "en")) from None
        video = take.package(source, "video", source.policy)
        return {"run": runs.put(source), "seed": source.seed, "report": _plain(source),
                "video": base64.b64encode(video[2]).decode() if video else ""}

    def replay(run: str, policy: str) -> dict[str, Any]:
        """Ask what another policy would have decided on a run's recorded signals, without running the model.

        Args:
            run: A name that /generate returned, or the name of a recorded race.
            policy: The other policy as JSON, as {"tdc_threshold": 0.2}; absent fields take the method's defaults.

        Returns:
            replay (exact, open loop or partial: how far it may be trusted) and report (bits and shares).
        """
        source = find(run)
        try:
            drafted = decide_anew(
                source.signals or source.trace, Policy.from_json(policy), looks.calibration_of(source)
            )
        except (ValueError, RuntimeError) as error:
            raise gr.Error(sentence(error, "en")) from None
        return {"replay": drafted.meta.replay, "report": _figures(drafted)}

    def trace(run: str, format: str = "parquet") -> dict[str, str]:
        """Download the trace of a run: every block's and layer's decision at every step, with its reason.

        Args:
            run: A name that /generate returned, or the name of a recorded race.
            format: parquet (everything) or csv (one row per layer call).

        Returns:
            name, type and data (base64) of the file.
        """
        source = find(run)
        if format not in ("parquet", "csv"):
            raise gr.Error(f"format must be parquet or csv; got {format[:40]!r}.")
        return take.encoded(take.package(source, format, source.policy))

    for fn in (generate, replay, trace):
        gr.api(fn, api_name=fn.__name__, concurrency_limit=4)


def _made(lab: Lab, gate: Gate, wish) -> Source:
    ticket = gate.join()
    try:
        while gate.ahead(ticket):
            time.sleep(0.2)
        finished = None
        for beat in drive(wish):
            if type(beat.event).__name__ == "Finished":
                finished = beat.event
    finally:
        gate.leave(ticket)
    if finished is None:
        raise RuntimeError("The run ended without a video; try again.")
    return Source(key="api", title=wish.prompt, prompt=wish.prompt, policy=wish.lanes[-1].policy, trace=finished.trace,
                  video={"b": finished.frames}, seed=wish.seed, model=wish.model, seconds={"run": beat.used})


def _plain(source: Source) -> dict[str, Any]:
    return {**_figures(source.trace), "compute_seconds": round(source.seconds["run"], 3),
            "preset": looks.preset_of(source.policy), "policy": source.policy.to_dict()}


def _figures(trace) -> dict[str, Any]:
    return _finite(asdict(report(trace)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
