# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _hub_files
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import Place, Request, place_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub_files import finished, fresh, look, read_listing, remove_abandoned, wanted
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import model_trees
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.model_trees import REVISION

OTHER = "f" * 40


def asked(path: Path, **more: Any) -> tuple[Place, Request]:
    request = Request("org/x", REVISION, str(path), **more)
    return place_of(request), request


def listed(place: Place, files: dict[str, bytes], **more: Any) -> None:
    """What the client writes before it fetches."""
    os.makedirs(os.path.dirname(place.listing), exist_ok=True)
    told = {"format_version": 1, "files": {name: {"size": len(content), "blob_id": "x"} for name, content in files.items()}, **more}
    Path(place.listing).write_text(json.dumps(told))


def noted(place: Place, names: list[str], commit: str = REVISION) -> None:
    """What it notes of a plain directory's files."""
    os.makedirs(place.locks, exist_ok=True)
    for name in names:
        Path(place.locks, f"{name}.metadata").write_text(f"{commit}\netag\n1.0\n")
        Path(place.locks, f"{name}.lock").write_text("")


def reasons(place: Place, request: Request) -> list[str]:
    return look(place, request, None).reasons


def test_a_cache_is_complete_by_its_own_files_where_the_client_has_written_no_list(tmp_path: Path) -> None:
    assert look(*asked(model_trees.cache(tmp_path)), None).complete
    assert look(*asked(model_trees.cache(tmp_path / "b", shared=True)), None).complete


def test_nothing_there_is_said_so(tmp_path: Path) -> None:
    place, request = asked(tmp_path / "models--org--x")
    assert reasons(place, request) == [f"there is no directory {place.folder}"]


def test_another_commit_is_not_this_one(tmp_path: Path) -> None:
    place, request = asked(model_trees.cache(tmp_path, revision=OTHER))
    assert f"has no revision '{REVISION}'" in reasons(place, request)[0]


def test_a_missing_shard_is_a_reason_whatever_the_client_says(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    (repository / "snapshots" / REVISION / "model-00002-of-00003.safetensors").unlink()
    assert "1 of 3 weight files are missing" in reasons(*asked(repository))[0]


def test_a_file_that_no_index_names_is_missed_by_the_clients_list(tmp_path: Path) -> None:
    files = model_trees.model_files()
    repository = model_trees.cache(tmp_path, files={name: content for name, content in files.items() if name != "tokenizer.json"})
    place, request = asked(repository)
    assert look(place, request, None).complete
    listed(place, files)
    seen = look(place, request, None)
    assert seen.reasons == ["tokenizer.json is not there"] and seen.lacking == {"tokenizer.json": 2}
    place, request = asked(repository, exclude=("tokenizer*",))
    assert look(place, request, None).complete


def test_a_file_of_another_size_has_to_be_removed_for_the_client_never_looks_again(tmp_path: Path) -> None:
    files = model_trees.model_files()
    repository = model_trees.cache(tmp_path)
    place, request = asked(repository)
    listed(place, {**files, "tokenizer.json": b"{} "})
    seen = look(place, request, None)
    blob = os.path.realpath(repository / "snapshots" / REVISION / "tokenizer.json")
    assert seen.reasons == [f"{blob} has 2 B of 3 B: remove it and {repository}/snapshots/{REVISION}/tokenizer.json"] and not seen.lacking


def test_without_a_list_an_unfinished_file_leaves_it_open(tmp_path: Path) -> None:
    repository = model_trees.cache(tmp_path)
    place, request = asked(repository)
    left = repository / "blobs" / ("a" * 64 + ".0123abcd.incomplete")
    left.write_bytes(b"x" * 5000)
    assert reasons(place, request) == ["a download of it was interrupted"]
    listed(place, model_trees.model_files())
    assert look(place, request, None).complete, "what an earlier download of something else has left does not matter"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format_version": 2, "files": {"a": {"size": 1}}}', '{"format_version": 1, "files": {"../a": {"size": 1}}}',
             '{"format_version": 1, "files": {"a": {"size": -1}}}', '{"format_version": 1, "files": {"a": {"size": true}}}',
             '{"format_version": 1, "files": {}}', '{"format_version": 1, "files": ["a"]}', '{"format_version": 1, "files": {"/etc/passwd": {"size": 1}}}'],
)  # fmt: skip
def test_a_list_that_is_not_understood_is_none(tmp_path: Path, text: str) -> None:
    place, request = asked(model_trees.cache(tmp_path))
    os.makedirs(os.path.dirname(place.listing))
    Path(place.listing).write_text(text)
    assert read_listing(place, request) is None and look(place, request, None).complete


