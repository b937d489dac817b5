"""The clean clip that a half-finished run predicts (x̂₀), and its colours without the autoencoder.

x̂₀ comes from the scheduler's own arithmetic. For the embedded model a small trained decoder draws it
(`engine.preview`); for any other model each latent pixel is mapped linearly to the colours it stands for, by a
least-squares fit on the first clip that the autoencoder decoded, kept in the user's cache.
"""

from __future__ import annotations

import functools
import inspect
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.calibrate import cache_path
from engine.files import write_atomic

RIDGE = 1e-3  # relative to the mean square of a channel: keeps an idle channel from blowing up


class CleanSpy:
    """Watches `scheduler.step` of one run's own scheduler and remembers what x̂₀ needs.

    The scheduler must belong to this run alone (`engine.run.shell` makes it so): its `step` is shadowed.
    """

    def __init__(self, scheduler):
        self._scheduler, self._seen = scheduler, None
        stock = scheduler.step
        signature = inspect.signature(stock)

        # Pipelines read the signature of `step` to learn which arguments it takes; wraps keeps it.
        @functools.wraps(stock)
        def step(*args, **kwargs):
            result = stock(*args, **kwargs)
            # By name: CogVideoXDPMScheduler has other arguments in between.
            given = signature.bind(*args, **kwargs).arguments
            self._seen = (*(given.get(name) for name in ("model_output", "timestep", "sample")), result)
            return result

        scheduler.step = step

    def clean(self) -> torch.Tensor | None:
        """x̂₀ of the last step, shaped like the latents, or None where this scheduler's form is not known."""
        if self._seen is None:
            return None
        output, timestep, sample, result = self._seen
        if sample is None:
            return None
        if isinstance(result, tuple) and len(result) > 1 and getattr(result[1], "shape", None) == sample.shape:
            return result[1]
        if output is None or timestep is None:
            return None
        return predicted_clean(self._scheduler, output, timestep, sample)

    def forget(self) -> None:
        """Let go of the tensors."""
        self._seen = None


def predicted_clean(scheduler, output: torch.Tensor, timestep, sample: torch.Tensor) -> torch.Tensor | None:
    """x̂₀ from the model's output at a noisy sample, all of one shape; None for an unknown prediction type.

    Flow matching: x₀ = x − σ·v with σ = t / T. Diffusion with ᾱ: from ε, v or x₀ itself (Salimans & Ho 2022); samplers
    that scale their sample by √(1 + σ²) (Heun, KDPM2) by the same rules in that scale.
    """
    kind = scheduler.config.get("prediction_type")
    moment = float(timestep if not torch.is_tensor(timestep) else timestep.flatten()[0])
    if kind == "flow_prediction" or type(scheduler).__name__.startswith("FlowMatch"):
        return sample - moment / scheduler.config.num_train_timesteps * output
    alphas = getattr(scheduler, "alphas_cumprod", None)
    if alphas is None or kind not in ("epsilon", "v_prediction", "sample"):
        return None
    if kind == "sample":
        return output
    alpha = float(alphas[min(max(round(moment), 0), len(alphas) - 1)])
    signal, noise = alpha**0.5, (1 - alpha) ** 0.5
    if float(scheduler.init_noise_sigma) > 1.5:
        sample = sample * signal
    if kind == "v_prediction":
        return signal * sample - noise * output
    return (sample - noise * output) / max(signal, 1e-3)


