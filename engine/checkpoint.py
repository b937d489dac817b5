"""Packed checkpoints: a pipeline folder whose transformer weights lie in NVFP4, 4.5 bits each, ready to run.

    python -m engine quantize SRC DST

A packed folder is the source folder but for its transformers (and, if asked for, its T5 text encoder): there
`packed-….safetensors` holds, for every group of linears, the codes, block scales and FP32 scales (as integers, so that
no cast can round them) and every other parameter as it was. `packed.json` at the top says which; it is written last,
so a folder without it is not whole. Loading builds the transformer empty and fills it file by file: the 16-bit weights
of the linears never exist, on no device.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.families import MODEL_SLOTS
from engine.files import read_object, shown, takes_files
from engine.folder import PACKED, LoadError, check_folder, header
from engine.linear import FIELDS

KIND = "6bit-packed-checkpoint"
VERSION = 1
SHARD_BYTES = 2_000_000_000
REST = "rest"


def quantize(
    src: str | os.PathLike,
    dst: str | os.PathLike,
    *,
    adaln: str = "w4a16",
    text_encoder: str = "stock",
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write a packed checkpoint of the pipeline at `src` (a folder or hub id) into the new folder `dst`.

    Works on the CPU, from the weights as bfloat16 (a float32 checkpoint is rounded to it first). adaln: as in `attach`.
    text_encoder: "w4a16" packs a T5 text encoder too (see `engine.encoder` for what that costs). shard_bytes: largest
    file of packed weights. progress: called as progress(done, total) while groups are packed.

    Returns dst, which appears whole or not at all. Raises LoadError or ValueError in one sentence.
    """
    import torch

    from engine import encoder
    from engine.attach import attach
    from engine.families import transformers_of
    from engine.load import load

    dst = Path(dst)
    if dst.exists():
        raise ValueError(f"{shown(str(dst))} exists already; choose a folder that does not.")
    if not dst.parent.is_dir():
        raise ValueError(f"The folder above {shown(str(dst))} does not exist; create it first.")
    try:
        takes_files(dst.parent)
    except OSError as error:
        raise ValueError(
            f"The folder above {shown(str(dst))} takes no new file ({error.strerror}); choose another."
        ) from error
    if text_encoder not in encoder.CHOICES:
        raise ValueError(f"text_encoder must be one of {', '.join(encoder.CHOICES)}; got {shown(text_encoder)}.")
    if shard_bytes < 1_000_000:
        raise ValueError(f"shard_bytes must be at least 1,000,000; got {shown(shard_bytes)}.")
    _check_unpacked(src, Path(os.path.expanduser(src)))
    pipe = load(src, device="cpu", dtype=torch.bfloat16)
    source = Path(pipe.name_or_path)
    _check_unpacked(src, source)
    if text_encoder == "w4a16":
        encoder.pack_text_encoder(pipe)
    handle = attach(pipe, keep="none", adaln=adaln, progress=progress)
    building = Path(tempfile.mkdtemp(prefix=f".{dst.name}-", dir=dst.parent))
    try:
        models = transformers_of(pipe)
        packed, written = handle.packed(), list(models)
        if text_encoder == "w4a16":
            found = encoder.packed_linears(pipe.text_encoder)
            packed.update({f"{encoder.SLOT}.{name}": value for name, value in found.items()})
            written.append(encoder.SLOT)
        shutil.copytree(source, building, dirs_exist_ok=True, ignore=_ignored(source, set(written)))
        groups = {path: {"shape": list(value.shape), "hadamard": value.hadamard} for path, value in packed.items()}
        for slot in written:
            _write_shards(building / slot, _tensors(slot, getattr(pipe, slot), packed), shard_bytes)
        about = {
            "kind": KIND, "version": VERSION, "model_hash": handle.model_hash, "adaln": adaln, "groups": groups,
            "transformers": list(models), "text_encoder": text_encoder,
        }  # fmt: skip
        (building / PACKED).write_text(json.dumps(about, indent=1), encoding="utf-8")
        building.chmod(0o755)
        os.replace(building, dst)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return dst


def _check_unpacked(src: str | os.PathLike, folder: Path) -> None:
    # Unlike Path.is_file this is False for a name that no system can hold.
    if os.path.isfile(folder / PACKED):
        raise ValueError(f"{shown(str(src))} is a packed checkpoint already; nothing to do.")


