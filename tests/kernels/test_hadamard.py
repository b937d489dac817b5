"""The rotation is orthonormal, its own inverse, and cancels when folded into the weight."""

import math

import pytest
import torch

from kernels.hadamard import hadamard, hadamard_block


@pytest.mark.parametrize(("size", "block"), [(256, 128), (192, 64), (96, 32), (48, 16), (40, 1), (3072, 128), (1, 1)])
def test_block_is_the_largest_that_divides(size, block):
    assert hadamard_block(size) == block


@pytest.mark.parametrize("block", [1, 16, 32, 64, 128])
def test_rotation_equals_the_matrix_and_is_orthonormal(block):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 256, dtype=torch.float64)
    # The sign at (i, j) is that of the ones which the two numbers share in binary.
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    matrix = torch.tensor(signs, dtype=torch.float64) / math.sqrt(block)
    expected = (x.view(-1, block) @ matrix).view(x.shape)
    torch.testing.assert_close(hadamard(x, block), expected)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(block, dtype=torch.float64))
    torch.testing.assert_close(hadamard(hadamard(x, block), block), x)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_folded_weight_and_rotated_input_give_the_same_product(block):
    torch.manual_seed(0)
    x, weight = torch.randn(7, 128), torch.randn(9, 128)
    torch.testing.assert_close(hadamard(x, block) @ hadamard(weight, block).T, x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_input_is_left_alone_and_the_result_is_float32(dtype):
    x = torch.randn(4, 64).to(dtype)
    before = x.clone()
    for block in (1, 64):
        rotated = hadamard(x, block)
        assert rotated.dtype == torch.float32
        rotated.zero_()
        assert torch.equal(x, before)


def test_strided_input():
    x = torch.randn(64, 10).T
    assert torch.equal(hadamard(x, 64), hadamard(x.contiguous(), 64))


@pytest.mark.parametrize(("size", "block"), [(96, 64), (96, 48), (64, 0), (256, 256), (64, 8)])
def test_a_block_that_does_not_fit_is_refused(size, block):
    with pytest.raises(ValueError, match="Hadamard block must be"):
        hadamard(torch.randn(2, size), block)
