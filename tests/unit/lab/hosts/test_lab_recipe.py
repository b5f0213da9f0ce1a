# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A changed recipe has another hash, and nothing else has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lib import layers, recipe
from lib.errors import LabError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.c").write_text("int a;\n")
    (tmp_path / "build.sh").write_text("#!/bin/sh\n")
    (tmp_path / "build.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("src/a.c")
    return tmp_path


def digest(tree: Path) -> str:
    return recipe.hash_paths(tree, [tree])


def test_content_counts(tree: Path) -> None:
    before = digest(tree)
    (tree / "src" / "a.c").write_text("int b;\n")
    assert digest(tree) != before


def test_a_new_file_counts(tree: Path) -> None:
    before = digest(tree)
    (tree / "src" / "b.c").write_text("")
    assert digest(tree) != before


def test_a_name_counts(tree: Path) -> None:
    before = digest(tree)
    (tree / "src" / "a.c").rename(tree / "src" / "b.c")
    assert digest(tree) != before


def test_the_executable_bit_counts(tree: Path) -> None:
    before = digest(tree)
    (tree / "build.sh").chmod(0o644)
    assert digest(tree) != before


def test_where_a_link_points_counts_and_is_not_followed(tree: Path) -> None:
    before = digest(tree)
    (tree / "link").unlink()
    (tree / "link").symlink_to("/nowhere")
    assert digest(tree) != before


def test_times_the_umask_byte_code_and_documentation_do_not_count(tree: Path) -> None:
    before = digest(tree)
    os.utime(tree / "src" / "a.c", (1, 1))
    (tree / "src" / "a.c").chmod(0o600)
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "x.py").write_text("1")
    (tree / "README.md").write_text("words")
    assert digest(tree) == before


def test_the_place_of_the_checkout_does_not_count(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("clone") / "deeper"
    tree.rename(other)
    moved = digest(other)
    other.rename(tree)
    assert moved == digest(tree)


def test_extra_texts_count_one_by_one(tree: Path) -> None:
    assert recipe.hash_paths(tree, [], ["ab", "c"]) != recipe.hash_paths(tree, [], ["a", "bc"])


def layer(source: Path, text: str = "{}") -> layers.Layer:
    source.mkdir(exist_ok=True)
    return layers.parse(source, text)


def test_a_manifest_has_defaults(tmp_path: Path) -> None:
    made = layer(tmp_path / "one")
    assert (made.hosts, made.packages, made.needs) == (("spark-01", "spark-02"), (), ())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ('{"host": []}', "keys"),
        ('{"hosts": ["spark-03"]}', "spark-03"),
        ('{"hosts": "spark-01"}', "list of names"),
        ('{"order": "1"}', "number"),
        ('{"inputs": ["nothing-here"]}', "does not exist"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_name(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(LabError, match=word) as problem:
        layer(tmp_path / "one", text)
    assert str(tmp_path / "one" / "layer.json") in str(problem.value)


def test_a_needed_layer_and_the_root_file_system_are_part_of_the_key(tmp_path: Path) -> None:
    first = layer(tmp_path / "first")
    second = layer(tmp_path / "second", '{"needs": ["first"]}')
    base = layers.keys([first, second], "r1")
    assert layers.keys([first, second], "r2")["second"] != base["second"]
    (tmp_path / "first" / "x").write_text("1")
    changed = layers.keys([first, second], "r1")
    assert changed["first"] != base["first"] and changed["second"] != base["second"]


def test_layers_are_found_in_their_order_and_needs_must_be_earlier(tmp_path: Path) -> None:
    for name, text in {"a": '{"order": 20}', "b": '{"order": 10}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "layer.json").write_text(text)
    assert [found.name for found in layers.find(tmp_path)] == ["b", "a"]
    assert [found.name for found in layers.find(tmp_path, frozenset({"b"}))] == ["a"]
    (tmp_path / "b" / "layer.json").write_text('{"order": 10, "needs": ["a"]}')
    with pytest.raises(LabError, match="b needs a"):
        layers.find(tmp_path)


def test_a_layer_is_laid_on_its_hosts_only_the_hosts_own_tree_on_top(tmp_path: Path) -> None:
    made = layer(tmp_path / "one", '{"hosts": ["spark-02"]}')
    built = tmp_path / "out"
    for name in ("root", "hosts/spark-02/root", "hosts/spark-01/root"):
        (built / name).mkdir(parents=True)
    assert layers.trees(made, built, "spark-01") == []
    assert layers.trees(made, built, "spark-02") == [built / "hosts/spark-02/root", built / "root"]
