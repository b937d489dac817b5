"""What a computed block costs on a CPU beside the stock one: ratios of times taken in turn, and no times.

    python -m engine bench --model assets/tiny --blocks --out assets/benchmarks/cpu-block.csv

A CPU shares its clock and its memory with whatever else runs, so a time says little and a ratio of two times that lie
apart says little more. Here stock and ours take turns, call by call, and who is first changes every time; each pair
gives one ratio. The stock block is diffusers' own without any run around it; ours includes what a run measures (Γ).
A dynamic policy has no row of a block, as what its blocks take changes from step to step: its loop tells.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence

import pandas as pd
import torch

from engine.attach import attach
from engine.bench_model import denoise
from engine.load import load
from engine.position import Position
from engine.run import record
from engine.settings import PRESETS
from kernels import target

COLUMNS = (
    "what",
    "preset",
    "dtype",
    "threads",
    "ratio",
    "lower_quartile",
    "upper_quartile",
    "pairs",
    "cpu",
    "torch",
    "commit",
)
# A block of the embedded model takes milliseconds, a loop of this many steps about a second.
_BLOCK_PAIRS, _LOOP_PAIRS, _LOOP_STEPS = 150, 8, 4


def compare(
    folder: str, dtype: str, presets: Sequence[str] = ("w4a8",), threads: Sequence[int] = (1, 2), *, commit: str = "",
    block_pairs: int = _BLOCK_PAIRS, loop_pairs: int = _LOOP_PAIRS, steps: int = _LOOP_STEPS,
) -> Iterator[dict]:  # fmt: skip
    """Rows of the table (COLUMNS), as they come: a block and the denoising loop for each thread count and preset.

    A preset of which `has_block_row` is False gets the loop alone.
    folder: a CogVideoX checkpoint. dtype: "float32" or "bfloat16". block_pairs, loop_pairs: 0 leaves the rows out.
    `ratio` is the median of ours / stock over the pairs; above 1 ours takes longer.
    """
    pipe = load(folder, "cpu", dtype)
    pipe.set_progress_bar_config(disable=True)
    blocks = pipe.transformer.transformer_blocks
    middle = len(blocks) // 2
    stock = copy.deepcopy(blocks[middle])
    arguments, inputs = _arguments(pipe, blocks[middle])
    attach(pipe, keep="device")
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            for preset in presets:
                about = {
                    "preset": preset, "dtype": dtype, "threads": count, "cpu": _cpu(),
                    "torch": torch.__version__.split("+")[0],
                    "commit": commit,
                }  # fmt: skip
                if block_pairs and has_block_row(preset):
                    with torch.no_grad(), record(pipe, PRESETS[preset]) as run:
                        ours = _in_run(run, blocks[middle], arguments, inputs)
                        ratios = _take_turns(lambda: _clock(lambda: stock(**inputs)), ours, block_pairs)
                    yield {"what": "block", **about, **_spread(ratios)}
                if loop_pairs:
                    ratios = _take_turns(
                        lambda: _loop(pipe, "fp16", steps), lambda p=preset: _loop(pipe, p, steps), loop_pairs
                    )
                    yield {"what": f"loop of {steps} steps", **about, **_spread(ratios)}
    finally:
        torch.set_num_threads(before)


def has_block_row(preset: str) -> bool:
    """Whether a computed block of this preset takes the same precision at every step."""
    return PRESETS[preset].precision != "dynamic"


def _take_turns(stock: Callable[[], float], ours: Callable[[], float], pairs: int) -> list[float]:
    """Seconds of ours / seconds of stock for each of `pairs` pairs, after both ran once without counting."""
    stock(), ours()
    ratios = []
    for index in range(pairs):
        if index % 2:
            other, mine = stock(), ours()
        else:
            mine, other = ours(), stock()
        ratios.append(mine / other)
    return ratios


def _spread(ratios: list[float]) -> dict:
    low, middle, high = pd.Series(ratios).quantile([0.25, 0.5, 0.75])
    return {
        "ratio": round(middle, 3), "lower_quartile": round(low, 3), "upper_quartile": round(high, 3),
        "pairs": len(ratios),
    }  # fmt: skip


def _arguments(pipe, block) -> tuple[dict, dict]:
    """Keyword arguments of the transformer's and of the block's second forward."""
    seen: dict[str, dict] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: seen.update({name: kwargs}), with_kwargs=True
        )
        for name, module in (("transformer", pipe.transformer), ("block", block))
    ]
    try:
        denoise(pipe, 2)
    finally:
        for hook in hooks:
            hook.remove()
    return seen["transformer"], seen["block"]


def _in_run(run, block, arguments: dict, inputs: dict) -> Callable[[], float]:
    """Times the block as it is computed within `run`, of a policy that `has_block_row`.

    The step never ends, so to the rules it stays the block's first: none lets it be skipped, and where it is cached it
    is compared with the delta of the call before, as in a later step.
    """

    def once() -> float:
        step = Position(0, "transformer", "", 10, 30, 500.0, False)
        run.enter("transformer", arguments, step)
        return _clock(lambda: block(**inputs))

    return once


def _loop(pipe, preset: str, steps: int) -> float:
    with record(pipe, PRESETS[preset]):
        return sum(denoise(pipe, steps))


def _clock(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _cpu() -> str:
    here = target.probe("cpu")
    extra = [name for name, there in (("VNNI", here.int8_mm), ("BF16", here.native_bf16)) if there]
    return " + ".join([torch.backends.cpu.get_cpu_capability(), *extra])
