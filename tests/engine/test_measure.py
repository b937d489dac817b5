"""The signals against values worked out by hand."""

import math

import pytest
import torch

from engine import measure
from kernels import pack_weight, quantized_linear
from kernels.residual import residual_delta


def test_gamma_joins_streams_and_takes_the_worst_sample():
    # Sample 0: |Δ| = 2 + 1, |X| = 4 + 2 -> .5. Sample 1: |Δ| = 1 + 1, |X| = 4 + 4 -> .25.
    video = torch.tensor([[2.0, 4.0, 0, 0], [1.0, 4.0, 0, 0]])
    text = torch.tensor([[1.0, 2.0, 0, 0], [1.0, 4.0, 0, 0]])
    assert measure.gamma([video, text]).item() == pytest.approx(0.5)


def test_drift_takes_the_worst_stream_and_sample():
    # .1 and .2 in the video stream, .4 and .3 in the text stream.
    video = torch.tensor([[0, 0, 1.0, 10.0], [0, 0, 2.0, 10.0]])
    text = torch.tensor([[0, 0, 4.0, 10.0], [0, 0, 3.0, 10.0]])
    assert measure.drift([video, text]).item() == pytest.approx(0.4)


def test_drift_is_unknown_without_a_previous_delta():
    x = torch.ones(1, 2, 4)
    _, stats = residual_delta(x, x + 1, None)
    assert math.isnan(measure.drift([stats]).item())


def test_stream_change_agrees_with_the_fused_sums():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5, 32, generator=generator), torch.randn(2, 5, 32, generator=generator)
    _, stats = residual_delta(x, y, None)
    torch.testing.assert_close(measure.stream_change(x, y), stats[:, :2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_numbers_break_gamma(value):
    x, y = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    y[1, 2, 3] = value
    assert not measure.gamma([measure.stream_change(x, y)]).isfinite()


def test_a_stream_of_zeros_stays_finite():
    zero = torch.zeros(1, 2, 4)
    assert measure.gamma([measure.stream_change(zero, zero)]).item() == 0
    assert measure.gamma([measure.stream_change(zero, zero + 1)]).isfinite()


def test_outlier_ratio_is_the_worst_samples():
    # Sample 0: max 8, mean (7·1 + 8)/8 -> 64/15. Sample 1: all equal -> 1.
    x = torch.ones(2, 2, 4)
    x[0, 1, 3] = -8
    assert measure.worst_outlier_ratio(x).item() == pytest.approx(64 / 15)


def test_worst_block_holds_the_largest_value_of_its_token():
    x = torch.zeros(2, 3, 64)
    x[1, 2, 32:48] = torch.arange(16.0)
    x[1, 2, 40] = -100
    block = measure.worst_block(x)
    assert block.tolist() == x[1, 2, 32:48].tolist() and block.abs().max() == x[1, 2].abs().max()


@pytest.mark.parametrize("width", [5, 16, 24])
def test_worst_block_of_odd_widths(width):
    x = torch.zeros(1, 2, width)
    x[0, 1, width - 1] = 3
    block = measure.worst_block(x)
    assert block.shape == (16,) and block.max() == 3


def test_activation_errors_leave_the_weights_own_error_out():
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(48, 128, generator=generator), torch.randn(2, 6, 128, generator=generator)
    packed = pack_weight(weight)
    errors = measure.activation_errors(x, packed, [16, 32])
    exact = quantized_linear(x, packed, None, "w4a16")
    for found, precision in zip(errors.tolist(), ("nvfp4", "int8")):
        rounded = quantized_linear(x, packed, None, precision)
        by_hand = max(
            ((rounded - exact)[s, :, rows].norm() / exact[s, :, rows].norm()).item()
            for s in range(2) for rows in (slice(0, 16), slice(16, 48))
        )
        assert found == pytest.approx(by_hand, rel=1e-4)
    assert errors[0] > 5 * errors[1] > 0


def test_gather_returns_what_was_added_in_one_go():
    gather = measure.Gather()
    assert gather.read() == {}
    gather.add("a", torch.tensor(1.5))
    gather.add(("b", 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    assert gather.read() == {"a": [1.5], ("b", 2): [1.0, 2.0, 3.0, 4.0]}
