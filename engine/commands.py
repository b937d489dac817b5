"""What each command of `engine.cli` does: progress on stderr, results on stdout, files whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from engine.cli import read_policy
from engine.cli_inputs import check_folder_takes, check_taken, local_folder, read_inputs
from engine.files import shown, takes_files
from engine.folder import PACKED
from engine.settings import Policy, unweighed


def generate(given) -> int:
    """Make one video, and its trace where asked for."""
    from engine.stream import Decoding, Finished, Started, Step
    from engine.stream import generate as run
    from engine.video import write_mp4

    policy = read_policy(given)
    check_target(given.out, ".mp4")
    if given.trace is not None:
        check_target(given.trace, ".parquet")
    inputs = read_inputs(given)
    out, err = Console(), Console(stderr=True)
    with _bars(err) as bars:
        pipe = ready(given, bars, inputs, [policy])
        events = run(
            pipe, given.prompt, policy=policy, steps=given.steps, guidance=given.guidance, seed=given.seed,
            negative_prompt=given.negative_prompt, height=given.height, width=given.width, frames=given.frames,
            probe=given.probe, previews=False, **inputs,
        )  # fmt: skip
        task, started, done = bars.add_task("encoding the prompt", total=None), None, None
        try:
            for event in events:
                if isinstance(event, Started):
                    started = event
                    for sentence in event.warnings:
                        err.print(f"note: {sentence}", style="yellow", markup=False, soft_wrap=True)
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
    write_mp4(given.out, done.frames, started.fps)
    if given.trace is not None:
        done.trace.save(given.trace)
    for line in _told(given, policy, started, done):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def compare(given) -> int:
    """Run every preset on the same prompts and print one table."""
    import pandas as pd

    from engine.compare import COLUMNS, busy, summary
    from engine.compare import compare as run
    from engine.files import write_atomic
    from engine.run import attachment_of

    if given.csv is not None:
        check_target(given.csv, ".csv")
    inputs = read_inputs(given)
    err, rows, stopped = Console(stderr=True), [], False
    with _bars(err, count=False) as bars:
        pipe = ready(given, bars, inputs, [Policy.preset("fp16")])
        prompts = prompts_for(given, pipe)
        check_requests(pipe, prompts, given, inputs)
        known = attachment_of(pipe).calibration
        for sentence in dict.fromkeys(said for name in given.presets for said in unweighed(Policy.preset(name), known)):
            err.print(f"note: {sentence}", style="yellow", markup=False, soft_wrap=True)
        task = bars.add_task("starting", total=1.0)

        def progress(done: float, total: float, what: str) -> None:
            bars.update(task, completed=done, total=total, description=what)

        try:
            for row in run(
                pipe, prompts, given.presets, seed=given.seed, progress=progress, steps=given.steps,
                guidance=given.guidance, **inputs,
            ):  # fmt: skip
                rows.append(row)
        except KeyboardInterrupt:
            stopped = True
            err.print("Stopped; the table holds what was done." if rows else "Stopped; no run was done.")
    if given.csv is not None and rows:
        text = pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False)
        write_atomic(given.csv, text)
    if rows:
        out = Console() if Console().is_terminal else Console(width=140)
        out.print(_table(summary(rows), len({row["prompt"] for row in rows})))
        if said := busy(rows):
            out.print(said, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return 130 if stopped else 0


def calibrate(given) -> int:
    """Fit the predictor and store it."""
    from engine.calibrate import LEAST_STEPS, cache_path
    from engine.calibrate import calibrate as fit
    from engine.request import call_arguments
    from engine.run import attachment_of

    if given.out is not None:
        check_target(given.out, ".json")
    if given.steps is not None and 0 < given.steps < LEAST_STEPS:
        raise ValueError(
            f"--steps must be at least {LEAST_STEPS} to calibrate, got {given.steps}: a line is fitted from step to "
            "step."
        )
    inputs = read_inputs(given)
    err = Console(stderr=True)
    with _bars(err) as bars:
        pipe = ready(given, bars, inputs, [Policy.preset("fp16")])
        prompts = prompts_for(given, pipe)
        request = check_requests(pipe, prompts, given, inputs)[0]
        if given.out is None:
            check_cache(cache_path(attachment_of(pipe).model_hash))
        # As `generate` runs the model, so that the fit sees what it will predict.
        settings = call_arguments(pipe, request)
        for name in ("prompt", "generator", "num_inference_steps", "guidance_scale"):
            settings.pop(name, None)
        if given.sensitivity:
            err.print(_how_long(attachment_of(pipe), request), markup=False, highlight=False, soft_wrap=True)
        task = bars.add_task("measuring", total=None)
        pipe.set_progress_bar_config(disable=True)
        found = fit(
            pipe, prompts, steps=request.steps, guidance=request.guidance, seed=given.seed, keep=given.out is None,
            progress=lambda done, total: bars.update(task, completed=done, total=total), sensitivity=given.sensitivity,
            **settings,
        )  # fmt: skip
    if given.out is not None:
        found.save(given.out)
    for line in _fitted(found, len(prompts)):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)
    if given.out is None:
        told = f"Wrote {cache_path(found.model_hash)}; runs of this model on this machine use it from now on."
    else:
        told = f"Wrote {given.out}; runs use it where they are given --calibration {given.out}."
    Console().print(told, markup=False, highlight=False, soft_wrap=True)
    return 0


def _how_long(handle, request) -> str:
    from engine.calibrate import evaluations_for_weights

    count = evaluations_for_weights(handle, request.steps)
    each = request.steps * (len(handle.family.branches) if request.guidance > 1 else 1)
    return (
        f"After the lines, how much the output minds 4 bits in each group: up to {count:,} evaluations of the "
        f"transformer, the work of {counted(max(1, round(count / each)), 'video')} of {counted(request.steps, 'step')}."
    )


def _fitted(found, prompts: int) -> Iterator[str]:
    table = found.table()
    explained = table[table["alpha"] != 0]
    yield (
        f"{counted(len(table), 'group')} from {counted(prompts, 'prompt')} at {counted(found.steps, 'step')}, "
        f"guidance {found.guidance:g}."
    )
    if found.weighed:
        low, high = table["weight"].min(), table["weight"].max()
        yield f"Weighed by what their error does to the output: {low:.2f} to {high:.2f} times the mean."
    if explained.empty:
        yield "A line explains none of them; all predict their mean."
        return
    yield (
        f"A line explains {len(explained)} of them (median R² {explained['r2'].median():.2f}; "
        f"{counted((explained['alpha'] < 0).sum(), 'negative slope')}); the others predict their mean."
    )


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


def ready(given, bars: Progress, inputs: Mapping, policies: Sequence[Policy]):
    """The model, loaded and attached without a policy, under the calibration of --calibration where there is one.

    inputs: what `read_inputs` gave. policies: what will run. A model that takes other inputs, or has no weights for one
    of the policies, is refused before it is loaded, or before it is packed.
    """
    from engine.attach import attach
    from engine.calibrate import check_fitted_on
    from engine.load import device_for, load
    from kernels.first_use import compile_beside

    check_asked(given)
    task = bars.add_task("loading the model", total=None)
    check_folder_takes(given.model, inputs)
    check_folder_holds(given.model, policies)
    calibration = fitting_calibration(given)
    compile_beside(device_for(given.device))
    pipe = load(given.model, given.device, given.dtype)
    check_taken(type(pipe).__name__, inputs)
    check_weights(pipe, policies)
    bars.update(task, description="packing the weights")
    handle = attach(pipe, progress=lambda done, total: bars.update(task, completed=done, total=total))
    if calibration is not None:
        check_fitted_on(calibration, handle.model_hash, given.calibration)
        handle.calibration = calibration
    bars.remove_task(task)
    return pipe


def fitting_calibration(given):
    """The calibration in the file of --calibration, or None without one. Raises CalibrationError for one that cannot be
    used; for another model's too, where the weights lie on this machine."""
    from engine.calibrate import check_fitted_on, load_calibration
    from engine.identity import folder_hash
    from engine.load import device_for, dtype_for

    if getattr(given, "calibration", None) is None:
        return None
    found, folder = load_calibration(given.calibration), local_folder(given.model)
    known = None if folder is None else folder_hash(folder, dtype_for(given.dtype, device_for(given.device)))
    if known is not None:
        check_fitted_on(found, known, given.calibration)
    return found


