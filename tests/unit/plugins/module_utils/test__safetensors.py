# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import math
import os
import pathlib
import typing as t

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _safetensors as safetensors
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import Problems
from ansible_collections.unimem.dgx_spark.plugins.module_utils._safetensors import Checkpoint, read_checkpoint, read_config, read_hf_quant
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils._checkpoints import Listing, write_checkpoint, write_shard

SMALL: Listing = [
    ("model.embed_tokens.weight", "BF16", (64, 16)),
    ("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (32, 16)),
    ("model.layers.0.mlp.up_proj.weight_scale", "F32", (1,)),
    ("model.norm.weight", "BF16", (16,)),
]
SMALL_SIZE = 64 * 16 * 2 + 32 * 16 + 4 + 16 * 2


def read(directory: pathlib.Path) -> tuple[Checkpoint, set[str]]:
    problems = Problems()
    found = read_checkpoint(str(directory), problems)
    return found, {entry["code"] for entry in problems.as_list()}


def test_headers_of_several_shards(tmp_path: pathlib.Path) -> None:
    assert write_checkpoint(tmp_path, SMALL, 2, {}) == SMALL_SIZE
    found, codes = read(tmp_path)
    assert not codes
    assert (found.complete, found.files, found.source, found.total_size) == (True, 2, "headers", SMALL_SIZE)
    assert sum(tensor.size for tensor in found.tensors) == SMALL_SIZE
    assert found.tensors[0].shape == (64, 16)


def test_one_file_without_an_index(tmp_path: pathlib.Path) -> None:
    write_shard(tmp_path / "model.safetensors", SMALL)
    found, codes = read(tmp_path)
    assert not codes
    assert (found.complete, len(found.tensors)) == (True, 4)


def test_duplicates_are_not_counted(tmp_path: pathlib.Path) -> None:
    """consolidated.safetensors and original/ hold the same weights in another layout."""
    write_shard(tmp_path / "model-00001-of-00001.safetensors", SMALL)
    write_shard(tmp_path / "consolidated.00.safetensors", SMALL)
    (tmp_path / "original").mkdir()
    write_shard(tmp_path / "original" / "model.safetensors", SMALL)
    found, codes = read(tmp_path)
    assert not codes
    assert (found.files, sum(tensor.size for tensor in found.tensors)) == (1, SMALL_SIZE)


def test_consolidated_alone_counts(tmp_path: pathlib.Path) -> None:
    write_shard(tmp_path / "consolidated.safetensors", SMALL)
    assert len(read(tmp_path)[0].tensors) == 4


def test_index_names_what_counts(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, SMALL, 1, {})
    write_shard(tmp_path / "extra.safetensors", [("x.weight", "BF16", (1024, 1024))])
    assert sum(tensor.size for tensor in read(tmp_path)[0].tensors) == SMALL_SIZE


def test_links_of_the_hugging_face_cache(tmp_path: pathlib.Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c0ffee"
    blobs.mkdir()
    write_checkpoint(snapshot, SMALL, 2, {"a": 1})
    for path in list(snapshot.iterdir()):
        target = blobs / f"blob-{path.name}"
        path.rename(target)
        path.symlink_to(os.path.relpath(target, snapshot))
    found, codes = read(snapshot)
    assert not codes
    assert found.complete
    assert read_config(str(snapshot), Problems()) == {"a": 1}


def test_index_alone(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, SMALL, 2, {})
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    found, codes = read(tmp_path)
    assert codes == {"shards_missing"}
    assert (found.complete, found.total_size, found.source, found.tensors) == (False, SMALL_SIZE, "index", [])


def test_one_shard_missing(tmp_path: pathlib.Path) -> None:
    write_checkpoint(tmp_path, SMALL, 2, {})
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    found, codes = read(tmp_path)
    assert codes == {"shards_missing"}
    assert (found.complete, found.total_size) == (False, SMALL_SIZE)


def test_missing_shard_without_total_is_unknown(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    found, codes = read(tmp_path)
    assert found.total_size is None
    assert codes == {"shards_missing"}


def test_nothing_there(tmp_path: pathlib.Path) -> None:
    found, codes = read(tmp_path)
    assert (found.files, found.total_size, codes) == (0, None, set())
    _found, codes = read(tmp_path / "absent")
    assert codes == {"model_unreadable"}


def _raw(path: pathlib.Path, header: bytes, data: int = 0, length: int | None = None) -> None:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + data)


ENTRY = b'{"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}'
LIES: dict[str, t.Callable[[pathlib.Path], object]] = {
    "empty": lambda path: path.touch(),
    "seven bytes": lambda path: path.write_text("1234567"),
    "header longer than the file": lambda path: _raw(path, ENTRY, 8, 1 << 20),
    "header of an exabyte": lambda path: _raw(path, ENTRY, 8, 1 << 60),
    "header over the limit": lambda path: _raw(path, ENTRY, 8 + (1 << 25), (1 << 24) + 1),
    "not JSON": lambda path: _raw(path, b"\xff\xfe not json"),
    "a list": lambda path: _raw(path, b"[1, 2]"),
    "deeply nested": lambda path: _raw(path, b"[" * 200000),
    "many empty dicts": lambda path: _raw(path, b"[" + b"{}," * 1700000 + b"{}]"),
    "a number of a million digits": lambda path: _raw(path, b'{"a":' + b"9" * 1000000 + b"}"),
    "data cut short": lambda path: _raw(path, ENTRY, 4),
    "data too long": lambda path: _raw(path, ENTRY, 12),
    "unknown dtype": lambda path: _raw(path, ENTRY.replace(b"BF16", b"BF17"), 8),
    "shape that does not make the size": lambda path: _raw(path, ENTRY.replace(b"[2,2]", b"[2,3]"), 8),
    "negative shape": lambda path: _raw(path, ENTRY.replace(b"[2,2]", b"[-2,-2]"), 8),
    "huge shape": lambda path: _raw(path, ENTRY.replace(b"[2,2]", b"[999999999999999999,2]"), 8),
    "shape of floats": lambda path: _raw(path, ENTRY.replace(b"[2,2]", b"[2.0,2]"), 8),
    "offsets backwards": lambda path: _raw(path, ENTRY.replace(b"[0,8]", b"[8,0]"), 8),
    "one offset": lambda path: _raw(path, ENTRY.replace(b"[0,8]", b"[8]"), 8),
    "overlap": lambda path: _raw(path, ENTRY[:-1] + b"," + ENTRY[1:].replace(b'"a"', b'"b"'), 8),
    "gap": lambda path: _raw(path, ENTRY.replace(b"[0,8]", b"[8,16]"), 16),
    "entry is a number": lambda path: _raw(path, b'{"a":7}'),
    "a FIFO": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_files_are_problems(lie: str, tmp_path: pathlib.Path) -> None:
    write_shard(tmp_path / "model-00001-of-00002.safetensors", SMALL)
    LIES[lie](tmp_path / "model-00002-of-00002.safetensors")
    found, codes = read(tmp_path)
    assert codes == {"safetensors_bad_header"}
    assert not found.complete
    assert not found.tensors


def test_a_name_in_two_files_counts_once(tmp_path: pathlib.Path) -> None:
    """One file and its shards side by side, without an index."""
    write_shard(tmp_path / "model.safetensors", SMALL)
    write_shard(tmp_path / "model-00001-of-00002.safetensors", SMALL[:2])
    write_shard(tmp_path / "model-00002-of-00002.safetensors", SMALL[2:])
    found, codes = read(tmp_path)
    assert not codes
    assert sum(tensor.size * tensor.copies for tensor in found.tensors) == SMALL_SIZE


# two readers of one form ------------------------------------------------------------------------------------------

_NAMES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=11),
        st.builds("model.layers.{}.mlp.experts.{}.up_proj.weight".format, st.integers(0, 2), st.integers(0, 3)),
    ),
    max_size=8,
    unique=True,
)


