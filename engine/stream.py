"""A run as a stream of events: what an app, a notebook or a command line drains.

    for event in generate(pipe, prompt, policy=Policy.preset("sixbit"), seed=0): ...

Events hold numpy and pandas only. The stock pipeline call runs on a private thread, which waits at the end of every
step until the next event is asked for: so two runs take turns as their consumers like, nothing thread-bound lives in
the generator, and closing it stops the work within one step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from engine.families import transformers_of
from engine.request import Request, call_arguments, check
from engine.run import attachment_of, record, shell
from engine.settings import Policy
from engine.trace import Trace


@dataclass(frozen=True)
class Started:
    """The run as it will be: every default filled in. `blocks`: blocks by transformer slot; `warnings`: sentences."""

    seed: int
    steps: int
    guidance: float
    height: int
    width: int
    frames: int
    fps: float
    blocks: Mapping[str, int]
    groups: tuple[str, ...]
    policy: Policy
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One denoising step is over. step counts from 0; seconds_total is this run's own time, no waiting, no previews.

    preview: the clean clip predicted so far, uint8 (F, h, w, 3), or None; blocks, layers: the trace rows of this step.
    """

    step: int
    steps: int
    timestep: float
    seconds_total: float
    preview: np.ndarray | None
    blocks: pd.DataFrame
    layers: pd.DataFrame


@dataclass(frozen=True)
class Decoding:
    """All steps are over; the autoencoder decodes."""


@dataclass(frozen=True)
class Finished:
    """The result. frames uint8 (F, H, W, 3) RGB; seconds by stage (encode, denoise, decode); memory, bytes by part.

    cpu_seconds: what the process got of the CPU while denoising; NaN where no CPU computes. Below `seconds["denoise"]`,
    other programs had the cores; above it, several threads (or several runs of this process) had them.
    """

    frames: np.ndarray
    trace: Trace
    report: Any
    seconds: Mapping[str, float]
    memory: Mapping[str, int]
    cpu_seconds: float = float("nan")


@dataclass(frozen=True)
class Cancelled:
    """`stop` was set: what was recorded until then."""

    step: int
    steps: int
    trace: Trace


Event = Started | Step | Decoding | Finished | Cancelled


class _Stopped(Exception):
    """Unwinds the pipeline call of a run that nobody wants any more."""


def generate(
    pipe,
    prompt: str,
    *,
    policy: Policy,
    steps: int | None = None,
    guidance: float | None = None,
    seed: int | None = None,
    negative_prompt: str | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    probe: bool = False,
    previews: bool = True,
    calibration=None,
    stop: threading.Event | None = None,
    **inputs,
) -> Iterator[Event]:
    """Run an attached pipeline once under `policy` and yield Started, Step …, Decoding, Finished.

    None takes the model's own default (a random seed; it is told in Started). height and width in pixels. probe:
    measure every signal (several times slower). previews: predict the clean clip at each step. calibration: instead of
    the attachment's own. stop: set it to end with a Cancelled event; closing the generator stops too. inputs: further
    arguments of the pipeline call, such as image= or video=, but for those in `engine.request.OURS`.

    Checks everything at once: raises ValueError or RuntimeError in one sentence before any work. Later errors of the
    run come out of the generator.
    """
    owner = attachment_of(pipe)
    if owner is None:
        raise RuntimeError(f"This {type(pipe).__name__} is not attached; call attach(pipe) once, then generate.")
    request = check(
        pipe, owner, prompt, policy, steps=steps, guidance=guidance, seed=seed, negative_prompt=negative_prompt,
        height=height, width=width, frames=frames, inputs=inputs, calibration=calibration,
    )  # fmt: skip
    if stop is not None and not hasattr(stop, "is_set"):
        raise ValueError(f"Expected stop to be a threading.Event; got {type(stop).__name__}.")
    worker = _Worker(pipe, owner, request, probe, previews, calibration, stop)
    return _events(worker, owner, request)


def _events(worker: _Worker, owner, request: Request) -> Iterator[Event]:
    yield Started(
        request.seed, request.steps, request.guidance, request.height, request.width, request.frames, request.fps,
        {slot: owner.blocks(slot) for slot in transformers_of(worker.pipe)}, tuple(owner.family.groups), request.policy,
        request.warnings,
    )  # fmt: skip
    worker.start()
    try:
        while True:
            event = worker.next()
            if event is None:
                return
            yield event
    finally:
        worker.close()


