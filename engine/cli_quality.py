"""The quality lab on the command line: `frontier`, `theory`, `tune`.

    python -m engine frontier --out assets/quality/frontier.parquet --prompts 64
    python -m engine theory --out assets/quality
    python -m engine tune --keep-quality 0.98 --out policy.json

A sweep may be split over processes and machines: each runs `--shard i/n` with the same other arguments and appends to
its own file beside `--out`; `--merge` joins what is there. A killed shard goes on where it stopped. With
`--share FOLDER` the processes of one machine take the work from one list in turn instead of splitting it beforehand.
"""

import sys
import time
from pathlib import Path

from engine.cli_bench import MEASURED
from engine.cli_inputs import add_inputs, check_threads, local_folder
from engine.files import existing, shown, takes_files
from engine.folder import PACKED, check_folder, pipeline_class
from engine.request import EMBEDDED_DEFAULTS, LIMITS

EMBEDDED = Path(__file__).resolve().parent.parent / "assets" / "tiny"
GRIDS = ("frontier", "extended", "brief", "defaults", "fine", "accuracy", "sensitive", "agreement", "timing")
WARMING = "warming"


def add_parsers(commands) -> None:
    """Add the three subcommands to an argparse `add_subparsers` object; each sets `run` to its function."""
    _frontier_parser(commands.add_parser("frontier", help="quality against bits and time, with the peers"))
    _theory_parser(commands.add_parser("theory", help="does the method's reasoning hold on this model?"))
    _tune_parser(commands.add_parser("tune", help="find the thresholds that keep a share of the quality"))


def _common(parser) -> None:
    parser.add_argument(
        "--model", default=str(EMBEDDED), help="a diffusers folder or a hub id (default: the small one)"
    )
    parser.add_argument("--device", default=None, help="cpu, cuda, ...; the best one there is by default")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of this process")
    parser.add_argument("--steps", type=int, default=EMBEDDED_DEFAULTS["steps"])
    parser.add_argument("--guidance", type=float, default=3.0)


def _frontier_parser(parser) -> None:
    _common(parser)
    parser.add_argument("--out", type=Path, required=True, help="the merged table, .parquet")
    parser.add_argument("--grid", nargs="+", choices=GRIDS, default=["frontier"], help="which settings to run")
    parser.add_argument("--methods", nargs="+", default=None, help="only these methods of the grid")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tuning-prompts", type=int, default=12, help="how many of them `defaults` and `fine` use")
    parser.add_argument("--accuracy-prompts", type=int, default=128, help="how many the grid `accuracy` uses")
    parser.add_argument("--policies", type=int, default=50, help="random policies of the grid `agreement`")
    parser.add_argument("--repeats", type=int, default=2, help="prompts for each of them")
    parser.add_argument("--probes", type=Path, default=None, help="folder of probe traces (see `theory --record`)")
    parser.add_argument("--probe-count", type=int, default=None, help="wait for this many of them")
    parser.add_argument("--shard", default=None, help="i/n: run part i (from 0) of n")
    parser.add_argument("--share", type=Path, default=None, help="folder through which processes deal out the work")
    parser.add_argument("--merge", action="store_true", help="run nothing; join the shards' files")
    parser.add_argument(
        "--first", type=int, default=24, help="run the frontier on this many prompts before other grids"
    )
    parser.add_argument(
        "--budget", type=float, default=None, help="start no run later than this, seconds from the start"
    )
    parser.set_defaults(run=frontier)


