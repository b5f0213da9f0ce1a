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
import sys
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
#: Turning a very long number into an integer takes quadratic time on Pythons without a limit of their own (before 3.9.14 and 3.10.7).
_LONG_NUMBER: t.Final = re.compile(rb"[0-9]{1000}")
_NO_LIMIT_OF_ITS_OWN: t.Final = not hasattr(sys, "get_int_max_str_digits")
#: Seconds of this process for all headers together; those of a 120 B model in 40 files take 0.2. Not of the clock on the wall: what a
#: checkpoint weighs must not depend on how busy the node is.
_DEADLINE: t.Final = 1.5
#: A tensor as safetensors itself writes it. Read like this a header takes a third of the time and none of the memory of a JSON tree; one
#: that is written in any other way is parsed as the JSON that it is. Each part ends at a sign that it cannot hold, so it is linear.
_ENTRY: t.Final = re.compile(
    rb'"([^"\\]{1,1024})":\{"dtype":"([A-Z0-9_]{1,16})","shape":\[([0-9,]{0,200})\],"data_offsets":\[([0-9]{1,15}),([0-9]{1,15})\]\}(?:,(?=")|(?=\}))'
)
_METADATA: t.Final = re.compile(rb'"__metadata__":\{[^{}]{0,65536}\}(?:,(?=")|(?=\}))')
#: More bytes than any file has; a shape or an offset beyond it is a lie.
_MAX_SIZE: t.Final = 1 << 48

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
    deadline = time.process_time() + _DEADLINE
    names, total = _index(directory, problems)
    if names is None:
        names = _listed(directory, problems)
    result = Checkpoint(total_size=total, files=len(names), source="index" if total is not None else "")
    if not names:
        return result
    budget = MAX_HEADERS
    listing = _Listing()
    on_disk = count = 0
    good = True
    missing: list[str] = []
    for name in names:
        if time.process_time() > deadline or count > MAX_TENSORS or budget <= 0:
            problems.add("headers_too_large", "The safetensors headers are larger than any known model's; the index or the files' sizes are used instead.")
            good = False
            break
        try:
            found, size, used = _read_header(os.path.join(directory, name), listing)
        except FileNotFoundError:
            missing.append(name)
            continue
        except _FileError as exc:
            problems.error("safetensors_bad_header", f"{shown(name)}: {exc}.")
            good = False
            continue
        budget -= used
        on_disk += size
        count += found
    if missing:
        good = False
        problems.add("shards_missing", f"{len(missing)} of {len(names)} weight files are not there, {shown(missing[0])} first; the index's total is used.")
    result.complete = good
    if good:
        result.source = "headers"
        result.tensors = listing.tensors()
    elif result.total_size is None and not missing:
        result.total_size = on_disk or None
        result.source = "file sizes"
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
    try:
        names = {value for value in set(weight_map.values()) if isinstance(value, str)}
    except TypeError:
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
    if _NO_LIMIT_OF_ITS_OWN and _LONG_NUMBER.search(raw):
        raise _FileError("holds a number of a thousand digits")
    try:
        return json.loads(raw)
    except RecursionError as exc:
        raise _FileError("is nested too deeply") from exc
    except ValueError as exc:
        # UnicodeDecodeError, JSONDecodeError, and the limit on digits of a number
        raise _FileError("is not valid JSON") from exc


#: name, dtype, shape, begin and end of a tensor; dtype and shape in the words of the header.
_Words = tuple[str, t.Any, t.Any, int, int]
#: dtype, shape, bytes.
_Known = tuple[str, tuple[int, ...], int]