class _Worker:
    """The pipeline call on its own thread, one step per `next()`."""

    def __init__(self, pipe, owner, request: Request, probe: bool, previews: bool, calibration, stop):
        self.pipe = shell(pipe)
        self._owner, self._request, self._probe, self._calibration = owner, request, probe, calibration
        self._previews, self._stop, self._closed = previews, stop, False
        self._events: queue.SimpleQueue = queue.SimpleQueue()
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._work, name="sixbit-run", daemon=True)
        self._started = False
        self._idle = self._idle_cpu = 0.0  # seconds spent waiting for the consumer or drawing previews
        self._rows: list[tuple[pd.DataFrame, pd.DataFrame]] = []
        self._first_evaluation: float | None = None
        self._first_cpu = 0.0

    def start(self) -> None:
        self._thread.start()
        self._started = True

    def next(self) -> Event | None:
        """The next event; None after the last one. Raises what the run raised."""
        self._turn.release()
        event = self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def close(self) -> None:
        """Stop within one step and wait until the device is idle."""
        self._closed = True
        self._turn.release()
        if self._started:
            self._thread.join()

    def _wait(self) -> None:
        began, began_cpu = time.perf_counter(), time.process_time()
        self._turn.acquire()
        self._idle += time.perf_counter() - began
        self._idle_cpu += time.process_time() - began_cpu
        if self._closed or (self._stop is not None and self._stop.is_set()):
            raise _Stopped

    def _tell(self, event: Event) -> None:
        self._events.put(event)
        self._wait()

    def _clock(self) -> float:
        return time.perf_counter() - self._idle

    def _cpu_clock(self) -> float:
        return time.process_time() - self._idle_cpu

    def _work(self) -> None:
        try:
            self._run()
        except _Stopped:
            pass
        except BaseException as error:
            self._events.put(_said(error))
            return
        self._events.put(None)

    def _run(self) -> None:
        import torch

        device = next(iter(transformers_of(self.pipe).values())).device
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.cuda.reset_peak_memory_stats(device)
        with record(
            self.pipe, self._request.policy, probe=self._probe, calibration=self._calibration,
            on_step=self._on_evaluation,
        ) as run:
            _describe(run, self._request)
            try:
                self._wait()
                self._call(run, device)
            except _Stopped:
                if not self._closed:
                    trace = run.trace
                    steps = trace.meta.steps or self._request.steps  # nothing tells before the first step
                    self._events.put(Cancelled(len(trace.blocks["step"].unique()), steps, trace))
                raise

    def _call(self, run, device) -> None:
        from engine.decode import retried_in_tiles
        from engine.latents import CleanSpy, Preview

        request, spy = self._request, CleanSpy(self.pipe.scheduler)
        preview = Preview(self.pipe, self._owner) if self._previews else None
        began = last = self._clock()
        last_cpu = began_cpu = self._cpu_clock()
        latents = None

        def on_end(pipe, index, timestep, tensors):
            nonlocal last, last_cpu, latents
            _finish_device(device)
            now, now_cpu, latents = self._clock(), self._cpu_clock(), tensors["latents"]
            picture = self._draw(preview, spy)
            blocks, layers = (pd.concat(parts, ignore_index=True) for parts in zip(*self._rows))
            self._rows.clear()
            final = index + 1 >= pipe.num_timesteps
            self._tell(Step(index, pipe.num_timesteps, float(timestep), now - began, picture, blocks, layers))
            last, last_cpu = now, now_cpu
            if final:
                self._tell(Decoding())
            return tensors

        arguments = call_arguments(self.pipe, request)
        self.pipe.set_progress_bar_config(disable=True)
        try:
            with retried_in_tiles(getattr(self.pipe, "vae", None)):
                output = self.pipe(**arguments, output_type="np", callback_on_step_end=on_end).frames[0]
        finally:
            spy.forget()
        _finish_device(device)
        ended = self._clock()
        frames = _to_bytes(np.asarray(output))
        timed = self._first_evaluation is not None
        first, first_cpu = (self._first_evaluation, self._first_cpu) if timed else (began, began_cpu)
        seconds = {"encode": first - began, "denoise": last - first, "decode": ended - last}
        memory = {**run.memory, **_peak(device)}
        run.describe(seconds=seconds, memory={name: float(value) for name, value in memory.items()})
        trace = run.trace
        # An offloaded model waits on the CPU and computes on the GPU.
        on_cpu = self.pipe._execution_device.type == "cpu"
        cpu = last_cpu - first_cpu if on_cpu else float("nan")
        self._events.put(Finished(frames, trace, trace.report, seconds, memory, cpu))
        if preview is not None:
            _harmless(preview.learn, latents, frames)

    def _on_evaluation(self, evaluation) -> None:
        if self._first_evaluation is None:
            self._first_evaluation = self._clock() - evaluation.seconds
            self._first_cpu = self._cpu_clock() - evaluation.cpu_seconds
        self._rows.append((evaluation.blocks, evaluation.layers))
        if self._closed or (self._stop is not None and self._stop.is_set()):
            raise _Stopped

    def _draw(self, preview, spy) -> np.ndarray | None:
        if preview is None:
            return None
        began, began_cpu = time.perf_counter(), time.process_time()
        picture = _harmless(lambda: preview.draw(spy.clean(), self._request.frames))
        self._idle += time.perf_counter() - began
        self._idle_cpu += time.process_time() - began_cpu
        return picture


def _harmless(work, *arguments):
    """What `work` gives, or None: a scheduler or a layout that previews cannot read must not cost anybody the clip."""
    try:
        return work(*arguments)
    except Exception:
        return None


def _describe(run, request: Request) -> None:
    run.describe(
        guidance=request.guidance, seed=request.seed, prompt=request.prompt,
        negative_prompt=request.negative_prompt or "", height=request.height, width=request.width,
        frames=request.frames, fps=request.fps,
    )  # fmt: skip


def _to_bytes(frames: np.ndarray) -> np.ndarray:
    """float (F, H, W, 3) in [0, 1] to uint8, as diffusers' own numpy_to_pil rounds. Raises RuntimeError on NaN."""
    if not np.isfinite(frames).all():
        raise RuntimeError(
            "The decoded video is not finite: the autoencoder overflowed; load the pipeline in bfloat16 or float32."
        )
    return np.round(frames * 255).astype(np.uint8)


def _finish_device(device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _peak(device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    import torch

    return {"peak": torch.cuda.max_memory_allocated(device)}


def _said(error: BaseException) -> BaseException:
    """The error as the consumer gets it: out of memory becomes a sentence that says what to do."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        said = RuntimeError(
            "The memory was not enough for this run; choose fewer frames, a smaller size, or a packed checkpoint of "
            "the model (`python -m engine quantize`)."
        )
        said.__cause__ = error
        return said
    return error
