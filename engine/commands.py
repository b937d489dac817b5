"""What each command of `engine.cli` does: progress on stderr, results on stdout, files whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from engine.cli import read_policy
from engine.settings import Policy


def generate(given) -> int:
    """Make one video, and its trace where asked for."""
    from engine.stream import Decoding, Finished, Started, Step
    from engine.stream import generate as run
    from engine.video import write_mp4

    policy = read_policy(given)
    _check_target(given.out, ".mp4")
    if given.trace is not None:
        _check_target(given.trace, ".parquet")
    out, err = Console(), Console(stderr=True)
    with _bars(err) as bars:
        pipe = _ready(given, bars)
        events = run(
            pipe, given.prompt, policy=policy, steps=given.steps, guidance=given.guidance, seed=given.seed,
            negative_prompt=given.negative_prompt, height=given.height, width=given.width, frames=given.frames,
            probe=given.probe, previews=False,
        )  # fmt: skip
        task, started, done = bars.add_task("encoding the prompt", total=None), None, None
        try:
            for event in events:
                if isinstance(event, Started):
                    started = event
                    for sentence in event.warnings:
                        err.print(f"note: {sentence}", style="yellow", markup=False)
                elif isinstance(event, Step):
                    bars.update(task, description="denoising", completed=event.step + 1, total=event.steps)
                elif isinstance(event, Decoding):
                    bars.update(task, description="decoding")
                elif isinstance(event, Finished):
                    done = event
        except KeyboardInterrupt:
            events.close()
            err.print("Stopped; nothing was written.")
            return 130
    if given.trace is not None:
        done.trace.save(given.trace)
    write_mp4(given.out, done.frames, started.fps)
    for line in _told(given, policy, started, done):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def compare(given) -> int:
    """Run every preset on the same prompts and print one table."""
    import pandas as pd

    from engine.compare import COLUMNS, summary
    from engine.compare import compare as run
    from engine.files import write_atomic

    if given.csv is not None:
        _check_target(given.csv, ".csv")
    err, rows, stopped = Console(stderr=True), [], False
    with _bars(err, count=False) as bars:
        pipe = _ready(given, bars)
        prompts = _prompts(given, pipe)
        task = bars.add_task("starting", total=1.0)

        def progress(done: float, total: float, what: str) -> None:
            bars.update(task, completed=done, total=total, description=what)

        try:
            for row in run(
                pipe, prompts, given.presets, seed=given.seed, progress=progress, steps=given.steps, guidance=given.guidance
            ):
                rows.append(row)
        except KeyboardInterrupt:
            stopped = True
            err.print("Stopped; the table holds what was done.")
    if given.csv is not None and rows:
        text = pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False)
        write_atomic(given.csv, text)
    if rows:
        out = Console() if Console().is_terminal else Console(width=140)
        out.print(_table(summary(rows), len({row["prompt"] for row in rows})))
    return 130 if stopped else 0


def calibrate(given) -> int:
    """Fit the predictor and store it."""
    from engine.calibrate import cache_path
    from engine.calibrate import calibrate as fit
    from engine.request import EMBEDDED_DEFAULTS, is_embedded, text_length

    if given.out is not None:
        _check_target(given.out, ".json")
    err = Console(stderr=True)
    with _bars(err) as bars:
        pipe = _ready(given, bars)
        prompts = _prompts(given, pipe)
        usual = EMBEDDED_DEFAULTS if is_embedded(pipe) else {}
        settings = {"steps": given.steps or usual.get("steps"), "guidance": given.guidance or usual.get("guidance")}
        if text_length(pipe) is not None:
            # As `generate` runs the model, so that the fit sees what it will predict.
            settings["max_sequence_length"] = text_length(pipe)
        task = bars.add_task("measuring", total=None)
        pipe.set_progress_bar_config(disable=True)
        found = fit(
            pipe, prompts, seed=given.seed, keep=given.out is None,
            progress=lambda done, total: bars.update(task, completed=done, total=total), **settings,
        )  # fmt: skip
    if given.out is not None:
        found.save(given.out)
    table = found.table()
    explained = table[table["alpha"] != 0]
    out = Console()
    out.print(f"{len(table)} groups from {len(prompts)} prompts at {found.steps} steps, guidance {found.guidance:g}.")
    out.print(
        f"A line explains {len(explained)} of them (median R² {explained['r2'].median():.2f}; "
        f"{(explained['alpha'] < 0).sum()} slopes are negative); the others predict their mean."
    )
    out.print(f"Wrote {given.out or cache_path(found.model_hash)}", soft_wrap=True, markup=False)
    return 0


def quantize(given) -> int:
    """Write a packed checkpoint."""
    from engine.checkpoint import quantize as pack

    with _bars(Console(stderr=True)) as bars:
        task = bars.add_task("packing", total=None)
        folder = pack(
            given.src, given.dst, adaln=given.adaln, text_encoder=given.text_encoder,
            progress=lambda done, total: bars.update(task, completed=done, total=total),
        )  # fmt: skip
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    Console().print(f"Wrote {folder} ({size / 1e6:,.1f} MB of weights).", markup=False, highlight=False, soft_wrap=True)
    return 0


def _ready(given, bars: Progress):
    """The model, loaded and attached without a policy."""
    from engine.attach import attach
    from engine.load import load

    task = bars.add_task("loading the model", total=None)
    pipe = load(given.model, given.device, given.dtype)
    bars.update(task, description="packing the weights")
    attach(pipe, progress=lambda done, total: bars.update(task, completed=done, total=total))
    bars.remove_task(task)
    return pipe


def _prompts(given, pipe) -> list[str]:
    from engine.compare import sample_prompts
    from engine.request import is_embedded

    if given.prompt:
        return given.prompt
    if not is_embedded(pipe):
        raise ValueError("This model has no prompts of its own; give at least one with --prompt.")
    if not 1 <= given.prompts <= 1000:
        raise ValueError(f"--prompts must be from 1 to 1,000; got {given.prompts}.")
    return sample_prompts(given.prompts, given.seed)


def _check_target(path: Path, suffix: str) -> None:
    """Refuse a place that cannot be written before minutes are spent on what would go there."""
    if path.suffix.lower() != suffix:
        raise ValueError(f"Expected a file name that ends in {suffix}; got {path.name[:80]!r}.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path} cannot be written: its folder does not exist; create it or choose another path.")


def _told(given, policy: Policy, started, done) -> Iterator[str]:
    report, seconds = done.report, done.seconds
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    yield f"seed {started.seed}, {started.steps} steps, guidance {started.guidance:g}: {sum(seconds.values()):.1f} s ({stages})"
    yield (
        f"{report.average_bits:.2f} bits on average ({report.average_bits_computed:.2f} where computed), "
        f"{report.skipped_share:.0%} of blocks skipped, {report.purified_share:.1%} of layer calls purified, "
        f"{report.predictor_share:.0%} decided by the predictor"
    )
    if policy.tdc and not done.trace.blocks["skipped"].any():
        yield "0 blocks skipped, no gain: the reuse tolerance never let a block reuse its change."
    kept, packed = done.memory["originals"], done.memory["packed"]
    cache = done.memory["cache"]
    yield f"weights {packed / 1e6:,.1f} MB packed (originals {kept / 1e6:,.1f} MB), delta cache {cache / 1e6:,.1f} MB"
    reading = _reading(done.frames, given.prompt)
    if reading is not None:
        missed = [key for key, tick in reading.ticks.items() if not tick]
        wrong = [name if thing == "scene" else f"{name} of object {thing + 1}" for thing, name in missed]
        yield f"read back: {reading}: " + ("all as asked" if not wrong else "not as asked: " + ", ".join(wrong))
    yield f"wrote {given.out}" + (f" and {given.trace}" if given.trace is not None else "")


def _reading(frames, prompt: str):
    from engine.metrics import read_scene

    try:
        return read_scene(frames, prompt)
    except ValueError:
        return None


def _table(means, prompts: int) -> Table:
    table = Table(title=f"Means over {prompts} prompts; PSNR and SSIM against fp16", title_justify="left")
    heads = (
        "preset", "bits", "computed", "skipped", "purified", "predictor", "PSNR", "SSIM", "flicker", "right", "seconds",
        "speed", "packed MB",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "preset" else "right", no_wrap=True)
    for row in means.itertuples():
        table.add_row(
            row.preset, f"{row.bits:.2f}", f"{row.bits_computed:.2f}", f"{row.skipped:.0%}", f"{row.purified:.1%}",
            f"{row.predictor:.0%}", f"{row.psnr:.1f}", f"{row.ssim:.3f}", f"{row.flicker:.2f}",
            "–" if row.prompt_accuracy != row.prompt_accuracy else f"{row.prompt_accuracy:.0%}", f"{row.seconds:.2f}",
            f"{row.speedup:.2f}×", "–" if row.packed_bytes != row.packed_bytes else f"{row.packed_bytes / 1e6:.1f}",
        )  # fmt: skip
    return table


@contextmanager
def _bars(console: Console, count: bool = True) -> Iterator[Progress]:
    columns = [TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if count else [TextColumn("{task.percentage:>3.0f}%")]
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        yield bars
