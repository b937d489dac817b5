"""The predicted clean clip, cheaply: a small decoder for the embedded model's latents, for previews while it runs.

Four convolutions on three neighbouring latents give four frames of 128x128 each; the first latent stands for one
frame. Distilled on the training world by assets/recipe/train_preview.py, also on mixtures of clips, because an
early prediction is an average of what is still possible.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F


class PreviewDecoder(nn.Module):
    """(B, T, C, h, w) latents as the pipeline holds them (scaled) -> (B, 4(T-1)+1, 8h, 8w, 3) float32 in [0, 1]."""

    def __init__(self, channels: int = 16, width: int = 88):
        super().__init__()
        self.channels, self.width = channels, width
        self.inward = nn.Conv2d(3 * channels, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.outward = nn.Conv2d(width, 4 * 3 * 64, 1)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Raises ValueError when the latents are not (B, T, channels, h, w)."""
        if latents.ndim != 5 or latents.shape[2] != self.channels:
            raise ValueError(f"Expected latents (batch, frames, {self.channels}, height, width); "
                             f"got {tuple(latents.shape)}.")
        b, t, c, h, w = latents.shape
        x = latents.to(self.inward.weight.dtype)
        x = torch.cat([torch.cat([x[:, :1], x[:, :-1]], 1), x, torch.cat([x[:, 1:], x[:, -1:]], 1)], 2)
        x = F.silu(self.inward(x.reshape(b * t, 3 * c, h, w)))
        x = x + F.silu(self.middle(x))
        x = F.pixel_shuffle(self.outward(x), 8)                                # (B*T, 12, 8h, 8w)
        x = x.view(b, t * 4, 3, 8 * h, 8 * w)[:, 3:]
        return torch.sigmoid(x.permute(0, 1, 3, 4, 2).float())

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors (bf16)."""
        from safetensors.torch import save_file
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"channels": self.channels, "width": self.width}) + "\n")
        save_file({k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in self.state_dict().items()},
                  folder / "model.safetensors")

    @classmethod
    def load(cls, folder: str | Path, device="cpu") -> "PreviewDecoder":
        """Read what save wrote, as float32. Raises ValueError with one sentence if the folder does not hold it."""
        from safetensors.torch import load_file
        folder = Path(folder)
        try:
            decoder = cls(**json.loads((folder / "config.json").read_text()))
            decoder.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
        except Exception as error:
            raise ValueError(f"Expected a preview decoder (config.json and model.safetensors) in {folder}; "
                             f"reading it failed: {error}. Run assets/recipe/train_preview.py again.") from error
        return decoder.to(device).eval().requires_grad_(False)
