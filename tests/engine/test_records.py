"""Records: the vocabulary, and calibration files that are whole, honest and refused in one sentence otherwise."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from engine.records import BITS, Calibration, CalibrationError, Coefficient
from tests.synthetic import calibration, signals

PURE = ["engine", "engine.records", "engine.settings", "engine.policy", "engine.trace", "engine.tracefile",
        "engine.replay", "engine.signals", "engine.difference", "engine.grid", "engine.cost", "engine.files"]  # fmt: skip


def test_the_pure_core_never_imports_torch():
    code = f"import sys, importlib; [importlib.import_module(n) for n in {PURE}]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_public_names_stay_functions_after_their_files_were_imported():
    code = (
        "import engine.replay, engine.policy, sys\n"
        "from engine import Policy, Trace, replay\n"
        "print(callable(replay), Policy.preset('sixbit') == Policy(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    import engine

    with pytest.raises(AttributeError, match="no attribute 'reply'"):
        engine.reply  # noqa: B018 the access is the test


def test_bits_are_the_papers_convention():
    assert BITS == {"nvfp4": 4, "int8": 8, "w4a16": 16, "stock": 16, "skipped": 0}


@pytest.fixture
def fitted() -> Calibration:
    return calibration(signals(blocks=3, steps=8), steps=8)


def test_calibration_survives_its_file(fitted, tmp_path):
    fitted.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == fitted


def test_the_hash_follows_what_decides_and_nothing_else(fitted):
    document = fitted.to_dict()
    assert Calibration.from_dict({**document, "created_by": "somebody"}).hash == fitted.hash
    document["rows"][0]["alpha"] += 1e-9
    assert Calibration.from_dict(document).hash != fitted.hash


def test_lines_of_a_block_and_the_table(fitted):
    lines = fitted.for_block("transformer", 1)
    assert list(lines) == ["qkv", "out", "up", "down"]
    assert isinstance(lines["qkv"], Coefficient)
    assert fitted.for_block("transformer", 99) == {} == fitted.for_block("other", 1)
    table = fitted.table()
    assert list(table.columns) == ["model", "block", "group", "alpha", "beta", "r2", "samples", "weight"]
    assert len(table) == 12


@pytest.mark.parametrize(
    "change, said",
    [
        ({"kind": "something"}, 'expected "kind"'),
        ({"steps": 0}, "steps must be a whole number from 1"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": True}, "steps must be a whole number"),
        ({"guidance": None}, "guidance must be a finite number"),
        ({"guidance": float("inf")}, "guidance must be a finite number"),
        ({"rows": {}}, "rows must be a list"),
        ({"rows": ["x"]}, "Row 0"),
        ({"extra": 1}, "no field 'extra'"),
        ({"model_hash": "x" * 300}, "model_hash must be text"),
    ],
)
def test_a_false_calibration_gets_one_sentence(fitted, change, said):
    document = {**fitted.to_dict(), **change}
    with pytest.raises(CalibrationError, match=said) as raised:
        Calibration.from_json(json.dumps(document))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": float("nan")}, {"block": -1}, {"samples": 1.5}, {"group": 7}, {"odd": 1}, {"beta": "0.1"},
        {"weight": 0}, {"weight": -1.0}, {"weight": float("inf")}, {"weight": float("nan")}, {"weight": None},
        {"weight": True},
    ],  # fmt: skip
)
def test_a_false_row_gets_one_sentence(fitted, change):
    document = fitted.to_dict()
    document["rows"][2].update(change)
    with pytest.raises(CalibrationError) as raised:
        Calibration.from_json(json.dumps(document))
    assert next(iter(change)) in str(raised.value) and str(raised.value).count(". ") == 0


def test_weights_that_say_nothing_are_not_written_so_that_older_files_keep_their_hash(fitted):
    plain = replace(fitted, rows={key: line._replace(weight=1.0) for key, line in fitted.rows.items()})
    assert fitted.weighed and not plain.weighed and fitted.hash != plain.hash
    document = plain.to_dict()
    assert all(set(row) == {"model", "block", "group", "alpha", "beta", "r2", "samples"} for row in document["rows"])
    assert Calibration.from_dict(document) == plain  # a file from before there were weights
    document["rows"][1]["weight"] = 2
    assert Calibration.from_dict(document).rows["transformer", 0, "out"].weight == 2.0


def test_lines_without_weights_take_those_of_the_same_model_and_keep_their_own_otherwise(fitted):
    plain = replace(fitted, rows={key: line._replace(weight=1.0, beta=0.3) for key, line in fitted.rows.items()})
    lent = plain.weighed_like(fitted)
    assert all(line.weight == fitted.rows[key].weight and line.beta == 0.3 for key, line in lent.rows.items())
    assert plain.weighed_like(None) is plain and plain.weighed_like(plain) is plain
    assert plain.weighed_like(replace(fitted, model_hash="other")) is plain
    assert fitted.weighed_like(lent) is fitted
    few = replace(fitted, rows=dict(list(fitted.rows.items())[:2]))
    assert sum(line.weight != 1.0 for line in plain.weighed_like(few).rows.values()) == 2


def test_a_group_listed_twice_is_refused(fitted):
    document = fitted.to_dict()
    document["rows"].append(document["rows"][0])
    with pytest.raises(CalibrationError, match="twice"):
        Calibration.from_dict(document)
