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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--explore", "--part", "nonsense"], "expected i/n"),
        (["--explore", "--part", "4/4"], "expected i/n"),
        (["--part", "0/4"], "give --explore too"),
        (["--smoke", "--out", "rows.csv"], "neither --smoke nor --part"),
        (["--tiny", "--out", "."], "give a file's name"),
        (["--tiny", "--only", "nonsense"], "norm_modulate"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_in_one_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(arguments)
    told = capsys.readouterr()
    assert stopped.value.code == 2 and not told.out
    assert words in told.err and "Traceback" not in told.err and told.err.count("error:") == 1
