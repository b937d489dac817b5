"""`python -m engine bench`: one denoising step at the size of a real model, ours beside what a user would pick."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parent.parent


def add_bench_parser(commands) -> None:
    """Register the command with the subparsers of `engine.cli`."""
    parser = commands.add_parser("bench", help="seconds, memory and bits of one step at real size, against peers")
    parser.add_argument("--model", default="cogvideox-5b", help="cogvideox-5b or cogvideox-2b (random weights)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: all; see engine/bench.py")
    parser.add_argument("--schedule", type=Path, metavar="TRACE", help="recorded run whose skips are stretched")
    parser.add_argument("--layers", type=int, help="fewer blocks than the model has, for a quick look")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run with block reuse (default: 12)")
    parser.add_argument("--device", default=None, help="default: cuda where there is one")
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.set_defaults(run=_bench)


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=_REPOSITORY, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _bench(given: argparse.Namespace) -> int:
    import torch

    from engine import bench
    from engine.files import write_atomic
    from engine.trace import Trace

    methods = given.methods or bench.METHODS
    unknown = [name for name in methods if name not in bench.METHODS]
    if unknown:
        raise ValueError(f"--methods has {', '.join(unknown)}; expected any of {', '.join(bench.METHODS)}.")
    if given.model not in bench.MODELS:
        raise ValueError(f"--model must be one of {', '.join(bench.MODELS)}, got {given.model!r}.")
    if given.steps < 4:
        raise ValueError(f"--steps must be at least 4, got {given.steps}: reuse begins at the third step.")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    schedule = bench.Schedule.from_trace(Trace.load(given.schedule)) if given.schedule else None
    changes = {"layers": given.layers} if given.layers else {}
    run = bench.Bench(given.model, device, schedule, _commit(), timed=given.steps, **changes)
    table = bench.run(run, methods, lambda row: print(_line(row), flush=True))
    if given.out:
        write_atomic(given.out, table.to_csv(index=False))
    return 0


def _line(row: dict) -> str:
    if "seconds_per_step" not in row:
        return f"{row['method']:20s} {row['notes']}"
    return (
        f"{row['method']:20s} {row['seconds_per_step'] * 1e3:8.1f} ms a step, {row['skipped']:.0%} skipped, "
        f"peak {row['peak_gb']} GB, weights {row['weights_gb']} GB, {row['bits_computed']:g} bits computed"
    )
