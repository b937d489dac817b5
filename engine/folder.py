"""Look at a diffusers folder from outside: is it whole, is it data only, before anything is loaded.

Reads configurations and safetensors headers, never weights, so that a folder that cannot be loaded is refused in one
sentence with nothing half-loaded. Pickled weights and classes from other libraries than diffusers and transformers
are refused here: loading a model must not run a stranger's code.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from engine.families import supported
from engine.files import read_object, shown

INDEX = "model_index.json"
PACKED = "packed.json"
LIBRARIES = ("diffusers", "transformers")
HEADER_LIMIT = 100_000_000
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class LoadError(ValueError):
    """A model that cannot be loaded, said in one sentence."""


def check_folder(folder: Path) -> dict[str, str]:
    """Check a local pipeline folder: its index, its parts, the headers of all its weights.

    Returns the class name by part ("transformer" → "CogVideoXTransformer3DModel"); raises LoadError.
    """
    index = _index(folder)
    parts = {}
    for part, value in index.items():
        if part.startswith("_") or not isinstance(value, list):
            continue
        if value == [None, None]:
            continue
        if len(value) != 2 or value[0] not in LIBRARIES or not isinstance(value[1], str):
            raise LoadError(
                f"The part {shown(part)} of this pipeline comes from {shown(value[0] if value else None)}; only "
                "classes of diffusers and transformers are loaded, never code from a model folder."
            )
        if not part.isidentifier() or not (folder / part).is_dir():
            raise LoadError(f"The part {shown(part)} named in {INDEX} has no folder; download the model again.")
        parts[part] = value[1]
    for part in parts:
        if part != "scheduler" and not part.startswith(("tokenizer", "image_processor", "feature_extractor")):
            packed = part.startswith("transformer") or any((folder / part).glob("packed-*.safetensors"))
            if not (packed and (folder / PACKED).is_file()):
                check_weights(folder / part)
    return parts


def pipeline_class(folder: Path) -> str:
    """The name of the supported diffusers pipeline class that a local folder holds. Raises LoadError."""
    return _index(folder)["_class_name"]


def _index(folder: Path) -> dict:
    if not folder.is_dir():
        what = (
            f"{shown(str(folder))} is a file" if os.path.isfile(folder) else f"There is no folder {shown(str(folder))}"
        )
        raise LoadError(f"{what}; give a diffusers pipeline folder or a hub id such as owner/name.")
    if not (folder / INDEX).is_file():
        raise LoadError(
            f"{shown(str(folder))} is no diffusers pipeline: it holds no {INDEX}; choose the folder that holds it."
        )
    index = read_object(folder / INDEX, "a pipeline index", error=LoadError)
    name = index.get("_class_name")
    if name not in supported():
        raise LoadError(f"{shown(str(name))} is not supported; supported are {', '.join(supported())}.")
    return index


def check_weights(folder: Path) -> dict[str, tuple[int, ...]]:
    """Check all safetensors files of one part; returns the shape of every tensor by name. Raises LoadError."""
    files = sorted(folder.glob("*.safetensors"))
    where = f"{folder.parent.name}/{folder.name}"
    listed = [_listed(path) for path in sorted(folder.glob("*.safetensors.index.json"))]
    wanted = sorted({name for names in listed for name in names.values()})
    for name in wanted:
        if not (folder / name).is_file():
            raise LoadError(f"{where} lacks the file {shown(name)}, which its index names; download the model again.")
    if not files:
        if any(path.suffix in PICKLED for path in folder.iterdir()):
            raise LoadError(
                f"{where} holds pickled weights only, which can run code when opened; convert the model to safetensors."
            )
        raise LoadError(f"{where} holds no weights (*.safetensors); download the model again.")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        shapes.update(header(path))
    for names in listed:
        missing = next((name for name in names if name not in shapes), None)
        if missing is not None:
            raise LoadError(
                f"{where} lacks the tensor {shown(missing)}, which its index names; download the model again."
            )
    return shapes


def header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by tensor name of one safetensors file, whose size must be what its header says. Raises LoadError."""
    where = f"{path.parent.name}/{path.name}"
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size, HEADER_LIMIT):
                raise ValueError
            entries = json.loads(stream.read(length))
        entries.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
    except OSError as error:
        raise LoadError(f"{where} cannot be read ({error.strerror}); check its permissions.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise LoadError(
            f"{where} is not a safetensors file (or a pointer to one); download the model again."
        ) from error
    if size != 8 + length + end:
        raise LoadError(f"{where} is truncated: {size:,} of {8 + length + end:,} bytes; download the model again.")
    return shapes


def _listed(path: Path) -> dict[str, str]:
    what = "an index of weight files"
    names = read_object(path, what, HEADER_LIMIT, LoadError).get("weight_map")
    good = isinstance(names, dict) and all(isinstance(name, str) and Path(name).name == name for name in names.values())
    if not good:
        raise LoadError(f"{path.parent.name}/{path.name} is not {what}; download the model again.")
    return names
