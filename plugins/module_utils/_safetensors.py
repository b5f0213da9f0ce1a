# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tensors of a checkpoint from the headers of its safetensors files, without reading any data.

Format: 8 bytes little-endian length N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then the data
(github.com/huggingface/safetensors, README, "Format"). The files come from the internet: links, FIFOs, lying lengths and
huge headers must cost neither time nor memory, so sizes are bounded before anything is parsed.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems, shown

#: A header of 40 shards of a 120 B model is about 600 kB a file; one file with 100 000 tensors has 15 MB.
MAX_HEADER: t.Final = 16 << 20
MAX_HEADERS: t.Final = 48 << 20
#: An index of 140 000 tensors has 15 MB.
MAX_INDEX: t.Final = 24 << 20
MAX_CONFIG: t.Final = 8 << 20
MAX_FILES: t.Final = 4096
MAX_TENSORS: t.Final = 400_000
#: A parsed JSON element costs up to 72 bytes; this bounds what a hostile text can unfold to.
_MAX_ELEMENTS: t.Final = 1_600_000
#: Turning a very long number into an integer takes quadratic time on Pythons without a limit of their own.
_LONG_NUMBER: t.Final = re.compile(rb"[0-9]{1000}")
#: Seconds for all headers together; real ones take milliseconds.
_DEADLINE: t.Final = 1.5

#: Bits of an element: safetensors' Dtype, with the sub-byte ones of 0.6.
_BITS: t.Final = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}


class Tensor(t.NamedTuple):
    """One tensor, or *copies* equal ones (experts) that differ only in a number of their names."""

    name: str
    shape: tuple[int, ...]
    size: int
    dtype: str = ""
    copies: int = 1


@dataclass
class Checkpoint:
    """What a directory says of its weights."""

    tensors: list[Tensor] = field(default_factory=list)
    #: Bytes of all tensors by the index or by the files' sizes; None: unknown.
    total_size: int | None = None
    files: int = 0
    #: True when every file's header was read and is consistent.
    complete: bool = False
    source: str = ""


class _FileError(Exception):
    """A file that cannot be used; the text says why."""


def read_config(directory: str, problems: Problems) -> t.Any:
    """Return the parsed config.json of *directory*, or None (with a problem)."""
    try:
        return _read_json(os.path.join(directory, "config.json"), MAX_CONFIG)
    except _FileError as exc:
        problems.error("config_unreadable", f"config.json of the model: {exc}.")
        return None


def read_hf_quant(directory: str, problems: Problems) -> t.Any:
    """Return the parsed hf_quant_config.json of *directory*, or None where there is none."""
    path = os.path.join(directory, "hf_quant_config.json")
    if not os.path.lexists(path):
        return None
    try:
        return _read_json(path, MAX_CONFIG)
    except _FileError as exc:
        problems.add("quantization_unreadable", f"hf_quant_config.json of the model: {exc}.")
        return None


def read_checkpoint(directory: str, problems: Problems) -> Checkpoint:
    """Read the headers of the checkpoint in *directory*.

    With an index only the files that it names count, so that duplicates of other layouts (C(original/),
    C(consolidated*.safetensors)) are not counted twice. A file that is missing or whose header lies is a problem; then
    the index's total is what remains.
    """
    deadline = time.monotonic() + _DEADLINE
    names, total = _index(directory, problems)
    if names is None:
        names = _listed(directory, problems)
    result = Checkpoint(total_size=total, files=len(names), source="index" if total is not None else "")
    if not names:
        return result
    budget = MAX_HEADERS
    on_disk = 0
    good = True
    missing: list[str] = []
    for name in names:
        if time.monotonic() > deadline or len(result.tensors) > MAX_TENSORS or budget <= 0:
            problems.add("headers_too_large", "The safetensors headers are larger than any known model's; the index or the files' sizes are used instead.")
            good = False
            break
        try:
            tensors, size, used = _read_header(os.path.join(directory, name))
        except FileNotFoundError:
            missing.append(name)
            continue
        except _FileError as exc:
            problems.error("safetensors_bad_header", f"{shown(name)}: {exc}.")
            good = False
            continue
        budget -= used
        on_disk += size
        result.tensors.extend(tensors)
    if missing:
        good = False
        problems.add("shards_missing", f"{len(missing)} of {len(names)} weight files are not there, {shown(missing[0])} first; the index's total is used.")
    result.complete = good
    if good:
        result.source = "headers"
    elif result.total_size is None and not missing:
        result.total_size = on_disk or None
        result.source = "file sizes"
    if not good:
        result.tensors = []
    return result


def _index(directory: str, problems: Problems) -> tuple[list[str] | None, int | None]:
    path = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.lexists(path):
        return None, None
    try:
        index = _read_json(path, MAX_INDEX)
    except _FileError as exc:
        problems.add("index_unreadable", f"model.safetensors.index.json: {exc}; all *.safetensors files of the directory count.")
        return None, None
    if not isinstance(index, dict):
        problems.add("index_unreadable", f"model.safetensors.index.json is {shown(index)}, not an index; all *.safetensors files of the directory count.")
        return None, None
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and math.isfinite(total) and abs(total) < 1e18:
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or not 0 < total < 1 << 60:
        if total is not None:
            problems.add("index_bad_total", f"The index's total_size is {shown(total)}; it is ignored.")
        total = None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        problems.add("index_unreadable", "The index has no weight_map; all *.safetensors files of the directory count.")
        return None, total
    names = {value for value in weight_map.values() if isinstance(value, str)}
    safe = sorted(name for name in names if _is_plain(name))
    if len(safe) != len(names):
        problems.error("index_unsafe_path", "The index names weight files outside the model's directory; they are not read.")
    if len(safe) > MAX_FILES:
        problems.error("index_too_many_files", f"The index names {len(safe)} files; at most {MAX_FILES} are read.")
        safe = safe[:MAX_FILES]
    return safe, total


