"""The models of the benchmark, and one denoising loop around them with a clock.

A name stands for the published configuration with random weights; a folder for the checkpoint in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.files import parse_object, read_text

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


def is_known(model: str) -> bool:
    """Whether `build` can try: a name of MODELS or a folder."""
    return model in MODELS or os.path.isdir(os.path.expanduser(model))


def block_count(model: str, layers: int | None = None) -> int:
    """Transformer blocks of a name of MODELS (or `layers` of them) or of a folder's CogVideoX checkpoint."""
    if model in MODELS:
        return layers or MODELS[model]["num_layers"]
    what = "a transformer's configuration"
    return int(parse_object(read_text(Path(model) / "transformer" / "config.json", what), what).get("num_layers", 30))


def build(model: str, device, layers: int | None = None, **changes):
    """A CogVideoX pipeline in bfloat16 on `device`, for `denoise`.

    model: a name of MODELS, for random weights of that configuration with `changes`, without text encoder and VAE
    (the loop passes prompt embeddings and takes latents); or a folder, loaded as it is, in bfloat16.
    Raises ValueError for any other name.
    """
    from diffusers import CogVideoXDDIMScheduler, CogVideoXPipeline, CogVideoXTransformer3DModel

    if model not in MODELS and Path(model).is_dir():
        from engine.load import load

        return _quiet(load(model, device, torch.bfloat16))
    if model not in MODELS:
        raise ValueError(f"--model must be one of {', '.join(MODELS)} or a folder, got {model!r}.")
    configuration = {**MODELS[model], **({"num_layers": layers} if layers else {}), **changes}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device), _no_initialisation():
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
    transformer = transformer.eval().requires_grad_(False)
    return _quiet(CogVideoXPipeline(None, None, None, transformer, scheduler))


def _quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


@contextmanager
def _no_initialisation():
    """Linear and convolution layers keep what memory held: initialising 5 B parameters twice takes minutes."""
    saved = [(cls, cls.reset_parameters) for cls in (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Conv3d)]
    for cls, _ in saved:
        cls.reset_parameters = lambda module: None
    try:
        yield
    finally:
        for cls, method in saved:
            cls.reset_parameters = method


def denoise(pipe, steps: int, guidance: float = 6.0, on_step: Callable[[int], None] | None = None) -> list[float]:
    """Run the stock loop on random embeddings; seconds of each step, from one drained device to the next.

    The first step counts from where the transformer is entered for the first time. on_step: called after each step.
    """
    model = pipe.transformer
    device, config = model.device, model.config
    generator = torch.Generator("cpu").manual_seed(0)
    shape = (1, config.max_text_seq_length, config.text_embed_dim)
    embeddings = torch.randn(shape, generator=generator).to(device, model.dtype)
    marks: list[float] = []

    def mark(*_):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(time.perf_counter())

    def begin(*_):
        entered.remove()
        mark()

    def end(_pipe, index, *_):
        mark()
        if on_step is not None:
            on_step(index)
        return {}

    entered = model.register_forward_pre_hook(begin, prepend=True)
    try:
        with torch.no_grad():
            pipe(
                prompt_embeds=embeddings, negative_prompt_embeds=torch.zeros_like(embeddings), guidance_scale=guidance,
                num_inference_steps=steps, generator=generator, output_type="latent", callback_on_step_end=end,
            )  # fmt: skip
    finally:
        entered.remove()
    return [after - before for before, after in zip(marks, marks[1:])]
