# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _model_index, _model_staging
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_index import Index, compare, hash_all, hash_file
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_states import IncompleteModel, evicted, indexed, prepared, published
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import OWN_FOLDER, Entry, TreeError
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import model_trees

PARAMS = {"revision": None, "root": None, "verify": "content", "read": True, "reserve": "0"}


class Nodes:
    """Two nodes as two directories under one path: what one of them has is moved aside while the other is looked at."""

    def __init__(self, base: Path, layout: str) -> None:
        self.base = base
        source = model_trees.plain(base, "hub/x") if layout == "plain" else model_trees.cache(base, shared=layout == "shared")
        self.told = indexed({**PARAMS, "path": str(source)}, False)
        self.tree = self.told["tree"]
        self.root = Path(self.tree["root"])
        self.source = base / "source"
        shutil.move(str(self.root), str(self.source))
        self.root.mkdir()

    def params(self, **more: object) -> dict[str, object]:
        return {**PARAMS, "path": None, "tree": self.tree, **more}

    def send(self, told: dict[str, object]) -> None:
        """What rsync would do."""
        for path in told["missing"]:
            goal = Path(str(told["staging"])) / path
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.unlink(missing_ok=True)
            shutil.copy2(self.source / path, goal, follow_symlinks=False)

    def content(self) -> dict[str, bytes]:
        return {entry["path"]: (self.root / entry["path"]).read_bytes() for entry in self.tree["files"]}