def load_packed(folder: Path, device, dtype):
    """The pipeline of a packed folder, attached, on `device`; the rest of the model in `dtype`. Raises LoadError."""
    import diffusers
    import torch
    from accelerate import init_empty_weights

    from engine import encoder
    from engine.attach import attach
    from engine.load import assemble

    parts = check_folder(folder)
    about = _about(folder, parts)
    models, packed = {}, {}
    for slot in about["transformers"]:
        made = getattr(diffusers, parts[slot])
        with init_empty_weights(include_buffers=False):
            models[slot] = made.from_config(made.load_config(str(folder / slot))).eval()
        packed.update(_fill(models[slot], slot, folder / slot, about["groups"], device, dtype))
    ready = dict(models)
    if about.get("text_encoder") == "w4a16":
        ready[encoder.SLOT] = _encoder(parts, folder, about["groups"], device, dtype)
    pipe = assemble(folder, parts, dtype, **ready)
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module) and name not in ready:
            part.to(device)
    _check_groups(pipe, models, packed, about["adaln"])
    attach(pipe, keep="none", adaln=about["adaln"], packed=packed, known_hash=about["model_hash"])
    for slot, model in models.items():
        empty = next((name for name, value in model.named_parameters() if value.is_meta), None)
        if empty is not None:
            raise LoadError(
                f"The packed checkpoint lacks the weight {shown(f'{slot}.{empty}')}; quantize the model again."
            )
    return pipe


def _check_groups(pipe, models: dict, packed: dict, adaln: str) -> None:
    """Raise LoadError unless there is a packed weight of the right size for every group that `attach` will want."""
    from engine.attach import plan_groups
    from engine.families import family_of

    family = family_of(pipe)
    for slot, model in models.items():
        for _, path, _, linears, _ in plan_groups(family, slot, model, adaln):
            if path not in packed:
                raise LoadError(
                    f"The packed checkpoint lacks the packed weight {shown(path)}; quantize the model again."
                )
            wanted = (sum(linear.out_features for linear in linears), linears[0].in_features)
            if packed[path].shape != wanted:
                raise LoadError(
                    f"The packed weight {shown(path)} has the size {packed[path].shape}, and the configuration wants "
                    f"{wanted}; quantize the model again."
                )


def _encoder(parts: dict[str, str], folder: Path, groups: dict, device, dtype):
    """The packed text encoder of a packed folder, on `device`."""
    from types import SimpleNamespace

    import transformers
    from accelerate import init_empty_weights

    from engine import encoder

    if parts.get(encoder.SLOT) not in encoder.CLASSES:
        raise LoadError(
            f"{PACKED} in {shown(str(folder))} promises a packed T5 encoder, but the pipeline has none; "
            "quantize it again."
        )
    made = getattr(transformers, parts[encoder.SLOT])
    with init_empty_weights(include_buffers=False):
        model = made(made.config_class.from_pretrained(str(folder / encoder.SLOT))).eval()
    found = _fill(model, encoder.SLOT, folder / encoder.SLOT, groups, device, dtype)
    model.tie_weights()
    found = {path.removeprefix(f"{encoder.SLOT}."): weight for path, weight in found.items()}
    missing = next((name for name in encoder.linears_of(model) if name not in found), None)
    if missing is None:
        encoder.pack_text_encoder(SimpleNamespace(text_encoder=model), packed=found)
        missing = next((name for name, value in model.named_parameters() if value.is_meta), None)
    if missing is not None:
        raise LoadError(
            f"The packed checkpoint lacks the weight {shown(f'{encoder.SLOT}.{missing}')}; quantize the model again."
        )
    return model