def check_requests(pipe, prompts: list[str], given, inputs: Mapping) -> list:
    """Every prompt as a checked request, before the first of them runs; an attached pipeline. Raises ValueError."""
    from engine.request import check
    from engine.run import attachment_of

    sizes = dict.fromkeys(("negative_prompt", "height", "width", "frames"))
    # Any quantized policy will do: what is asked of the weights themselves is asked apart.
    return [
        check(
            pipe, attachment_of(pipe), prompt, Policy.preset("w4a8"), steps=given.steps, guidance=given.guidance,
            seed=given.seed + number, inputs=inputs, **sizes,
        )
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip


def check_asked(given) -> None:
    """Refuse what no model can be asked for before one is loaded, and the count of --prompts. Raises ValueError."""
    from engine.request import check_values

    prompts = [given.prompt] if isinstance(given.prompt, str) else given.prompt or ()
    if not prompts and not 1 <= given.prompts <= 1000:
        raise ValueError(f"--prompts must be from 1 to 1,000; got {given.prompts}.")
    names = ("negative_prompt", "steps", "guidance", "seed", "height", "width", "frames")
    check_values(prompts=prompts, **{name: getattr(given, name, None) for name in names})


def check_folder_holds(model: str, policies: Sequence[Policy]) -> None:
    """`check_weights` by what a local model folder says of itself, before anything of it is loaded.

    model: as given to --model; one of the hub is passed over.
    """
    folder = local_folder(model)
    if folder is not None:
        _check_held((folder / PACKED).is_file(), policies)


def check_weights(pipe, policies: Sequence[Policy]) -> None:
    """Refuse what a packed checkpoint cannot run, in terms of what a person at this prompt can do: a ValueError."""
    from engine.run import attachment_of

    handle = attachment_of(pipe)
    _check_held(handle is not None and handle.keep == "none", policies)


def _check_held(packed: bool, policies: Sequence[Policy]) -> None:
    if packed and any(policy.precision == "stock" for policy in policies):
        raise ValueError(
            "This needs the 16-bit weights, and a packed checkpoint does not hold them; give --model the model that it "
            "was packed from, or generate with a policy of packed weights such as --policy w4a16."
        )


def prompts_for(given, pipe) -> list[str]:
    """The prompts of --prompt, else as many as --prompts says, drawn for a model that knows such. Raises ValueError."""
    from engine.compare import sample_prompts
    from engine.request import is_embedded

    if given.prompt:
        return given.prompt
    if not is_embedded(pipe):
        raise ValueError("This model has no prompts of its own; give at least one with --prompt.")
    return sample_prompts(given.prompts, given.seed)


def check_target(path: Path, suffix: str) -> None:
    """Refuse a place that cannot be written before minutes are spent on what would go there.

    A folder for it must be there. What is at `path` stays as it is until the new file is whole.
    """
    if path.suffix.lower() != suffix:
        raise ValueError(f"Expected a file name that ends in {suffix}; got {shown(str(path))}.")
    if path.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder; choose another name.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written: its folder does not exist; create it or choose another path.")
    try:
        takes_files(folder)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written: its folder takes no new file ({error.strerror}); choose another."
        ) from error