class _Listing:
    """Tensors of all files. The experts of a layer are one entry: a checkpoint has tens of thousands of them, and they differ only in a number."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, str, _Known], int] = {}
        self._names: set[str] = set()
        #: By the words of a header; checked once, as the same few come again and again.
        self._shapes: dict[tuple[t.Any, t.Any], _Known] = {}

    def add_header(self, raw: bytes) -> tuple[int, int]:
        """Take the header of a file; return the number of its tensors and where the last one ends."""
        written = _written(raw)
        if written is not None:
            return self._take(written)
        header = _parse(raw)
        if not isinstance(header, dict):
            raise _FileError("has a header that is not a dictionary")
        header.pop("__metadata__", None)
        return self._take(_described(name, entry) for name, entry in header.items())

    def _take(self, entries: t.Iterable[_Words]) -> tuple[int, int]:
        shapes, tensors, names = self._shapes, self._tensors, self._names
        count = held = last = 0
        for name, dtype, shape, begin, end in entries:
            known = shapes.get((dtype, shape))
            if known is None:
                known = shapes[dtype, shape] = _checked(name, dtype, shape)
            size = known[2]
            if end - begin != size or begin < 0 or end >= _MAX_SIZE:
                raise _FileError(f"has tensor {shown(name)} at {begin} to {end}, of which shape and dtype make {size} bytes")
            count += 1
            held += size
            if end > last:
                last = end
            if name in names:
                # the same checkpoint in one file and in shards: an engine loads a name once
                continue
            names.add(name)
            before, experts, rest = name.partition(".experts.")
            if experts:
                number, _dot, rest = rest.partition(".")
                if not number.isdecimal():
                    before, rest = name, ""
            key = (before, rest, known)
            tensors[key] = tensors.get(key, 0) + 1
        if held != last:
            raise _FileError("has a header whose tensors overlap or leave gaps")
        return count, last

    def tensors(self) -> list[Tensor]:
        """What was added, experts with their number as copies."""
        return [
            Tensor(f"{name}.experts.0.{rest}" if rest else name, shape, size, dtype, copies)
            for (name, rest, (dtype, shape, size)), copies in self._tensors.items()
        ]


def _written(raw: bytes) -> list[_Words] | None:
    """The entries of a header in the form that safetensors writes; None: it is in another one."""
    body = raw.rstrip(b" ")
    metadata = _METADATA.match(body, 1)
    position = metadata.end() if metadata else 1
    found: list[_Words] = []
    try:
        for match in _ENTRY.finditer(body, position):
            if match.start() != position:
                return None
            name, dtype, shape, begin, end = match.groups()
            found.append((name.decode(), dtype, shape, int(begin), int(end)))
            position = match.end()
    except UnicodeDecodeError:
        return None
    return found if body[:1] == b"{" and body[position:] == b"}" else None


def _described(name: str, entry: t.Any) -> _Words:
    """The same of one entry of a parsed header."""
    try:
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        hash(shape)
        dtype = entry["dtype"]
    except (KeyError, TypeError, ValueError) as exc:
        raise _FileError(f"describes tensor {shown(name)} wrongly") from exc
    if not isinstance(dtype, str) or not _is_whole(begin) or not _is_whole(end):
        raise _FileError(f"has tensor {shown(name)} with dtype {shown(dtype)} and offsets {shown(begin)}, {shown(end)}")
    return name, dtype, shape, begin, end


def _checked(name: str, dtype: str | bytes, shape: tuple[t.Any, ...] | bytes) -> _Known:
    """dtype, shape and bytes of a tensor, from the words of its header."""
    if isinstance(dtype, bytes):
        dtype = dtype.decode()
    if isinstance(shape, bytes):
        # an empty item is no number: [1,,2] is refused as a parser of JSON refuses it
        shape = tuple(int(word) if word else -1 for word in shape.split(b",")) if shape else ()
    bits = _BITS.get(dtype, 0)
    if not bits:
        raise _FileError(f"has tensor {shown(name)} of unknown dtype {shown(dtype)}")
    if len(shape) > 16 or not all(_is_whole(value) and 0 <= value < _MAX_SIZE for value in shape):
        raise _FileError(f"has tensor {shown(name)} with shape {shown(shape)}")
    return dtype, shape, -(-math.prod(shape) * bits // 8)


def _is_whole(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_header(path: str, listing: _Listing) -> tuple[int, int, int]:
    """Add the tensors of one file; return their number, the size of its data part by the file system, and the header's length."""
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
    count, last = listing.add_header(raw)
    if last != size - 8 - length:
        raise _FileError(f"holds {size - 8 - length} bytes of data, its header says {last}: it is incomplete or damaged")
    return count, last, length
