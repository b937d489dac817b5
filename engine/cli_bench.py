"""`python -m engine bench`: one denoising step at the size of a real model, ours beside what a user would pick."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from engine.cli_inputs import check_threads, local_folder
from engine.files import shown
from engine.folder import PACKED, check_folder, pipeline_class
from engine.settings import PRESETS

MEASURED = "CogVideoXPipeline"
"""What bench, frontier and theory run: their loops, peers and readings are of videos that start from text alone."""
_REPOSITORY = Path(__file__).resolve().parent.parent
_RECORDING = _REPOSITORY / "assets" / "recordings" / "sunset-star" / "probe.parquet"

# Options that say nothing to the other kind of bench.
_OF_STEPS = ("methods", "schedule", "skipped", "layers", "steps", "device", "no_profile", "kernels", "errors")
_OF_BLOCKS = ("presets", "dtypes", "threads")


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
    add("--append", action="store_true", help="keep what --out holds already, but for rows that are measured anew")
    add("--no-profile", action="store_true", help="leave out the split of the time by kind of kernel")
    add("--kernels", type=Path, metavar="JSON", help="also write the longest kernels of every method")
    add(
        "--blocks", action="store_true",
        help="on the CPU: one block of a model folder, and its denoising loop, ours and stock in turn; ratios only",
    )  # fmt: skip
    add(
        "--presets", nargs="+", metavar="NAME", default=["w4a8"],
        help="with --blocks: beside stock (default: w4a8); a dynamic one gets its loop alone",
    )  # fmt: skip
    add(
        "--dtypes", nargs="+", metavar="NAME", help="with --blocks: float32, bfloat16 (default: what the CPU does well)"
    )
    add("--threads", nargs="+", type=int, metavar="N", default=[1, 2], help="with --blocks (default: 1 2)")
    add("--errors", action="store_true", help="also one forward per precision against float32 (4 bytes a weight)")
    add("--commit", help="what to note as the commit (default: of this repository)")
    parser.set_defaults(run=partial(_bench, parser.get_default))


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=_REPOSITORY, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _bench(default: Callable[[str], object], given: argparse.Namespace) -> int:
    """default: the default value of an option's name."""
    from engine import bench
    from engine.commands import check_target
    from engine.load import device_for

    other = [name for name in (_OF_STEPS if given.blocks else _OF_BLOCKS) if getattr(given, name) != default(name)]
    if other:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in other)
        raise ValueError(
            f"bench --blocks does not take {options}; leave {'it' if len(other) == 1 else 'them'} out." if given.blocks
            else f"bench takes {options} with --blocks only; add that, or leave {options} out."
        )  # fmt: skip
    if given.append and given.out is None:
        raise ValueError("--append needs the table to append to; add --out FILE.csv, or leave it out.")
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
    table = _Table(given, bench.COLUMNS, ("method",))
    changes = {} if given.layers is None else {"layers": given.layers}
    schedule = _schedule(given, bench.block_count(given.model, given.layers))
    made = bench.Bench(
        given.model, device, schedule, given.commit or _commit(), timed=given.steps, profiled=not given.no_profile,
        **changes,
    )  # fmt: skip

    def add(row: dict) -> None:
        print(_line(row), flush=True)
        table.add(row)
        if given.kernels:
            _write_kernels(given.kernels, made.kernels)

    bench.run(made, methods, add)
    if given.errors:
        for method, error in made.errors().items():
            print(f"{method:20s} one forward against float32: relative error {error:.4g}", flush=True)
            table.error(method, error)
    return 0


