"""Quantize a loaded diffusers pipeline in place, and give it back exactly as it was.

    attach(pipe, policy=Policy.preset("sixbit"))   # plain pipe(...) calls now follow the policy
    handle = attach(pipe); ...; handle.detach()    # stock again, the same tensors

What changes: the linears named in the family table become `QuantizedLinear`, the blocks a
skipping subclass of the same name, and each transformer gets two forward hooks and a
`cache_context` that also tells the active run the branch. The class of the transformer stays,
because `save_pretrained` writes its name. Everything that a run changes lies in the run.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import contextmanager
from functools import partial
from typing import Callable, Mapping

import torch

from kernels import PackedWeight

from . import block as blocks
from .calibrate import find_calibration
from .deltas import CACHES
from .families import Family, family_of, find, transformers_of
from .files import shown
from .first_use import compile_kernels
from .handle import Handle
from .identity import model_hash
from .linear import Group
from .policy import Policy, needs_calibration
from .records import Calibration, check_calibration
from .refusals import CannotAttach, check_attachable, check_fused
from .run import OWNER, attachment_of
from .settings import check_policy, unweighed

KEEP = ("auto", "cpu", "device", "none")
ADALN = ("w4a16", "stock")
# Beside its packed weights a card also needs room for activations and the delta cache.
_AUTO_SHARE = 0.25

# Methods of a transformer that read or replace weights, or skip blocks, and would go wrong in silence.
_FORBIDDEN = {
    "save_pretrained": "stock diffusers could not load what it would save; call handle.detach() first, or write a "
    "packed checkpoint with `python -m engine quantize SRC DST`",
    "fuse_lora": "the weights are packed; call handle.detach(), fuse_lora() and unload_lora_weights(), then attach",
    "fuse_qkv_projections": "query, key and value share one product here already; leave them as they are",
    "enable_cache": "blocks can follow only one cache; use a policy with tdc, or call handle.detach() first",
    "enable_layerwise_casting": "the weights are packed already, to fewer bits; call handle.detach() first if you must",
}


def attach(
    pipe,
    policy: Policy | None = None,
    keep: str = "auto",
    calibration: Calibration | None = None,
    adaln: str | None = None,
    cache: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    packed: Mapping[str, PackedWeight] | None = None,
    known_hash: str | None = None,
) -> Handle:
    """Pack the weights of `pipe` to NVFP4 and let its blocks and linears follow decisions.

    policy: what plain `pipe(...)` calls follow; None leaves them stock, bit for bit.
    keep: where the 16-bit originals go, for stock precision and detach: "device", "cpu", "none",
        or "auto": the CPU, or the device if they take under a quarter of its free memory.
    calibration: the predictor's lines; None looks beside the model and in the user's cache.
    adaln: "w4a16" (None) packs the AdaLN modulation linears too, "stock" leaves them alone.
    cache: where runs keep the 8-bit deltas of block reuse: "device" (None), or "host", pinned memory with
        a prefetch over PCIe, which saves their size on a GPU (on a CPU both are the same memory).
    progress: called as progress(done, total) while weights are packed, then while kernels are compiled for them:
        on a machine's first use that takes seconds, which the first step would otherwise spend in silence.
    packed: ready packed weights by `Handle.packed()` name, for packed checkpoints; the linears may
        then be empty (meta), and keep must be "none". known_hash: the `model_hash` to go with them.

    Attaching an attached pipeline returns its handle, with `policy` and `calibration` replaced
    where given; other options must be as it was attached. Raises ValueError (UnsupportedPipeline,
    CannotAttach) or, for a policy that these options cannot run, RuntimeError in one sentence, with
    nothing changed.
    """
    _check_options(policy, keep, calibration, adaln, cache)
    if packed is not None and keep != "none":
        raise ValueError(f"Packed weights come without originals, so keep must be 'none', got {keep!r}.")
    handle = attachment_of(pipe)
    if handle is None:
        family = family_of(pipe)
        check_fused(pipe, family)
        check_attachable(pipe, family, packed is not None)
        where = _where(pipe, family, keep)
        made = Handle(pipe, family, where, adaln or ADALN[0], cache or CACHES[0], known_hash or model_hash(pipe))
        known = find_calibration(pipe, made.model_hash)
    else:
        _check_same(handle, keep, adaln, cache, packed, known_hash)
        made, known = handle, handle.calibration
    calibration = known if calibration is None else calibration
    if policy is not None:
        made.check(policy)
        # Said before anything changes: where warnings are errors, this too is a refusal.
        if needs_calibration(policy) and (calibration is None or not calibration.rows):
            warnings.warn(
                "This model is not calibrated, so every layer that the predictor would decide takes INT8; call "
                "engine.calibrate.calibrate(pipe, prompts) once.",
                stacklevel=2,
            )
        for sentence in unweighed(policy, calibration):
            warnings.warn(sentence, stacklevel=2)
    if handle is None:
        _attach(made, progress, packed or {})
    made.calibration = calibration
    if policy is not None:
        made.policy = policy
    return made


def _attach(handle: Handle, progress, packed: Mapping[str, PackedWeight]) -> None:
    try:
        _operate(handle, progress, packed)
        _compile_kernels(handle, progress)
    except BaseException:
        handle._restore()
        raise
    # Last of all, because from here there is no way back.
    if handle.keep == "none":
        for _, group in handle.groups:
            group.drop_originals()


def _check_options(policy, keep: str, calibration, adaln: str | None, cache: str | None) -> None:
    if policy is not None:
        check_policy(policy)
    if calibration is not None:
        check_calibration(calibration)
    for name, value, allowed in (("keep", keep, KEEP), ("adaln", adaln, ADALN), ("cache", cache, CACHES)):
        if value not in allowed and not (value is None and name != "keep"):
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {shown(value)}.")


def _check_same(handle: Handle, keep: str, adaln, cache, packed, known_hash: str | None) -> None:
    """Refuse options that an attached pipeline does not have and cannot take on any more."""
    if packed is not None or known_hash not in (None, handle.model_hash):
        raise CannotAttach(
            "This pipeline is attached already, with its weights packed; detach it before giving others."
        )
    if keep not in ("auto", handle.keep) or adaln not in (None, handle.adaln) or cache not in (None, handle.cache):
        raise CannotAttach(
            f"This pipeline is attached already, with keep={handle.keep!r}, adaln={handle.adaln!r} and "
            f"cache={handle.cache!r}; detach it before attaching with other options."
        )


def _where(pipe, family: Family, keep: str) -> str:
    if keep != "auto":
        return keep
    device = next(iter(transformers_of(pipe).values())).device
    if device.type != "cuda":
        return "cpu"
    needed = sum(
        linear.weight.numel() * linear.weight.element_size()
        for model in transformers_of(pipe).values()
        for _, _, _, linears, _ in plan_groups(family, "", model, "w4a16")
        for linear in linears
    )
    free, _ = torch.cuda.mem_get_info(device)
    return "device" if needed < _AUTO_SHARE * free else "cpu"


def plan_groups(family: Family, slot: str, model, adaln: str) -> list[tuple]:
    """What `attach` packs of a transformer: (block index, path of the first linear, name, linears, static) by group."""
    single = (*(family.adaln if adaln == "w4a16" else ()), *family.static)
    wanted = [(name, paths, False) for name, paths in family.groups.items()]
    wanted += [(path, (path,), True) for path in single]
    found = []
    for index, block in enumerate(getattr(model, family.blocks)):
        for name, paths, static in wanted:
            linears = [find(block, path) for path in paths]
            if linears[0] is not None:
                found.append((index, f"{slot}.{family.blocks}.{index}.{paths[0]}", name, linears, static))
    return found


def _operate(handle: Handle, progress, packed: Mapping[str, PackedWeight]) -> None:
    family, slots = handle.family, transformers_of(handle.pipe)
    plans = {slot: plan_groups(family, slot, model, handle.adaln) for slot, model in slots.items()}
    total, done = sum(map(len, plans.values())), 0
    for slot, model in slots.items():
        for index, path, name, linears, static in plans[slot]:
            group = Group(handle, slot, index, name, linears, static)
            handle._undo.append(group.restore)
            group.quantize(handle.keep, packed.get(path))
            handle.groups.append((path, group))
            done += 1
            if progress is not None:
                progress(done, total)
        for index, block in enumerate(getattr(model, family.blocks)):
            blocks.wrap(block, handle, slot, index, family.streams)
            handle._undo.append(partial(blocks.unwrap, block))
        _follow(handle, slot, model)
    _shadow(handle, handle.pipe, "save_pretrained", partial(_refuse, "save_pretrained"))


def _compile_kernels(handle: Handle, progress) -> None:
    packed = len(handle.groups)
    compile_kernels(handle, None if progress is None else lambda done, sizes: progress(packed + done, packed + sizes))


def _follow(handle: Handle, slot: str, model) -> None:
    names = list(inspect.signature(type(model).forward).parameters)[1:]

    @torch.compiler.disable
    def enter(_, args, kwargs):
        handle.follower().enter(slot, {**dict(zip(names, args)), **kwargs})

    @torch.compiler.disable
    def leave(*_):
        handle.follower().leave()

    original = model.cache_context

    @contextmanager
    def cache_context(name, **kwargs):
        follower = handle.follower()
        follower.announce(name)
        try:
            with original(name, **kwargs):
                yield
        finally:
            follower.announce(None)

    for hook in (model.register_forward_pre_hook(enter, with_kwargs=True), model.register_forward_hook(leave)):
        handle._undo.append(hook.remove)
    _shadow(handle, model, "cache_context", cache_context)
    for name in _FORBIDDEN:
        if hasattr(model, name):
            _shadow(handle, model, name, partial(_refuse, name))
    _shadow(handle, model, OWNER, handle)


def _shadow(handle: Handle, target, name: str, value) -> None:
    absent = object()
    before = target.__dict__.get(name, absent)

    def undo():
        if before is absent:
            target.__dict__.pop(name)
        else:
            target.__dict__[name] = before

    target.__dict__[name] = value
    handle._undo.append(undo)


def _refuse(name: str, *_, **__):
    raise RuntimeError(f"{name} does not work on an attached pipeline: {_FORBIDDEN[name]}.")
