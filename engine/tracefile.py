"""The file of a trace: one Parquet table that any tool can read, and the checks that a stranger's file must pass.

Block rows and layer rows are stacked in one table and told apart by the column `row` ("block" or "layer"); columns
that belong to the other kind are null. The meta data is JSON under the key `sixbit`. So the file opens in pandas,
DuckDB or a spreadsheet without this package.

A file is refused before it is unpacked when it is too large, and again after that when its values cannot be a
trace: pictures, tables and sentences are made from it, so text columns hold known words only.

A damaged file is told from a whole one: pages carry the format's checksums, and the footer, which has none, a digest
of the description and of every value. Both are absent in files of earlier versions, which load as they are.
"""

import hashlib
import json
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.files import existing, known_fields, parse_object, write_atomic
from engine.records import BLOCK_REASONS, DECIDED_BY, GROUP_REASONS, PRECISIONS, Calibration, CalibrationError
from engine.settings import Policy, PolicyError
from engine.trace import (
    BLOCK_COLUMNS,
    KEYS,
    LAYER_COLUMNS,
    SAMPLE,
    SCHEMA,
    Trace,
    TraceError,
    TraceMeta,
    column,
)  # fmt: skip

META_KEY = b"sixbit"
DIGEST_KEY = b"sixbit-digest"
META_LIMIT = 8_000_000
NAME_LIMIT = 80
UNPACKED_LIMIT = 1_000_000_000
CELL_LIMIT = 1_000_000           # fifty blocks of four layer groups at 5,000 steps

_ARROW = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string(), list: pa.list_(pa.float64())}
_KINDS = {"block": BLOCK_COLUMNS, "layer": LAYER_COLUMNS}
_SCHEMA = {"row": pa.string(), **{n: _ARROW[t] for columns in _KINDS.values() for n, t in columns.items()}}
_WORDS = {
    ("block", "reason"): BLOCK_REASONS,
    ("layer", "reason"): GROUP_REASONS,
    ("layer", "precision"): PRECISIONS,
    ("layer", "decided_by"): DECIDED_BY,
}


def write(trace: Trace, path: str | os.PathLike) -> None:
    """Write `trace` as one zstd-compressed Parquet file, atomically."""
    tables = []
    for kind, table in (("block", trace.blocks), ("layer", trace.layers)):
        arrays = {"row": pa.array([kind] * len(table), pa.string())}
        for name, type_ in _KINDS[kind].items():
            # from_pandas=False keeps NaN a number: null means "not a column of this kind of row".
            values = table[name].tolist() if type_ in (str, list) else table[name].to_numpy()
            arrays[name] = pa.array(values, _ARROW[type_], from_pandas=False)
        tables.append(pa.table(arrays))
    # NumPy's scalars (a seed, a frame count) are numbers to everyone but the json module.
    meta = json.dumps(trace.meta.to_dict(), default=lambda scalar: scalar.item()).encode()
    extra = {META_KEY: meta, DIGEST_KEY: _digest(trace.blocks, trace.layers, meta)}
    whole = pa.concat_tables(tables, promote_options="default").replace_schema_metadata(extra)
    options = {"compression": "zstd", "write_page_checksum": True}
    write_atomic(path, lambda temporary: pq.write_table(whole, temporary, **options))


def _digest(blocks: pd.DataFrame, layers: pd.DataFrame, meta: bytes) -> bytes:
    """SHA-256 in hex over the description and both tables, bit for bit, however a file stores them."""
    digest = hashlib.sha256(meta)
    for kind, table in (("block", blocks), ("layer", layers)):
        digest.update(f"{kind} {len(table)}".encode())
        for name, type_ in _KINDS[kind].items():
            if type_ is str:
                values = "\0".join(table[name]).encode()
            elif type_ is list:
                values = b"".join(
                    b"-" if cell is None else np.asarray(cell, np.float64).tobytes() for cell in table[name]
                )
            else:
                values = column(table[name].to_numpy(), type_).tobytes()
            digest.update(values)
    return digest.hexdigest().encode()


