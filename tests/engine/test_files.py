"""Whole files or none, and text from strangers."""

import os
import subprocess
import sys

import pytest

from engine.files import known_fields, parse_object, read_object, read_text, write_atomic


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "run.json"
    write_atomic(path, "old")

    def half(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, half)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are a Unix thing")
def test_a_disk_that_fills_up_leaves_nothing_that_loads(tmp_path):
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from tests.synthetic import probe_trace\n"
        "try: probe_trace(8, 20).save(sys.argv[1])\n"
        "except OSError as problem: print('refused', problem.errno)"
    )
    path = tmp_path / "run.parquet"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=os.getcwd(),
                          env={**os.environ, "PYTHONPATH": os.getcwd()})  # fmt: skip
    assert done.stdout.startswith("refused"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="permission bits are a Unix thing")
def test_a_written_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "plain").write_text("x")
    write_atomic(tmp_path / "ours", b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00"])
def test_what_is_no_json_object_gets_one_sentence(text):
    with pytest.raises(ValueError) as raised:
        parse_object(text, "a policy")
    assert "a policy" in str(raised.value) and len(str(raised.value)) < 200


def test_reading_is_bounded(tmp_path):
    (tmp_path / "big.json").write_text("x" * 101)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        read_text(tmp_path / "big.json", "a policy", limit=100)
    with pytest.raises(ValueError, match="no such file"):
        read_text(tmp_path / "none.json", "a policy")
    with pytest.raises(
        ValueError, match=f"Expected a policy at '{tmp_path.name}', but that is a folder; give the file itself"
    ):
        read_text(tmp_path, "a policy")
    with pytest.raises(ValueError, match="Expected a policy at '.', but that is a folder"):
        read_text(".", "a policy")
    (tmp_path / "raw.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_text(tmp_path / "raw.json", "a policy")


def test_an_object_that_is_cut_off_is_told_with_its_file(tmp_path):
    (tmp_path / "cut.json").write_text('{"a": 1,')
    with pytest.raises(ValueError, match=r"^'cut.json' is not a policy: it is not valid JSON \(line 1, column 9\)"):
        read_object(tmp_path / "cut.json", "a policy")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"^'list.json' is not a policy: expected a JSON object, got \[1\]"):
        read_object(tmp_path / "list.json", "a policy")


def test_every_unknown_field_is_named_with_the_nearest_known_one():
    with pytest.raises(ValueError, match=r"no fields 'gab' \(perhaps gap\), 'speed'; its fields are gap, tdc"):
        known_fields({"speed": 1, "gap": 2, "gab": 3}, {"gap", "tdc"}, "A policy")
    with pytest.raises(ValueError, match="'k11', 'k12' and 15 more; its fields"):
        known_fields({f"k{number}": 1 for number in range(20)}, {"gap"}, "A policy")


def test_unknown_fields_are_named_and_never_flood_the_page():
    with pytest.raises(ValueError, match="no field 'b'; its fields are a"):
        known_fields({"a": 1, "b": 2}, {"a"}, "A policy")
    with pytest.raises(ValueError) as raised:
        known_fields({"x" * 10_000: 1}, {"a"}, "A policy")
    assert len(str(raised.value)) < 200
