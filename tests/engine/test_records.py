"""Records: the vocabulary, and calibration files that are whole, honest and refused in one sentence otherwise."""

import json
import subprocess
import sys

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
    assert list(table.columns) == ["model", "block", "group", "alpha", "beta", "r2", "samples"]
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
    "change", [{"alpha": float("nan")}, {"block": -1}, {"samples": 1.5}, {"group": 7}, {"odd": 1}, {"beta": "0.1"}]
)
def test_a_false_row_gets_one_sentence(fitted, change):
    document = fitted.to_dict()
    document["rows"][2].update(change)
    with pytest.raises(CalibrationError):
        Calibration.from_json(json.dumps(document))


def test_a_group_listed_twice_is_refused(fitted):
    document = fitted.to_dict()
    document["rows"].append(document["rows"][0])
    with pytest.raises(CalibrationError, match="twice"):
        Calibration.from_dict(document)