def _ignored(source: Path, models: set[str]):
    """For copytree: of the transformers only the configurations, and nothing hidden or pickled anywhere."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        inside = Path(folder).name in models and Path(folder).parent == source
        return {
            name for name in names
            if name.startswith(".") or Path(name).suffix in (".bin", ".pt", ".pth", ".ckpt", ".py", ".pkl")
            or (inside and name != "config.json")
        }  # fmt: skip

    return ignored


def _tensors(slot: str, model, packed: dict) -> Iterator[tuple[str, object]]:
    """(name, tensor) of everything a model needs: its packed weights, then all other parameters and buffers."""
    for path, weight in packed.items():
        if path.startswith(f"{slot}."):
            for field in FIELDS:
                yield f"{path}.{field}", getattr(weight, field)
    for name, value in model.named_parameters():
        yield f"{REST}.{name}", value.detach()
    kept = set(model.state_dict())
    for name, value in model.named_buffers():
        if name in kept and name.rsplit(".", 1)[-1] not in FIELDS:
            yield f"{REST}.{name}", value


def _write_shards(folder: Path, tensors: Iterator[tuple[str, object]], shard_bytes: int) -> None:
    from safetensors.torch import save_file

    batch, size, number = {}, 0, 0

    def write() -> None:
        nonlocal batch, size, number
        number += 1
        save_file(batch, folder / f"packed-{number:05d}.safetensors", metadata={"format": "pt"})
        batch, size = {}, 0

    for name, tensor in tensors:
        if batch and size + tensor.nbytes > shard_bytes:
            write()
        # A view of a joined tensor would be written with its whole storage.
        batch[name] = tensor.contiguous().clone()
        size += tensor.nbytes
    write()


def _about(folder: Path, parts: dict[str, str]) -> dict:
    what = "the description of a packed checkpoint"
    about = read_object(folder / PACKED, what, error=LoadError)
    good = about.get("kind") == KIND and about.get("version") == VERSION and isinstance(about.get("groups"), dict)
    good = good and isinstance(about.get("transformers"), list) and isinstance(about.get("model_hash"), str)
    good = (
        good
        and about.get("adaln") in ("w4a16", "stock")
        and all(isinstance(group, dict) for group in about["groups"].values())
    )
    if not good:
        raise LoadError(
            f"{PACKED} in {shown(str(folder))} is not {what} of version {VERSION}; quantize the model again."
        )
    transformers = {slot for slot in MODEL_SLOTS if slot in parts}
    if not all(isinstance(slot, str) for slot in about["transformers"]) or set(about["transformers"]) != transformers:
        raise LoadError(
            f"{PACKED} in {shown(str(folder))} lists the transformers {shown(about['transformers'])}, and the pipeline "
            f"has {', '.join(sorted(transformers)) or 'none'}; quantize the model again."
        )
    return about


def _fill(model, slot: str, folder: Path, groups: dict, device, dtype) -> dict:
    """Put the unpacked parameters of one model into `model`, in place; returns its packed weights by path."""
    import torch
    from safetensors import safe_open

    from kernels import PackedWeight

    files = sorted(folder.glob("packed-*.safetensors"))
    for path in files:
        header(path)
    found: dict[str, dict] = {}
    for path in files:
        with safe_open(path, framework="pt", device=str(device)) as stored:
            rest = {}
            for name in stored.keys():
                tensor = stored.get_tensor(name)
                if name.startswith(f"{REST}."):
                    # What lies there in float32 was kept so by the model itself (Wan's norms and time embedding).
                    rest[name.removeprefix(f"{REST}.")] = tensor.to(dtype) if tensor.dtype == torch.bfloat16 else tensor
                else:
                    group, _, field = name.rpartition(".")
                    found.setdefault(group, {})[field] = tensor
            try:
                model.load_state_dict(rest, strict=False, assign=True)
            except RuntimeError as error:
                raise LoadError(
                    f"{folder.name}/{path.name} does not fit the configuration beside it; quantize the model again."
                ) from error
    packed = {}
    for path, about in groups.items():
        if not path.startswith(f"{slot}."):
            continue
        fields = found.get(path, {})
        if set(fields) != set(FIELDS) or not _fits(fields, about):
            raise LoadError(f"The packed weight {shown(path)} is missing or malformed; quantize the model again.")
        packed[path] = PackedWeight(*(fields[name] for name in FIELDS), tuple(about["shape"]), about["hadamard"])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.is_meta:
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        module._buffers.update({name: value.to(device) for name, value in module._buffers.items() if value is not None})
    return packed


def _fits(fields: dict, about: dict) -> bool:
    """Whether dtypes and shapes are those of a PackedWeight of the stated shape (codes two to a byte, blocks of 16)."""
    import torch

    shape, hadamard = about.get("shape"), about.get("hadamard")
    if not isinstance(shape, list) or len(shape) != 2 or not all(isinstance(n, int) and n > 0 for n in shape):
        return False
    rows, padded = shape[0], -(-shape[1] // 16) * 16
    expected = {
        "codes": (torch.uint8, (rows, padded // 2)), "scales": (torch.uint8, (rows, padded // 16)),
        "tensor_scale": (torch.int32, (rows,)), "int8_scale": (torch.int32, (rows,)),
    }  # fmt: skip
    same = all((fields[name].dtype, tuple(fields[name].shape)) == value for name, value in expected.items())
    return same and hadamard in (1, 16, 32, 64, 128) and shape[1] % hadamard == 0
