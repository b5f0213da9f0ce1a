# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._tree_hash import TreeHashError, tree_hash


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    base = tmp_path / "context"
    (base / "sub").mkdir(parents=True)
    (base / "Dockerfile").write_text("FROM scratch\n")
    (base / "sub" / "run").write_text("#!/bin/sh\n")
    (base / "sub" / "run").chmod(0o755)
    (base / "link").symlink_to("sub/run")
    return base


def test_same_content_elsewhere_later_and_under_another_umask(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other" / "place"
    shutil.copytree(tree, copy, symlinks=True)
    for path in copy.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    (copy / "Dockerfile").chmod(0o600)
    (copy / "sub").chmod(0o700)
    assert tree_hash(str(copy)) == tree_hash(str(tree))


def test_what_no_build_means_does_not_count(tree: Path) -> None:
    before = tree_hash(str(tree))
    (tree / "sub" / "__pycache__").mkdir()
    (tree / "sub" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tree / "y.pyc").write_bytes(b"y")
    assert tree_hash(str(tree)) == before


def _content(tree: Path) -> None:
    (tree / "Dockerfile").write_text("FROM scratch \n")


def _name(tree: Path) -> None:
    (tree / "Dockerfile").rename(tree / "dockerfile")


def _executable(tree: Path) -> None:
    (tree / "sub" / "run").chmod(0o644)


def _target(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").symlink_to("Dockerfile")


def _folder(tree: Path) -> None:
    (tree / "empty").mkdir()


def _kind(tree: Path) -> None:
    (tree / "link").unlink()
    (tree / "link").write_text("sub/run")


@pytest.mark.parametrize("change", [_content, _name, _executable, _target, _folder, _kind])
def test_every_difference_shows(tree: Path, change: object) -> None:
    before = tree_hash(str(tree))
    change(tree)
    assert tree_hash(str(tree)) != before


def test_salt_counts_whatever_the_order_of_its_keys(tree: Path) -> None:
    one = tree_hash(str(tree), {"a": 1, "b": 2})
    assert one == tree_hash(str(tree), {"b": 2, "a": 1}) and one != tree_hash(str(tree), {"a": 1, "b": 3}) and one != tree_hash(str(tree))


def test_fields_cannot_run_into_each_other(tmp_path: Path) -> None:
    for name, content in (("ab", "c"), ("a", "bc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(content)
    assert tree_hash(str(tmp_path / "ab")) != tree_hash(str(tmp_path / "a"))


def test_no_directory_an_empty_one_and_a_fifo(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(TreeHashError, match="there is no directory"):
        tree_hash(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TreeHashError, match="is empty"):
        tree_hash(str(tmp_path / "empty"))
    os.mkfifo(tree / "pipe")
    with pytest.raises(TreeHashError, match="neither a file"):
        tree_hash(str(tree))
