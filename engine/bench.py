"""Speed and memory at the size of real models: ours beside what a user would pick instead, in one process.

    python -m engine bench --model cogvideox-5b --out assets/benchmarks/cogvideox-5b.csv

Neither speed nor memory depends on the weights' values, so where the checkpoint cannot be had the transformer is built
from the published configuration with random weights. Its signals mean nothing then, so decisions of a recorded run
(`engine.bench_schedule`) overrule the policy's. Both are said in the `notes` column of every row they touch. One step
is one denoising step of the stock pipeline: one transformer forward over both guidance halves, the scheduler and the
loop around it.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import pandas as pd
import torch

from engine import bench_profile
from engine.bench_model import MODELS, block_count, build, denoise, is_known
from engine.bench_schedule import Schedule
from engine.settings import PRESETS

__all__ = ["COLUMNS", "METHODS", "MODELS", "Bench", "Schedule", "block_count", "build", "denoise", "is_known", "run"]

COLUMNS = (
    "method", "skipped", "seconds_per_step", "peak_gb", "weights_gb", "cache_gb", "bits", "bits_computed", "device",
    "commit", "cache_host_gb", "workspace_gb", "activations_gb", *(f"{kind}_share" for kind in bench_profile.KINDS),
    "forward_error", "steps", "torch", "notes",
)  # fmt: skip

# What matters most comes first, so that a run that is cut short has it.
METHODS = (
    "stock", "stock_fbc", "w4a8", "int8_tdc", "sixbit", "int8_tdc_host", "sixbit_host", "w4a4", "w4a16",
    "torchao_fp8_compile", "stock_compile",
)  # fmt: skip
ERRORS_OF = ("stock", "w4a16", "w4a8", "w4a4")
_ASSUMED_SHARE = 0.38


class Bench:
    """Runs methods one after the other on models of their own; a stock pipeline serves `stock` and then `stock_fbc`,
    an attached one all of ours.

    model: see `engine.bench_model.build`. schedule: what blocks skip, None lets each policy decide for itself.
    warm, timed: steps before and during the measurement (`timed` with reuse; without, a few suffice). profiled: also
    split the device time by kind, where a method's kernels differ from another's. changes: of the configuration.
    """

    def __init__(
        self, model: str, device="cuda", schedule: Schedule | None = None, commit="", warm=2, timed=15, profiled=True,
        **changes,
    ):
        self.model, self.device, self.schedule, self.commit = model, torch.device(device), schedule, commit
        self.warm, self.timed, self.profiled, self.changes = warm, timed, profiled, changes
        self.kernels: dict[str, list[bench_profile.Spent]] = {}
        self._held: tuple[str, object] | None = None
        blocks = block_count(model, changes.get("layers") or changes.get("num_layers"))
        self._blocks, self._share = blocks, schedule.share(blocks, timed) if schedule is not None else _ASSUMED_SHARE

    def run(self, method: str) -> dict:
        """One row of the table. Any failure becomes a row whose notes say what happened."""
        if method not in METHODS:
            raise ValueError(f"A method must be one of {', '.join(METHODS)}, got {method!r}.")
        began = time.perf_counter()
        self._clear()
        try:
            row = self._ours(method) if method.removesuffix("_host") in PRESETS else getattr(self, f"_{method}")()
        except Exception as error:  # a missing library or an out-of-memory must not lose the other rows
            said = str(error).strip().splitlines() or [""]
            row = {"notes": f"failed: {type(error).__name__}: {said[0][:160]}"}
            self._held = None
        self._clear()
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return {
            "method": method, **row, "device": name, "torch": torch.__version__.split("+")[0], "commit": self.commit,
            "wall": time.perf_counter() - began,
        }  # fmt: skip

    def errors(self) -> dict[str, float]:
        """‖y − y₃₂‖ / ‖y₃₂‖ of one whole transformer forward per method of ERRORS_OF: random inputs, one sample, a
        single step; y₃₂ is the same model's in float32, weights and all."""
        from engine.run import record

        self._held = None
        self._clear()
        stock = build(self.model, self.device, **self.changes)
        outputs, inputs = {}, {}
        outputs["stock"] = _forward_once(stock, inputs)
        stock.transformer.float()
        widened = {name: _widened(value) for name, value in inputs.items()}
        # PyTorch lets cuDNN's convolutions round float32 to TF32 unless told otherwise.
        rounded, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
        try:
            with torch.no_grad():
                exact = stock.transformer(**widened)[0].double()
        finally:
            torch.backends.cudnn.allow_tf32 = rounded
        del stock
        self._clear()
        pipe, _ = self._attached()
        for method in ERRORS_OF[1:]:
            with record(pipe, PRESETS[method]):
                outputs[method] = _forward_once(pipe, {})
        size = exact.norm()
        return {method: float((found.double() - exact).norm() / size) for method, found in outputs.items()}

    def _clear(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _take(self, kind: str, make: Callable[[], object]):
        """What is held under `kind`, made if something else or nothing is; the rest is let go."""
        if self._held is None or self._held[0] != kind:
            self._held = None
            self._clear()
            self._held = kind, make()
            self._clear()
        return self._held[1]

    def _stock_pipe(self):
        return self._take("stock", lambda: build(self.model, self.device, **self.changes))

    def _attached(self):
        from engine.attach import attach

        def make():
            pipe = build(self.model, self.device, **self.changes)
            return pipe, attach(pipe, keep="none")

        return self._take("attached", make)

    def _measured(
        self, method: str, loop: Callable[[int], list[float]], pipe, steps: int, profile_steps: int, warm_all=False,
        **known,
    ) -> dict:  # fmt: skip
        """Time and memory of `loop(steps)` around `pipe`, and the split of the time of `loop(profile_steps)`."""
        # With a schedule every route must have run once before the clock does, or it would time their compilation.
        loop(max(self.warm, 6) if warm_all else self.warm)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        seconds = loop(steps)
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else math.nan
        known = {name: value() if callable(value) else value for name, value in known.items()}
        weights = known.pop("weights", None) or _weights(pipe)
        cache, workspace = known.pop("cache", 0), known.pop("workspace", 0)
        split = {}
        if self.profiled and profile_steps:
            self.kernels[method] = bench_profile.profile(lambda: loop(profile_steps), self.device)
            split = bench_profile.shares(self.kernels[method])
        return {
            "skipped": 0.0, "seconds_per_step": round(statistics.mean(seconds), 4), "peak_gb": _gigabytes(peak),
            "weights_gb": _gigabytes(weights), "cache_gb": _gigabytes(cache), "workspace_gb": _gigabytes(workspace),
            "activations_gb": _gigabytes(peak - weights - cache - workspace), "bits": 16.0, "bits_computed": 16.0,
            "steps": len(seconds), **split, **known, "notes": self._notes(known.get("notes", "")),
        }  # fmt: skip

    def _notes(self, more: str) -> str:
        return "; ".join(part for part in ("random weights" if self.model in MODELS else "", more) if part)

    def _stock(self) -> dict:
        pipe = self._stock_pipe()
        return self._measured("stock", lambda steps: denoise(pipe, steps), pipe, 4, 1, notes="bf16 eager")

    def _stock_compile(self) -> dict:
        pipe = self._take("compiled", lambda: build(self.model, self.device, **self.changes))
        _compile_blocks(pipe)
        said = "torch.compile of each block"
        return self._measured("stock_compile", lambda steps: denoise(pipe, steps), pipe, 4, 1, notes=said)

    def _stock_fbc(self) -> dict:
        from diffusers import FirstBlockCacheConfig
        from diffusers.hooks.first_block_cache import FBCHeadBlockHook

        pipe = self._stock_pipe()
        pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
        # Random weights give every step the same residual: no threshold can choose the share; the code is theirs.
        stock = FBCHeadBlockHook._should_compute_remaining_blocks
        state = {"step": 0, "skips": 0, "steps": 1}

        def scheduled(hook, residual):
            stock(hook, residual)
            before, state["step"] = state["step"], state["step"] + 1
            return before * state["skips"] // state["steps"] == state["step"] * state["skips"] // state["steps"]

        def loop(steps: int) -> list[float]:
            # It always computes its first block, so it skips more steps than the share of blocks to be skipped.
            wanted = self._share * steps * self._blocks / (self._blocks - 1)
            state.update(step=0, steps=steps, skips=min(math.ceil(wanted - 1e-9), steps - 1))
            return denoise(pipe, steps)

        def share() -> float:
            return round(state["skips"] * (self._blocks - 1) / self._blocks / state["steps"], 4)

        FBCHeadBlockHook._should_compute_remaining_blocks = scheduled
        try:
            return self._measured(
                "stock_fbc", loop, pipe, self.timed, 0, skipped=share, bits=lambda: round(16.0 * (1.0 - share()), 3),
                notes="diffusers FirstBlockCache; which steps are skipped is given, its code decides nothing else",
            )  # fmt: skip
        finally:
            FBCHeadBlockHook._should_compute_remaining_blocks = stock
            # The hooks stay on the blocks' class attributes of this model, so nobody else gets it.
            self._held = None

    def _torchao_fp8_compile(self) -> dict:
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

        def make():
            pipe = build(self.model, self.device, **self.changes)
            quantize_(
                # Its default searches every compiled kernel's launch at these sizes, which takes longer than the bench.
                pipe.transformer,
                Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), set_inductor_config=False),
                filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and "transformer_blocks" in name,
            )  # fmt: skip
            return pipe

        pipe = self._take("fp8", make)
        _compile_blocks(pipe)
        return self._measured(
            "torchao_fp8_compile", lambda steps: denoise(pipe, steps), pipe, 4, 1, bits=8.0, bits_computed=8.0,
            weights=lambda: torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None,
            notes="torchao FP8 dynamic, rowwise; torch.compile of each block with PyTorch's own settings",
        )  # fmt: skip

    def _ours(self, method: str) -> dict:
        from engine.run import record

        policy = PRESETS[method.removesuffix("_host")]
        pipe, handle = self._attached()
        handle.cache = "host" if method.endswith("_host") else "device"
        overrule = self.schedule.overrule(policy) if self.schedule is not None and policy.tdc else None
        last: list = []

        def loop(steps: int) -> list[float]:
            with record(pipe, policy, overrule=overrule) as run:
                seconds = denoise(pipe, steps)
            last[:] = [run.report, run.memory]
            return seconds

        return self._measured(
            method, loop, pipe, self.timed if policy.tdc else 4,
            0 if handle.cache == "host" else 4 if policy.tdc else 1, warm_all=policy.tdc,
            skipped=lambda: round(last[0].skipped_share, 4), bits=lambda: round(last[0].average_bits, 3),
            bits_computed=lambda: round(last[0].average_bits_computed, 3),
            weights=lambda: last[1]["packed"] + _size(pipe.transformer.parameters()),
            cache=lambda: last[1]["cache"], cache_host_gb=lambda: _gigabytes(last[1]["cache_host"]),
            workspace=lambda: last[1]["workspace"], notes=self.schedule.origin if overrule is not None else "",
        )  # fmt: skip


