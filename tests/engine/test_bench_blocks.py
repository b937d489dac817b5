"""The block bench takes turns, and its rows hold ratios that came from as many pairs as they say."""

import pandas as pd
import pytest

from engine import bench_blocks, policy
from engine.cli import main
from engine.settings import PRESETS
from tests import pipelines


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    pipelines.cogvideox().save_pretrained(made)
    return str(made)


def quickly(monkeypatch, **few):
    """Have the command take a few pairs."""
    stock = bench_blocks.compare
    monkeypatch.setattr(
        bench_blocks, "compare", lambda *given, **more: stock(*given, **more, **{"block_pairs": 2, **few})
    )


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
    quickly(monkeypatch, loop_pairs=0)
    out = tmp_path / "blocks.csv"
    given = ["bench", "--blocks", "--model", folder, "--threads", "1", "--dtypes", "float32", "--out", str(out)]
    assert main(given) == 0
    assert "times stock" in capsys.readouterr().out
    table = pd.read_csv(out)
    assert list(table.columns) == list(bench_blocks.COLUMNS) and list(table["what"]) == ["block"]


def test_a_table_grows_over_several_calls(folder, tmp_path, monkeypatch):
    quickly(monkeypatch, loop_pairs=0)
    out = tmp_path / "blocks.csv"
    given = ["bench", "--blocks", "--model", folder, "--threads", "1", "--out", str(out), "--append", "--commit"]
    assert main([*given, "0000001", "--dtypes", "float32", "--presets", "w4a8", "int8_tdc"]) == 0
    first = pd.read_csv(out, dtype={"commit": str})
    assert main([*given, "0000002", "--dtypes", "bfloat16", "float32"]) == 0
    table = pd.read_csv(out, dtype={"commit": str})
    assert list(zip(table["preset"], table["dtype"], table["commit"], strict=True)) == [
        ("int8_tdc", "float32", "0000001"), ("w4a8", "bfloat16", "0000002"), ("w4a8", "float32", "0000002"),
    ]  # fmt: skip
    assert table["ratio"].iloc[0] == first["ratio"].iloc[1]


@pytest.mark.parametrize("held", ["method,wall\nstock,1\n", "", "\0\1"])
def test_a_file_that_is_no_such_table_is_not_appended_to(folder, tmp_path, capsys, held):
    out = tmp_path / "other.csv"
    out.write_text(held)
    assert main(["bench", "--blocks", "--model", folder, "--append", "--out", str(out)]) == 2
    assert "'other.csv' is none" in capsys.readouterr().err and out.read_text() == held


def test_a_dynamic_preset_has_a_loop_and_no_block(folder, capsys, monkeypatch):
    """Its block would stay at a first step, which takes 8 bits whatever the preset."""
    quickly(monkeypatch, loop_pairs=1, steps=2)
    given = ["bench", "--blocks", "--model", folder, "--threads", "1", "--dtypes", "float32", "--presets"]
    assert main([*given, "sixbit", "tdc", "dmpq"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sixbit, dmpq: the loop alone")
    rows = [" ".join(line.split("float32")[0].split()) for line in lines[1:]]
    assert rows == ["loop of 2 steps sixbit", "block tdc", "loop of 2 steps tdc", "loop of 2 steps dmpq"]


def test_the_block_that_is_timed_is_what_its_preset_names(folder, monkeypatch):
    taken, plan = set(), policy.plan

    def noted(*given):
        made = plan(*given)
        taken.update(group.precision for block in made for group in block.groups.values())
        return made

    monkeypatch.setattr(policy, "plan", noted)
    for preset in ("w4a16", "w4a8", "w4a4", "int8_tdc", "tdc"):
        taken.clear()
        assert bench_blocks.has_block_row(preset)
        list(bench_blocks.compare(folder, "float32", [preset], [1], block_pairs=1, loop_pairs=0))
        assert taken == {PRESETS[preset].precision}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--model", "cogvideox-5b"], "needs a model folder"),
        (["--presets", "fastest"], "expected any of"),
        (["--dtypes", "float16"], "expected float32 or bfloat16"),
        (["--threads", "0"], "--threads must be from 1 to 1,024; got 0"),
        (["--threads", "1", "99999"], "--threads must be from 1 to 1,024; got 99999"),
        (["--append"], "--append needs the table to append to"),
        (["--errors", "--methods", "w4a8"], "--blocks does not take --methods and --errors; leave them out"),
        (["--no-profile"], "--blocks does not take --no-profile; leave it out"),
    ],
)
def test_wrong_use_gets_a_sentence(folder, more, sentence, capsys):
    assert main(["bench", "--blocks", "--model", folder, *more]) == 2
    assert sentence in capsys.readouterr().err
