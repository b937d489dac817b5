"""Speed and memory at the size of real models: ours beside what a user would pick instead, in one process.

    python -m engine bench --model cogvideox-5b --out assets/benchmarks/cogvideox-5b.csv

Neither speed nor memory depends on the weights' values, so where the checkpoint cannot be had the transformer is built
from the published configuration with random weights. Its signals mean nothing then, so a skip schedule recorded on the
embedded model, stretched to the number of blocks and steps, overrules the policy's decisions. Both are said in the
`notes` column of every row they touch. One step is one denoising step of the stock pipeline: one transformer forward
over both guidance halves, the scheduler and the loop around it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch

from engine.records import GroupDecision
from engine.settings import PRESETS
from engine.trace import Trace

COLUMNS = (
    "method", "skipped", "seconds_per_step", "peak_gb", "weights_gb", "cache_gb", "cache_host_gb", "activations_gb",
    "bits", "bits_computed", "steps", "device", "torch", "commit", "notes",
)  # fmt: skip

_COMMON = dict(
    attention_head_dim=64, in_channels=16, out_channels=16, time_embed_dim=512, text_embed_dim=4096,
    max_text_seq_length=226, patch_size=2, sample_frames=49, sample_height=60, sample_width=90,
    spatial_interpolation_scale=1.875, temporal_compression_ratio=4,
)  # fmt: skip
MODELS = {
    "cogvideox-5b": dict(num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True, **_COMMON),
    "cogvideox-2b": dict(num_attention_heads=30, num_layers=30, use_rotary_positional_embeddings=False, **_COMMON),
}
"""Published transformer configurations (the models' config.json): 49 frames of 480×720, 226 text tokens."""

METHODS = (
    "stock", "stock_fbc", "w4a16", "w4a8", "w4a4", "int8_tdc", "int8_tdc_host", "sixbit", "sixbit_host",
    "stock_compile", "torchao_fp8_compile",
)  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Skips and planned precisions of a recorded run, stretched to any number of blocks and steps."""

    skipped: pd.DataFrame
    precision: dict[str, pd.DataFrame]

    @classmethod
    def from_trace(cls, trace: Trace) -> "Schedule":
        """One call and branch of `trace`: block × step tables."""
        blocks, layers = trace.blocks, trace.layers
        first = (blocks["call"] == blocks["call"].min()) & (blocks["branch"] == blocks["branch"].iloc[0])
        skipped = blocks[first].pivot(index="block", columns="step", values="skipped")
        first = (layers["call"] == layers["call"].min()) & (layers["branch"] == layers["branch"].iloc[0])
        tables = {
            str(name): rows.pivot(index="block", columns="step", values="precision")
            for name, rows in layers[first].groupby("layer", sort=False)
        }
        return cls(skipped, tables)

    def cell(self, table: pd.DataFrame, block: int, blocks: int, step: int, steps: int):
        """The recorded value whose place in the recording is nearest to this place."""
        row = min(len(table) - 1, int((block + 0.5) / blocks * len(table)))
        column = min(table.shape[1] - 1, int((step + 0.5) / steps * table.shape[1]))
        return table.iat[row, column]

    def overrule(self, policy) -> Callable:
        """A function for `record(overrule=...)` that follows this schedule under `policy`."""

        def decide(position, plan):
            decided = []
            for index, decision in enumerate(plan):
                place = (index, len(plan), position.step, position.steps)
                skip = policy.tdc and position.step >= 2 and bool(self.cell(self.skipped, *place))
                groups = {name: self._group(name, place, policy, skip) for name in decision.groups}
                decided.append(
                    replace(decision, skipped=skip, refreshed=policy.tdc and not skip, reason="within budget", groups=groups)
                    if skip
                    else replace(decision, skipped=False, refreshed=policy.tdc, reason="no history", groups=groups)
                )
            return decided

        return decide

    def _group(self, name: str, place: tuple, policy, skip: bool) -> GroupDecision:
        if skip:
            return GroupDecision("skipped", "cache", "skipped")
        if policy.precision != "dynamic":
            return GroupDecision(policy.precision, "policy", "forced precision")
        found = self.cell(self.precision[name], *place) if name in self.precision else "int8"
        # A purified or skipped cell of the recording was planned at 8 bits there, unless a neighbour says otherwise.
        return GroupDecision(found if found in ("nvfp4", "int8") else "int8", "predictor", "forced precision")


def build(model: str, device, layers: int | None = None, **changes):
    """A stock CogVideoX pipeline around a random bfloat16 transformer of a published configuration.

    Text encoder and VAE are left out: the benchmark passes prompt embeddings and takes latents.
    """
    from diffusers import CogVideoXDDIMScheduler, CogVideoXPipeline, CogVideoXTransformer3DModel

    if model not in MODELS:
        raise ValueError(f"--model must be one of {', '.join(MODELS)} or a folder, got {model!r}.")
    configuration = {**MODELS[model], **({"num_layers": layers} if layers else {}), **changes}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            with _no_initialisation():
                transformer = CogVideoXTransformer3DModel(**configuration)
    finally:
        torch.set_default_dtype(before)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=generator)
            else:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    scheduler = CogVideoXDDIMScheduler(
        rescale_betas_zero_snr=True, timestep_spacing="trailing", prediction_type="v_prediction", snr_shift_scale=1.0
    )
    pipe = CogVideoXPipeline(
        tokenizer=None, text_encoder=None, vae=None, transformer=transformer.eval(), scheduler=scheduler
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


class _no_initialisation:
    """Linear and convolution layers keep what memory held: initialising 5 B parameters twice takes minutes."""

    def __enter__(self):
        self._saved = [(c, c.reset_parameters) for c in (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Conv3d)]
        for cls, _ in self._saved:
            cls.reset_parameters = lambda module: None

    def __exit__(self, *_):
        for cls, method in self._saved:
            cls.reset_parameters = method


def denoise(pipe, steps: int) -> list[float]:
    """Run the stock loop on random embeddings and return each step's seconds, the device drained at its end."""
    device = pipe.transformer.device
    config = pipe.transformer.config
    generator = torch.Generator("cpu").manual_seed(0)
    shape = (1, config.max_text_seq_length, config.text_embed_dim)
    embeddings = torch.randn(shape, generator=generator).to(device, pipe.transformer.dtype)
    marks = []

    def mark(*_):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(time.perf_counter())
        return {}

    pipe(
        prompt_embeds=embeddings, negative_prompt_embeds=torch.zeros_like(embeddings), num_inference_steps=steps,
        guidance_scale=6.0, generator=generator, output_type="latent", callback_on_step_end=mark,
    )  # fmt: skip
    return [after - before for before, after in zip(marks, marks[1:])]


def _gigabytes(count: float) -> float:
    return round(count / 1e9, 3)


class Bench:
    """Runs methods one after the other; each gets a freshly built model, so none inherits another's state."""

    def __init__(self, model: str, device="cuda", schedule: Schedule | None = None, commit="", warm=4, timed=12, **changes):
        self.model, self.device, self.schedule, self.commit = model, torch.device(device), schedule, commit
        self.warm, self.timed, self.changes = warm, timed, changes
        self.skipped = 0.38

    def run(self, method: str) -> dict:
        """One row of the table. Any failure becomes a row whose notes say what happened."""
        if method not in METHODS:
            raise ValueError(f"A method must be one of {', '.join(METHODS)}, got {method!r}.")
        self._clear()
        try:
            row = self._ours(method) if method.removesuffix("_host") in PRESETS else getattr(self, f"_{method}")()
        except Exception as error:  # a missing library or an out-of-memory must not lose the other rows
            row = {"notes": f"failed: {type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"}
        self._clear()
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return {
            "method": method, **row, "device": name, "torch": torch.__version__.split("+")[0], "commit": self.commit,
        }  # fmt: skip

    def _clear(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _pipe(self):
        return build(self.model, self.device, **self.changes)

    def _measured(self, pipe, steps: int, **known) -> dict:
        weights = sum(p.numel() * p.element_size() for p in pipe.transformer.parameters())
        weights += sum(b.numel() * b.element_size() for b in pipe.transformer.buffers())
        with torch.no_grad():
            denoise(pipe, self.warm)
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            seconds = denoise(pipe, steps)
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else float("nan")
        cache = known.pop("cache", 0)
        return {
            "seconds_per_step": round(statistics.mean(seconds), 4), "peak_gb": _gigabytes(peak),
            "weights_gb": _gigabytes(weights), "cache_gb": _gigabytes(cache),
            "activations_gb": _gigabytes(peak - weights - cache), "steps": len(seconds), "bits": 16.0,
            "bits_computed": 16.0, "skipped": 0.0, **known,
        }  # fmt: skip

    def _stock(self) -> dict:
        return self._measured(self._pipe(), 5)

    def _stock_compile(self) -> dict:
        pipe = self._pipe()
        pipe.transformer.compile_repeated_blocks(fullgraph=True)
        return self._measured(pipe, 5, notes="compile_repeated_blocks")

    def _stock_fbc(self) -> dict:
        from diffusers import FirstBlockCacheConfig
        from diffusers.hooks.first_block_cache import FBCHeadBlockHook

        pipe = self._pipe()
        pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
        # Random weights give every step the same residual, so the threshold cannot choose the share; the code is theirs.
        count, share, stock = [0, 0.0], self.skipped, FBCHeadBlockHook._should_compute_remaining_blocks

        def scheduled(hook, residual):
            stock(hook, residual)
            count[0] += 1
            count[1] += share
            if count[0] > 2 and count[1] >= 1.0:
                count[1] -= 1.0
                return hook.state_manager.get_state().head_block_residual is None
            return True

        FBCHeadBlockHook._should_compute_remaining_blocks = scheduled
        try:
            return self._measured(pipe, self.timed, skipped=share, notes="diffusers FirstBlockCache, skips by schedule")
        finally:
            FBCHeadBlockHook._should_compute_remaining_blocks = stock

    def _torchao_fp8_compile(self) -> dict:
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

        pipe = self._pipe()
        configuration = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
        quantize_(
            pipe.transformer, configuration,
            filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and "transformer_blocks" in name,
        )  # fmt: skip
        pipe.transformer.compile_repeated_blocks(fullgraph=True)
        return self._measured(pipe, 5, bits=8.0, bits_computed=8.0, notes="FP8 dynamic rowwise, compiled blocks")

    def _ours(self, method: str) -> dict:
        from engine.attach import attach
        from engine.run import record

        policy = PRESETS[method.removesuffix("_host")]
        pipe = self._pipe()
        attach(pipe, keep="none", cache="host" if method.endswith("_host") else "device")
        self._clear()
        overrule = self.schedule.overrule(policy) if self.schedule is not None and policy.tdc else None
        with torch.no_grad():
            with record(pipe, policy, overrule=overrule):
                denoise(pipe, self.warm)
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            with record(pipe, policy, overrule=overrule) as run:
                seconds = denoise(pipe, self.timed if policy.tdc else 5)
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else float("nan")
        report, memory = run.report, run.memory
        packed = memory["packed"]
        other = sum(p.numel() * p.element_size() for p in pipe.transformer.parameters())
        notes = "random weights" + (", skip schedule of the embedded model stretched" if overrule else "")
        self.skipped = report.skipped_share or self.skipped
        return {
            "skipped": round(report.skipped_share, 4), "seconds_per_step": round(statistics.mean(seconds), 4),
            "peak_gb": _gigabytes(peak), "weights_gb": _gigabytes(packed + other),
            "cache_gb": _gigabytes(memory["cache"]), "cache_host_gb": _gigabytes(memory["cache_host"]),
            "activations_gb": _gigabytes(peak - packed - other - memory["cache"]),
            "bits": round(report.average_bits, 3), "bits_computed": round(report.average_bits_computed, 3),
            "steps": len(seconds), "notes": notes,
        }  # fmt: skip


def run(bench: Bench, methods: Sequence[str], done: Callable[[dict], None] | None = None) -> pd.DataFrame:
    """All rows in order; `done` gets each as it comes."""
    rows = []
    for method in methods:
        rows.append(bench.run(method))
        if done is not None:
            done(rows[-1])
    return pd.DataFrame(rows, columns=list(COLUMNS))
