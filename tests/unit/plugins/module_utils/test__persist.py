# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import DAY, Liveness, PersistError, PersistStore, Record, Tries, parse_record

RECORD = Record(
    deployment="default",
    launch_id="l1",
    container=f"{100:064x}",
    name="unimem-default-rank1",
    rank=1,
    address="192.168.200.13",
    head="192.168.200.12",
    control_port=29400,
    peers=["192.168.200.12"],
    probe_port=22,
    tries=3,
    stop_seconds=75,
    floor=2 * 1024**3,
    liveness=Liveness("http://127.0.0.1:8000", "m", "p", 60.0, 120.0, 3, "KEY"),
)


@pytest.fixture
def store(tmp_path: Path) -> PersistStore:
    return PersistStore("default", str(tmp_path / "persist"))


@pytest.mark.parametrize("record", [RECORD, replace(RECORD, liveness=None)])
def test_what_is_written_is_read_again(store: PersistStore, record: Record) -> None:
    assert store.load() is None and not store.exists()
    store.save(record)
    assert store.load() == record and store.text() == record.text()
    assert stat.S_IMODE(Path(store.path("rank.json")).stat().st_mode) == 0o600 and stat.S_IMODE(Path(store.directory).stat().st_mode) == 0o700
    store.save_tries(Tries([1.0]))
    store.save_archive(b"x")
    store.remove()
    assert not Path(store.directory).parent.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"rank": "0"},
        {"rank": -1},
        {"peers": [1]},
        {"peers": None},
        {"deployment": "../x"},
        {"more": 1},
        {"liveness": {"url": "x"}},
    ],
)
def test_what_is_not_ours_is_refused(change: dict[str, t.Any]) -> None:
    with pytest.raises(PersistError):
        parse_record(json.dumps({**json.loads(RECORD.text()), **change}))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"'])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(PersistError):
        parse_record(text)


@pytest.mark.parametrize("name", ["../up", "", "A", "a/b", "a b", "x" * 60])
def test_a_name_stays_in_its_directory(name: str) -> None:
    with pytest.raises(PersistError):
        PersistStore(name)


def test_a_start_is_a_failure_until_it_proves_itself() -> None:
    begun = Tries().start(100.0)
    assert begun == Tries([], 100.0)
    assert begun.good() == Tries()
    # The node went down with it: whoever starts it next finds a start that nobody saw end.
    assert begun.settle(200.0) == Tries([100.0]) and begun.start(200.0) == Tries([100.0], 200.0)
    assert begun.fail(150.0) == Tries([100.0]), "one start fails once"
    assert begun.good().fail(150.0) == Tries([150.0]), "also after it has proved itself"


def test_a_failure_is_forgotten_after_a_day_whatever_the_clock_does() -> None:
    tries = Tries([100.0, 200.0])
    assert tries.settle(100.0 + DAY) == Tries([200.0])
    assert tries.settle(-2 * DAY) == Tries()


def test_failures_that_begin_alike_are_counted_while_nothing_is_between_them() -> None:
    twice = Tries().start(1.0).fail(2.0, "x").start(3.0).fail(4.0, "x")
    assert twice == Tries([1.0, 3.0], None, "x", 2)
    assert twice.fail(5.0, "y").alike == 1 and twice.fail(5.0).alike == 0
    assert twice.start(5.0).good().alike == 0, "it has proved itself"
    assert twice.start(5.0).settle(6.0) == Tries([1.0, 3.0, 5.0]), "nobody saw how the last one ended"
    assert twice.settle(DAY + 2.0).alike == 1 and twice.settle(DAY + 5.0) == Tries()
    assert twice.settle(DAY + 5.0).fail(DAY + 6.0, "x").alike == 1


def test_damaged_tries_are_said(store: PersistStore) -> None:
    assert store.tries() == Tries()
    store.save_tries(Tries([1.0], 2.0, "x", 1))
    assert store.tries() == Tries([1.0], 2.0, "x", 1)
    Path(store.path("tries.json")).write_text('{"failures": [1.0], "begun": null}', encoding="utf-8")
    assert store.tries() == Tries([1.0]), "of an older agent"
    Path(store.path("tries.json")).write_text("{", encoding="utf-8")
    with pytest.raises(PersistError, match="damaged"):
        store.tries()
    store.forget_tries()
    assert store.tries() == Tries()