def _is_plain(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name and "\0" not in name and len(name) < 256 and not name.startswith(".")


def _listed(directory: str, problems: Problems) -> list[str]:
    """Without an index: every safetensors file of the directory itself, one layout only."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if _is_plain(entry.name))
    except OSError as exc:
        problems.error("model_unreadable", f"The model directory cannot be read: {exc.strerror}.")
        return []
    ours = [name for name in names if not name.startswith("consolidated")] or names
    if len(ours) > MAX_FILES:
        problems.error("index_too_many_files", f"The directory has {len(ours)} weight files; at most {MAX_FILES} are read.")
        ours = ours[:MAX_FILES]
    return ours


def _open_regular(path: str) -> t.BinaryIO:
    """Open a regular file, following links (the Hugging Face cache is made of them) but never waiting on a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as exc:
        raise _FileError(f"cannot be opened ({getattr(exc, 'strerror', None) or 'bad name'})") from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _FileError("is not a regular file")
    return os.fdopen(descriptor, "rb")


def _read_json(path: str, limit: int) -> t.Any:
    try:
        with _open_regular(path) as handle:
            if os.fstat(handle.fileno()).st_size > limit:
                raise _FileError(f"is larger than {limit >> 20} MiB")
            raw = handle.read(limit + 1)
    except FileNotFoundError as exc:
        raise _FileError("is not there") from exc
    except OSError as exc:
        raise _FileError(f"cannot be read ({exc.strerror})") from exc
    if len(raw) > limit:
        raise _FileError(f"is larger than {limit >> 20} MiB")
    return _parse(raw)


def _parse(raw: bytes) -> t.Any:
    if sum(raw.count(sign) for sign in (b",", b":", b"[", b"{")) > _MAX_ELEMENTS:
        raise _FileError(f"has more than {_MAX_ELEMENTS} elements")
    if _LONG_NUMBER.search(raw):
        raise _FileError("holds a number of a thousand digits")
    try:
        return json.loads(raw)
    except RecursionError as exc:
        raise _FileError("is nested too deeply") from exc
    except ValueError as exc:
        # UnicodeDecodeError, JSONDecodeError, and the limit on digits of a number
        raise _FileError("is not valid JSON") from exc


def _read_header(path: str) -> tuple[list[Tensor], int, int]:
    """Tensors of one file, the size of its data part by the file system, and the header's length."""
    try:
        with _open_regular(path) as handle:
            size = os.fstat(handle.fileno()).st_size
            first = handle.read(8)
            if len(first) < 8:
                raise _FileError("is too short for a safetensors file")
            length = int.from_bytes(first, "little")
            if length > MAX_HEADER:
                raise _FileError(f"has a header of {length} bytes; at most {MAX_HEADER} are read")
            if length > size - 8:
                raise _FileError("has a header longer than the file")
            raw = handle.read(length)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise _FileError(f"cannot be read ({exc.strerror})") from exc
    header = _parse(raw)
    if not isinstance(header, dict):
        raise _FileError("has a header that is not a dictionary")
    tensors = []
    end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, last = _tensor(name, entry)
        end = max(end, last)
        tensors.append(tensor)
    if sum(tensor.size for tensor in tensors) != end:
        raise _FileError("has a header whose tensors overlap or leave gaps")
    if end != size - 8 - length:
        raise _FileError(f"holds {size - 8 - length} bytes of data, its header says {end}: it is incomplete or damaged")
    return tensors, end, length


def _tensor(name: str, entry: t.Any) -> tuple[Tensor, int]:
    if not isinstance(entry, dict):
        raise _FileError(f"describes tensor {shown(name)} wrongly")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    bits = _BITS.get(dtype, 0) if isinstance(dtype, str) else 0
    if not isinstance(dtype, str) or not bits:
        raise _FileError(f"has tensor {shown(name)} of unknown dtype {shown(dtype)}")
    if not isinstance(shape, list) or len(shape) > 16:
        raise _FileError(f"has tensor {shown(name)} with shape {shown(shape)}")
    elements = 1
    for value in shape:
        if not _is_size(value):
            raise _FileError(f"has tensor {shown(name)} with shape {shown(shape)}")
        elements *= value
    if not isinstance(offsets, list) or len(offsets) != 2 or not _is_size(offsets[0]) or not _is_size(offsets[1]) or offsets[0] > offsets[1]:
        raise _FileError(f"has tensor {shown(name)} with offsets {shown(offsets)}")
    size = offsets[1] - offsets[0]
    if -(-elements * bits // 8) != size:
        raise _FileError(f"has tensor {shown(name)} whose shape and dtype do not make {size} bytes")
    return Tensor(name, tuple(shape), size, dtype), offsets[1]


def _is_size(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48
