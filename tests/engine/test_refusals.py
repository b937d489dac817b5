"""What is refused is refused before anything changes: options of attach, and detach under a run."""

import sys
import threading
import warnings

import pytest
import torch

from engine.attach import attach
from engine.policy import Policy
from engine.records import Calibration
from engine.refusals import CannotAttach
from engine.run import attachment_of, record
from engine.stream import Finished, generate
from tests import pipelines
from tests.engine.test_attach import fingerprint

pytestmark = pytest.mark.usefixtures("one_thread")
LINES = Calibration("0123456789abcdef", 5, 5.0)
EXTRAPOLATING = Policy(precision="int8", extrapolation=0.8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": Policy.preset("fp16"), "keep": "none"}, "16-bit weights, which were dropped"),
        ({"policy": EXTRAPOLATING, "cache": "host"}, "Extrapolation needs"),
        ({"calibration": "zz"}, "Expected calibration to be a Calibration, such as .* got str"),
        ({"policy": "sixbit"}, "Expected policy to be a Policy"),
        ({"keep": None}, "keep must be one of"),
        ({"cache": "disk"}, "cache must be one of device, host"),
        ({"adaln": ["w4a16"]}, "adaln must be one of"),
    ],
)
def test_a_pipeline_that_is_refused_stays_stock(options, words):
    pipe = pipelines.cogvideox(layers=1)
    before = fingerprint(pipe)
    with pytest.raises((ValueError, RuntimeError), match=words) as caught:
        attach(pipe, **options)
    assert "\n" not in str(caught.value)
    assert attachment_of(pipe) is None and fingerprint(pipe) == before


def test_a_warning_that_is_an_error_and_kernels_that_fail_leave_the_pipeline_stock(monkeypatch):
    pipe = pipelines.cogvideox(layers=1)
    before = fingerprint(pipe)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="not calibrated"):
            attach(pipe, policy=Policy.preset("sixbit"), keep="none")
    assert attachment_of(pipe) is None and fingerprint(pipe) == before

    def broken(*_):
        raise RuntimeError("no compiler")

    # The package's name `attach` is the function, which hides the module.
    monkeypatch.setattr(sys.modules["engine.attach"], "compile_kernels", broken)
    with pytest.raises(RuntimeError, match="no compiler"):
        attach(pipe, keep="none")
    assert attachment_of(pipe) is None and fingerprint(pipe) == before


def test_an_attached_pipeline_that_refuses_keeps_its_policy_and_calibration():
    pipe = pipelines.cogvideox(layers=1)
    handle = attach(pipe, policy=Policy.preset("w4a8"), cache="host", calibration=LINES)
    other = Calibration("fedcba9876543210", 9, 1.0)
    with pytest.raises(RuntimeError, match="Extrapolation needs"):
        attach(pipe, policy=EXTRAPOLATING, calibration=other)
    for options in ({"cache": "device"}, {"adaln": "stock"}, {"keep": "none"}):
        with pytest.raises(CannotAttach, match="attached already, with keep='cpu', adaln='w4a16' and cache='host'"):
            attach(pipe, policy=Policy.preset("w4a4"), calibration=other, **options)
    with pytest.raises(CannotAttach, match="attached already"):
        attach(pipe, keep="none", packed=handle.packed())
    with pytest.raises(CannotAttach, match="attached already"):
        attach(pipe, known_hash="0" * 16)
    assert handle.calibration is LINES and handle.policy == Policy.preset("w4a8")
    assert attach(pipe, cache="host", adaln="w4a16", keep="cpu") is handle
    assert attach(pipe, calibration=other) is handle and handle.calibration is other


def test_detach_waits_for_a_stream_to_end():
    pipe = pipelines.cogvideox(layers=1)
    handle, stock = attach(pipe), fingerprint(pipe)
    settings = dict(policy=Policy.preset("w4a8"), steps=3, height=32, width=32, frames=9, seed=3, previews=False)
    run = generate(pipe, pipelines.PROMPT, **settings)
    next(run), next(run)
    with pytest.raises(RuntimeError, match="being recorded on this pipeline"):
        handle.detach()
    assert handle.attached and fingerprint(pipe) == stock
    assert any(isinstance(event, Finished) for event in run)
    cut = generate(pipe, pipelines.PROMPT, **settings)
    next(cut), next(cut)
    cut.close()
    late = generate(pipe, pipelines.PROMPT, **settings)
    next(late)
    handle.detach()
    assert not handle.attached and attachment_of(pipe) is None
    with pytest.raises(RuntimeError, match="not attached"):
        next(late)


def test_detach_refuses_while_another_thread_records():
    pipe = pipelines.cogvideox(layers=1)
    expected = pipelines.latents(pipe)
    handle = attach(pipe)
    begun, over = threading.Event(), threading.Event()

    def work():
        with record(pipe, Policy.preset("w4a8")):
            begun.set()
            over.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(30)
        with pytest.raises(RuntimeError, match="being recorded"):
            handle.detach()
    finally:
        over.set()
        thread.join()
    handle.detach()
    assert torch.equal(pipelines.latents(pipe), expected)
    with pytest.raises(RuntimeError, match="detached just now"):
        with handle.held():
            pass
