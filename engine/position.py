"""Where a stock `pipe(...)` call stands: which call, branch and step a transformer forward belongs to.

Nothing of the pipeline is patched for this. A new call is a new `scheduler.timesteps` tensor:
every diffusers scheduler makes one in `set_timesteps`, and every pipeline calls that once. The
branch is the name that the pipeline announces through `transformer.cache_context`; a pipeline
that announces none (Wan video-to-video) passes the same `timestep` object to all forwards of one
timestep, so their ordinal tells them apart.

"Step" is a model evaluation of one branch, counted over both transformers of Wan 2.2, so that
a map of steps has one column per evaluation (2N−1 of them for Heun) and the last one is known.
"""

from __future__ import annotations

import weakref
from typing import Callable, Mapping, NamedTuple

from .families import Family

# Both halves of guidance in one batch: there is only one branch, which needs no name.
_BATCHED = "cond_uncond"


class Position(NamedTuple):
    """call: ordinal of the pipeline call; model: slot of the transformer; branch: "" if there is
    only one; step of steps: this model evaluation; timestep: tensor or number, not read yet;
    new_call: the first forward of a call."""

    call: int
    model: str
    branch: str
    step: int
    steps: int
    timestep: object
    new_call: bool


class Tracker:
    """Follows the forwards of one pipeline on one thread.

    pipe: the diffusers pipeline that is called. family: its row in the family table.
    on_end: for plain calls outside `record`, whose end nobody announces: also take new prompt
        embeddings for a new call (another pipeline, with a scheduler of its own, may drive the
        same transformer), and call this when a call's embeddings are gone, which is when the
        call has returned or failed.
    """

    def __init__(self, pipe, family: Family, on_end: Callable[[], None] | None = None):
        self._pipe, self._family, self._on_end = pipe, family, on_end
        self._announced: str | None = None
        self._call = -1
        self._timesteps = self._last_timestep = None
        self._ordinal = 0
        self._counts: dict[str, int] = {}
        self._prompts: dict[str, weakref.ref] = {}

    @property
    def calls(self) -> int:
        """Pipeline calls seen so far."""
        return self._call + 1

    def announce(self, branch: str | None) -> None:
        """The branch that the pipeline names for the forwards to come; None when it is over."""
        self._announced = branch

    def enter(self, model: str, arguments: Mapping) -> Position:
        """The position of a transformer forward that starts now, from its keyword arguments."""
        scheduler = self._pipe.scheduler
        timestep, prompt = arguments.get("timestep"), arguments.get("encoder_hidden_states")
        new_call = scheduler.timesteps is not self._timesteps
        if not new_call:
            branch, steps = self._branch(timestep), self._steps(scheduler)
            known = self._prompts.get(branch)
            other_prompt = known is not None and known() is not prompt
            new_call = other_prompt or self._counts.get(branch, -1) + 1 >= steps
        if new_call:
            self._call += 1
            self._timesteps, self._last_timestep = scheduler.timesteps, None
            self._counts.clear()
            self._prompts.clear()
            branch, steps = self._branch(timestep), self._steps(scheduler)
        self._last_timestep = timestep
        self._counts[branch] = step = self._counts.get(branch, -1) + 1
        if self._on_end is not None and prompt is not None and branch not in self._prompts:
            self._prompts[branch] = weakref.ref(prompt, self._ended)
        shown = getattr(self._pipe, "current_timestep", None)
        return Position(
            self._call, model, branch, step, steps, timestep if shown is None else shown, new_call
        )

    def _ended(self, _) -> None:
        self._on_end()

    def _branch(self, timestep) -> str:
        if self._announced is not None:
            return "" if self._announced == _BATCHED else self._announced
        # The last timestep is held on to, so that its identity cannot be taken by a new object.
        self._ordinal = self._ordinal + 1 if timestep is self._last_timestep and timestep is not None else 0
        names = self._family.branches
        name = names[self._ordinal] if self._ordinal < len(names) else str(self._ordinal)
        return "" if name == _BATCHED else name

    def _steps(self, scheduler) -> int:
        # current_timestep is None when another pipeline than ours drives the transformer.
        if getattr(self._pipe, "current_timestep", None) is not None:
            return self._pipe.num_timesteps
        return len(scheduler.timesteps)