def frames_first(pipe, latents: torch.Tensor, frames: int) -> torch.Tensor:
    """(F, C, h, w) of the first sample, in the order (frame, channel) whatever the family's layout.

    Latent frames that only fill up a temporal patch (CogVideoX 1.5 puts them in front) are left out.
    """
    first = latents[0] if type(pipe).__name__.startswith("CogVideoX") else latents[0].transpose(0, 1)
    return first[-((frames - 1) // pipe.vae_scale_factor_temporal + 1) :]


@functools.lru_cache(maxsize=4)
def _trained(folder: str, device: str):
    from engine.preview import PreviewDecoder

    return PreviewDecoder.load(folder, device)


class Preview:
    """Draws x̂₀ for one pipeline: by its trained decoder, else by colours fitted once, else not at all.

    path: where the fitted colours are kept.
    """

    def __init__(self, pipe, owner):
        self._pipe, self._colours = pipe, None
        self.path = cache_path(owner.model_hash).parent.parent / "previews" / f"{owner.model_hash}.npz"
        folder = Path(str(getattr(owner.pipe, "name_or_path", "") or "")) / "preview"
        self._folder = str(folder) if (folder / "config.json").is_file() else None
        if self._folder is None:
            stored = LatentColours.load(self.path)
            if stored is not None and stored.frames_each == pipe.vae_scale_factor_temporal:
                self._colours = stored

    @torch.no_grad()
    def draw(self, latents: torch.Tensor | None, frames: int) -> np.ndarray | None:
        """uint8 (F, h, w, 3) of latents in the pipeline's layout, or None where nothing is known yet."""
        if latents is None or (self._folder is None and self._colours is None):
            return None
        clip = frames_first(self._pipe, latents, frames)
        if self._folder is not None:
            pixels = _trained(self._folder, str(clip.device))(clip[None])[0].float().cpu().numpy()
            return np.round(np.clip(np.nan_to_num(pixels), 0, 1) * 255).astype(np.uint8)
        return self._colours.draw(clip.float().cpu().numpy())

    def learn(self, latents: torch.Tensor | None, frames: np.ndarray) -> None:
        """Fit the colours on a finished clip, uint8 (F, H, W, 3), if nothing draws previews yet."""
        if latents is None or self._folder is not None or self._colours is not None:
            return
        clip = frames_first(self._pipe, latents, len(frames)).float().cpu().numpy()
        # Video-to-video keeps the frames of its input, whose number need not fit whole latents.
        fits = len(clip) > 1 and len(frames) - 1 == (len(clip) - 1) * self._pipe.vae_scale_factor_temporal
        if fits and np.isfinite(clip).all():
            self._colours = LatentColours.fit(clip, frames)
            self._colours.save(self.path)


@dataclass(frozen=True)
class LatentColours:
    """A linear map from C latent channels (and 1) to RGB in [0, 1].

    first: float32 (C+1, 3), for the first latent, which stands for one frame; others: float32 (C+1, 3·r), for the
    others, which stand for r frames each.
    """

    first: np.ndarray
    others: np.ndarray

    @property
    def frames_each(self) -> int:
        """r: how many frames a latent stands for, but for the first."""
        return self.others.shape[1] // 3

    @classmethod
    def fit(cls, latents: np.ndarray, frames: np.ndarray) -> LatentColours:
        """Least squares from latents float32 (F, C, h, w) to frames uint8 (r(F−1)+1, H, W, 3), averaged down to h×w."""
        count, _, height, width = latents.shape
        small = torch.nn.functional.interpolate(
            torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 255,
            size=(height, width),
            mode="area",
        )
        colours = small.permute(0, 2, 3, 1).numpy()
        each = (len(frames) - 1) // (count - 1)
        inputs = _with_one(latents)
        # (F−1, r, h, w, 3) → rows of r colours per latent pixel
        later = colours[1:].reshape(count - 1, each, height, width, 3).transpose(0, 2, 3, 1, 4)
        return cls(
            _solve(inputs[:1].reshape(-1, inputs.shape[-1]), colours[:1].reshape(-1, 3)),
            _solve(inputs[1:].reshape(-1, inputs.shape[-1]), later.reshape(-1, 3 * each)),
        )

    def draw(self, latents: np.ndarray) -> np.ndarray:
        """uint8 (r(F−1)+1, h, w, 3) of latents float32 (F, C, h, w)."""
        inputs = _with_one(latents)
        later = inputs[1:] @ self.others
        frames, height, width, values = later.shape
        later = (
            later.reshape(frames, height, width, values // 3, 3).transpose(0, 3, 1, 2, 4).reshape(-1, height, width, 3)
        )
        pixels = np.concatenate([inputs[:1] @ self.first, later])
        return np.round(np.clip(np.nan_to_num(pixels), 0, 1) * 255).astype(np.uint8)

    def save(self, path: Path) -> None:
        """Write an npz file in one step; a folder that cannot be written costs the next run its previews, no more."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, lambda target: np.savez(target, first=self.first, others=self.others))
        except OSError:
            return

    @classmethod
    def load(cls, path: str | os.PathLike) -> LatentColours | None:
        """Read what `save` wrote, or None if there is nothing usable."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                first, others = stored["first"], stored["others"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        fits = first.ndim == others.ndim == 2 and len(first) == len(others) and first.shape[1] == 3
        return cls(first, others) if fits and others.shape[1] % 3 == 0 else None


def _with_one(latents: np.ndarray) -> np.ndarray:
    """float32 (F, h, w, C+1) of (F, C, h, w): channels last, and a constant."""
    last = latents.transpose(0, 2, 3, 1)
    return np.concatenate([last, np.ones((*last.shape[:-1], 1), np.float32)], -1)


def _solve(inputs: np.ndarray, colours: np.ndarray) -> np.ndarray:
    inputs, colours = inputs.astype(np.float64), colours.astype(np.float64)
    gram = inputs.T @ inputs
    gram[np.diag_indices_from(gram)] += RIDGE * np.trace(gram) / len(gram)
    return np.linalg.solve(gram, inputs.T @ colours).astype(np.float32)
