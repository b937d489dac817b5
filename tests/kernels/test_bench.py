"""The kernel bench refuses what would take hours; what it measures needs a GPU."""

import pytest
import torch

from kernels import bench


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is no GPU")
@pytest.mark.parametrize("arguments", [[], ["--explore"], ["--out", "rows.csv"]])
def test_full_size_without_a_gpu_is_refused_in_one_sentence(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(arguments)
    told = capsys.readouterr()
    assert stopped.value.code == 2 and not told.out
    assert "--smoke or --tiny" in told.err and told.err.count("\n") == 1
