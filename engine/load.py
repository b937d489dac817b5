"""Load a diffusers pipeline from a folder or the hub: safetensors only, no remote code, one sentence for every failure.

A folder is checked from outside first (`engine.folder`). After loading, every weight of the file must have arrived
with its own shape: diffusers fills what is missing with random numbers and only warns.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.files import shown
from engine.folder import PACKED, LoadError, check_folder, check_weights, pipeline_class

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]
DTYPES = ("float32", "bfloat16", "float16")


def load(path_or_id: str | os.PathLike, device=None, dtype=None, progress: Callable[[int, int], None] | None = None):
    """Load a supported diffusers pipeline (or a packed checkpoint of one), ready to call.

    path_or_id: a local folder, or a hub id "owner/name". device: CUDA where there is one, else the CPU. dtype:
    float32, bfloat16 or float16, by name or as a torch dtype; None takes bfloat16 where the hardware computes it
    natively, else float16 on a GPU and float32 on a CPU. progress: called as progress(done, total).

    Raises LoadError (a ValueError) in one sentence, with nothing half-loaded.
    """
    tell = progress or (lambda done, total: None)
    tell(0, 3)
    folder = _found(str(path_or_id))
    parts = check_folder(folder)
    device = device_for(device)
    dtype = dtype_for(dtype, device)
    tell(1, 3)
    try:
        if (folder / PACKED).is_file():
            from engine.checkpoint import load_packed

            pipe = load_packed(folder, device, dtype)
        else:
            pipe = assemble(folder, parts, dtype)
            tell(2, 3)
            pipe.to(device)
    except (RuntimeError, MemoryError) as error:
        raise LoadError(f"The model does not fit on {device}: {_first_line(error)}") from error
    tell(3, 3)
    return pipe


def _found(name: str) -> Path:
    if not name or len(name) > 4096 or "\0" in name:
        raise LoadError("Expected a model folder or a hub id such as owner/name; got nothing usable.")
    folder = Path(os.path.expanduser(name))  # unlike Path.expanduser this leaves the name of an unknown user as it is
    try:
        there = folder.exists()
    except OSError:
        there = False
    if there or not HUB_ID.fullmatch(name):
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    # The hub's client raises errors of several libraries, from missing files to closed sockets.
    except Exception as error:
        raise LoadError(
            f"{shown(name)} is no local folder and could not be fetched from the hub ({type(error).__name__}); check "
            "the name and the network, or download it and give its folder."
        ) from error


def device_for(device):
    """The torch device that `load` takes for its argument of that name; raises LoadError for one that is not there."""
    import torch

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        if found.type == "meta":  # it is there, but holds no values
            raise TypeError
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        there = "cpu or cuda" if torch.cuda.is_available() else "cpu"
        raise LoadError(
            f"The device {shown(str(device))} is not available here; leave it out, or choose {there}."
        ) from error
    return found


def dtype_for(dtype, device):
    """The torch dtype that `load` takes for its `dtype`, on a torch device. Raises LoadError for another."""
    import torch

    from kernels.target import probe

    if dtype is None:
        if probe(device).native_bf16:
            return torch.bfloat16
        return torch.float32 if device.type == "cpu" else torch.float16
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise LoadError(f"dtype must be one of {', '.join(DTYPES)}; got {shown(name)}.")
    return getattr(torch, name)


def assemble(folder: Path, parts: dict[str, str], dtype, **ready):
    """The pipeline of a checked folder on the CPU; `ready` are parts that exist already."""
    import diffusers
    import torch

    name = pipeline_class(folder)
    # Wan's autoencoder loses colour below float32; its other parts do not.
    dtypes = {"default": dtype, "vae": torch.float32} if name.startswith("Wan") else dtype
    try:
        with _quiet():
            pipe = getattr(diffusers, name).from_pretrained(
                str(folder), dtype=dtypes, use_safetensors=True, local_files_only=True, trust_remote_code=False, **ready
            )
    # What a foreign or damaged folder makes two libraries raise has no common class.
    except Exception as error:
        raise LoadError(f"{shown(str(folder))} could not be loaded as a {name}: {_first_line(error)}") from error
    for part in parts:
        if part not in ready and isinstance(getattr(pipe, part, None), torch.nn.Module):
            _check_arrived(getattr(pipe, part), folder / part)
    return pipe


def _check_arrived(model, folder: Path) -> None:
    """Raise LoadError if a parameter of `model` was not in its files, or with another shape."""
    stored = check_weights(folder)
    tied = {id(parameter): name for name, parameter in model.named_parameters() if name in stored}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        where = f"{folder.parent.name}/{folder.name}"
        if name not in stored and id(parameter) not in tied:
            raise LoadError(f"{where} lacks the weight {shown(name)}; download the model again.")
        if name in stored and stored[name] != tuple(parameter.shape):
            raise LoadError(
                f"The weight {shown(name)} of {where} has shape {stored[name]}, its configuration says "
                f"{tuple(parameter.shape)}; configuration and weights belong to different models."
            )
        if parameter.is_meta:
            raise LoadError(f"The weight {shown(name)} of {where} was not loaded; download the model again.")


def _first_line(error: BaseException) -> str:
    """The first sentence of a library's error, short enough for a status line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= 300 else text[:297] + "…"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' own bars and load reports off the terminal; what matters of them is checked and said."""
    import diffusers.utils.logging as of_diffusers
    import transformers.utils.logging as of_transformers

    before = of_diffusers.get_verbosity(), of_transformers.get_verbosity()
    bars = of_diffusers.is_progress_bar_enabled(), of_transformers.is_progress_bar_enabled()
    for each in (of_diffusers, of_transformers):
        each.set_verbosity(logging.ERROR)
        each.disable_progress_bar()
    try:
        yield
    finally:
        for each, level, bar in zip((of_diffusers, of_transformers), before, bars):
            each.set_verbosity(level)
            if bar:
                each.enable_progress_bar()
