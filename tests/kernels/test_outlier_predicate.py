"""PDR's verdict: the worst sample speaks, and NaN counts as an outlier."""

import pytest
import torch

from kernels import token_stats
from kernels.outlier_predicate import outlier_predicate


def verdict(x, threshold):
    return outlier_predicate(*token_stats(x), x.shape[0], x.shape[-1], threshold)


def test_the_worst_sample_speaks_for_the_batch():
    torch.manual_seed(0)
    x = torch.randn(2, 30, 64)
    x[1, 4, 5] = 60.0
    calm, loud = x[:1], x[1:]
    assert verdict(calm, 25.0).flag.item() == 0 and verdict(loud, 25.0).flag.item() == 1
    both = verdict(x, 25.0)
    assert both.flag.shape == (1,) and both.flag.dtype == torch.int32 and both.flag.item() == 1
    expected = x.abs().amax(dim=(1, 2)) / x.abs().mean(dim=(1, 2))
    torch.testing.assert_close(both.ratio, expected)


def test_zeros_and_nan():
    x = torch.zeros(2, 4, 16)
    assert verdict(x, 25.0).flag.item() == 0 and (verdict(x, 25.0).ratio == 1).all()
    x[1, 2, 3] = float("nan")
    assert verdict(x, 25.0).flag.item() == 1


def test_tokens_must_divide_into_the_batch():
    with pytest.raises(ValueError, match="do not divide into a batch of 3"):
        outlier_predicate(torch.ones(8), torch.ones(8), 3, 16, 25.0)
