"""The one hardware question, and that importing asks none."""

import subprocess
import sys

import torch

from kernels import target


def test_cpu():
    cpu = target.probe("cpu")
    assert cpu.device_type == "cpu" and not cpu.triton and not cpu.native_fp4
    assert "PyTorch" in cpu.reason
    assert target.probe(torch.device("cpu")) is cpu


def test_a_machine_without_numba_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    target._probe_other.cache_clear()
    try:
        assert "Install numba" in target.probe("cpu").reason
    finally:
        target._probe_other.cache_clear()


def _cuda(monkeypatch, capability, found=True, system="Linux"):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if found else None)
    monkeypatch.setattr("platform.system", lambda: system)
    target._probe_cuda.cache_clear()
    try:
        return target.probe("cuda:0")
    finally:
        target._probe_cuda.cache_clear()


def test_cuda_cards(monkeypatch):
    turing, ampere, hopper, blackwell = (_cuda(monkeypatch, c) for c in ((7, 5), (8, 0), (9, 0), (12, 0)))
    assert not turing.triton and "7.5" in turing.reason
    assert ampere.triton and not ampere.native_fp4 and "simulated" in ampere.reason
    assert hopper.triton and not hopper.native_fp4
    assert blackwell.native_fp4 and "native" in blackwell.reason


def test_cuda_without_triton_names_the_package(monkeypatch):
    windows = _cuda(monkeypatch, (8, 9), found=False, system="Windows")
    assert not windows.triton and "triton-windows" in windows.reason


def test_triton_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("SIXBIT_TRITON", "0")
    off = _cuda(monkeypatch, (9, 0))
    assert not off.triton and off.int8_mm and "SIXBIT_TRITON=0" in off.reason


def test_importing_asks_nothing_and_loads_no_compiler():
    program = (
        "import sys, kernels; "
        "print([name for name in ('numba', 'kernels.cpu_rows', 'kernels.quantize_triton') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