def check_cache(path: Path) -> None:
    """Refuse to measure for a cache that takes no file. path: of the calibration in it; its folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        takes_files(path.parent)
    except OSError as error:
        raise ValueError(
            f"The cache {path.parent} takes no new file ({error.strerror}); give --out FILE, or name a writable folder "
            "in the variable SIXBIT_CACHE."
        ) from error


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 step, 30 steps."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _told(given, policy: Policy, started, done) -> Iterator[str]:
    report, seconds = done.report, done.seconds
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    settings = f"seed {started.seed}, {counted(started.steps, 'step')}, guidance {started.guidance:g}"
    yield f"{settings}: {sum(seconds.values()):.1f} s ({stages})"
    yield (
        f"{report.average_bits:.2f} bits on average ({report.average_bits_computed:.2f} where computed), "
        f"{report.skipped_share:.0%} of blocks skipped, {report.purified_share:.1%} of layer calls purified, "
        f"{report.predictor_share:.0%} decided by the predictor"
    )
    if policy.tdc and not done.trace.blocks["skipped"].any():
        tight = (done.trace.blocks["reason"] == "budget spent").any()
        cause = (
            "the reuse tolerance never let a block reuse its change"
            if tight
            else "warm-up and the last steps left nothing to reuse"
        )
        if policy.max_skips == 0:
            cause = "max_skips is 0"
        yield f"0 blocks skipped, no gain: {cause}."
    kept, packed = done.memory["originals"], done.memory["packed"]
    cache = done.memory["cache"]
    beside = f"originals {kept / 1e6:,.1f} MB" if kept else "without the originals"
    yield f"weights {packed / 1e6:,.1f} MB packed ({beside}), delta cache {cache / 1e6:,.1f} MB"
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
    table = Table(title=f"Means over {counted(prompts, 'prompt')}; PSNR and SSIM against fp16", title_justify="left")
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
            "–" if row.speedup != row.speedup else f"{row.speedup:.2f}×",
            "–" if row.packed_bytes != row.packed_bytes else f"{row.packed_bytes / 1e6:.1f}",
        )  # fmt: skip
    return table


@contextmanager
def _bars(console: Console, count: bool = True) -> Iterator[Progress]:
    columns = [TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if count else [TextColumn("{task.percentage:>3.0f}%")]
    # Where nobody looks, rich would draw no bars but leave an empty line.
    more = {"console": console, "transient": True, "disable": not console.is_terminal}
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), **more) as bars:
        yield bars