def _gigabytes(count: float) -> float:
    return round(count / 1e9, 3)


def _weights(pipe) -> int:
    return _size([*pipe.transformer.parameters(), *pipe.transformer.buffers()])


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _compile_blocks(pipe) -> None:
    # What compile_repeated_blocks does for classes that name their repeated blocks, which CogVideoX's does not.
    for block in pipe.transformer.transformer_blocks:
        block.compile(fullgraph=True)


def _forward_once(pipe, inputs: dict) -> torch.Tensor:
    """The transformer's output at a single step without guidance; its arguments land in `inputs`."""
    outputs = []

    def before(_, args, kwargs):
        inputs.update(kwargs)

    hooks = [
        pipe.transformer.register_forward_pre_hook(before, with_kwargs=True),
        pipe.transformer.register_forward_hook(lambda _, args, output: outputs.append(output[0].detach().clone())),
    ]
    try:
        denoise(pipe, 1, guidance=1.0)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs[-1]


def _widened(value):
    if isinstance(value, tuple):
        return tuple(_widened(part) for part in value)
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def run(bench: Bench, methods: Sequence[str], done: Callable[[dict], None] | None = None) -> pd.DataFrame:
    """All rows in order; `done` gets each as it comes."""
    rows = []
    for method in methods:
        rows.append(bench.run(method))
        if done is not None:
            done(rows[-1])
    return pd.DataFrame(rows, columns=list(COLUMNS))
