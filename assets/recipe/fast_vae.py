"""The stock CogVideoX autoencoder, computed a faster way for training. It owns no parameters.

The stock forward walks a clip in chunks (9 + 8 frames, 3 + 2 latents) and spends its time on layout changes.
Here a whole clip goes through at once, as contiguous (B, T, H, W, C), which cuDNN reads as channels-last:

- A causal convolution over the chunks with their caches is the causal convolution over the whole clip.
- GroupNorm's statistics are per chunk: they are summed per frame and combined per chunk.
- Nearest-neighbour upsampling commutes with the decoder's 1x1 convolutions of the latent, so those run at the
  latent's size.
Equality with `vae.encode` and `vae.decode` is tested in tests/assets.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNKS = {5: (3, 2), 9: (5, 4), 17: (9, 8)}        # frames of a whole clip at each temporal level


def norm_act(x, weight, bias, groups: int, eps: float, z=None, wy=None, by=None, wb=None, bb=None):
    """GroupNorm per chunk, the decoder's modulation by the latent z, SiLU; then the causal padding in time.

    x (B, T, H, W, C) -> (B, T + 2, H, W, C) in x.dtype: the first frame three times, as the convolution wants it.
    z (B, Tz, h, w, Cz) or None; wy, by, wb, bb: weights and biases of the two 1x1 convolutions.
    """
    b, t, h, w, c = x.shape
    xf = x.float()
    sums = torch.stack([xf.sum((2, 3)), (xf * xf).sum((2, 3))], -1)                 # (B, T, C, 2)
    sums = sums.view(b, t, groups, c // groups, 2).sum(3)                            # (B, T, G, 2)
    scales, shifts = [], []
    start = 0
    for length in CHUNKS[t]:
        total = sums[:, start:start + length].sum(1, keepdim=True) / (length * h * w * (c // groups))
        mean, variance = total[..., 0], (total[..., 1] - total[..., 0] ** 2).clamp(min=0)
        rstd = torch.rsqrt(variance + eps)                                           # (B, 1, G)
        scales.append(rstd.expand(b, length, groups))
        shifts.append((-mean * rstd).expand(b, length, groups))
        start += length
    scale = torch.cat(scales, 1).repeat_interleave(c // groups, 2) * weight.float()  # (B, T, C)
    shift = torch.cat(shifts, 1).repeat_interleave(c // groups, 2) * weight.float() + bias.float()
    y = xf * scale[:, :, None, None] + shift[:, :, None, None]
    if z is not None:
        r, rt = h // z.shape[2], (t - 1) // (z.shape[1] - 1)
        modulation = F.linear(z, torch.cat([wy, wb]), torch.cat([by, bb]))           # (B, Tz, h, w, 2C)
        if rt > 1:
            modulation = torch.cat([modulation[:, :1], modulation[:, 1:].repeat_interleave(rt, 1)], 1)
        factor, offset = modulation.float()[:, :, :, None, :, None].chunk(2, -1)
        y = y.view(b, t, h // r, r, w // r, r, c) * factor + offset
        y = y.view(b, t, h, w, c)
    y = F.silu(y).to(x.dtype)
    return torch.cat([y[:, :1], y[:, :1], y], 1)


def causal_pad(x):
    """(B, T, H, W, C) -> (B, T + 2, H, W, C)."""
    return torch.cat([x[:, :1], x[:, :1], x], 1)


def conv3d(x, weight, bias, stacked: bool):
    """3x3x3 convolution of a causally padded (B, T + 2, H, W, C); returns (B, T, H, W, C').

    stacked: as one 2D convolution over three stacked frames. Channels are padded to multiples of 8 with zeros,
    because tensor cores need that.
    """
    wide, c = weight.shape[0], x.shape[-1]
    more_in, more_out = -c % 8, -wide % 8
    if more_in:
        x = F.pad(x, (0, more_in))
    weight = F.pad(weight, (0, 0) * 3 + (0, more_in, 0, more_out)).to(x.dtype)
    bias = F.pad(bias, (0, more_out)).to(x.dtype)
    if stacked:
        b, t, h, w, c = x.shape
        t = t - 2
        frames = torch.cat([x[:, k:k + t] for k in range(3)], -1).view(b * t, h, w, 3 * c).permute(0, 3, 1, 2)
        flat = weight.permute(0, 2, 1, 3, 4).reshape(weight.shape[0], 3 * c, 3, 3)
        y = F.conv2d(frames, flat.contiguous(memory_format=torch.channels_last), bias, padding=1)
        y = y.permute(0, 2, 3, 1).reshape(b, t, h, w, -1)
    else:
        weight = weight.contiguous(memory_format=torch.channels_last_3d)
        y = F.conv3d(x.permute(0, 4, 1, 2, 3), weight, bias, padding=(0, 1, 1)).permute(0, 2, 3, 4, 1)
    return y[..., :wide] if more_out else y


def conv2d(x, weight, bias, stride: int = 1, padding: int = 1):
    """2D convolution of every frame of (B, T, H, W, C)."""
    b, t, h, w, c = x.shape
    weight = weight.to(x.dtype).contiguous(memory_format=torch.channels_last)
    y = F.conv2d(x.reshape(b * t, h, w, c).permute(0, 3, 1, 2), weight, bias.to(x.dtype), stride, padding)
    y = y.permute(0, 2, 3, 1)
    return y.reshape(b, t, *y.shape[1:])


class FastVAE:
    """encode(clips) and decode(latents) with the parameters of a stock autoencoder.

    stacked: which of the two 3D convolutions to use; the trainer times both on the card at hand.
    compiled: compile the normalisation, which is where the memory traffic goes.
    """

    def __init__(self, vae, dtype=torch.float32, stacked: bool = False, compiled: bool = False):
        self.vae, self.dtype = vae, dtype
        self.stacked = stacked
        self.norm_act = torch.compile(norm_act, dynamic=False) if compiled else norm_act

    def conv(self, x, weight, bias):
        return conv3d(x, weight, bias, self.stacked)

    def _norm(self, norm, x, z=None):
        if z is None:
            return self.norm_act(x, norm.weight, norm.bias, norm.num_groups, norm.eps)
        plain, y, b = norm.norm_layer, norm.conv_y.conv, norm.conv_b.conv
        flat = lambda conv: conv.weight.to(x.dtype).flatten(1)
        return self.norm_act(x, plain.weight, plain.bias, plain.num_groups, plain.eps, z, flat(y), y.bias.to(x.dtype),
                             flat(b), b.bias.to(x.dtype))

    def _resnet(self, block, x, z=None):
        y = self.conv(self._norm(block.norm1, x, z), block.conv1.conv.weight, block.conv1.conv.bias)
        y = self.conv(self._norm(block.norm2, y, z), block.conv2.conv.weight, block.conv2.conv.bias)
        if block.in_channels != block.out_channels:
            x = F.linear(x, block.conv_shortcut.weight.to(x.dtype).flatten(1), block.conv_shortcut.bias.to(x.dtype))
        return x + y

    def encode(self, clips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """clips (B, 17, 128, 128, 3) in [-1, 1] -> mean and log-variance (B, 5, 16, 16, C), float32."""
        e = self.vae.encoder
        x = self.conv(causal_pad(clips.to(self.dtype)), e.conv_in.conv.weight, e.conv_in.conv.bias)
        for block in e.down_blocks:
            for resnet in block.resnets:
                x = self._resnet(resnet, x)
            for down in block.downsamplers or ():
                if down.compress_time:
                    x = torch.cat([x[:, :1], 0.5 * (x[:, 1::2] + x[:, 2::2])], 1)
                x = conv2d(F.pad(x, (0, 0, 0, 1, 0, 1)), down.conv.weight, down.conv.bias, stride=2, padding=0)
        for resnet in e.mid_block.resnets:
            x = self._resnet(resnet, x)
        x = self.conv(self._norm(e.norm_out, x), e.conv_out.conv.weight, e.conv_out.conv.bias)
        mean, logvar = x.float().chunk(2, -1)
        return mean, logvar.clamp(-30, 20)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """latents (B, 5, 16, 16, C), not yet scaled -> clips (B, 17, 128, 128, 3), about [-1, 1], self.dtype."""
        d = self.vae.decoder
        z = latents.to(self.dtype)
        x = self.conv(causal_pad(z), d.conv_in.conv.weight, d.conv_in.conv.bias)
        for resnet in d.mid_block.resnets:
            x = self._resnet(resnet, x, z)
        for block in d.up_blocks:
            for resnet in block.resnets:
                x = self._resnet(resnet, x, z)
            for up in block.upsamplers or ():
                if up.compress_time:
                    x = torch.cat([x[:, :1], x[:, 1:].repeat_interleave(2, 1)], 1)
                b, t, h, w, c = x.shape
                x = x[:, :, :, None, :, None].expand(b, t, h, 2, w, 2, c).reshape(b, t, 2 * h, 2 * w, c)
                x = conv2d(x, up.conv.weight, up.conv.bias)
        return self.conv(self._norm(d.norm_out, x, z), d.conv_out.conv.weight, d.conv_out.conv.bias)