def read(path: str | os.PathLike, max_bytes: int, max_rows: int) -> Trace:
    """Read and check a trace; every failure is a `TraceError` of one sentence."""
    path = existing(path, "a trace file (.parquet)", TraceError)
    name = path.name if len(path.name) <= 60 else path.name[:57] + "…"
    size = path.stat().st_size
    if size > max_bytes:
        raise TraceError(f"{name!r} is {size / 1e6:,.1f} MB, over the limit of {max_bytes / 1e6:,.1f} MB for a trace.")
    try:
        with pq.ParquetFile(path) as file:
            meta = _meta(file, name)
            _bounded(file, name, max_rows)
            extra = file.schema_arrow.metadata
        # Text is read as dictionaries, so that a small file cannot unpack into endless text.
        text = [title for title, type_ in _SCHEMA.items() if type_ == pa.string()]
        with pq.ParquetFile(path, read_dictionary=text, page_checksum_verification=True) as file:
            table = file.read()
        trace = _trace(table, meta, name)
        if extra.get(DIGEST_KEY, b"") not in (b"", _digest(trace.blocks, trace.layers, extra[META_KEY])):
            raise TraceError(f"{name!r} is damaged: its values are not those that were saved; save the trace again.")
        return trace
    except TraceError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError) as problem:
        raise TraceError(
            f"{name!r} is not a whole trace file: it is truncated, damaged or no Parquet file; save the trace again."
        ) from problem


def _meta(file: pq.ParquetFile, name: str) -> TraceMeta:
    text = (file.schema_arrow.metadata or {}).get(META_KEY)
    if text is None:
        raise TraceError(f"{name!r} is a Parquet file but no trace of this lab; choose a file saved by Trace.save.")
    if len(text) > META_LIMIT:
        raise TraceError(f"{name!r} carries more than {META_LIMIT:,} bytes of description, too much for a trace.")
    return meta_from_dict(parse_object(text, f"the description of a trace ({name!r})", TraceError))


def meta_from_dict(values: dict) -> TraceMeta:
    """`TraceMeta` from plain values; raises `TraceError` in one sentence for unknown fields or wrong types."""
    if values.get("schema") != SCHEMA:
        shown = repr(values.get("schema"))[:20]
        raise TraceError(f"The trace has schema {shown}, this version reads {SCHEMA}; record it again or update.")
    known_fields(values, set(TraceMeta.__dataclass_fields__), "A trace's description", TraceError)
    default = TraceMeta()
    for field, value in values.items():
        if not _fits(field, value, getattr(default, field)):
            raise TraceError(f"The trace's description has an unusable {field} ({repr(value)[:40]}); record it again.")
    calibration = values.get("calibration")
    try:
        if values.get("policy"):
            Policy.from_dict(values["policy"])
        return TraceMeta(**{**values, "calibration": Calibration.from_dict(calibration) if calibration else None})
    except (PolicyError, CalibrationError) as problem:
        raise TraceError(f"The trace was recorded under impossible settings: {problem}") from problem


def _fits(field: str, value: object, default: object) -> bool:
    if field == "replay":
        return value in (None, "exact", "open loop", "partial")
    if field == "calibration":
        return value is None or isinstance(value, dict)
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, str):
        return isinstance(value, str) and len(value) <= 20_000
    if isinstance(default, dict):
        inner = {"seconds": _number, "memory": _number, "versions": lambda text: isinstance(text, str)}
        return isinstance(value, dict) and all(map(inner.get(field, lambda _: True), value.values()))
    return (value is None and default is None) or _number(value)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63


def _bounded(file: pq.ParquetFile, name: str, max_rows: int) -> None:
    footer = file.metadata
    if footer.num_rows > max_rows:
        raise TraceError(f"{name!r} has {footer.num_rows:,} rows, over the limit of {max_rows:,} for a trace.")
    unpacked = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
    if unpacked > UNPACKED_LIMIT:
        raise TraceError(f"{name!r} would unpack to {unpacked / 1e9:.1f} GB, over the limit for a trace.")
    found = [(field.name, field.type) for field in file.schema_arrow]
    if sorted(found, key=str) != sorted(_SCHEMA.items(), key=str):
        odd = next((title for title, type_ in found if _SCHEMA.get(title) != type_), "a missing or repeated one")
        raise TraceError(f"{name!r} does not have the columns of a trace (look at {odd[:40]!r}); record it again.")


