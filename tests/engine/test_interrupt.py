"""Ctrl-C: one word, the code 130, at whatever moment it comes."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from engine.interrupt import patient_interrupts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def pythons_own_handler():
    """Who runs the tests in the background of a shell may have SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def compiling(name: str, work) -> None:
    """Call `work` from a frame of the module `name`."""
    exec("def frame(work):\n    work()", made := {"__name__": name})
    made["frame"](work)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0)  # where Python looks for signals, if it has not yet


@pytest.mark.parametrize("module", ["numba.core.codegen", "llvmlite.binding.executionengine"])
def test_an_interrupt_waits_until_a_compilation_is_over(module):
    done = []
    with pytest.raises(KeyboardInterrupt), patient_interrupts():
        compiling(module, lambda: (interrupt(), time.sleep(0.1), done.append("compiled")))
        for _ in range(500):
            time.sleep(0.01)
    assert done == ["compiled"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_waits_at_the_end_comes_there():
    with pytest.raises(KeyboardInterrupt):
        with patient_interrupts():
            compiling("numba.core", interrupt)
        pytest.fail("left without it")
    time.sleep(0.1)  # as long as it would take to come once more


def test_a_command_waits_for_its_compilations(monkeypatch, capsys):
    from engine import commands
    from engine.cli import main

    done = []

    def work(given):
        compiling("numba.core", lambda: (interrupt(), done.append(given)))

    monkeypatch.setattr(commands, "compare", work)
    assert main(["compare"]) == 130 and len(done) == 1 and capsys.readouterr().err == "Stopped.\n"


def test_elsewhere_it_comes_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt), patient_interrupts():
        compiling("numbat", lambda: (interrupt(), done.append("went on")))
    assert not done


def test_a_handler_that_is_not_pythons_own_stays(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("theirs"))
    try:
        with patient_interrupts():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["theirs"]


@pytest.mark.parametrize("module", ["engine.cli", "engine.commands"])
def test_while_the_program_is_still_importing(module, tmp_path):
    """A finder that is asked for the module stands for the moment at which somebody presses Ctrl-C."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(f"""
        import signal, sys

        class Finder:
            def find_spec(name, path, target=None):
                if name == {module!r}:
                    signal.raise_signal(signal.SIGINT)

        sys.meta_path.insert(0, Finder)
    """))
    command = [sys.executable, "-m", "engine", "generate", "--prompt", "a red circle"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (result.returncode, result.stderr, result.stdout) == (130, "Stopped.\n", "")
