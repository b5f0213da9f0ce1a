# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import stat
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import (
    FOREIGN,
    OVER,
    OWN,
    Lease,
    LeaseError,
    LeaseStore,
    LiveClock,
    make_owner,
)


class Clock:
    def __init__(self) -> None:
        self.now, self.boot, self.wall = 1000.0, "boot-1", 0.0

    def boottime(self) -> float:
        return self.now

    def boot_id(self) -> str:
        return self.boot

    def date(self, ahead: float = 0.0) -> str:
        return f"{self.wall + ahead:.0f}"


def a_lease(clock: Clock, **changes: t.Any) -> Lease:
    made = Lease(
        owner=make_owner({"id": "a", "user": "alice", "controller": "desk", "pid": 7, "started": "noon"}),
        deployment="qwen",
        journal="/var/lib/unimem/qwen.json",
        boot_id=clock.boot,
        began=clock.now,
        began_at=clock.date(),
        expires=clock.now + 60,
        expires_at=clock.date(60),
        ttl=60,
    )
    return replace(made, **changes)


@pytest.fixture
def store(tmp_path: Path) -> LeaseStore:
    return LeaseStore(str(tmp_path / "state" / "lease"))


def test_round_trip_is_private(store: LeaseStore, tmp_path: Path) -> None:
    assert store.load() is None and not (tmp_path / "state").exists()
    lease = a_lease(Clock(), launch_id="l1", floor=2**31, standing=["x"], journal_digest="d", attempts=2, retry=3.5, reason="undeploy")
    store.save(lease)
    assert store.load() == lease
    file = tmp_path / "state" / "lease" / "lease.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert store.remove() == ["lease.json"] and store.remove() == []
    store.leave()
    assert not file.parent.exists()


def test_it_ends_by_the_clock_of_the_boot_whatever_the_wall_says() -> None:
    clock = Clock()
    lease = a_lease(clock)
    assert lease.seen_by("a", clock) == OWN and lease.seen_by("b", clock) == FOREIGN and lease.seen_by(None, clock) == FOREIGN
    clock.wall += 10**7  # somebody sets the clock
    assert lease.remaining(clock) == 60
    clock.now += 59.9
    assert lease.seen_by("a", clock) == OWN
    clock.now += 0.1
    assert lease.seen_by("a", clock) == OVER and lease.seen_by("b", clock) == OVER


def test_a_boot_ends_it_even_where_its_clock_is_behind() -> None:
    clock = Clock()
    lease = a_lease(clock)
    clock.boot, clock.now = "boot-2", 5.0
    assert lease.remaining(clock) == 0.0 and lease.seen_by("a", clock) == OVER


def test_renewing_counts_from_now() -> None:
    clock = Clock()
    lease = a_lease(clock, launch_id="l1")
    clock.now += 50
    again = lease.renewed(clock, 30)
    assert again.remaining(clock) == 30 and again.launch_id == "l1" and again.began == lease.began
    assert lease.renewed(clock, 30, "l2").launch_id == "l2"


def test_a_refusal_says_whose_it_is_since_when_and_until_when() -> None:
    clock = Clock()
    clock.wall = 500
    said = a_lease(clock).describe(clock)
    for part in ("alice@desk", "process 7", "started at noon", "deployment qwen", "since 500", "until 560", "in 60 s"):
        assert part in said


def test_what_others_write_is_made_printable_and_short() -> None:
    owner = make_owner({"id": "a", "user": "x\x1b[2J\ny" + "z" * 900, "pid": "17", "start_time": "no number"})
    assert "\x1b" not in owner.user and "\n" not in owner.user and len(owner.user) <= 200
    assert owner.pid == 17 and owner.start_time == 0
    for nobody in ({}, {"id": ""}, {"id": "  "}, {"id": None}):
        with pytest.raises(LeaseError, match="needs an id"):
            make_owner(nobody)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[]", "none of this collection's"),
        ('{"format": "something else"}', "none of this collection's"),
        ('{"format": "unimem.dgx_spark lease", "version": 2}', "version 2"),
        ('{"format": "unimem.dgx_spark lease", "version": 1}', "not understood"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_with_a_remedy(store: LeaseStore, text: str, message: str) -> None:
    store.write_bytes("lease.json", text.encode())
    with pytest.raises(LeaseError, match=message):
        store.load()


@pytest.mark.parametrize(
    "changes", [{"journal": "relative"}, {"deployment": "../x"}, {"standing": "abc"}, {"expires": "soon"}, {"boot_id": 5}, {"owner": {}}, {"owner": []}]
)
def test_a_value_that_cannot_be_is_refused(store: LeaseStore, tmp_path: Path, changes: dict[str, t.Any]) -> None:
    store.save(a_lease(Clock()))
    document = json.loads((tmp_path / "state" / "lease" / "lease.json").read_text(encoding="utf-8"))
    store.write_bytes("lease.json", json.dumps({**document, **changes}).encode())
    with pytest.raises((LeaseError, AttributeError)):
        store.load()


def test_no_link_and_nobody_elses_file_is_taken(store: LeaseStore, tmp_path: Path) -> None:
    store.save(a_lease(Clock()))
    file = tmp_path / "state" / "lease" / "lease.json"
    text = file.read_bytes()
    elsewhere = tmp_path / "planted"
    elsewhere.write_bytes(text)
    elsewhere.chmod(0o600)
    file.unlink()
    file.symlink_to(elsewhere)
    with pytest.raises(LeaseError, match="safely"):
        store.load()
    with pytest.raises(LeaseError, match="safely"):
        store.save(a_lease(Clock()))
    assert elsewhere.read_bytes() == text
    file.unlink()
    file.write_bytes(text)
    file.chmod(0o644)
    with pytest.raises(LeaseError, match="open to others"):
        store.load()


def test_what_fired_first_stays_the_reason(store: LeaseStore) -> None:
    clock = Clock()
    lease = a_lease(clock)
    assert store.fired() is None
    store.save_fired(lease, clock, {"reason": "memory_floor", "detail": "low"})
    store.save_fired(lease, clock, {"reason": "expired", "detail": "late"})
    fired = store.fired()
    assert fired is not None
    assert (fired["reason"], fired["detail"], fired["owner"]["id"], fired["deployment"]) == ("memory_floor", "low", "a", "qwen")
    assert [event["reason"] for event in fired["later"]] == ["expired"]
    store.save_fired(replace(lease, owner=make_owner({"id": "b"})), clock, {"reason": "expired", "detail": "other"})
    other = store.fired()
    assert other is not None and other["owner"]["id"] == "b" and other["later"] == []


def test_a_record_that_is_damaged_counts_as_none(store: LeaseStore) -> None:
    store.write_bytes("fired.json", b"{}")
    assert store.fired() is None


def test_this_machines_clock_is_the_kernels() -> None:
    clock = LiveClock()
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    assert abs(clock.boottime() - uptime) < 5
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert clock.date()[:4].isdigit() and os.path.exists("/proc")
