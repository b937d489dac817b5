"""What `attach` returns: the shared, unchanging side of a quantized pipeline.

The packed weights, the calibration, the policy of plain calls, and the way back to stock. Runs
look up their weights and their options here and keep everything they change to themselves.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator

import torch

from kernels import PackedWeight, Workspace

from .families import Family, transformers_of
from .linear import Group
from .plain import PlainCalls, StockCall
from .policy import Policy
from .records import Calibration
from .refusals import check_adapters, check_hooks
from .run import Run, recorded


class Handle:
    """An attached pipeline's quantized state, shared by all pipelines around the same transformers.

    policy: what plain `pipe(...)` calls follow; None means stock. calibration: the (α, β) lines
    that decide, or None. Both may be set at any time and hold from the next call on.
    """

    def __init__(self, pipe, family: Family, keep: str, adaln: str, cache: str, model_hash: str):
        self.pipe, self.family, self.keep, self.adaln, self.cache = pipe, family, keep, adaln, cache
        self.model_hash = model_hash
        self.policy: Policy | None = None
        self.calibration: Calibration | None = None
        self.name = Path(str(getattr(pipe, "name_or_path", "") or type(pipe).__name__)).name
        self.groups: list[tuple[str, Group]] = []
        self._anatomy: dict[tuple[str, int], tuple] = {}
        self._workspace = Workspace()
        self._undo: list[Callable[[], None]] = []
        self._plain = PlainCalls(self)
        self._callers: weakref.WeakKeyDictionary[Run | StockCall, threading.Thread] = weakref.WeakKeyDictionary()
        self._recorded = 0
        self._lock = threading.Lock()

    @property
    def attached(self) -> bool:
        """Whether the pipeline is still quantized."""
        return bool(self._undo)

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes by part: "packed" weights, kept 16-bit "originals" (0 if dropped) and where they are."""
        packed = sum(group.nbytes for _, group in self.groups)
        originals = sum(group.kept_bytes for _, group in self.groups)
        on_device = originals if self.keep == "device" else 0
        return {"packed": packed, "originals": originals, "originals_on_device": on_device}

    def packed(self) -> dict[str, PackedWeight]:
        """The packed weights by "slot.path of the group's first linear", for saving."""
        return {path: group.packed for path, group in self.groups}

    def layers(self) -> list[dict]:
        """What happens to every linear of the transformers: rows of path, in_features, out_features
        and role, which is a group's name, "static W4A16" or "left alone"."""
        roles = {
            id(member): "static W4A16" if group.static else group.name
            for _, group in self.groups
            for member in group.members
        }
        return [
            {
                "path": f"{slot}.{name}", "in_features": module.in_features, "out_features": module.out_features,
                "role": roles.get(id(module), "left alone"),
            }
            for slot, model in transformers_of(self.pipe).items()
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        ]

    def blocks(self, model: str) -> int:
        """How many blocks the transformer in this slot has."""
        return len(getattr(getattr(self.pipe, model), self.family.blocks))

    def anatomy(self, model: str, index: int) -> tuple[object, dict[str, Group], list[str]]:
        """A block, its dynamic groups by name, and the names of its forward's arguments in order."""
        key = (model, index)
        if key not in self._anatomy:
            block = getattr(getattr(self.pipe, model), self.family.blocks)[index]
            groups = {g.name: g for _, g in self.groups if (g.model, g.block) == key and not g.static}
            self._anatomy[key] = (block, groups, list(inspect.signature(type(block).forward).parameters)[1:])
        return self._anatomy[key]

    def workspace(self) -> Workspace:
        """Memory for unpacked weights: shared on a CPU, where it only ever holds what the weights
        say; one per run on a GPU, where it is a scratch buffer."""
        model = next(iter(transformers_of(self.pipe).values()))
        # An offloaded model waits on the CPU and computes on the GPU.
        on_cpu = model.device.type == "cpu" and "_hf_hook" not in model.__dict__
        return self._workspace if on_cpu else Workspace()

    def check(self, policy: Policy) -> None:
        """Raise RuntimeError if `policy` needs 16-bit weights that were not kept, or deltas that the cache forgets."""
        if policy.precision == "stock" and self.keep == "none":
            raise RuntimeError(
                "This policy runs the 16-bit weights, which were dropped (keep='none'); choose a quantized policy, or "
                "load the pipeline again and attach with keep='cpu'."
            )
        if policy.tdc and policy.extrapolation > 0.0 and self.cache == "host":
            raise RuntimeError(
                "Extrapolation needs a block's last two deltas, and the cache in host memory keeps one; attach with "
                "cache='device', or set extrapolation to 0."
            )

    def follower(self) -> Run | PlainCalls:
        """What follows the forwards on this thread: the recorded run, else the thread's plain calls."""
        return recorded(self) or self._plain

    def active(self) -> Run | None:
        """The run that decides on this thread: the recorded one, else the one of its plain call; None for stock."""
        return recorded(self) or self._plain.run

    def called(self, call: Run | StockCall) -> None:
        """A plain call has begun on this thread."""
        with self._lock:
            self._callers[call] = threading.current_thread()

    @contextmanager
    def held(self) -> Iterator[None]:
        """For the time of a recorded run, on whatever thread: nobody may detach meanwhile.

        Raises RuntimeError if somebody just did.
        """
        with self._lock:
            if not self.attached:
                raise RuntimeError("This pipeline was detached just now; call attach(pipe), then record.")
            self._recorded += 1
        try:
            yield
        finally:
            with self._lock:
                self._recorded -= 1

    def detach(self) -> None:
        """Restore the stock pipeline: the same modules and weights as before attach.

        Raises CannotAttach or RuntimeError, changing nothing, if the originals were dropped, a
        run is being recorded on any thread, a plain call is under way on another one, or hooks or
        adapters came later.
        """
        if not self.attached:
            return
        if self.keep == "none":
            raise RuntimeError(
                "The 16-bit weights were dropped (keep='none'), so this pipeline cannot become stock; load it anew."
            )
        with self._lock:
            if self._recorded:
                raise RuntimeError("A run is being recorded on this pipeline; end or close it before you detach.")
            if self._called_elsewhere():
                raise RuntimeError(
                    "A call of this pipeline is under way on another thread; let it end before you detach."
                )
            for slot, model in transformers_of(self.pipe).items():
                check_adapters(slot, model)
                check_hooks(slot, model, "detach")
            self._restore()

    def _called_elsewhere(self) -> bool:
        # This thread's own call has failed, if one is left: nothing else can have come here.
        here = threading.current_thread()
        return any(
            call.under_way and thread is not here and thread.is_alive() for call, thread in self._callers.items()
        )

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()
        self.groups.clear()
        self._anatomy.clear()
        self._workspace.clear()
        self._plain = PlainCalls(self)

    def __reduce_ex__(self, protocol):
        raise TypeError(
            "An attached pipeline cannot be copied or pickled; detach it first, or use engine.run.shell(pipe)."
        )
