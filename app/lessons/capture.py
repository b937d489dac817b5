"""Capture whole tokens from a model for the lessons on number formats.

    python -m app.lessons.capture --model assets/tiny --out assets/lessons/tokens.parquet

Runs one prompt and keeps, for every block, every layer group and three of the steps, the *typical* token at
the group's input: the one whose max|x| / mean|x| is the median over all tokens of the clip (text and video,
the conditional half of the batch). One row per token: group, block, step (0-based), ratio, values (float32 list,
before any rotation). Needs torch and the model; the page itself only reads the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

MOMENTS = (0.2, 0.5, 0.8)          # when to look, as parts of the run
PROMPT = "a large red star bounces in a sunset room"


def typical(tokens: np.ndarray) -> tuple[np.ndarray, float]:
    """float32 (tokens, K) -> the token with the median max/mean, and that ratio."""
    mean = np.abs(tokens).mean(1)
    ratios = np.where(mean > 0, np.abs(tokens).max(1) / np.where(mean > 0, mean, 1.0), 0.0)
    chosen = int(np.argsort(ratios, kind="stable")[len(ratios) // 2])
    return tokens[chosen], float(ratios[chosen])


def capture(pipe, prompt: str, steps: int, guidance: float, seed: int) -> pd.DataFrame:
    """Run `prompt` once on a stock pipeline and return the table described above."""
    import torch

    from engine.families import family_of

    family = family_of(pipe)
    moments = {min(steps - 1, round(part * steps)) for part in MOMENTS}
    rows: list[dict] = []
    now = {"step": 0}

    def watch(block: int, group: str):
        def look(module, inputs) -> None:
            if now["step"] in moments:
                tokens = inputs[0].detach()[-1].reshape(-1, inputs[0].shape[-1])
                values, ratio = typical(tokens.float().cpu().numpy())
                rows.append({"group": group, "block": block, "step": now["step"], "ratio": ratio, "values": values})

        return look

    def next_step(pipeline, step: int, timestep, values: dict) -> dict:
        now["step"] = step + 1
        return values

    hooks = [
        block.get_submodule(paths[0]).register_forward_pre_hook(watch(index, group))
        for index, block in enumerate(getattr(pipe.transformer, family.blocks))
        for group, paths in family.groups.items()
    ]
    words = {"max_sequence_length": getattr(pipe.transformer.config, "max_text_seq_length", 226)}
    try:
        with torch.no_grad():
            pipe(prompt, **(words if family.name == "CogVideoX" else {}), num_inference_steps=steps,
                 guidance_scale=guidance, output_type="latent",
                 generator=torch.Generator().manual_seed(seed), callback_on_step_end=next_step)  # fmt: skip
    finally:
        for hook in hooks:
            hook.remove()
    return pd.DataFrame(rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Capture tokens for the lessons.")
    parser.add_argument("--model", default="assets/tiny")
    parser.add_argument("--out", type=Path, default=Path("assets/lessons/tokens.parquet"))
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()

    from engine import load
    from engine.files import write_atomic

    table = capture(load(asked.model), asked.prompt, asked.steps, asked.guidance, asked.seed)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(asked.out, lambda temporary: table.to_parquet(temporary, index=False, compression="zstd"))
    print(f"{len(table)} tokens -> {asked.out} ({asked.out.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
