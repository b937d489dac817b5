"""Runs side by side on one model, two models in one run, and a pipeline of its own for each."""

import threading
import time

import pytest
import torch

from engine.attach import attach
from engine.policy import PRESETS
from engine.run import record, shell
from tests import pipelines
from tests.runs import LOOSE, fresh, run_once

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:This model is not calibrated"),
]


def test_two_models_in_one_run_do_not_mix(pipe):
    other = pipelines.wan()
    stock = pipelines.latents(other)
    attach(other)
    with record(pipe, LOOSE) as run:
        assert torch.equal(pipelines.latents(other), stock)
        latents = pipelines.latents(pipe)
    assert set(run.trace.layers["layer"]) == {"qkv", "out", "up", "down"}
    assert torch.equal(latents, fresh())


@pytest.mark.parametrize("build", [pipelines.cogvideox, pipelines.wan])
def test_concurrent_runs_equal_their_single_runs(build):
    pipe = build()
    attach(pipe)
    jobs = [
        (LOOSE, {"seed": 1, "prompt": pipelines.OTHER_PROMPT}),
        (PRESETS["w4a4"], {"seed": 2, "num_inference_steps": 4}),
        (PRESETS["tdc"], {"seed": 3, "num_frames": 5}),
    ]
    alone = [run_once(pipe, policy, **changes) for policy, changes in jobs]
    found = [None] * len(jobs)
    barrier = threading.Barrier(len(jobs))

    def work(index, policy, changes):
        other = shell(pipe)
        barrier.wait()
        found[index] = run_once(other, policy, **changes)

    threads = [threading.Thread(target=work, args=(index, *job)) for index, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (latents, trace), (expected, expected_trace) in zip(found, alone):
        assert torch.equal(latents, expected)
        same = ["call", "branch", "step", "block", "skipped", "gamma"]
        assert trace.blocks[same].equals(expected_trace.blocks[same])


def test_a_shell_keeps_what_makes_the_pipeline():
    pipe = pipelines.wan(two=True)
    other = shell(pipe)
    assert type(other) is type(pipe) and other.scheduler is not pipe.scheduler
    assert other.transformer is pipe.transformer and other.transformer_2 is pipe.transformer_2
    assert other.config.boundary_ratio == pipe.config.boundary_ratio == 0.875
    assert torch.equal(pipelines.latents(other), pipelines.latents(pipe))
    assert torch.equal(pipelines.latents(other, output_type="pt"), pipelines.latents(pipe, output_type="pt"))


def test_prompts_are_encoded_one_at_a_time(pipe, monkeypatch):
    # A fast tokenizer holds the padding of its current call, which another thread would overwrite.
    inside, most = [], []
    encode = type(pipe).encode_prompt

    def watched(self, *args, **kwargs):
        inside.append(self)
        time.sleep(0.02)
        most.append(len(inside))
        result = encode(self, *args, **kwargs)
        inside.remove(self)
        return result

    monkeypatch.setattr(type(pipe), "encode_prompt", watched)
    others = [shell(pipe) for _ in range(3)]
    threads = [
        threading.Thread(target=pipelines.latents, args=(other,), kwargs={"num_inference_steps": 1}) for other in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


@pytest.mark.parametrize("policy", [LOOSE, None], ids=["policy", "stock"])
@pytest.mark.parametrize("caller", [lambda pipe: pipe, shell], ids=["the same pipeline", "another around its parts"])
def test_nobody_detaches_under_a_plain_call_of_another_thread(pipe, policy, caller):
    handle = attach(pipe, policy=policy)
    called = caller(pipe)
    expected = pipelines.latents(called)
    half, on, found = threading.Event(), threading.Event(), []

    def pause(_, step, timestep, tensors):
        if step == 2:
            half.set()
            on.wait(60)
        return tensors

    thread = threading.Thread(target=lambda: found.append(pipelines.latents(called, callback_on_step_end=pause)))
    thread.start()
    assert half.wait(60)
    with pytest.raises(RuntimeError, match="under way on another thread; let it end"):
        handle.detach()
    on.set()
    thread.join()
    assert torch.equal(found[0], expected)
    handle.detach()
    assert not handle.attached
