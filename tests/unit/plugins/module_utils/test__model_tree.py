# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import (
    Entry,
    TreeError,
    check_links,
    hop,
    locate,
    parse_entries,
    read_tree,
)
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import model_trees
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.model_trees import REVISION


def codes(tree: object) -> list[str]:
    return [problem["code"] for problem in tree.problems.as_list()]


def test_plain_directory_is_listed_whole(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    tree = read_tree(str(path))
    assert tree.root == str(path.parent) and tree.model_path == str(path) and tree.complete
    assert {entry.path for entry in tree.entries} == {f"x/{name}" for name in model_trees.model_files()}
    assert tree.size == sum(len(content) for content in model_trees.model_files().values())
    assert all(entry.digest == "" for entry in tree.entries)


def test_cache_repository_has_its_links_and_its_blobs_with_their_hashes(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    tree = read_tree(str(repository))
    assert tree.complete, tree.problems.as_list()
    assert tree.root == str(repository.parent) and tree.revision == REVISION
    assert tree.model_path == str(repository / "snapshots" / REVISION)
    links = [entry for entry in tree.entries if entry.kind == "link"]
    blobs = [entry for entry in tree.entries if "/blobs/" in entry.path]
    assert len(links) == len(blobs) == len(model_trees.model_files())
    assert {entry.digest.split(":")[0] for entry in blobs} == {"sha256", "git-sha1"}
    assert [entry.path for entry in tree.entries if "/refs/" in entry.path] == ["models--org--x/refs/main"]


def test_shared_blobs_are_followed_through_both_links(tmp_path: Path) -> None:
    tree = read_tree(str(model_trees.cache(tmp_path, shared=True)))
    assert tree.complete, tree.problems.as_list()
    stored = [entry for entry in tree.entries if entry.path.startswith("blobs/")]
    assert len(stored) == 3 and all(entry.kind == "file" for entry in stored)
    # The store's names are hashes too, and not of the content.
    contents = {(tmp_path / "hub" / entry.path).read_bytes(): entry for entry in stored}
    assert all(entry.digest == f"sha256:{hashlib.sha256(content).hexdigest()}" for content, entry in contents.items())
    assert not any(entry.digest.endswith(entry.path[-64:]) for entry in stored)
    assert sum(entry.kind == "link" for entry in tree.entries) == len(model_trees.model_files()) + 3


def test_a_snapshot_means_the_same_as_its_repository(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    assert read_tree(str(repository / "snapshots" / REVISION)).entries == read_tree(str(repository)).entries


def test_a_snapshot_beside_the_wanted_one_is_not_part_of_it(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    other = repository / "snapshots" / ("f" * 40)
    other.mkdir()
    (repository / "blobs" / "unused").write_bytes(b"unused")
    (other / "config.json").symlink_to("../../blobs/unused")
    assert not any("unused" in entry.path or "ffff" in entry.path for entry in read_tree(str(repository)).entries)


def test_revision_by_ref_by_commit_and_unknown(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    (repository / "refs" / "v1").write_text(REVISION)
    assert locate(str(repository), "v1").revision == REVISION
    assert locate(str(repository), REVISION).revision == REVISION
    with pytest.raises(TreeError, match="has no revision 'v2'"):
        locate(str(repository), "v2")
    with pytest.raises(TreeError, match="has no revision"):
        locate(str(repository), "../../../../etc/passwd")


def test_missing_shard_by_number(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    (path / "model.safetensors.index.json").unlink()
    (path / "model-00002-of-00003.safetensors").unlink()
    tree = read_tree(str(path))
    assert not tree.complete and "shards_missing" in codes(tree)
    assert "model-00002-of-00003" in tree.problems.as_list()[0]["message"]


def test_missing_shard_by_index(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    for number, name in enumerate(("a", "b", "c"), start=1):
        (path / f"model-{number:05d}-of-00003.safetensors").rename(path / f"{name}.safetensors")
    tree = read_tree(str(path))
    assert not tree.complete and "shards_missing" in codes(tree)


def test_truncated_shard_shows_in_its_header(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    shard = path / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    tree = read_tree(str(path))
    assert not tree.complete and codes(tree) == ["safetensors_bad_header"]


def test_configuration_without_weights_is_no_model(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    for name in model_trees.model_files():
        if "model" in name:
            (path / name).unlink()
    assert codes(read_tree(str(path))) == ["no_weights"]


def test_dangling_link_says_whether_the_download_is_unfinished(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    blob = next(path for path in (repository / "blobs").iterdir() if len(path.name) == 64)
    blob.rename(f"{blob}.incomplete")
    tree = read_tree(str(repository))
    assert not tree.complete
    assert any(problem["code"] == "dangling_link" and ".incomplete" in problem["message"] for problem in tree.problems.as_list())


def test_link_out_of_the_root_is_refused_and_a_wider_root_allows_it(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    elsewhere = tmp_path / "elsewhere" / "model-00001-of-00003.safetensors"
    elsewhere.parent.mkdir()
    (path / elsewhere.name).rename(elsewhere)
    (path / elsewhere.name).symlink_to(elsewhere)
    assert "link_leaves_root" in codes(read_tree(str(path)))
    wider = read_tree(str(path), root=str(tmp_path))
    assert wider.complete and any(entry.path == f"elsewhere/{elsewhere.name}" for entry in wider.entries)


def test_link_in_a_circle_ends(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    (path / "a").symlink_to("b")
    (path / "b").symlink_to("a")
    assert "link_loop" in codes(read_tree(str(path)))


def test_fifo_is_named_and_not_opened(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    os.mkfifo(path / "pipe")
    assert codes(read_tree(str(path))) == ["special_file"]


def test_bookkeeping_of_the_hub_client_is_left_out(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    (path / ".cache" / "huggingface").mkdir(parents=True)
    (path / ".cache" / "huggingface" / "x.metadata").write_text("x")
    (path / "x.incomplete").write_text("x")
    assert len(read_tree(str(path)).entries) == len(model_trees.model_files())


@pytest.mark.parametrize("path", ["relative/path", "/nonexistent/x"])
def test_no_directory(path: str) -> None:
    with pytest.raises(TreeError):
        read_tree(path)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", ".unimem-model-sync/x", "a\0b", None, 3],
)
def test_paths_from_another_node_cannot_leave_the_root(path: object) -> None:
    with pytest.raises(TreeError):
        parse_entries([{"path": path, "kind": "file", "size": 1}])


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "..", "../../../root/.ssh/authorized_keys"])
def test_links_from_another_node_cannot_leave_the_root(target: str) -> None:
    with pytest.raises(TreeError, match="leads out of"):
        check_links([Entry("a/b", "link", 0, target)], "/models")


@pytest.mark.parametrize(
    ("path", "target", "landed"),
    [("a/b", "c", "a/c"), ("a/b", "../c", "c"), ("a/b", "/models/c", "c"), ("a/b", "/other/c", None), ("b", "..", None), ("a/b", "..", None)],
)
def test_hop(path: str, target: str, landed: str | None) -> None:
    assert hop(path, target, "/models") == landed