@pytest.fixture(params=["plain", "cache", "shared"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Nodes:
    return Nodes(tmp_path, request.param)


def test_copy_then_nothing_to_do(nodes: Nodes) -> None:
    told = prepared(nodes.params(), False)
    assert told["changed"] and set(told["missing"].values()) == {"absent"} and told["missing_bytes"] == nodes.told["total_bytes"]
    nodes.send(told)
    receipt = published(nodes.params(), False)
    assert receipt == {"changed": True, "published_bytes": nodes.told["total_bytes"], "corrupt": []}
    expected = {entry["path"]: (nodes.source / entry["path"]).resolve().read_bytes() for entry in nodes.tree["files"]}
    assert nodes.content() == expected
    for entry in nodes.tree["files"]:
        assert os.path.islink(nodes.root / entry["path"]) == (entry["kind"] == "link")
    assert os.listdir(nodes.root / OWN_FOLDER) == [os.path.basename(told["staging"]) + ".json"]
    again = prepared(nodes.params(), False)
    assert not again["changed"] and again["missing"] == {} and again["hashed_bytes"] == 0
    assert published(nodes.params(), False)["changed"] is False


def test_check_mode_tells_the_same_and_writes_nothing(nodes: Nodes) -> None:
    told = prepared(nodes.params(), True)
    assert told["changed"] and told["missing_bytes"] == nodes.told["total_bytes"]
    assert published(nodes.params(), True) == {"changed": True, "published_bytes": nodes.told["total_bytes"], "corrupt": []}
    assert list(nodes.root.iterdir()) == []


def test_flipped_byte_of_same_size_and_time_is_found_and_repaired(nodes: Nodes) -> None:
    nodes.send(prepared(nodes.params(), False))
    published(nodes.params(), False)
    victim = next(entry for entry in nodes.tree["files"] if entry["kind"] == "file" and entry["size"] > 1000)
    path = nodes.root / victim["path"]
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    told = prepared(nodes.params(), False)
    assert told["missing"] == {victim["path"]: "content"}
    nodes.send(told)
    assert published(nodes.params(), False)["published_bytes"] == victim["size"]
    assert path.read_bytes() == (nodes.source / victim["path"]).read_bytes()


def test_damaged_on_the_way_nothing_is_published_and_the_next_try_repairs(nodes: Nodes) -> None:
    told = prepared(nodes.params(), False)
    nodes.send(told)
    victim = next(entry for entry in nodes.tree["files"] if entry["kind"] == "file" and entry["size"] > 1000)
    staged = Path(told["staging"]) / victim["path"]
    content = bytearray(staged.read_bytes())
    content[-1] ^= 0x80
    staged.write_bytes(content)
    receipt = published(nodes.params(), False)
    assert receipt == {"changed": False, "published_bytes": 0, "corrupt": [victim["path"]]}
    assert [path.name for path in nodes.root.iterdir()] == [OWN_FOLDER] and not staged.exists()
    nodes.send(prepared(nodes.params(), False))
    assert published(nodes.params(), False)["changed"] and nodes.content()


def test_interrupted_copy_publishes_nothing(nodes: Nodes) -> None:
    told = prepared(nodes.params(), False)
    first = sorted(told["missing"])[0]
    nodes.send({"missing": [path for path in told["missing"] if path != first], "staging": told["staging"]})
    with pytest.raises(TreeError, match="1 files were not received"):
        published(nodes.params(), False)
    assert [path.name for path in nodes.root.iterdir()] == [OWN_FOLDER]


def test_bytes_in_the_staging_folder_do_not_need_room_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    told = prepared(nodes.params(), False)
    nodes.send(told)
    monkeypatch.setattr("ansible_collections.unimem.dgx_spark.plugins.module_utils._model_states.free_bytes", lambda path: 100)
    assert prepared(nodes.params(), False)["missing_bytes"] > 100
    shutil.rmtree(told["staging"])
    with pytest.raises(TreeError, match="make .* free there"):
        prepared(nodes.params(), False)


def test_size_only_comparison_reads_nothing_and_says_less(nodes: Nodes) -> None:
    nodes.send(prepared(nodes.params(verify="size"), False))
    published(nodes.params(verify="size"), False)
    victim = next(entry for entry in nodes.tree["files"] if entry["kind"] == "file" and entry["size"] > 1000)
    path = nodes.root / victim["path"]
    path.write_bytes(b"x" * victim["size"])
    assert prepared(nodes.params(verify="size"), False)["missing"] == {}
    assert prepared(nodes.params(), False)["missing"] == {victim["path"]: "content"}


def test_a_directory_in_the_way_is_found_before_anything_is_sent(nodes: Nodes) -> None:
    victim = next(entry for entry in nodes.tree["files"] if entry["kind"] == "file")
    (nodes.root / victim["path"]).mkdir(parents=True)
    with pytest.raises(TreeError, match="is a directory"):
        prepared(nodes.params(), False)
    assert not (nodes.root / OWN_FOLDER).exists()


def test_a_place_that_cannot_be_written_is_found_before_the_first_rename(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    told = prepared(nodes.params(), False)
    nodes.send(told)
    victim = sorted(entry["path"] for entry in nodes.tree["files"])[-1]
    (nodes.root / victim).parent.mkdir(parents=True, exist_ok=True)
    closed = str((nodes.root / victim).parent)
    monkeypatch.setattr(_model_staging.os, "access", lambda path, mode: path != closed)
    with pytest.raises(TreeError, match="may not write in .*run with become"):
        published(nodes.params(), False)
    assert not any((nodes.root / entry["path"]).exists() for entry in nodes.tree["files"] if entry["kind"] == "file")
    with pytest.raises(TreeError, match="may not write"):
        prepared(nodes.params(), False)


def test_a_place_on_another_file_system_is_refused(nodes: Nodes) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(nodes.root).st_dev:
        pytest.skip("needs two file systems")
    victim = next(entry for entry in nodes.tree["files"] if entry["path"].count("/") > 0)
    top = nodes.root / victim["path"].split("/")[0]
    top.symlink_to("/dev/shm")
    with pytest.raises(TreeError, match="another file system"):
        prepared(nodes.params(), False)


def test_nothing_in_place_is_read_where_that_is_not_allowed(nodes: Nodes) -> None:
    nodes.send(prepared(nodes.params(), False))
    published(nodes.params(), False)
    unread = prepared(nodes.params(read=False), False)
    assert unread["missing"] == {} and unread["unverified"] == []
    victim = next(entry for entry in nodes.tree["files"] if entry["kind"] == "file" and entry["size"] > 1000)
    path = nodes.root / victim["path"]
    path.write_bytes(b"x" * victim["size"])
    unread = prepared(nodes.params(read=False), False)
    assert unread["missing"] == {} and unread["unverified"] == [victim["path"]] and unread["hashed_bytes"] == 0
    assert prepared(nodes.params(), False)["missing"] == {victim["path"]: "content"}
    # By now its hash is known, without reading.
    assert prepared(nodes.params(read=False), False)["missing"] == {victim["path"]: "content"}


def test_source_that_may_not_read_tells_what_it_does_not_know(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    told = indexed({**PARAMS, "path": str(path), "read": False}, False)
    assert told["hashed_bytes"] == 0 and len(told["unverified"]) == len([entry for entry in told["tree"]["files"] if entry["kind"] == "file"])
    target = tmp_path / "other"
    target.mkdir()
    tree = {**told["tree"], "root": str(target), "model_path": str(target / path.name)}
    assert prepared({**PARAMS, "tree": tree, "read": False}, True)["missing"]
    with pytest.raises(TreeError, match="without its digest"):
        prepared({**PARAMS, "tree": tree}, True)


def test_incomplete_source_is_refused_with_its_reasons(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(IncompleteModel, match="is not complete: 1 of 3 weight files are missing") as caught:
        indexed({**PARAMS, "path": str(path)}, False)
    assert caught.value.problems


def test_index_on_the_source_spares_the_second_reading(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    first = indexed({**PARAMS, "path": str(path)}, False)
    assert first["hashed_bytes"] == first["total_bytes"]
    second = indexed({**PARAMS, "path": str(path)}, False)
    assert second["hashed_bytes"] == 0 and second["tree"] == first["tree"]
    (path / "config.json").write_bytes(b'{"model_type": "y"}')
    third = indexed({**PARAMS, "path": str(path)}, False)
    assert third["hashed_bytes"] == len(b'{"model_type": "y"}') and third["tree"] != first["tree"]


def test_evicted_changes_nothing(nodes: Nodes) -> None:
    nodes.send(prepared(nodes.params(), False))
    published(nodes.params(), False)
    assert evicted(nodes.params(), False) == {"changed": False, "evicted_bytes": nodes.told["total_bytes"]}


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "files": 3}', '{"version": 2, "files": {}}', '{"version": 1, "files": {"a": [1, 2]}}', "\0"])
def test_index_that_cannot_be_used_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / OWN_FOLDER).mkdir()
    (tmp_path / OWN_FOLDER / "k.json").write_text(text)
    assert Index.load(str(tmp_path), "k").stamps == {}


def test_known_hashes_of_a_file_by_both_algorithms(tmp_path: Path) -> None:
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    # echo hello | sha256sum; echo hello | git hash-object --stdin
    assert hash_file(str(path), "sha256")[0] == "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    assert hash_file(str(path), "git-sha1")[0] == "git-sha1:ce013625030ba8dba906f756967f9e9ca394464a"
    with pytest.raises(OSError, match="not known"):
        hash_file(str(path), "md5")


def test_link_is_not_hashed_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError):
        hash_file(str(tmp_path / "link"), "sha256")
    seen = compare(str(tmp_path), [Entry("link", "file", 5, "", "sha256:x")], Index("unused"), True)
    assert seen.wrong == {"link": "kind"}


def test_stamp_holds_only_while_all_four_numbers_do(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    entry = Entry("a", "file", 3)
    index = Index(str(tmp_path / OWN_FOLDER / "k.json"))
    assert hash_all(str(tmp_path), [entry], index) == 3 and hash_all(str(tmp_path), [entry], index) == 0
    for position in range(4):
        stamp = list(index.stamps["a"])
        stamp[position] += 1
        spoiled = Index("unused", {"a": tuple(stamp)})
        assert spoiled.known(entry, path.lstat(), "sha256") is None
    assert index.known(entry, path.lstat(), "git-sha1") is None
    assert _model_index.identity(path.lstat()) == index.stamps["a"][:4]
