"""Taking things home: Python code, videos, traces, policies. Files travel as bytes; nothing is left on the disk."""

from __future__ import annotations

import base64
import os
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np

from app.i18n import plain
from app.look import preset_of
from app.session import Source
from engine.settings import PRESETS, Policy
from engine.trace import Trace, TraceError


def python_code(policy: Policy, source: Source, text_length: int | None = None) -> str:
    """The two-line promise with this very policy, as code that runs and makes the clip that was seen: what the run took
    from the model's own defaults is written out, because a stock pipeline has others. text_length: text tokens that the
    model was built for (`Models.text_length`), where known."""
    name = preset_of(policy)
    if name in PRESETS:
        made = f'Policy.preset("{name}")'
    else:
        plain = Policy()
        changed = [f"{f.name}={getattr(policy, f.name)!r}" for f in fields(Policy)
                   if getattr(policy, f.name) != getattr(plain, f.name)]
        made = f"Policy({', '.join(changed)})"
    folder = "assets/tiny" if source.model in ("", "tiny") else source.model
    meta, seed = source.trace.meta, source.seed
    wanted = {"negative_prompt": meta.negative_prompt or None, "num_inference_steps": meta.steps or None,
              "guidance_scale": meta.guidance, "height": meta.height, "width": meta.width, "num_frames": meta.frames,
              "max_sequence_length": text_length}
    call = [repr(source.prompt), *(f"{name}={value!r}" for name, value in wanted.items() if value is not None)]
    call += [] if seed is None else [f"generator=torch.Generator().manual_seed({seed})"]
    seeded = [] if seed is None else ["import torch", ""]
    return "\n".join([
        *seeded,
        "from engine import Policy, attach, load, record",
        "",
        f"pipe = load({folder!r})        # or any supported diffusers pipeline",
        f"policy = {made}",
        "attach(pipe, policy=policy)        # plain pipe(...) calls follow the policy from here on",
        "",
        "with record(pipe, policy) as run:        # only needed to keep a trace",
        "    frames = pipe(",
        *(f"        {argument}," for argument in call),
        "    ).frames",
        'run.trace.save("run.parquet")',
    ])


def package(source: Source, kind: str, policy: Policy) -> tuple[str, str, bytes] | None:
    """(file name, media type, bytes) of "video", "reference", "parquet", "csv" or "policy"; None where there is
    none."""
    if kind == "policy":
        return "policy.json", "application/json", policy.to_json().encode()
    if kind == "csv":
        return "trace.csv", "text/csv", _csv(source.trace).encode()
    if kind == "parquet":
        return "run.parquet", "application/octet-stream", _written("run.parquet", source.trace.save)
    if kind in ("video", "reference"):
        return _video(source, "b" if kind == "video" else "a")
    raise ValueError(f"Expected video, reference, parquet, csv or policy; got {kind[:40]!r}.")


def _video(source: Source, pane: str) -> tuple[str, str, bytes] | None:
    held = source.video.get(pane)
    policy = source.lanes[pane]
    name = f'{"fp16" if policy is None else preset_of(policy) or "own"}.mp4'
    if isinstance(held, Path):
        return (name, "video/mp4", held.read_bytes()) if held.exists() else None
    if isinstance(held, np.ndarray):
        from engine.video import write_mp4

        return name, "video/mp4", _written(name, lambda path: write_mp4(path, held, source.trace.meta.fps or 8))
    return None


def _written(name: str, write) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


def _csv(trace: Trace) -> str:
    """One row per layer call with its block's columns beside it; the 16-value samples stay in the Parquet file."""
    keys = ["call", "model", "branch", "step", "block"]
    layers = trace.layers.drop(columns=[c for c in ("sample",) if c in trace.layers])
    joined = layers.merge(trace.blocks, on=keys, suffixes=("", "_block"))
    return joined.to_csv(index=False)


def encoded(found: tuple[str, str, bytes]) -> dict[str, str]:
    """A package as the browser takes it."""
    name, media, data = found
    return {"name": name, "type": media, "data": base64.b64encode(data).decode()}


def opened(
    path: str, name: str, *, upload_folder: str, max_bytes: int, max_rows: int, lang: str = "en"
) -> Trace | Policy:
    """Read an uploaded trace (.parquet) or policy (.json).

    The path comes from a browser, so only files inside the upload folder are read. Raises ValueError (TraceError,
    PolicyError) in one sentence.
    """
    real = Path(os.path.realpath(path))
    if not real.is_file() or not real.is_relative_to(os.path.realpath(upload_folder)):
        raise ValueError(plain(lang, "lab.take.elsewhere"))
    if real.stat().st_size > max_bytes:
        sizes = {"limit": f"{max_bytes / 1e6:.0f}", "size": f"{real.stat().st_size / 1e6:.0f}"}
        raise TraceError(plain(lang, "lab.take.too_big", **sizes))
    if real.suffix.lower() == ".json":
        return Policy.load(real)
    if real.suffix.lower() == ".parquet":
        trace = Trace.load(real, max_bytes, max_rows)
        if len(trace.blocks) and not len(trace.layers):
            raise TraceError(plain(lang, "lab.take.no_layers", name=name[:80]))
        return trace
    raise ValueError(plain(lang, "lab.take.unknown", name=name[:80]))