def _blocks(given: argparse.Namespace) -> int:
    from engine import bench_blocks
    from engine.commands import check_target
    from kernels.target import probe

    quantized = [name for name in PRESETS if name != "fp16"]
    unknown = [name for name in given.presets if name not in quantized]
    if unknown:
        raise ValueError(f"--presets has {', '.join(unknown)}; expected any of {', '.join(quantized)}.")
    dtypes = given.dtypes or ["bfloat16" if probe("cpu").native_bf16 else "float32"]
    unknown = [name for name in dtypes if name not in ("float32", "bfloat16")]
    if unknown:
        raise ValueError(f"--dtypes has {', '.join(unknown)}; expected float32 or bfloat16.")
    check_threads(*given.threads)
    if local_folder(given.model) is None:
        raise ValueError(f"--blocks needs a model folder, such as --model assets/tiny; got {shown(given.model)}.")
    folder = _timed_folder(given.model, stock=True)
    if given.out is not None:
        check_target(given.out, ".csv")
    table = _Table(given, bench_blocks.COLUMNS, ("what", "preset", "dtype", "threads"))
    loops = [name for name in dict.fromkeys(given.presets) if not bench_blocks.has_block_row(name)]
    if loops:
        print(f"{', '.join(loops)}: the loop alone, as what a block takes changes from step to step.", flush=True)
    for dtype in dtypes:
        for row in bench_blocks.compare(folder, dtype, given.presets, given.threads, commit=given.commit or _commit()):
            print(
                f"{row['what']:16s} {row['preset']:10s} {dtype:8s} {row['threads']} threads: {row['ratio']:.2f} times "
                f"stock ({row['lower_quartile']:.2f} to {row['upper_quartile']:.2f}, {row['pairs']} pairs)", flush=True,
            )  # fmt: skip
            table.add(row)
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
    """The CSV, whole after every row: what was measured before an interruption is not lost.

    columns: of the file. key: those that name what a row measures; a row replaces that of the same key. Raises
    ValueError for a file to append to that is no such table.
    """

    def __init__(self, given: argparse.Namespace, columns: Sequence[str], key: Sequence[str]):
        self._out, self._columns, self._key = given.out, list(columns), list(key)
        self._rows = _rows(given.out, key) if given.append and given.out and given.out.is_file() else []

    def add(self, row: dict) -> None:
        self._rows = [other for other in self._rows if any(other[name] != row[name] for name in self._key)]
        self._rows.append(row)
        self._write()

    def error(self, method: str, error: float) -> None:
        """Note the error of one forward against float32 in the rows of `method`."""
        for row in self._rows:
            if row["method"] == method:
                row["forward_error"] = float(f"{error:.4g}")
        self._write()

    def _write(self) -> None:
        if self._out:
            import pandas as pd

            from engine.files import write_atomic

            write_atomic(self._out, pd.DataFrame(self._rows, columns=self._columns).to_csv(index=False))


def _rows(path: Path, key: Sequence[str]) -> list[dict]:
    import pandas as pd

    try:
        table = pd.read_csv(path, dtype={"commit": str})
    except ValueError:
        table = pd.DataFrame()
    if not set(key) <= set(table.columns):
        raise ValueError(
            f"--append needs a table that this command wrote, and {shown(path.name)} is none: it has no columns "
            f"{', '.join(key)}; name another file, or leave --append out to replace it."
        )
    return table.to_dict("records")


def _write_kernels(path: Path, kernels: dict) -> None:
    from engine.files import write_atomic

    longest = {method: [one._asdict() for one in spent[:25]] for method, spent in kernels.items()}
    write_atomic(path, json.dumps(longest, indent=1))


def _line(row: dict) -> str:
    wall = f" ({row['wall']:.0f} s in all)"
    if "seconds_per_step" not in row:
        return f"{row['method']:20s} {row['notes']}{wall}"
    split = ", ".join(f"{kind[:-6]} {row[kind]:.0%}" for kind in row if kind.endswith("_share"))
    peak = "" if row["peak_gb"] != row["peak_gb"] else f"peak {row['peak_gb']} GB, "
    return (
        f"{row['method']:20s} {row['seconds_per_step'] * 1e3:8.1f} ms a step, {row['skipped']:.0%} skipped, "
        f"{peak}weights {row['weights_gb']} GB, cache {row['cache_gb']} GB, "
        f"{row['bits_computed']:g} bits computed{'; ' + split if split else ''}{wall}"
    )
