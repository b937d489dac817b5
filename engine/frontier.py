"""One run of the quality lab: a method, a setting, a prompt → how good, how fast, how many bits.

A `Bench` holds the model twice around the same text encoder and autoencoder, once stock (the references and the
peers) and once attached (ours), so that all methods see the same weights in the same process. `Bench.execute` turns
a `sweep.Task` into the columns of its row; the 16-bit video that a run is compared with is made once per (prompt,
seed) and kept. Videos are made one at a time: a batch decides together, so a batched run would be another method.

`seconds` is the denoising alone, from the first transformer call to the last. Peers whose arithmetic is only
simulated (SmoothQuant, the first-block cache on packed weights) have none, since a simulation's time says nothing.
"""

import copy
import json
import math
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from engine import methods, peers, probes
from engine.attach import attach
from engine.calibrate import FILE_NAME, fit
from engine.records import Calibration, CalibrationError
from engine.run import record
from engine.settings import PRESETS
from engine.shelf import Shelf
from engine.sweep import Task
from engine.trace import Trace

SIMULATED = frozenset({"smoothquant_w8a8", "w4a8_first_block_cache"})
PEERS = frozenset(methods.FRONTIER) - frozenset(methods.OURS)
CALIBRATION_PROMPTS = 2
REFERENCES_KEPT = 12


