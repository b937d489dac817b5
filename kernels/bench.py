"""`python -m kernels.bench`: what each kernel gains over what a user would run instead.

One table: the operation at a real model's shape, the time of ours and of each alternative in the
same process, the achieved rate, its share of the ceiling measured in the same run, and the error
against float64. Bytes are the least the operation must move (each input and output once), so a
share below 1 is honest about extra passes. Rows that lose stay in the table.

    python -m kernels.bench --out assets/benchmarks/kernels-h200.csv     all shapes, on a GPU
    python -m kernels.bench --smoke                                      every op once, tiny shapes
    python -m kernels.bench --explore                                    launch configurations, on a GPU
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path
from typing import Callable, Iterable

import torch

from kernels import bench_cases, target

COLUMNS = (
    "op", "shape", "baseline", "baseline_ms", "ours_ms", "speedup", "rate", "unit", "ceiling_share",
    "relative_error", "device", "torch", "triton", "commit",
)
_CEILING_SHAPE = (35552, 3072, 12288)
_TINY_CEILING = (64, 128, 256)
_REPEATS = 15
_CACHE_BYTES = 256 << 20
# About a millisecond: longer than Python takes to queue the slowest eager baseline.
_HEAD_START_CYCLES = 2_000_000


def milliseconds(function: Callable[[], object]) -> float:
    """Median time of one call, warm, with the second-level cache emptied before it.

    On a GPU the device is kept busy before each call until all its launches are queued, so that
    what is timed is the device's work and not how fast Python submits it.
    """
    function()
    if torch.cuda.is_available():
        return _on_device(function)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _on_device(function: Callable[[], object]) -> float:
    flushed = torch.empty(_CACHE_BYTES, dtype=torch.int8, device="cuda")
    pairs = []
    for _ in range(_REPEATS):
        flushed.zero_()
        torch.cuda._sleep(_HEAD_START_CYCLES)
        pairs.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        pairs[-1][0].record()
        function()
        pairs[-1][1].record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def ceilings(device: str, tiny: bool) -> dict[str, float]:
    """Measured limits: copy in GB/s (bytes read + written), library products in TFLOP/s."""
    rows, inner, columns = _TINY_CEILING if tiny else _CEILING_SHAPE
    a = torch.randn(rows, inner, device=device).to(torch.bfloat16)
    b = torch.randn(columns, inner, device=device).to(torch.bfloat16)
    large = torch.empty(rows, columns, dtype=torch.bfloat16, device=device).normal_()
    copy = torch.empty_like(large)
    operations = 2e-9 * rows * inner * columns
    found = {
        "copy": 2e-6 * large.nbytes / milliseconds(lambda: copy.copy_(large)),
        "bf16": operations / milliseconds(lambda: torch.nn.functional.linear(a, b)),
    }
    eight_bit = [milliseconds(run) for run in bench_cases.eight_bit_products(a, b).values()]
    found["int8"] = operations / min(eight_bit) if eight_bit else found["bf16"]
    return found


def measure(cases: Iterable[bench_cases.Case], limits: dict[str, float]) -> Iterable[dict]:
    """One row per case and baseline."""
    for case in cases:
        ours = milliseconds(case.ours)
        error = case.error()
        rate = (case.flops * 1e-9 if case.flops else case.bytes * 1e-6) / ours
        for name, stock in (case.baselines or {"-": None}).items():
            baseline = milliseconds(stock) if stock is not None else float("nan")
            yield {
                "op": case.op, "shape": case.shape, "baseline": name,
                "baseline_ms": round(baseline, 4), "ours_ms": round(ours, 4),
                "speedup": round(baseline / ours, 3), "rate": round(rate, 1),
                "unit": "TFLOP/s" if case.flops else "GB/s",
                "ceiling_share": round(rate / limits[case.ceiling], 3), "relative_error": f"{error:.2e}",
            }


def versions(device: str) -> dict[str, str]:
    """Where a row was measured."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    try:
        import triton

        triton_version = triton.__version__
    except ImportError:
        triton_version = "-"
    return {"device": name, "torch": torch.__version__, "triton": triton_version, "commit": _commit()}


