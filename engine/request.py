"""What may be asked of a pipeline: every value checked, in one sentence, before any work starts.

Sizes and frame counts come from the model's own configuration, defaults from the pipeline's signature. The embedded
model is known by its tokenizer, whose words are exactly those of `engine.vocabulary`; it has a grammar to check too.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from engine import advice, vocabulary
from engine.files import is_text, shown
from engine.notice import Notice, notice
from engine.records import check_calibration
from engine.settings import Policy, check_policy, needs_calibration, out_of_range, unweighed
from engine.settings import warnings as policy_warnings

EMBEDDED_DEFAULTS = {"steps": 30, "guidance": 3.0}
LIMITS = {"steps": (1, 1000), "guidance": (0, 100), "seed": (0, 2**63 - 1), "side": (16, 4096), "frames": (1, 1025)}
LONGEST_PROMPT = 20_000
OURS = {
    "num_inference_steps": "give steps=… instead",
    "timesteps": "give steps=… instead",
    "guidance_scale": "give guidance=… instead",
    "generator": "give seed=… instead",
    "num_frames": "give frames=… instead",
    "prompt_embeds": "give the prompt as text",
    "negative_prompt_embeds": "give negative_prompt=… as text",
    "num_videos_per_prompt": "call generate once per video, each with a seed of its own",
    "output_type": "Finished.frames are always uint8 (F, H, W, 3)",
    "return_dict": "the result is always a Finished event",
    "callback_on_step_end": "every step comes as a Step event, with its preview",
    "callback_on_step_end_tensor_inputs": "every step comes as a Step event, with its preview",
}
"""Arguments of a pipeline call that generate fills in itself, and what to do instead of giving them."""

FPS = {"CogVideoX": 8, "CogVideoX 1.5": 16, "Wan": 16, "Wan 5B": 24}


@dataclass(frozen=True)
class Request:
    """A checked request. `inputs` are further arguments of the pipeline call (image, video, strength, …)."""

    prompt: str
    negative_prompt: str | None
    policy: Policy
    steps: int
    guidance: float
    seed: int
    height: int
    width: int
    frames: int
    fps: float
    warnings: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)


def check(
    pipe, owner, prompt, policy, *, steps, guidance, seed, negative_prompt, height, width, frames, inputs,
    calibration=None,
) -> Request:  # fmt: skip
    """Fill in defaults and check everything. `owner` is the pipeline's attachment, `calibration` instead of its own.

    Raises ValueError (or RuntimeError for 16-bit weights that were dropped), naming what was expected and what came.
    """
    accepted = inspect.signature(type(pipe).__call__).parameters
    embedded = is_embedded(pipe)
    check_policy(policy)
    if calibration is not None:
        check_calibration(calibration)
    owner.check(policy)
    _check_prompt(pipe, prompt, "prompt", embedded)
    if negative_prompt is not None and negative_prompt != "":
        _check_prompt(pipe, negative_prompt, "negative prompt", False)
    steps = _number("steps", steps, _default(accepted, "num_inference_steps", "steps", embedded), whole=True)
    guidance = _number("guidance", guidance, _default(accepted, "guidance_scale", "guidance", embedded), whole=False)
    seed = _number("seed", seed, random.SystemRandom().randrange(2**31), whole=True)
    _check_inputs(pipe, accepted, inputs)
    height, width, frames = _check_size(pipe, accepted, height, width, frames, inputs)
    if inputs.get("latents") is not None:
        _check_latents(pipe, inputs["latents"], height, width, frames)
    said = [*policy_warnings(policy, steps), *advice.about(policy, pipe._execution_device)]
    if negative_prompt and guidance <= 1:
        said.append(notice("negative_idle", "The negative prompt does nothing at guidance {guidance}; it takes effect "
                           "above 1.", guidance=f"{guidance:g}"))
    if needs_calibration(policy):
        known = calibration or owner.calibration
        said += [*_calibration_warnings(known, steps, guidance), *unweighed(policy, known)]
    if embedded and (frames, height, width) != (vocabulary.FRAMES, vocabulary.SIZE, vocabulary.SIZE):
        said.append(notice(
            "other_size", "This model was trained on {trained} frames of {size}×{size}; at {frames} frames of "
            "{height}×{width} it may look wrong.",
            trained=vocabulary.FRAMES, size=vocabulary.SIZE, frames=frames, height=height, width=width))
    return Request(
        prompt, negative_prompt, policy, steps, guidance, seed, height, width, frames, frame_rate(pipe), tuple(said),
        inputs,
    )  # fmt: skip


def check_values(
    *, prompts=(), negative_prompt=None, steps=None, guidance=None, seed=None, height=None, width=None, frames=None
) -> None:
    """What `check` refuses for every model alike, so that it can be said before one is loaded; None is left out.

    Raises ValueError.
    """
    for prompt in prompts:
        _check_text(prompt, "prompt")
    if negative_prompt is not None and negative_prompt != "":
        _check_text(negative_prompt, "negative prompt")
    numbers = {"steps": steps, "guidance": guidance, "seed": seed, "height": height, "width": width, "frames": frames}
    for name, value in numbers.items():
        if value is not None:
            _number(name, value, None, whole=name != "guidance")


def is_embedded(pipe) -> bool:
    """Whether this is the embedded model, trained on the words of `engine.vocabulary` alone."""
    words = getattr(getattr(pipe, "tokenizer", None), "get_vocab", dict)()
    return set(words) == set(vocabulary.WORDS)


def frame_rate(pipe) -> float:
    """Frames a second that the model was trained at; diffusers does not store it."""
    if type(pipe).__name__.startswith("Wan"):
        return FPS["Wan 5B" if pipe.config.get("expand_timesteps") else "Wan"]
    return FPS["CogVideoX 1.5" if pipe.transformer.config.get("patch_size_t") else "CogVideoX"]


def text_length(pipe) -> int | None:
    """Text tokens the model was built for, or None where its configuration does not say."""
    config = pipe.transformer.config if pipe.transformer is not None else pipe.transformer_2.config
    return config.get("max_text_seq_length")


def call_arguments(pipe, request: Request) -> dict[str, Any]:
    """The keyword arguments of `pipe(...)` that say what `request` says, for those that this pipeline takes."""
    import torch

    wanted = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        "height": request.height,
        "width": request.width,
        "num_frames": request.frames,
        "max_sequence_length": text_length(pipe),
        **request.inputs,
    }
    accepted = inspect.signature(type(pipe).__call__).parameters
    return {name: value for name, value in wanted.items() if name in accepted and value is not None}


def _default(accepted: Mapping, argument: str, name: str, embedded: bool):
    return EMBEDDED_DEFAULTS[name] if embedded else accepted[argument].default


def _number(name: str, value, default, whole: bool):
    low, high = LIMITS["side" if name in ("height", "width") else name]
    value = default if value is None else value
    good = isinstance(value, Real) and not isinstance(value, bool) and low <= value <= high
    if good and whole:
        good = isinstance(value, Integral) or float(value).is_integer()
    if not good:
        raise ValueError(out_of_range(name, whole, f"{low:,}", f"{high:,}", shown(value)))
    return int(value) if whole else float(value) + 0.0  # no -0.0


def _check_text(prompt, name: str) -> None:
    if not isinstance(prompt, str):
        raise ValueError(
            f"Expected one {name} as text; got {type(prompt).__name__}. For several videos call once per {name}."
        )
    if not prompt.strip():
        raise ValueError(notice("prompt_blank", "The {name} is empty; describe the video in a sentence.", name=name))
    if len(prompt) > LONGEST_PROMPT:
        raise ValueError(f"The {name} has {len(prompt):,} characters, more than {LONGEST_PROMPT:,}; shorten it.")
    if not is_text(prompt):
        raise ValueError(f"The {name} holds half a character (a lone surrogate), which is no text; type it again.")


def _check_prompt(pipe, prompt, name: str, embedded: bool) -> None:
    _check_text(prompt, name)
    if embedded:
        vocabulary.parse(prompt)
    tokenizer = getattr(pipe, "tokenizer", None)
    call = inspect.signature(type(pipe).__call__).parameters.get("max_sequence_length")
    most = text_length(pipe) or (call.default if call is not None else None)
    if tokenizer is None or most is None:
        return
    count = len(tokenizer(prompt, truncation=False, verbose=False).input_ids)
    if count > most:
        raise ValueError(
            notice(
                "prompt_tokens", "The {name} has {count} tokens and this model reads at most {most}; shorten it.",
                name=name, count=count, most=most,
            )  # fmt: skip
        )


def _check_inputs(pipe, accepted: Mapping, inputs: Mapping) -> None:
    for name in inputs:
        if name not in accepted or name == "self":
            raise ValueError(f"{type(pipe).__name__} takes no argument {shown(name)}; leave it out.")
        if name in OURS:
            raise ValueError(f"generate sets {name} of the pipeline call itself: {OURS[name]}.")
    for name in ("image", "video"):
        if name in accepted and inputs.get(name) is None:
            article = "an" if name == "image" else "a"
            raise ValueError(f"{type(pipe).__name__} starts from {article} {name}; give {name}=….")
    for name, wanted in (("image", "a picture"), ("last_image", "a picture"), ("video", "a list of pictures")):
        value = inputs.get(name)
        if isinstance(value, (str, bytes, Real)) or (
            name == "video" and value is not None and not hasattr(value, "__len__")
        ):
            raise ValueError(f"Expected {name} to be {wanted} (PIL, NumPy or torch); got {type(value).__name__}.")


def _check_latents(pipe, latents, height: int, width: int, frames: int) -> None:
    """Refuse starting noise that the pipeline would stumble over, or make a clip of another size from."""
    import torch

    model = pipe.transformer if pipe.transformer is not None else pipe.transformer_2
    wan, patch = type(pipe).__name__.startswith("Wan"), model.config.get("patch_size_t") or 1
    times = (frames - 1) // pipe.vae_scale_factor_temporal + 1
    times += -times % patch
    channels, size = model.config.out_channels, [pixels // pipe.vae_scale_factor_spatial for pixels in (height, width)]
    shape = (1, channels, times, *size) if wan else (1, times, channels, *size)
    dtypes = "a floating dtype" if wan else f"dtype {str(model.dtype).removeprefix('torch.')}"
    good = isinstance(latents, torch.Tensor) and tuple(latents.shape) == shape
    if not good or not (latents.is_floating_point() if wan else latents.dtype == model.dtype):
        came = type(latents).__name__
        if isinstance(latents, torch.Tensor):
            came = f"{str(latents.dtype).removeprefix('torch.')} of shape {tuple(latents.shape)}"
        raise ValueError(
            f"Expected latents as a tensor of shape {shape} and {dtypes} for {frames} frames of {height}×{width}; got "
            f"{came}."
        )


def _check_size(pipe, accepted: Mapping, height, width, frames, inputs: Mapping) -> tuple[int, int, int]:
    config = (pipe.transformer or pipe.transformer_2).config
    cog = not type(pipe).__name__.startswith("Wan")
    spatial = pipe.vae_scale_factor_spatial
    temporal = pipe.vae_scale_factor_temporal
    patch = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[1]
    if cog:
        usual = (config.sample_height * spatial, config.sample_width * spatial, config.sample_frames)
    else:
        usual = tuple(
            accepted[name].default if name in accepted else None for name in ("height", "width", "num_frames")
        )
    height, width = (
        _side(name, value if value is not None else default, spatial * patch)
        for name, value, default in (("height", height, usual[0]), ("width", width, usual[1]))
    )
    if cog and config.get("use_learned_positional_embeddings") and (height, width) != usual[:2]:
        raise ValueError(notice(
            "fixed_size", "This model has learned positions and makes {own} only; got {given}.",
            own=f"{usual[0]}×{usual[1]}", given=f"{height}×{width}"))
    if "num_frames" not in accepted:
        if frames is not None:
            raise ValueError(f"{type(pipe).__name__} makes as many frames as its input video has; leave frames out.")
        return height, width, len(inputs["video"])
    frames = usual[2] if frames is None else frames
    low, high = LIMITS["frames"]
    if not isinstance(frames, Integral) or isinstance(frames, bool) or not low <= frames <= high:
        raise ValueError(out_of_range("frames", True, f"{low}", f"{high:,}", shown(frames)))
    # CogVideoX's decoder takes latent frames in pairs after the first; an even number of them comes out too long.
    grid = 2 * temporal if cog else temporal
    if (frames - 1) % grid:
        below = (frames - 1) // grid * grid + 1
        raise ValueError(
            notice(
                "frame_grid",
                "This model makes 1, {second}, {third}, … frames ({grid}·n + 1); got {given}. "
                "The nearest are {below} and {above}.",
                second=grid + 1, third=2 * grid + 1, grid=grid, given=frames, below=below, above=below + grid,
            )  # fmt: skip
        )
    return height, width, int(frames)


def _side(name: str, value, multiple: int) -> int:
    low, high = LIMITS["side"]
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= value <= high or value % multiple:
        values = {
            "name": name, "multiple": multiple, "low": max(low, multiple), "high": f"{high:,}", "given": shown(value)
        }
        words = "{name} must be a multiple of {multiple} from {low} to {high}; got {given}."
        if isinstance(value, Integral) and not isinstance(value, bool) and multiple <= value <= high:
            below = value // multiple * multiple
            raise ValueError(
                notice(
                    "multiple_near", words + " The nearest are {below} and {above}.", **values, below=below,
                    above=below + multiple,
                )  # fmt: skip
            )
        raise ValueError(notice("multiple", words, **values))
    return int(value)


def _calibration_warnings(calibration, steps: int, guidance: float) -> list[Notice]:
    if calibration is None or not calibration.rows:
        return [notice(
            "uncalibrated", "This model is not calibrated, so every dynamic layer takes INT8; run "
            "`python -m engine calibrate`, or once with probe=True, first.")]
    said = []
    if calibration.steps != steps:
        said.append(notice(
            "calibrated_steps", "The predictor was calibrated at {calibrated} steps; at {steps} steps its errors are "
            "less certain.", calibrated=calibration.steps, steps=steps))
    # 0 stands for traces that did not say.
    if calibration.guidance not in (0.0, guidance):
        said.append(
            notice(
                "calibrated_guidance",
                "The predictor was calibrated at guidance {calibrated}; at {guidance} its errors are less certain.",
                calibrated=f"{calibration.guidance:g}", guidance=f"{guidance:g}",
            )  # fmt: skip
        )
    return said
