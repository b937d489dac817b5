"""The gated residual as a Triton kernel, one token a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton_rows import as_samples, load_chunk, row_shape, row_start, store_chunk


@triton.jit(do_not_specialize=["tokens"])
def _gate_residual_kernel(
    x, update, gate, out, tokens, x_batch, x_token, update_batch, update_token, gate_batch,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, HAS_GATE: tl.constexpr,
):
    row = tl.program_id(0)
    x_row = x + row_start(row, tokens, x_batch, x_token)
    update_row = update + row_start(row, tokens, update_batch, update_token)
    gate_row = gate + (row // tokens).to(tl.int64) * gate_batch
    for i in tl.static_range(CHUNKS):
        total = load_chunk(update_row, i, CHANNELS, WIDTH, True).to(tl.float32)
        if HAS_GATE:
            total *= load_chunk(gate_row, i, CHANNELS, WIDTH).to(tl.float32)
        total += load_chunk(x_row, i, CHANNELS, WIDTH, True).to(tl.float32)
        store_chunk(out + row.to(tl.int64) * CHANNELS, total, i, CHANNELS, WIDTH)


def gate_residual_triton(x, update, gate=None, out=None):
    """`gate_residual` on a GPU; see there for shapes and meaning."""
    xs, updates = as_samples(x), as_samples(update)
    batch, tokens, channels = xs.shape
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if gate is not None and gate.stride(-1) != 1:
        gate = gate.contiguous()
    with torch.cuda.device_of(xs):
        _gate_residual_kernel[(batch * tokens,)](
            xs, updates, xs if gate is None else gate, out, tokens,
            xs.stride(0), xs.stride(1), updates.stride(0), updates.stride(1),
            0 if gate is None else gate.stride(0), HAS_GATE=gate is not None, **row_shape(channels),
        )
    return out


_TYPES = {
    **dict.fromkeys(("x", "update", "gate", "out"), "*bf16"), "tokens": "i32",
    **dict.fromkeys(("x_batch", "x_token", "update_batch", "update_token", "gate_batch"), "i64"),
}
COMPILE_CASES = [
    (_gate_residual_kernel, _TYPES,
     {"CHANNELS": 512, "WIDTH": 256, "CHUNKS": 2, "HAS_GATE": True}, {"num_warps": 1}),
]