class Bench:
    """The model, its references and what the methods know in advance.

    Args:
        pipe: a stock diffusers text-to-video pipeline, on its device; it stays stock.
        steps, guidance: of every run.
        probe_traces: for the methods of `methods.CALIBRATED`: the traces, or a function that returns them
            (asked once, when the first such method comes, so that they may still be in the making).
        sensitivity: for the methods of `methods.SENSITIVE`: a function that returns the table of
            `engine.sensitivity.sensitivity`.
        references: a folder in which processes on one kind of device share the 16-bit clips; None keeps them here.
        size: `height`, `width`, `num_frames` for `pipe(...)`; the pipeline's own where absent.
    """

    def __init__(self, pipe, steps: int, guidance: float, probe_traces=(), sensitivity=None, references=None, **size):
        pipe.set_progress_bar_config(disable=True)
        self.pipe, self.steps, self.guidance, self.size = pipe, steps, guidance, size
        parts = {"transformer": copy.deepcopy(pipe.transformer), "scheduler": copy.deepcopy(pipe.scheduler)}
        self.attached = type(pipe)(**{**pipe.components, **parts})
        self.attached.set_progress_bar_config(disable=True)
        self.handle = attach(self.attached, keep="device")
        self.device = pipe.transformer.device
        self._probe_traces, self._sensitivity, self._warm = probe_traces, sensitivity, False
        self._clocks = {}
        self._shelf = Shelf(references, f"{self.device.type} {self.handle.model_hash} {steps} {guidance} {size}")
        for one in (pipe, self.attached):
            one.transformer.register_forward_pre_hook(self._begin)
        self._references: dict[tuple[str, int], np.ndarray] = {}
        self._latents: dict[tuple[str, int], torch.Tensor] = {}
        self._readings: dict[tuple[str, int], object] = {}
        self._packed: dict[tuple[str, int], np.ndarray] = {}
        self._thresholds: dict[tuple[str, str], float] = {}
        self._calibrations: dict[str, Calibration] = {}

    # --- runs --------------------------------------------------------------------------------------------------

    def latents(self, pipe, prompt: str, seed: int) -> torch.Tensor:
        """The denoised latents of one plain `pipe(...)` call; sets `self.seconds`."""
        self._clocks.clear()
        config = pipe.transformer.config
        found = pipe(
            prompt, num_inference_steps=self.steps, guidance_scale=self.guidance, output_type="latent",
            generator=torch.Generator("cpu").manual_seed(seed),
            max_sequence_length=getattr(config, "max_text_seq_length", 226), **self.size,
        ).frames  # fmt: skip
        self.seconds = self._now() - self._clocks.get("start", math.nan)
        return found

    def call_attached(self, prompt: str, seed: int) -> torch.Tensor:
        """The latents of one plain call of the attached pipeline."""
        return self.latents(self.attached, prompt, seed)

    @torch.no_grad()
    def frames(self, latents: torch.Tensor) -> np.ndarray:
        """uint8 (F, H, W, 3) of one clip's latents."""
        video = self.pipe.decode_latents(latents)
        clip = self.pipe.video_processor.postprocess_video(video=video, output_type="np")[0]
        return (np.asarray(clip) * 255).round().astype(np.uint8)

    def reference(self, prompt: str, seed: int) -> np.ndarray:
        """The 16-bit video, made once; its latents and its reading are kept too."""
        key = (prompt, seed)
        if key not in self._references:
            # A sweep comes back to a prompt once or twice; a dozen clips of the embedded model are 10 MB.
            for kept in (self._references, self._latents, self._readings, self._packed):
                while len(kept) >= REFERENCES_KEPT:
                    del kept[next(iter(kept))]
            self._latents[key], self._references[key] = self._shelf.clip(
                f"stock {key}", self.device, lambda: self._clip(self.latents(self.pipe, prompt, seed))
            )
            self._readings[key] = _read(self._references[key], prompt)
        return self._references[key]

    def packed_reference(self, prompt: str, seed: int) -> np.ndarray:
        """The video of the packed weights at 16 bits without reuse: what no choice of bits or skips can improve on."""
        key = (prompt, seed)
        if key not in self._packed:
            seconds = self.seconds
            self._packed[key] = self._shelf.clip(
                f"packed {key}", self.device,
                lambda: self._clip(self.trace(methods.policy_of("w4a16", {}), prompt, seed)[1]),
            )[1]  # fmt: skip
            self.seconds = seconds
        return self._packed[key]

    def _clip(self, latents: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
        return latents, self.frames(latents)

    def trace(self, policy, prompt: str, seed: int, probe: bool = False) -> tuple[Trace, torch.Tensor]:
        """One of our runs: (trace, latents)."""
        with record(self.attached, policy, probe=probe) as run:
            latents = self.latents(self.attached, prompt, seed)
        run.describe(prompt=prompt, seed=seed, guidance=self.guidance)
        return run.trace, latents

    def warm_up(self) -> None:
        """Once, a few steps at each precision: what is compiled or unpacked on first use must not be timed."""
        if self._warm:
            return
        steps, self.steps = self.steps, 4 if self.device.type == "cuda" else 2
        loose = {"tdc_threshold": 9.0, "warmup_steps": 0, "protect_last": 0}
        mixed = ({"precision": name, "outlier_threshold": 8.0, **loose} for name in ("nvfp4", "int8"))
        try:
            prompt, seed = methods.prompts(1, held_out=False)[0]
            self.latents(self.pipe, prompt, seed)
            for name in ("w4a16", "w4a8", "w4a4"):
                self.trace(methods.policy_of(name, {}), prompt, seed)
            for values in mixed if self.device.type == "cuda" else ():
                self.trace(methods.policy_of("sixbit", values), prompt, seed)
        finally:
            self.steps, self._warm = steps, True

    # --- what is known in advance --------------------------------------------------------------------------------

    @cached_property
    def probe_traces(self) -> Sequence[Trace]:
        """The probe traces; ValueError where there are none."""
        found = self._probe_traces() if callable(self._probe_traces) else self._probe_traces
        if not found:
            raise ValueError("This method needs probe traces; record them first and pass them on.")
        return list(found)

    @cached_property
    def calibration(self) -> Calibration:
        """The lines of these weights: beside the model where they fit, else fitted to the probe traces."""
        path = Path(str(getattr(self.pipe, "name_or_path", "") or "")) / FILE_NAME
        try:
            found = Calibration.load(path) if path.is_file() else None
        except CalibrationError:
            found = None
        if found is not None and found.model_hash == self.handle.model_hash and found.steps == self.steps:
            return found
        return fit(self.probe_traces, self.handle.model_hash)

    @cached_property
    def mag_ratios(self) -> list[float]:
        """MagCache's calibration, from a prompt that no result is measured on."""
        prompt, seed = methods.prompts(1, held_out=False)[0]
        with peers.magnitude_ratios(self.pipe) as ratios:
            self.latents(self.pipe, prompt, seed)
        return ratios

    @cached_property
    def channel_maxima(self) -> dict[str, torch.Tensor]:
        """SmoothQuant's calibration, from prompts that no result is measured on."""
        with peers.channel_maxima(self.pipe) as maxima:
            for prompt, seed in methods.prompts(CALIBRATION_PROMPTS, held_out=False):
                self.latents(self.pipe, prompt, seed)
        return maxima

    @cached_property
    def packed_linears(self) -> dict:
        """The packed weights of a peer that has the same weights as ours."""
        return peers.packed_linears(self.pipe)

    @cached_property
    def sensitivity(self):
        """The measured sensitivity of the layers; ValueError where it was not measured."""
        if self._sensitivity is None:
            raise ValueError(
                "This method needs the layers' sensitivity; measure it first with `python -m engine theory --layers 6`."
            )
        return self._sensitivity()

    # --- one task ------------------------------------------------------------------------------------------------

    def execute(self, task: Task, timing_only: bool = False) -> dict:
        """The result columns of one task. Raises ValueError for a task of other weights, steps or guidance."""
        if task.model != self.handle.model_hash or (task.steps, task.guidance) != (self.steps, self.guidance):
            raise ValueError("This task belongs to other weights, steps or guidance than this bench was made for.")
        values = json.loads(task.setting)
        if not timing_only:
            self.reference(task.prompt, task.seed)
        run = self._peer if task.method in PEERS else self._ours
        latents, spent = run(task.method, task.setting, values, task.prompt, task.seed)
        seconds = math.nan if task.method in SIMULATED else self.seconds
        spent["weights"] = methods.weights_of(task.method)
        row = {"seconds": seconds, **spent, "device": self.device.type, "threads": torch.get_num_threads()}
        return row if timing_only else {**self._quality(latents, task.prompt, task.seed, spent["weights"]), **row}

    def _ours(self, method: str, key: str, values: dict, prompt: str, seed: int):
        calibration, threshold = None, None
        if method in methods.CALIBRATED:
            calibration = self._lines(method)
            if "target_bits" in values:
                if (method, key) not in self._thresholds:
                    rule = PRESETS["dmpq_sensitive" if method in methods.SENSITIVE else "dmpq"]
                    known = probes.threshold_for_bits(self.probe_traces[:2], values["target_bits"], calibration, rule)
                    self._thresholds[method, key] = known
                threshold = self._thresholds[method, key]
        policy = methods.policy_of(method, values, threshold)
        self.handle.calibration = calibration
        trace, latents = self.trace(policy, prompt, seed)
        report = trace.report
        return latents, {
            "bits": report.average_bits, "bits_computed": report.average_bits_computed, "skipped": report.skipped_share,
            "purified": report.purified_share, "predictor_share": report.predictor_share,
            "error_threshold": policy.error_threshold if policy.precision == "dynamic" else math.nan,
            "block_seconds": report.seconds, "policy": json.dumps(policy.to_dict()),
        }  # fmt: skip

    def _lines(self, method: str) -> Calibration:
        if method not in self._calibrations:
            self._calibrations[method] = self._fitted(method)
        return self._calibrations[method]

    def _fitted(self, method: str) -> Calibration:
        if method in methods.SENSITIVE:
            static = method.startswith("static")
            return probes.sensitive_lines(self.probe_traces, self.calibration, self.sensitivity, static)
        if method == "static_mix":
            return probes.mean_lines(self.probe_traces, self.calibration)
        return (
            probes.weighted_lines(self.probe_traces, self.calibration)
            if method == "dmpq_weighted"
            else self.calibration
        )

    def _peer(self, method: str, key: str, values: dict, prompt: str, seed: int):
        with self._peer_context(method, values) as usage:
            latents = self.latents(self.pipe, prompt, seed)
        return latents, {
            "bits": usage.average_bits, "bits_computed": float(usage.bits), "skipped": usage.skipped, "purified": 0.0,
            "predictor_share": 0.0, "error_threshold": math.nan, "block_seconds": math.nan, "policy": "",
        }  # fmt: skip

    def _peer_context(self, method: str, values: dict):
        if method == "first_block_cache":
            return peers.first_block_cache(self.pipe, **values)
        if method == "w4a8_first_block_cache":
            return peers.w4a8_first_block_cache(self.pipe, packed=self.packed_linears, **values)
        if method == "taylorseer":
            return peers.taylorseer(self.pipe, **values)
        if method == "pyramid_attention_broadcast":
            return peers.pyramid_attention_broadcast(self.pipe, **values)
        if method == "mag_cache":
            return peers.mag_cache(self.pipe, ratios=self.mag_ratios, steps=self.steps, **values)
        return peers.smoothquant_w8a8(self.pipe, self.channel_maxima, **values)

    def _quality(self, latents: torch.Tensor, prompt: str, seed: int, weights: str) -> dict:
        from engine import metrics

        reference, original = self._references[prompt, seed], self._latents[prompt, seed]
        clip = self.frames(latents)
        scale = original.float().norm()
        row = {
            "psnr": metrics.psnr(clip, reference), "ssim": metrics.ssim(clip, reference),
            "flicker": metrics.flicker(clip, reference),
            "latent_error": float((latents.float() - original.float()).norm() / scale) if scale > 0 else math.nan,
            "prompt_accuracy": math.nan, "ticks": math.nan, "same_ticks": math.nan,
        }  # fmt: skip
        if weights != "int8":
            same = self.packed_reference(prompt, seed) if weights == "nvfp4" else reference
            row["psnr_same_weights"] = metrics.psnr(clip, same)
        ours, stock = _read(clip, prompt), self._readings[prompt, seed]
        if ours is not None and stock is not None:
            row["prompt_accuracy"], row["ticks"] = float(ours.all_right), ours.share
            row["same_ticks"] = float(np.mean([ours.ticks[name] == stock.ticks[name] for name in stock.ticks]))
        return row

    def _begin(self, module, args) -> None:
        if "start" not in self._clocks:
            self._clocks["start"] = self._now()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _read(clip: np.ndarray, prompt: str):
    """The reading of a clip of the embedded model's world; None for any other model."""
    from engine import metrics, vocabulary

    if clip.shape[1:3] != (vocabulary.SIZE, vocabulary.SIZE) or len(clip) < 5:
        return None
    try:
        return metrics.read_scene(clip, prompt)
    except ValueError:
        return None