def test_a_plain_directory_is_of_the_commit_that_the_client_noted(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    place, request = asked(path)
    names = list(model_trees.model_files())
    assert "is of an unknown commit" in reasons(place, request)[0]
    noted(place, names, OTHER)
    assert f"is of commit {OTHER}" in reasons(place, request)[0]
    noted(place, names)
    assert look(place, request, None).complete
    (path / "NOTES.md").write_text("somebody's own")
    assert look(place, request, None).complete
    noted(place, ["tokenizer.json"], OTHER)
    assert reasons(place, request) == [f"tokenizer.json is of commit {OTHER}"]


def test_a_plain_directory_with_the_clients_list(tmp_path: Path) -> None:
    files = model_trees.model_files()
    path = model_trees.plain(tmp_path)
    place, request = asked(path)
    noted(place, list(files))
    listed(place, {**files, "merges.txt": b"abc"})
    assert reasons(place, request) == ["merges.txt is not there"]
    (path / "merges.txt").write_text("abc")
    noted(place, ["merges.txt"], OTHER)
    seen = look(place, request, None)
    assert seen.reasons == [f"merges.txt is not that of commit {REVISION}"] and seen.lacking == {"merges.txt": 3}


@pytest.mark.parametrize(
    ("name", "include", "exclude", "expected"),
    [
        ("a.json", (), (), True),
        ("a.json", ("*.safetensors",), (), False),
        ("a.safetensors", ("*.safetensors", "*.json"), (), True),
        ("original/a.json", (), ("original/*",), False),
        ("original/a.json", (), ("original/",), False),
        ("a.json", ("*",), ("*.json",), False),
    ],
)
def test_patterns_are_the_clients(name: str, include: tuple[str, ...], exclude: tuple[str, ...], expected: bool) -> None:
    assert wanted(name, Request("org/x", REVISION, "/x", include, exclude)) is expected


def test_what_has_come_is_what_is_another_file_now(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    place, _request = asked(path)
    before = finished(place)
    assert set(before) == {str(path / name) for name in model_trees.model_files()}
    (path / "new").write_bytes(b"12345")
    (path / "tokenizer.new").write_bytes(b"{}")
    os.replace(path / "tokenizer.new", path / "tokenizer.json")
    assert fresh(before, finished(place)) == {str(path / "new"): 5, str(path / "tokenizer.json"): 2}


def test_a_shared_blob_counts_with_what_it_leads_to(tmp_path: Path) -> None:
    place, _request = asked(model_trees.cache(tmp_path, shared=True))
    assert sum(stamp[0] for stamp in finished(place).values()) == sum(len(content) for content in model_trees.model_files().values())


def left_behind(place: Place, blob: str, digits: str = "0123abcd") -> Path:
    """What a client that was killed leaves: a file with its own name, and the lock that it held."""
    os.makedirs(place.locks, exist_ok=True)
    folder = Path(place.folder, "blobs") if place.layout == "cache" else Path(place.locks)
    path = folder / f"{blob}.{digits}.incomplete"
    path.write_bytes(b"x" * 8192)
    return path


def test_what_a_killed_download_left_is_removed_and_what_lives_or_can_go_on_is_not(tmp_path: Path) -> None:
    place, _request = asked(model_trees.cache(tmp_path))
    dead, alive, unlocked = left_behind(place, "a" * 64), left_behind(place, "b" * 64), left_behind(place, "c" * 64)
    older = Path(place.folder, "blobs", "d" * 64 + ".incomplete")
    older.write_bytes(b"x" * 4096)
    for blob in "ab":
        Path(place.locks, blob * 64 + ".lock").write_text("")
    with open(os.path.join(place.locks, "b" * 64 + ".lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert _hub_files.unfinished_bytes(place) == 3 * 8192 + 4096
        assert remove_abandoned(place) == 8192
    assert not dead.exists() and alive.exists() and unlocked.exists() and older.exists()


def test_the_same_in_a_plain_directory(tmp_path: Path) -> None:
    path = model_trees.plain(tmp_path)
    place, _request = asked(path)
    noted(place, ["config.json"])
    # As the client names it: by a hash of the name of its note.
    short = base64.urlsafe_b64encode(hashlib.sha1(b"config.json.metadata").digest()).decode()
    dead, foreign = left_behind(place, f"{short}.{'a' * 40}"), left_behind(place, "zzzz")
    assert remove_abandoned(place) == 8192
    assert not dead.exists() and foreign.exists()


def test_a_directory_that_is_no_model_is_not_counted_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hub_files, "MAX_ENTRIES", 3)
    place, _request = asked(model_trees.plain(tmp_path))
    with pytest.raises(_hub_files.TreeError, match="that is no model"):
        finished(place)