def _trace(table: pa.Table, meta: TraceMeta, name: str) -> Trace:
    kinds = np.asarray(table["row"].cast(pa.string()).to_pylist(), dtype=object)
    if not np.isin(kinds, list(_KINDS)).all():
        raise TraceError(f"{name!r} has rows that are neither a block nor a layer; record it again.")
    blocks, layers = (_frame(table, kinds == kind, kind, name) for kind in _KINDS)
    _consistent(blocks, layers, name)
    _drawable(blocks, layers, meta, name)
    return Trace(blocks, layers, meta)


def _frame(table: pa.Table, rows: np.ndarray, kind: str, name: str) -> pd.DataFrame:
    part = table.filter(pa.array(rows))
    columns = {}
    for title, type_ in _KINDS[kind].items():
        values = part[title]
        if type_ is str:
            values = _words(values, kind, title, name)
        if type_ is not list and values.null_count:
            raise TraceError(f"{name!r} lacks values in the column {title!r}; record it again.")
        values = values.cast(_ARROW[type_])
        if type_ is list:
            columns[title] = column(_samples(values, name), list)
        else:
            columns[title] = column(values.to_pylist() if type_ is str else values.to_numpy(), type_)
    return pd.DataFrame(columns)


def _samples(values: pa.ChunkedArray, name: str) -> list:
    inner = pc.list_flatten(values)
    whole = pc.all(pc.equal(pc.list_value_length(values), SAMPLE), min_count=0).as_py()
    if not whole or inner.null_count or not pc.all(pc.is_finite(inner), min_count=0).as_py():
        raise TraceError(f"{name!r} has a sample that is not {SAMPLE} finite numbers; record it again.")
    return values.to_pylist()


def _words(values: pa.ChunkedArray, kind: str, title: str, name: str) -> pa.ChunkedArray:
    """Refuse text that no recording writes, looking at the dictionary only, before it is unpacked."""
    allowed = _WORDS.get((kind, title))
    for chunk in values.chunks:
        used = chunk.dictionary.take(chunk.indices.unique().drop_null())
        for index in range(len(used)):
            word = used[index].as_buffer()
            if word is None or word.size > NAME_LIMIT:
                raise TraceError(f"{name!r} has a {title} longer than {NAME_LIMIT} bytes; record it again.")
            if allowed is not None and used[index].as_py() not in allowed:
                raise TraceError(f"{name!r} has the unknown {kind} {title} {used[index].as_py()!r}; record it again.")
    return values


def _drawable(blocks: pd.DataFrame, layers: pd.DataFrame, meta: TraceMeta, name: str) -> None:
    """Figures hold every cell of the map, listed or not, so a small file could ask for any amount of memory."""
    steps = max(meta.steps or 0, 1 + (int(blocks["step"].max()) if len(blocks) else 0))
    cells = steps * max(1, blocks["block"].nunique()) * max(1, layers["layer"].nunique())
    if cells > CELL_LIMIT:
        raise TraceError(
            f"{name!r} has a map of {cells:,} cells (steps, blocks and layers), over the limit of {CELL_LIMIT:,}; "
            "record it with fewer steps."
        )


def _consistent(blocks: pd.DataFrame, layers: pd.DataFrame, name: str) -> None:
    """Figures index by the keys, so keys must be unique, small and agree between the two tables."""
    for table in (blocks, layers):
        for title in ("call", "step", "block"):
            if len(table) and not table[title].between(0, 99_999).all():
                raise TraceError(f"{name!r} has a {title} outside 0 to 99,999; record it again.")
    if len(blocks) and not (blocks["step"] < blocks["steps"]).all():
        raise TraceError(f"{name!r} has a step that is not below its number of steps; record it again.")
    if len(blocks) and not blocks["gap"].between(0, 99_999).all():
        raise TraceError(f"{name!r} has a gap outside 0 to 99,999; record it again.")
    keys = list(KEYS)
    if blocks.duplicated(keys).any() or layers.duplicated([*keys, "layer"]).any():
        raise TraceError(f"{name!r} lists one cell of the map twice; record it again.")
    cells = layers[keys].drop_duplicates()
    if len(cells.merge(blocks[keys], on=keys)) != len(cells):
        raise TraceError(f"{name!r} has layers of a block that it does not list; record it again.")
