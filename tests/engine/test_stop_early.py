"""A run that is stopped before its first step says so too."""

import threading

import pytest

from engine import Policy, attach, generate
from engine.stream import Cancelled, Started
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_stop_before_the_first_step_is_a_cancelled_run():
    pipe = pipelines.cogvideox()
    attach(pipe)
    stop, seen = threading.Event(), []
    settings = dict(policy=Policy.preset("fp16"), steps=3, guidance=3.0, height=32, width=32, frames=9, seed=3)
    for event in generate(pipe, pipelines.PROMPT, stop=stop, **settings):
        seen.append(event)
        stop.set()
    assert [type(event) for event in seen] == [Started, Cancelled]
    assert (seen[1].step, seen[1].steps) == (0, 3)
    assert len(seen[1].trace.blocks) == 0 and seen[1].trace.report.layer_calls == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "sixbit-run"]
