# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _journal
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError


def entry(key: str = "unit:a.service", **before: object) -> dict[str, object]:
    return {"key": key, "kind": "unit", "name": key.split(":", 1)[1], "before": {"active_state": "active", **before}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.json"


def test_nothing_is_there_and_nothing_is_made_by_looking(path: Path) -> None:
    assert Journal(str(path)).load().open_entries == []
    assert not path.parent.exists()


def test_round_trip(path: Path) -> None:
    journal = Journal(str(path))
    journal.record([entry(), entry("unit:b.service")])
    assert [each["state"] for each in Journal(str(path)).load().entries] == ["planned", "planned"]
    journal.mark(["unit:a.service"], "stopped", stopped_at="now")
    journal.mark(["unit:a.service"], "restored")
    again = Journal(str(path)).load()
    assert [each["key"] for each in again.open_entries] == ["unit:b.service"]
    assert again.entries[0]["stopped_at"] == "now"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_open_entry_keeps_the_first_state(path: Path) -> None:
    Journal(str(path)).record([entry(file_state="enabled")])
    later = Journal(str(path)).load()
    later.record([entry(file_state="disabled"), entry("unit:b.service")])
    known = Journal(str(path)).load()
    assert known.find_open("unit:a.service")["before"]["file_state"] == "enabled"
    assert len(known.open_entries) == 2


def test_settled_entry_does_not_hide_a_new_eviction(path: Path) -> None:
    journal = Journal(str(path))
    journal.record([entry(file_state="enabled")])
    journal.mark(["unit:a.service"], "restored")
    journal.record([entry(file_state="disabled")])
    assert [each["state"] for each in Journal(str(path)).load().entries] == ["restored", "planned"]


def test_old_settled_entries_are_let_go_and_open_ones_are_not(path: Path) -> None:
    journal = Journal(str(path))
    journal.record([entry("unit:first.service")])
    for number in range(_journal._MAX_SETTLED + 20):
        journal.entries.append({**entry(f"unit:{number}.service"), "state": "restored"})
    journal.write()
    known = Journal(str(path)).load()
    assert len(known.entries) == _journal._MAX_SETTLED + 1
    assert [each["key"] for each in known.open_entries] == ["unit:first.service"]


class Stop(Exception):
    pass


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename", "unlink", "close"])
@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_a_write_that_dies_leaves_the_old_journal_or_the_new_one(path: Path, monkeypatch: pytest.MonkeyPatch, call: str, times: int) -> None:
    Journal(str(path)).record([entry()])
    real = getattr(os, call)
    left = [times]

    def dying(*arguments: object, **options: object) -> object:
        if left[0] == 0:
            raise Stop
        left[0] -= 1
        return real(*arguments, **options)

    journal = Journal(str(path)).load()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying)
        with contextlib.suppress(Stop):
            journal.record([entry("unit:b.service")])
    keys = [each["key"] for each in Journal(str(path)).load().open_entries]
    assert keys in (["unit:a.service"], ["unit:a.service", "unit:b.service"])
    # and the next run can write again
    Journal(str(path)).load().record([entry("unit:c.service")])
    assert Journal(str(path)).load().find_open("unit:c.service")


def test_it_is_on_the_disk_before_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    sync, rename = os.fsync, os.rename

    def noting_sync(descriptor: int) -> None:
        calls.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def noting_rename(*arguments: object, **options: object) -> None:
        calls.append("rename")
        rename(*arguments, **options)

    path.parent.mkdir(mode=0o700)
    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "rename", noting_rename)
    Journal(str(path)).record([entry()])
    assert calls == ["sync file", "rename", "sync directory"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "damaged"),
        ("\xff", "damaged"),
        ("[]", "not a journal"),
        ('{"format": "something else"}', "not a journal"),
        (json.dumps({"format": _journal.FORMAT, "version": 99, "entries": []}), "version 99"),
        (json.dumps({"format": _journal.FORMAT, "version": 1}), "no entries"),
        (json.dumps({"format": _journal.FORMAT, "version": 1, "entries": [{"kind": "unit"}]}), "not understood"),
        (
            json.dumps({"format": _journal.FORMAT, "version": 1, "entries": [{"kind": "unit", "key": "unit:a", "state": "gone", "before": {}}]}),
            "not understood",
        ),
        (json.dumps({"format": _journal.FORMAT, "version": 1, "entries": ["a"]}), "not understood"),
    ],
)
def test_what_is_not_understood_is_refused_and_kept(path: Path, text: str, words: str) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(JournalError, match=words):
        Journal(str(path)).load()
    assert path.read_bytes() == text.encode("latin-1")


def test_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "shadow"
    target.write_text("precious")
    target.chmod(0o600)
    path.parent.mkdir(mode=0o700)
    path.symlink_to(target)
    journal = Journal(str(path))
    with pytest.raises(JournalError):
        journal.load()
    with pytest.raises(JournalError):
        journal.record([entry()])
    assert target.read_text() == "precious" and path.is_symlink()


@pytest.mark.parametrize("path_text", ["journal.json", "/var/lib/unimem/"])
def test_path_must_be_of_a_file(path_text: str) -> None:
    with pytest.raises(JournalError, match="absolute path of a file"):
        Journal(path_text)


def test_a_directory_in_its_place_is_called_one(path: Path) -> None:
    """Also where the directory above it is not private, which is no use to be told of then."""
    path.mkdir(parents=True)
    path.parent.chmod(0o755)
    with pytest.raises(JournalError, match="is a directory; it has to be a file"):
        Journal(str(path)).load()


def test_entries_need_a_kind_and_a_key(path: Path) -> None:
    with pytest.raises(JournalError, match="kind and a key"):
        Journal(str(path)).record([{"kind": "unit"}])
