"""Recorded runs of the small random pipelines, for the tests of the live engine."""

from dataclasses import replace

from engine.attach import attach
from engine.policy import PRESETS
from engine.run import record
from tests import pipelines

# Random weights drift a lot, so reuse has to be loose to happen at all in five steps.
LOOSE = replace(PRESETS["sixbit"], tdc_threshold=9.0, warmup_steps=0, outlier_threshold=5.0)


def run_once(pipe, policy=LOOSE, **changes):
    """The latents and the trace of one recorded call of an attached pipeline."""
    with record(pipe, policy) as run:
        latents = pipelines.latents(pipe, **changes)
    return latents, run.trace


def fresh(policy=LOOSE, **changes):
    """The latents of the same call on a pipeline that has seen nothing before."""
    pipe = pipelines.cogvideox()
    attach(pipe)
    return run_once(pipe, policy, **changes)[0]
