"""The T5 encoder's forward for training: no checks that wait for the device, no atomics in the backward pass.

It owns no parameters; equality with the stock encoder is tested in tests/assets.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class FastText:
    """encode(ids (B, L)) -> (B, L, d) of a stock T5EncoderModel with gated-gelu layers."""

    def __init__(self, encoder):
        self.encoder = encoder
        self.buckets: dict[int, torch.Tensor] = {}

    def _bias(self, attention, length: int, dtype) -> torch.Tensor:
        """(1, heads, L, L) relative position bias, as a product with constant one-hot rows."""
        table = attention.relative_attention_bias.weight
        if length not in self.buckets:
            at = torch.arange(length)
            index = attention._relative_position_bucket(
                at[None] - at[:, None], bidirectional=True, num_buckets=attention.relative_attention_num_buckets,
                max_distance=attention.relative_attention_max_distance)
            self.buckets[length] = F.one_hot(index, table.shape[0]).to(table.device, dtype)
        return (self.buckets[length] @ table).permute(2, 0, 1)[None]

    def encode(self, ids: torch.Tensor) -> torch.Tensor:
        table = self.encoder.shared.weight
        stack = self.encoder.encoder
        x = (ids[..., None] == torch.arange(table.shape[0], device=ids.device)).to(table.dtype) @ table
        bias = None
        for block in stack.block:
            layer, attention = block.layer[0], block.layer[0].SelfAttention
            if bias is None:
                bias = self._bias(attention, ids.shape[1], x.dtype)
            n = layer.layer_norm(x)
            q, k, v = (linear(n).unflatten(-1, (attention.n_heads, -1)).transpose(1, 2)
                       for linear in (attention.q, attention.k, attention.v))
            share = (q @ k.transpose(2, 3) + bias).float().softmax(-1).to(x.dtype)
            x = x + attention.o((share @ v).transpose(1, 2).flatten(2))
            feed = block.layer[1]
            dense = feed.DenseReluDense
            n = feed.layer_norm(x)
            x = x + dense.wo(F.gelu(dense.wi_0(n), approximate="tanh") * dense.wi_1(n))
        return stack.final_layer_norm(x)
