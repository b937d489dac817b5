"""`python -m engine bench`: one denoising step at the size of a real model, ours beside what a user would pick."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from engine.cli_inputs import local_folder
from engine.files import shown
from engine.folder import PACKED, check_folder, pipeline_class
from engine.settings import PRESETS

MEASURED = "CogVideoXPipeline"
"""What bench, frontier and theory run: their loops, peers and readings are of videos that start from text alone."""
_REPOSITORY = Path(__file__).resolve().parent.parent
_RECORDING = _REPOSITORY / "assets" / "recordings" / "sunset-star" / "probe.parquet"


def add_bench_parser(commands) -> None:
    """Register the command with the subparsers of `engine.cli`."""
    parser = commands.add_parser("bench", help="seconds, memory and bits of one step at real size, against peers")
    add = parser.add_argument
    add("--model", default="cogvideox-5b", help="cogvideox-5b or -2b (random weights), or a CogVideoX folder")
    add("--methods", nargs="+", metavar="NAME", help="default: all, see engine/bench.py; 'none' with --errors")
    add(
        "--schedule", metavar="TRACE", default=str(_RECORDING),
        help="recorded run whose decisions are stretched over the model (default: one of the embedded model); 'none': "
        "each policy decides for itself",
    )  # fmt: skip
    add("--skipped", type=float, default=0.38, help="share of blocks to skip, if TRACE is a probed run (default: 0.38)")
    add("--layers", type=int, help="fewer blocks than the model has, for a quick look")
    add("--steps", type=int, default=15, help="steps of a run with block reuse (default: 15)")
    add("--device", default=None, help="default: cuda where there is one")
    add("--out", type=Path, help="CSV to write, anew after every row")
    add("--append", action="store_true", help="keep rows of other methods that --out holds already")
    add("--no-profile", action="store_true", help="leave out the split of the time by kind of kernel")
    add("--kernels", type=Path, metavar="JSON", help="also write the longest kernels of every method")
    add(
        "--blocks", action="store_true",
        help="on the CPU: one block of a model folder, and its denoising loop, ours and stock in turn; ratios only",
    )  # fmt: skip
    add("--presets", nargs="+", metavar="NAME", default=["w4a8"], help="with --blocks: beside stock (default: w4a8)")
    add(
        "--dtypes", nargs="+", metavar="NAME", help="with --blocks: float32, bfloat16 (default: what the CPU does well)"
    )
    add("--threads", nargs="+", type=int, metavar="N", default=[1, 2], help="with --blocks (default: 1 2)")
    add("--errors", action="store_true", help="also one forward per precision against float32 (4 bytes a weight)")
    add("--commit", help="what to note as the commit (default: of this repository)")
    parser.set_defaults(run=_bench)


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=_REPOSITORY, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _bench(given: argparse.Namespace) -> int:
    from engine import bench
    from engine.commands import check_target
    from engine.load import device_for

    if given.blocks:
        return _blocks(given)
    methods = [] if given.methods == ["none"] else given.methods or bench.METHODS
    unknown = [name for name in methods if name not in bench.METHODS]
    if unknown:
        raise ValueError(f"--methods has {', '.join(unknown)}; expected any of {', '.join(bench.METHODS)}.")
    if not bench.is_known(given.model):
        raise ValueError(f"--model must be one of {', '.join(bench.MODELS)} or a folder, got {shown(given.model)}.")
    if given.model not in bench.MODELS:
        stock = given.errors or any(name.removesuffix("_host") not in PRESETS for name in methods)
        given.model = _timed_folder(given.model, stock)
        if given.layers is not None:
            raise ValueError("--layers is for the models with random weights; a folder runs whole, so leave it out.")
    if given.steps < 4:
        raise ValueError(f"--steps must be at least 4, got {given.steps}: reuse begins at the third step.")
    if given.layers is not None and given.layers < 1:
        raise ValueError(f"--layers must be at least 1, got {given.layers}; leave it out for all blocks of the model.")
    for path, suffix in ((given.out, ".csv"), (given.kernels, ".json")):
        if path is not None:
            check_target(path, suffix)
    device = str(device_for(given.device))
    if device == "cpu" and given.device is None and given.layers is None and given.model in bench.MODELS:
        raise ValueError(
            f"{given.model} has the size of the real model and there is no CUDA card here, so every step would take "
            "many minutes; give --layers 1 for a quick look, or --device cpu to run all of it."
        )
    changes = {} if given.layers is None else {"layers": given.layers}
    schedule = _schedule(given, bench.block_count(given.model, given.layers))
    made = bench.Bench(
        given.model, device, schedule, given.commit or _commit(), timed=given.steps, profiled=not given.no_profile,
        **changes,
    )  # fmt: skip
    table = _Table(given, methods)
    bench.run(made, methods, lambda row: table.add(row, made.kernels))
    if given.errors:
        for method, error in made.errors().items():
            print(f"{method:20s} one forward against float32: relative error {error:.4g}", flush=True)
            table.error(method, error)
    return 0


def _blocks(given: argparse.Namespace) -> int:
    import pandas as pd

    from engine import bench_blocks
    from engine.commands import check_target
    from engine.files import write_atomic
    from kernels.target import probe

    quantized = [name for name in PRESETS if name != "fp16"]
    unknown = [name for name in given.presets if name not in quantized]
    if unknown:
        raise ValueError(f"--presets has {', '.join(unknown)}; expected any of {', '.join(quantized)}.")
    dtypes = given.dtypes or ["bfloat16" if probe("cpu").native_bf16 else "float32"]
    unknown = [name for name in dtypes if name not in ("float32", "bfloat16")]
    if unknown:
        raise ValueError(f"--dtypes has {', '.join(unknown)}; expected float32 or bfloat16.")
    if min(given.threads) < 1:
        raise ValueError(f"--threads must be at least 1, got {min(given.threads)}.")
    if local_folder(given.model) is None:
        raise ValueError(f"--blocks needs a model folder, such as --model assets/tiny; got {shown(given.model)}.")
    folder = _timed_folder(given.model, stock=True)
    if given.out is not None:
        check_target(given.out, ".csv")
    rows = []
    for dtype in dtypes:
        for row in bench_blocks.compare(folder, dtype, given.presets, given.threads, commit=given.commit or _commit()):
            rows.append(row)
            print(
                f"{row['what']:16s} {row['preset']:10s} {dtype:8s} {row['threads']} threads: {row['ratio']:.2f} times "
                f"stock ({row['lower_quartile']:.2f} to {row['upper_quartile']:.2f}, {row['pairs']} pairs)", flush=True,
            )  # fmt: skip
            if given.out is not None:
                write_atomic(given.out, pd.DataFrame(rows, columns=list(bench_blocks.COLUMNS)).to_csv(index=False))
    return 0


def _timed_folder(model: str, stock: bool) -> str:
    """The path of a model folder; one that cannot be timed is refused before it is loaded, with a ValueError.

    stock: the 16-bit weights are needed.
    """
    folder = local_folder(model)
    check_folder(folder)
    pipeline = pipeline_class(folder)
    if pipeline != MEASURED:
        raise ValueError(
            f"bench times models that make a video from text ({MEASURED}), and {shown(model)} holds a {pipeline}; "
            "give --model the folder of such a one, such as assets/tiny."
        )
    if stock and (folder / PACKED).is_file():
        raise ValueError(
            f"bench compares with the stock model, which needs the 16-bit weights, and {shown(model)} is a packed "
            "checkpoint without them; give --model the folder that it was packed from."
        )
    return str(folder)


def _schedule(given: argparse.Namespace, blocks: int):
    from engine.bench_schedule import Schedule
    from engine.trace import Trace

    if given.schedule == "none":
        return None
    path = Path(given.schedule)
    trace = Trace.load(path)
    name = f"{path.parent.name or path.stem} (embedded model)" if path.is_relative_to(_REPOSITORY) else path.name
    if trace.meta.probe:
        return Schedule.from_probe(trace, given.skipped, blocks, given.steps, name)
    return Schedule.from_trace(trace, f"skips of {name}, stretched")


class _Table:
    """The CSV, whole after every row: what was measured before an interruption is not lost."""

    def __init__(self, given: argparse.Namespace, methods):
        import pandas as pd

        self._out, self._kernels, self._rows = given.out, given.kernels, []
        if given.append and given.out and given.out.is_file():
            old = pd.read_csv(given.out, dtype={"commit": str}).to_dict("records")
            self._rows = [row for row in old if row.get("method") not in methods]

    def add(self, row: dict, kernels: dict) -> None:
        print(_line(row), flush=True)
        self._rows.append(row)
        self._write()
        if self._kernels:
            from engine.files import write_atomic

            longest = {method: [one._asdict() for one in spent[:25]] for method, spent in kernels.items()}
            write_atomic(self._kernels, json.dumps(longest, indent=1))

    def error(self, method: str, error: float) -> None:
        for row in self._rows:
            if row["method"] == method:
                row["forward_error"] = float(f"{error:.4g}")
        self._write()

    def _write(self) -> None:
        if self._out:
            import pandas as pd

            from engine.bench import COLUMNS
            from engine.files import write_atomic

            write_atomic(self._out, pd.DataFrame(self._rows, columns=list(COLUMNS)).to_csv(index=False))


def _line(row: dict) -> str:
    wall = f" ({row['wall']:.0f} s in all)"
    if "seconds_per_step" not in row:
        return f"{row['method']:20s} {row['notes']}{wall}"
    split = ", ".join(f"{kind[:-6]} {row[kind]:.0%}" for kind in row if kind.endswith("_share"))
    return (
        f"{row['method']:20s} {row['seconds_per_step'] * 1e3:8.1f} ms a step, {row['skipped']:.0%} skipped, "
        f"peak {row['peak_gb']} GB, weights {row['weights_gb']} GB, cache {row['cache_gb']} GB, "
        f"{row['bits_computed']:g} bits computed{'; ' + split if split else ''}{wall}"
    )
