"""--image and --video: what a video starts from, read from a file and asked for where a model needs it.

Files are tried first, then the class that a local model folder names, so that what cannot work costs no loading. A
model of the hub is asked once it is here.
"""

from __future__ import annotations

import inspect
import os
import struct
from collections.abc import Collection
from pathlib import Path

from engine.files import existing, shown
from engine.folder import check_folder, pipeline_class

KINDS = {"image": "an image", "video": "a video"}
MOST_THREADS = 1024


def add_inputs(parser) -> None:
    """Add --image and --video to a command."""
    parser.add_argument(
        "--image", type=Path, metavar="FILE",
        help="the picture to start from (image-to-video models): PNG, JPEG, WebP, …",
    )  # fmt: skip
    parser.add_argument(
        "--video", type=Path, metavar="FILE",
        help="the clip to start from (video-to-video models): mp4, webm, …, used whole",
    )  # fmt: skip


def read_inputs(given) -> dict:
    """The files of --image and --video as arguments of a pipeline call; {} without either.

    "image": a PIL picture, RGB, upright. "video": a list of such, 1 to 1,025. Both at any size; the pipeline brings
    them to its own. Raises ValueError in one sentence for a file that is missing, unreadable or too long.
    """
    readers = {"image": _picture, "video": _clip}
    paths = {name: getattr(given, name) for name in KINDS}
    return {name: readers[name](path) for name, path in paths.items() if path is not None}


def check_threads(*counts: int) -> None:
    """Refuse a count of --threads with which the libraries would fail: some end the process at tens of thousands."""
    wrong = next((count for count in counts if not 1 <= count <= MOST_THREADS), None)
    if wrong is not None:
        raise ValueError(f"--threads must be from 1 to {MOST_THREADS:,}; got {wrong}.")


def check_folder_takes(model: str, given: Collection[str]) -> None:
    """`check_taken` by the class that a local model folder names, before anything of it is loaded.

    model: as given to --model; one of the hub is passed over. Raises ValueError, and LoadError for a broken folder.
    """
    folder = local_folder(model)
    if folder is not None:
        check_folder(folder)
        check_taken(pipeline_class(folder), given)


def local_folder(model: str) -> Path | None:
    """The folder that --model names, or None for what is on no disk here: a model of the hub, or nothing at all."""
    # Unlike Path.is_dir this is False for a name that no system can hold.
    return Path(model).expanduser() if os.path.isdir(os.path.expanduser(model)) else None


def check_taken(pipeline: str, given: Collection[str]) -> None:
    """Refuse an input that a diffusers pipeline class does not take, and ask for one that it needs. Raises ValueError.

    given: which of "image" and "video" there are.
    """
    import diffusers

    accepted = inspect.signature(getattr(diffusers, pipeline).__call__).parameters
    needed = [name for name in KINDS if name in accepted]
    starts = f"{pipeline} starts from " + (" and ".join(KINDS[name] for name in needed) or "text alone")
    missing = [f"--{name} FILE" for name in needed if name not in given]
    surplus = [f"--{name}" for name in given if name not in needed]
    wishes = [f"give {' and '.join(missing)}"] if missing else []
    wishes += [f"leave {' and '.join(surplus)} out"] if surplus else []
    if wishes:
        raise ValueError(f"{starts}; {' and '.join(wishes)}.")


def _picture(path: Path):
    from PIL import Image, ImageOps

    path = existing(path, "a picture")
    try:
        with Image.open(path) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except Image.DecompressionBombError as error:
        raise ValueError(
            f"{shown(path.name)} has too many pixels for a picture to start from; make it smaller."
        ) from error
    except PermissionError as error:
        raise ValueError(f"{shown(path.name)} cannot be read ({error.strerror}); check its permissions.") from error
    # What Pillow's readers raise at damaged files has no common class.
    except (OSError, ValueError, SyntaxError, EOFError, struct.error) as error:
        raise ValueError(
            f"{shown(path.name)} is no picture that can be read; give a PNG, JPEG or WebP file."
        ) from error


def _clip(path: Path) -> list:
    from PIL import Image

    from engine.request import LIMITS
    from engine.video import read_mp4

    frames, _ = read_mp4(path, most=LIMITS["frames"][1])
    return [Image.fromarray(frame) for frame in frames]