def _theory_parser(parser) -> None:
    _common(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--probes", type=Path, default=None, help="folder of the probe traces; inside --out by default")
    parser.add_argument(
        "--record", type=int, default=None, help="record this many probes first, where they are missing"
    )
    parser.add_argument("--shard", default=None, help="i/n: record only part i of n, and make no tables")
    parser.add_argument("--rows", type=Path, default=None, help="frontier table, for what purified refresh buys")
    parser.add_argument("--layers", type=int, default=0, help="also measure layer sensitivity at this many steps")
    parser.set_defaults(run=theory)


def _tune_parser(parser) -> None:
    _common(parser)
    parser.add_argument("--prompt", action="append", help="may be given several times; default: drawn at random")
    parser.add_argument("--prompts", type=int, default=2, metavar="N", help="how many to draw (default: 2)")
    add_inputs(parser)
    parser.add_argument("--keep-quality", type=float, default=0.98, help="share of the SSIM to keep (default: 0.98)")
    parser.add_argument("--objective", choices=("bits", "seconds"), default="bits")
    parser.add_argument("--policy", default="sixbit", metavar="PRESET|FILE", help="where the other settings come from")
    parser.add_argument("--set", action="append", metavar="FIELD=VALUE", help="change one field of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("policy.json"), help="the policy (default: policy.json)")
    parser.set_defaults(run=tune, steps=None, guidance=None)  # the model's own


# --- frontier --------------------------------------------------------------------------------------------------------


def frontier(options) -> int:
    """Run a part of the sweep, or merge the parts; returns the exit code."""
    from engine import dealing, lab_tasks, methods, sweep
    from engine.commands import check_target

    if options.out.suffix.lower() != ".parquet":
        raise ValueError(f"--out must end in .parquet; got {shown(options.out.name)}.")
    _check_counts(options, "prompts", "tuning_prompts", "accuracy_prompts", "policies", "repeats", "probe_count")
    _check_settings(options)
    methods.chosen(methods.FRONTIER, options.methods)
    if options.merge:
        return _merge(options.out)
    check_target(options.out, options.out.suffix)
    index, count = _part(options.shard)
    _check_model(options)
    if options.share is not None:
        _check_folder(options.share)
    began = time.monotonic()
    bench = _bench(options)
    grids = {grid: _tasks(grid, options, bench.handle.model_hash, bench.device.type) for grid in options.grid}
    store = sweep.Store(_part_path(options.out, index, count))
    # Another number of processes deals the tasks anew: what any part has is done.
    elsewhere = set().union(*(sweep.keys_in(part) for part in _parts(options.out) if part != store.path))
    parts = lab_tasks.parts(grids, options.first)
    mine = [task for part in parts for task in part]
    if options.share is None:
        mine = sweep.shard(mine, index, count, together=options.grid != ["timing"])
    mine = [task for task in mine if task.key not in elsewhere]

    def execute(task):
        return {**lab_tasks.execute(bench, task), "processes": count}

    def progress(done, total, task):
        print(f"{done + 1}/{total} {task.method} {task.setting} {task.prompt[:40]}", file=sys.stderr, flush=True)

    def failed(task, error):
        if "CUDA error" in str(error):  # such a process can do nothing more; the next one takes its part up
            raise error
        failures.append(task)
        print(f"{task.method} {task.setting} failed: {error}", file=sys.stderr, flush=True)

    failures = []
    left = None if options.budget is None else max(0.0, options.budget - (time.monotonic() - began))
    ready = _ready(options)
    common = {"progress": progress, "budget_seconds": left, "failed": failed, "ready": ready}
    if options.share is None:
        added = sweep.run(mine, store, execute, **common)
    else:
        added = dealing.run(parts, options.share, store, execute, done=elsewhere, **common)
    print(f"{added} runs added, {len(store)} of {len(mine)} there, {len(failures)} failed.")
    merged = 0 if count > 1 else _merge(options.out)
    return merged or (1 if failures else 0)


def _ready(options):
    """task → whether the files that it waits for are there: probes, and the sensitivity map beside --out; and whether
    the kernels that it needs are compiled, while one process does that for all (`WARMING` in the folder `--share`)."""
    from engine import lab_tasks, methods, probes

    def ready(task) -> bool:
        method = task.method.split(":")[-1]
        cold = options.share is not None and (options.share / WARMING).exists()
        if cold and (method == lab_tasks.AGREEMENT or methods.weights_of(method) == "nvfp4"):
            return False
        if options.probes is None or method not in methods.CALIBRATED and method != lab_tasks.AGREEMENT:
            return True
        sensitive = method not in methods.SENSITIVE or _sensitivity_path(options).exists()
        return sensitive and probes.probes_there(options.probes, options.probe_count)

    return ready


def _sensitivity_path(options) -> Path:
    return options.out.with_name("sensitivity.parquet")


def _tasks(grid: str, options, model: str, device: str) -> list:
    from engine import lab_tasks, methods

    pairs = methods.prompts(options.prompts)
    common = (options.steps, options.guidance, model)
    if grid == "agreement":
        return lab_tasks.agreement_tasks(options.policies, options.probe_count or 4, *common, repeats=options.repeats)
    if grid == "accuracy":
        pairs = methods.prompts(max(options.accuracy_prompts, options.prompts))
    if grid == "timing":
        table = {**methods.FRONTIER, **methods.EXTENDED}
        return lab_tasks.timing_tasks(methods.chosen(table, options.methods), device, *common)
    table = methods.chosen(methods.GRIDS[grid], options.methods)
    return methods.tasks(table, pairs[: options.tuning_prompts] if grid in ("defaults", "fine") else pairs, *common)


def _merge(out: Path) -> int:
    import pandas as pd

    from engine import lab_tasks, sweep

    parts = _parts(out)
    if not parts:
        print(f"There is nothing to merge beside {out.name}; run the shards first.", file=sys.stderr)
        return 1
    rows = pd.concat([sweep.Store(part).frame() for part in parts], ignore_index=True).drop_duplicates("key")
    tables = lab_tasks.split(rows)
    for name, table in tables.items():
        path = out if name == "frontier" else out.with_name(f"{name}.parquet")
        sweep.write_parquet(table, path)
        print(f"{path.name}: {len(table)} rows")
    return 0


# --- theory ----------------------------------------------------------------------------------------------------------


def theory(options) -> int:
    """Record probes, or turn them into the tables of `engine.theory`; returns the exit code."""
    from engine import lab_tables, methods, probes
    from engine.calibrate import LEAST_STEPS

    _check_counts(options, "record")
    _check_counts(options, "layers", least=0)
    _check_settings(options)
    index, count = _part(options.shard)
    if options.rows is not None:
        _check_rows(options.rows)
    if options.record and options.steps < LEAST_STEPS:
        raise ValueError(f"--steps must be at least {LEAST_STEPS} to record probes, got {options.steps}.")
    if options.record:
        _check_model(options)
    folder = options.probes or options.out / "probes"
    _check_folder(options.out)
    if options.record:
        _check_folder(folder)
        wanted = [n for n in range(options.record) if n % count == index and not probes.probe_path(folder, n).exists()]
        layers = options.layers if index == 0 and not (options.out / "sensitivity.parquet").exists() else 0
        if wanted or layers:
            bench = _bench(options, attach_probes=False)
            if bench.device.type == "cuda" and index == count - 1:
                bench.warm_up()  # compiles the kernels into the cache that the sweep's processes share
        pairs = methods.prompts(options.record, held_out=False)
        for number in wanted:
            trace = probes.record_probe(bench.attached, bench.call_attached, *pairs[number])
            trace.with_meta(guidance=options.guidance).save(probes.probe_path(folder, number))
            print(f"probe {number} recorded", file=sys.stderr, flush=True)
        if layers:
            lab_tables.write_layers(bench, options.out, layers)
        if count > 1:
            return 0
    lab_tables.write(probes.load_probes(folder), options.out, options.rows)
    return 0


# --- tune ------------------------------------------------------------------------------------------------------------


def tune(options) -> int:
    """Search thresholds, verify them, write the policy; returns the exit code. Ctrl-C writes nothing."""
    from engine import commands
    from engine.attach import attach
    from engine.calibrate import adopt
    from engine.cli import read_policy
    from engine.cli_inputs import check_folder_takes, check_taken, read_inputs
    from engine.settings import Policy
    from engine.tune import Progress
    from engine.tune import tune as search

    policy = read_policy(options)
    if not 0 < options.keep_quality <= 1:
        raise ValueError(
            f"--keep-quality must be above 0 and at most 1, got {options.keep_quality:g}; 0.98 keeps 98 % of the SSIM."
        )
    commands.check_target(options.out, ".json")
    commands.check_asked(options)
    inputs = read_inputs(options)
    _threads(options)
    check_folder_takes(options.model, inputs)
    commands.check_folder_holds(options.model, [Policy.preset("fp16")])
    pipe = _open(options)
    check_taken(type(pipe).__name__, inputs)
    commands.check_weights(pipe, [Policy.preset("fp16")])
    handle = attach(pipe)
    known = handle.calibration
    prompts = commands.prompts_for(options, pipe)
    commands.check_requests(pipe, prompts, options, inputs)
    work = search(
        pipe, prompts, options.keep_quality, base=policy, objective=options.objective, steps=options.steps,
        guidance=options.guidance, seed=options.seed, **inputs,
    )  # fmt: skip
    for event in work:
        if isinstance(event, Progress):
            print(f"{event.done:4.0%} {event.message}", file=sys.stderr, flush=True)
        else:
            event.policy.save(options.out)
            print(event.message)
            print(f"Wrote {options.out}")
            if handle.calibration is not known:
                kept = adopt(handle, handle.calibration)
                if kept is not None:
                    print(f"Wrote {kept}: the fitted predictor, which runs of this model use from now on.")
    return 0


# --- shared ----------------------------------------------------------------------------------------------------------


def _part(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    try:
        index, count = (int(number) for number in text.split("/"))
        if not 0 <= index < count:
            raise ValueError
    except ValueError:
        raise ValueError(f"--shard must be i/n with 0 ≤ i < n, such as 0/8; got {text!r}.") from None
    return index, count


def _part_path(out: Path, index: int, count: int) -> Path:
    return out.with_name(f"{out.stem}.{index}-of-{count}.jsonl")


def _parts(out: Path) -> list[Path]:
    return sorted(out.parent.glob(f"{out.stem}.*-of-*.jsonl"))


def _check_settings(options) -> None:
    for name in ("steps", "guidance"):
        low, high = LIMITS[name]
        if not low <= getattr(options, name) <= high:
            raise ValueError(f"--{name} must be from {low:g} to {high:,g}; got {getattr(options, name):g}.")


def _check_counts(options, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")


def _check_rows(path: Path) -> None:
    """Refuse a table of --rows that cannot be read before minutes are spent on what it goes beside."""
    import pandas as pd

    what = "a table of frontier (.parquet)"
    existing(path, what)
    try:
        columns = set(pd.read_parquet(path).columns)
    # What pyarrow raises at damaged files has no common class.
    except Exception as error:
        told = f"{shown(path.name)} is not {what}: it is damaged or no Parquet file; merge it again."
        raise ValueError(told) from error
    missing = sorted({"method", "setting", "prompt", "psnr"} - columns)
    if missing:
        raise ValueError(f"{shown(path.name)} is not {what}: it has no column {', '.join(missing)}; merge it again.")


def _check_folder(folder: Path) -> None:
    """Make the folder where it is missing, but none above it, and refuse one that takes no files before minutes are
    spent on them."""
    if not folder.absolute().parent.is_dir():
        raise ValueError(
            f"{folder} cannot be made: the folder above it does not exist; create it or choose another path."
        )
    try:
        folder.mkdir(exist_ok=True)
        takes_files(folder)
    except OSError as error:
        raise ValueError(f"{folder} takes no new file ({error.strerror}); choose another folder.") from error


def _check_model(options) -> None:
    """Refuse a model that the lab cannot measure before it is loaded, where it lies on this machine."""
    folder = local_folder(options.model)
    if folder is not None:
        check_folder(folder)
        _check_measured(pipeline_class(folder), (folder / PACKED).is_file())


def _check_measured(pipeline: str, packed: bool) -> None:
    if pipeline != MEASURED:
        raise ValueError(
            f"frontier and theory measure models that make a video from text ({MEASURED}); this is a {pipeline}."
        )
    if packed:
        raise ValueError(
            "frontier and theory need the 16-bit weights; give --model the model that this one was packed from."
        )


def _threads(options) -> None:
    if options.threads is not None:
        check_threads(options.threads)
        import torch

        torch.set_num_threads(options.threads)


def _open(options):
    from engine.load import load

    return load(options.model, device=options.device)


def _bench(options, attach_probes: bool = True):
    from engine import probes
    from engine.frontier import Bench
    from engine.run import attachment_of

    _threads(options)
    folder = getattr(options, "probes", None)
    traces, sensitivity = (), None
    if attach_probes and folder is not None:

        def traces():
            return probes.load_probes(folder, options.probe_count)

        def sensitivity():
            import pandas as pd

            return pd.read_parquet(_sensitivity_path(options))

    shared = getattr(options, "share", None)
    pipe = _open(options)
    _check_measured(type(pipe).__name__, attachment_of(pipe) is not None)
    return Bench(pipe, options.steps, options.guidance, traces, sensitivity, references=shared)