@given(names=_NAMES, metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2), data=st.data())
@settings(max_examples=150, deadline=None)
def test_both_readers_say_the_same(names: list[str], metadata: dict[str, str], data: st.DataObject) -> None:
    """A header as safetensors writes it is read without a parser of JSON; any other spelling of the same says the same."""
    header: dict[str, t.Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
        size = 2 * math.prod(shape)
        header[name] = {"dtype": data.draw(st.sampled_from(["BF16", "F16"])), "shape": shape, "data_offsets": [end, end + size]}
        end += size
    found = []
    for form in ({"separators": (",", ":")}, {"separators": (",", ":"), "ensure_ascii": False}, {"indent": 1}):
        listing = safetensors._Listing()
        assert listing.add_header(json.dumps(header, **form).encode() + b"  ") == (len(names), end)
        found.append(listing.tensors())
    assert found[0] == found[1] == found[2]
    assert sum(tensor.copies for tensor in found[0]) == len(names)
    assert sum(tensor.copies * tensor.size for tensor in found[0]) == end


@pytest.mark.parametrize("lie", ["shape of floats", "offsets backwards", "one offset", "overlap", "gap", "entry is a number"])
def test_lies_are_found_in_any_spelling(lie: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    LIES[lie](path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    spelled = whole[8 : 8 + length].replace(b":", b": ").replace(b",", b", ")
    path.write_bytes(len(spelled).to_bytes(8, "little") + spelled + whole[8 + length :])
    assert read(tmp_path)[1] == {"safetensors_bad_header"}


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"BF16","shape":[2,,2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},}',
        b'{,"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}"b":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}}',
        b'{"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}',
        b'"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}}',
        b'{"\xff":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}',
    ],
)
def test_what_is_no_json_is_no_header(header: bytes) -> None:
    with pytest.raises(safetensors._FileError):
        safetensors._Listing().add_header(header)