def _commit() -> str:
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _line(row: dict) -> str:
    return (
        f"{row['op']:<34} {row['shape']:<22} {row['baseline']:<30} {row['baseline_ms']:>9.3f} "
        f"{row['ours_ms']:>9.3f} {row['speedup']:>6.2f}x {row['rate']:>8.1f} {row['unit']:<8}"
        f"{100 * row['ceiling_share']:>5.0f} %  {row['relative_error']}"
    )


def smoke(device: str, only: str = "") -> None:
    """Every operation once at small ragged shapes: for a memory checker, or a first look."""
    for case in bench_cases.cases(device, tiny=True, only=only):
        case.ours()
        if device == "cuda":
            torch.cuda.synchronize()
        print(f"{case.op:<34} {case.shape:<22} error {case.error():.2e}", flush=True)


def _share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected i/n with i from 0 to n - 1, such as 0/4, but got {text!r}")
    return int(match[1]), int(match[2])


def main(arguments: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument("--smoke", action="store_true", help="every operation once, tiny shapes, no timing")
    parser.add_argument("--tiny", action="store_true", help="time tiny shapes")
    parser.add_argument("--explore", action="store_true", help="time launch configurations; with --out, then the whole table under the fastest")
    parser.add_argument("--part", type=_share, metavar="i/n", help="with --explore, only compile the share i/n of the configurations, to time them later")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile of the stock code")
    parser.add_argument("--only", default="", help="operations whose name contains this")
    options = parser.parse_args(arguments)
    if options.part and not options.explore:
        parser.exit(2, "error: --part is a share of what --explore compiles; give --explore too.\n")
    if options.out and (options.out.is_dir() or options.smoke or options.part):
        parser.exit(2, "error: --out is the CSV file of a timed table; give a file's name, and neither --smoke nor --part.\n")
    if not any(options.only in name for name in bench_cases.MAKERS):
        parser.exit(2, f"error: no operation's name contains {options.only!r}; they are {', '.join(bench_cases.MAKERS)}.\n")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not (options.smoke or options.tiny):
        parser.exit(2, "error: the shapes are those of a 5B model and need a GPU, which is not here; add --smoke or --tiny.\n")
    torch.manual_seed(0)
    print(target.probe(device).reason, flush=True)
    with torch.no_grad():
        if options.smoke:
            smoke(device, options.only)
        elif options.explore:
            from kernels import bench_explore

            if options.part:
                bench_explore.compile_part(*options.part, options.only)
                return
            with bench_explore.fastest(device, options.only):
                if options.out:
                    options.only = ""
                    _table(options, device)
        else:
            _table(options, device)


def _table(options, device: str) -> None:
    where = versions(device)
    limits = ceilings(device, options.tiny)
    print(where)
    print("ceilings:", {name: round(value, 1) for name, value in limits.items()}, flush=True)
    header = ("op", "shape", "baseline", "ms", "ours ms", "speed", "rate", "", "share", "error")
    print("{:<34} {:<22} {:<30} {:>9} {:>9} {:>7} {:>8} {:<8}{:>6}  {}".format(*header), flush=True)
    rows = [
        {
            "op": f"ceiling: {name}", "shape": "", "baseline": "-", "baseline_ms": "", "ours_ms": "",
            "speedup": "", "rate": round(value, 1), "unit": "GB/s" if name == "copy" else "TFLOP/s",
            "ceiling_share": 1.0, "relative_error": "", **where,
        }
        for name, value in limits.items()
    ]
    cases = bench_cases.cases(device, options.tiny, options.compile, options.only)
    for row in measure(cases, limits):
        rows.append({**row, **where})
        print(_line(row), flush=True)
        if options.out:
            _write(options.out, rows)


def _write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


if __name__ == "__main__":
    main()
