"""The block bench takes turns, and its rows hold ratios that came from as many pairs as they say."""

import pandas as pd
import pytest

from engine import bench_blocks
from engine.cli import main
from tests import pipelines


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    pipelines.cogvideox().save_pretrained(made)
    return str(made)


def test_rows_of_a_block_and_a_loop(folder):
    few = dict(block_pairs=4, loop_pairs=2, steps=2)
    rows = list(bench_blocks.compare(folder, "float32", ["w4a8", "int8_tdc"], [1], commit="abc", **few))
    assert [(row["what"], row["preset"]) for row in rows] == [
        ("block", "w4a8"), ("loop of 2 steps", "w4a8"), ("block", "int8_tdc"), ("loop of 2 steps", "int8_tdc"),
    ]  # fmt: skip
    assert all(set(row) == set(bench_blocks.COLUMNS) for row in rows)
    assert [row["pairs"] for row in rows] == [4, 2, 4, 2]
    assert all(0 < row["lower_quartile"] <= row["ratio"] <= row["upper_quartile"] for row in rows)


def test_stock_and_ours_take_turns_in_being_first():
    order = []
    ratios = bench_blocks._take_turns(lambda: order.append("stock") or 2.0, lambda: order.append("ours") or 3.0, 4)
    assert ratios == [1.5] * 4
    assert order[2:] == ["ours", "stock", "stock", "ours", "ours", "stock", "stock", "ours"]


def test_the_command_writes_the_table(folder, tmp_path, capsys, monkeypatch):
    stock = bench_blocks.compare
    monkeypatch.setattr(
        bench_blocks, "compare", lambda *given, **more: stock(*given, **more, block_pairs=2, loop_pairs=0)
    )
    out = tmp_path / "blocks.csv"
    given = ["bench", "--blocks", "--model", folder, "--threads", "1", "--dtypes", "float32", "--out", str(out)]
    assert main(given) == 0
    assert "times stock" in capsys.readouterr().out
    table = pd.read_csv(out)
    assert list(table.columns) == list(bench_blocks.COLUMNS) and list(table["what"]) == ["block"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--model", "cogvideox-5b"], "needs a model folder"),
        (["--presets", "fastest"], "expected any of"),
        (["--dtypes", "float16"], "expected float32 or bfloat16"),
        (["--threads", "0"], "at least 1"),
    ],
)
def test_wrong_use_gets_a_sentence(folder, more, sentence, capsys):
    assert main(["bench", "--blocks", "--model", folder, *more]) == 2
    assert sentence in capsys.readouterr().err
