"""Whole files or none: atomic writes, and bounded reads that end in one sentence instead of a traceback.

A trace, a policy or a calibration may come from a stranger's upload or from a disk that filled up half way.
So every write goes to a neighbour file first and is moved into place in one step, and every read is bounded
before anything is parsed.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path

JSON_LIMIT = 8_000_000
"""Largest JSON document that is read, in bytes (a 60-block calibration takes about 0.1 MB)."""


NAMED = 5
"""How many unknown fields one sentence names."""


class NotWritten(OSError):
    """A file that could not be written, said in one sentence; `errno` is the system's, where it gave one."""


def write_atomic(path: str | os.PathLike, write: bytes | str | Callable[[Path], object]) -> Path:
    """Write `path` so that it is either the old file or the whole new one, even when killed half way.

    `write` is the content, or a function that writes the content to the temporary path it is given.
    Raises `NotWritten`, an OSError (disk full, no such folder); the temporary file is removed and `path` untouched.
    """
    path = as_path(path)
    if not path.parent.is_dir():
        raise NotWritten(
            f"{shown(path.name)} cannot be written: its folder does not exist; create it or choose another."
        )
    if path.is_dir():
        raise NotWritten(f"{shown(path.name)} cannot be written: it is a folder; give the name of a file.")
    try:
        return _write(path, write)
    except OSError as problem:
        # The system names the temporary file, which nobody asked for.
        said = NotWritten(
            f"{shown(path.name)} cannot be written ({problem.strerror or str(problem)[:200]}); free space or choose "
            "another place."
        )
        said.errno = problem.errno
        raise said from problem


def _write(path: Path, write: bytes | str | Callable[[Path], object]) -> Path:
    # The same folder means the same file system, which os.replace needs to be atomic; the same suffix
    # because some writers choose their format by it.
    handle, name = tempfile.mkstemp(prefix=f".{path.stem[:40]}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        if callable(write):
            write(temporary)
        else:
            temporary.write_bytes(write.encode("utf-8") if isinstance(write, str) else write)
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        # mkstemp makes the file private; a result is meant to be as readable as any other new file.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def takes_files(folder: Path) -> None:
    """Raise the system's OSError where `folder` takes no new file: tried with one, which is gone again at once."""
    with tempfile.NamedTemporaryFile(prefix=".try-", dir=folder):
        pass


def as_path(path: object, error: type[ValueError] = ValueError) -> Path:
    """The path, or `error` in a sentence for what is none."""
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise error(f"Expected the path of a file; got {shown(path)}.")
    return Path(path)


def existing(path: object, what: str, error: type[ValueError] = ValueError) -> Path:
    """The path of a file that is there, or `error` in a sentence that names `what` it should be."""
    path = as_path(path, error)
    try:
        found = path.is_file()
    except OSError:  # a name longer than the system allows, or a folder that may not be entered
        found = False
    if not found:
        wrong = (
            "that is a folder; give the file itself" if os.path.isdir(path) else "there is no such file; check the path"
        )
        raise error(f"Expected {what} at {shown(path.name or str(path))}, but {wrong}.")
    return path


def read_text(path: str | os.PathLike, what: str, limit: int = JSON_LIMIT, error: type[ValueError] = ValueError) -> str:
    """Return the UTF-8 text of a small file, or raise `error` with one sentence that names `what` it should be."""
    path = existing(path, what, error)
    try:
        with open(path, "rb") as stream:
            data = stream.read(limit + 1)
    except OSError as problem:
        raise error(f"{path.name!r} cannot be read ({problem.strerror}); check its permissions.") from problem
    if len(data) > limit:
        raise error(f"{path.name!r} is larger than {limit:,} bytes, too large for {what}; choose another file.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{path.name!r} is not {what}: it is not UTF-8 text; choose another file.") from problem


def read_object(
    path: str | os.PathLike, what: str, limit: int = JSON_LIMIT, error: type[ValueError] = ValueError
) -> dict:
    """The JSON object in a small file, or `error` in one sentence that names the file and `what` it should be."""
    return parse_object(read_text(path, what, limit, error), what, error, named=shown(Path(path).name))


def parse_object(text: str | bytes, what: str, error: type[ValueError] = ValueError, named: str = "This") -> dict:
    """Parse one JSON object; raise `error` in a sentence for anything else (broken, too deep, too long, a list).

    named: what the sentence calls the text, such as the name of its file.
    """
    if not isinstance(text, (str, bytes)):
        raise error(f"Expected {what} as JSON text, got {type(text).__name__}.")
    if len(text) > JSON_LIMIT:
        raise error(f"The text is longer than {JSON_LIMIT:,} characters, too long for {what}.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        where = f" (line {problem.lineno}, column {problem.colno})" if isinstance(problem, json.JSONDecodeError) else ""
        raise error(f"{named} is not {what}: it is not valid JSON{where}; export it again.") from problem
    if not isinstance(value, dict):
        raise error(f"{named} is not {what}: expected a JSON object, got {shown(value)}.")
    return value


def known_fields(values: Mapping, fields: set[str], what: str, error: type[ValueError] = ValueError) -> None:
    """Refuse fields that `what` does not have: each named with the nearest that there is, then all that there are."""
    if not isinstance(values, Mapping):
        raise error(f"{what} must be a mapping of field names to values; got {type(values).__name__}.")
    unknown = sorted(str(name) for name in values if name not in fields)
    if unknown:
        named = [_with_nearest(name, fields) for name in unknown[:NAMED]]
        more = f" and {len(unknown) - NAMED:,} more" if len(unknown) > NAMED else ""
        noun = "field" if len(unknown) == 1 else "fields"
        raise error(f"{what} has no {noun} {', '.join(named)}{more}; its fields are {', '.join(sorted(fields))}.")


def _with_nearest(name: str, fields: set[str]) -> str:
    near = get_close_matches(name, sorted(fields), 1) if len(name) <= 60 else []
    return shown(name) + (f" (perhaps {near[0]})" if near else "")


def of_kind(name: str, value: object, kind: type, example: str, error: type[ValueError] = ValueError) -> None:
    """Refuse an argument that is of another kind, with an example of what would do."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise error(f"Expected {name} to be {article} {kind.__name__}, such as {example}; got {type(value).__name__}.")


def is_text(value: str) -> bool:
    """Whether every character is one: Python also holds halves of them, which no file and no library takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """A value as it may stand in a sentence: quoted and never long, whatever was sent."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4,300 digits
        text = f"a very long {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"
