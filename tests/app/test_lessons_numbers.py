"""The lessons' arithmetic: golden values derived by hand, and equality with the kernels."""

import numpy as np
import pytest

from app.lessons import numbers

VALUES = np.random.default_rng(0)


def test_e2m1_ties_go_to_the_even_code():
    # Halfway points .25 .75 1.25 1.75 2.5 3.5 5 -> codes 0 2 2 4 4 6 6 (even mantissa bit wins).
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32)
    assert numbers.round_e2m1(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert numbers.round_e2m1(-ties).tolist() == [0, -2, -2, -4, -4, -6, -6]


def test_e4m3_rounds_like_the_format():
    # 448 is the largest; 2**-9 the smallest; 17 lies between 16 and 18 (tie to even mantissa: 16).
    x = np.array([0, 500, 448, 2**-9, 2**-10, 3 * 2**-10, 17, 19, 1.0625], dtype=np.float32)
    expected = [0, 448, 448, 2**-9, 0, 2 * 2**-9, 16, 20, 1.0]
    assert numbers.round_e4m3(x).tolist() == expected


def test_a_block_that_fits_the_grid_is_exact():
    block = np.concatenate([numbers.E2M1, -numbers.E2M1])
    token = numbers.nvfp4(block)
    # max 6 -> token scale 6 / 2688, block scale 448 (the largest E4M3 value): their product is 1.
    np.testing.assert_allclose(token.ruler, 1.0, rtol=1e-6)
    np.testing.assert_allclose(token.values, block, rtol=1e-6)
    assert token.codes.tolist() == [*range(8), 0, *range(-1, -8, -1)]


def test_one_outlier_costs_its_neighbours_in_nvfp4_and_the_token_in_int8():
    token = VALUES.normal(size=128).astype(np.float32)
    spiked = token.copy()
    spiked[40] = 30.0
    neighbours, others = np.r_[32:40, 41:48], np.r_[0:32, 48:128]

    def error(quantize, row, where):
        return numbers.relative_error(quantize(row).values[where], row[where])

    assert error(numbers.nvfp4, spiked, neighbours) > 3 * error(numbers.nvfp4, token, neighbours)
    assert error(numbers.nvfp4, spiked, others) < 1.15 * error(numbers.nvfp4, token, others)
    assert error(numbers.int8, spiked, others) > 5 * error(numbers.int8, token, others)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_hadamard_is_orthonormal_and_its_own_inverse(block):
    token = VALUES.normal(size=(3, 256)).astype(np.float32)
    turned = numbers.hadamard(token, block)
    np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(token), rtol=1e-5)
    np.testing.assert_allclose(numbers.hadamard(turned, block), token, atol=1e-5)


def test_hadamard_spreads_a_single_value_evenly():
    one = np.zeros(128, dtype=np.float32)
    one[5] = 1.0
    np.testing.assert_allclose(np.abs(numbers.hadamard(one)), 128**-0.5, rtol=1e-6)


@pytest.mark.parametrize("quantize", [numbers.nvfp4, numbers.int8])
def test_zeros_stay_zeros_and_broken_rows_are_refused(quantize):
    assert not quantize(np.zeros(32)).values.any()
    with pytest.raises(ValueError, match="finite"):
        quantize(np.array([1.0, np.nan] * 8))


def test_nvfp4_refuses_half_blocks():
    with pytest.raises(ValueError, match="16"):
        numbers.nvfp4(np.ones(20))


def test_outlier_ratio_is_the_papers():
    assert numbers.outlier_ratio(np.array([1.0, -3.0])) == 1.5
    assert np.isnan(numbers.outlier_ratio(np.zeros(4)))


@pytest.mark.parametrize("width", [16, 128, 384, 1536])
@pytest.mark.parametrize("spike", [1.0, 40.0])
def test_equal_to_the_kernels(width, spike):
    torch = pytest.importorskip("torch")
    from kernels.activations import dequantize
    from kernels.hadamard import hadamard, hadamard_block
    from kernels.quantize_int8 import quantize_int8
    from kernels.quantize_nvfp4 import quantize_nvfp4

    rows = np.random.default_rng(width).normal(size=(8, width)).astype(np.float32)
    rows[:, 3] *= spike
    rows[0] = 0.0
    assert numbers.hadamard_block(width) == hadamard_block(width)
    turned = hadamard(torch.from_numpy(rows), hadamard_block(width)).numpy()
    np.testing.assert_allclose(numbers.hadamard(rows), turned, atol=2e-6 * spike)
    for theirs, ours in ((quantize_nvfp4, numbers.nvfp4), (quantize_int8, numbers.int8)):
        stored = dequantize(theirs(torch.from_numpy(rows)), torch.float32).numpy()
        for row, values in zip(rows, stored, strict=True):
            np.testing.assert_allclose(ours(row).values, values, rtol=1e-6, atol=1e-7)