INDEXES: dict[str, tuple[t.Any, set[str]]] = {
    "not JSON": (b"{", {"index_unreadable"}),
    "a list": ([], {"index_unreadable"}),
    "no map": ({"metadata": {"total_size": 5}}, {"index_unreadable"}),
    "map of numbers": ({"weight_map": {"a": 1}}, set()),
    "total is text": ({"metadata": {"total_size": "5"}, "weight_map": {"a": "m.safetensors"}}, {"index_bad_total"}),
    "total is negative": ({"metadata": {"total_size": -5}, "weight_map": {"a": "m.safetensors"}}, {"index_bad_total"}),
    "total is a boolean": ({"metadata": {"total_size": True}, "weight_map": {"a": "m.safetensors"}}, {"index_bad_total"}),
    "outside": ({"weight_map": {"a": "../m.safetensors", "b": "/etc/m.safetensors", "c": "m.safetensors"}}, {"index_unsafe_path"}),
    "another kind of file": ({"weight_map": {"a": "config.json", "b": "m.safetensors"}}, {"index_unsafe_path"}),
    "zero byte": ({"weight_map": {"a": "m\0.safetensors", "b": "m.safetensors"}}, {"index_unsafe_path"}),
}


@pytest.mark.parametrize("case", INDEXES)
def test_bad_indexes_are_problems(case: str, tmp_path: pathlib.Path) -> None:
    index, wanted = INDEXES[case]
    write_shard(tmp_path / "m.safetensors", SMALL)
    path = tmp_path / "model.safetensors.index.json"
    if isinstance(index, bytes):
        path.write_bytes(index)
    else:
        path.write_text(json.dumps(index))
    _found, codes = read(tmp_path)
    assert codes == wanted


def test_index_that_is_too_large(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(b"{")
    os.truncate(path, safetensors.MAX_INDEX + 1)
    _found, codes = read(tmp_path)
    assert codes == {"index_unreadable"}


def test_too_many_headers_stop_early(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "MAX_HEADERS", 100)
    write_checkpoint(tmp_path, SMALL, 4, {})
    found, codes = read(tmp_path)
    assert codes == {"headers_too_large"}
    assert (found.complete, found.total_size) == (False, SMALL_SIZE)


@pytest.mark.parametrize("content", [b"", b"[", b"\x00\xff", b'{"a":' + b"[" * 100000, b"9" * 10000])
def test_bad_config_files(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    (tmp_path / "hf_quant_config.json").write_bytes(content)
    problems = Problems()
    assert read_config(str(tmp_path), problems) is None
    assert read_hf_quant(str(tmp_path), problems) is None
    assert {entry["code"] for entry in problems.as_list()} == {"config_unreadable", "quantization_unreadable"}


def test_absent_config_files(tmp_path: pathlib.Path) -> None:
    problems = Problems()
    assert read_config(str(tmp_path), problems) is None
    assert read_hf_quant(str(tmp_path), problems) is None
    assert [entry["code"] for entry in problems.as_list()] == ["config_unreadable"]
