"""The gated residual: its definition."""

import pytest
import torch

from kernels.gate_residual import gate_residual


def test_adds_the_gated_slice_and_writes_where_told():
    torch.manual_seed(0)
    joint, gate = torch.randn(2, 9, 32), torch.randn(2, 32)
    x = torch.randn(2, 6, 32)
    expected = x + gate[:, None] * joint[:, 3:]
    torch.testing.assert_close(gate_residual(x, joint[:, 3:], gate), expected)
    torch.testing.assert_close(gate_residual(x, joint[:, 3:]), x + joint[:, 3:])
    out = gate_residual(x, joint[:, 3:], gate, out=x)
    assert out is x
    torch.testing.assert_close(x, expected)


def test_rounds_once():
    x, update = torch.full((1, 1, 16), 256.0), torch.full((1, 1, 16), 1.0)
    gate = torch.full((1, 16), 1.5)
    y = gate_residual(x.bfloat16(), update.bfloat16(), gate.bfloat16())
    assert y.dtype == torch.bfloat16 and (y == 258).all()


def test_refusals_are_sentences():
    x = torch.randn(2, 6, 32)
    with pytest.raises(ValueError, match="one shape"):
        gate_residual(x, x[:, 1:])
    with pytest.raises(ValueError, match="gate must have shape"):
        gate_residual(x, x, torch.randn(2, 31))
    with pytest.raises(ValueError, match="out must be contiguous"):
        gate_residual(x, x, out=torch.empty(2, 32, 6).transpose(1, 2))
