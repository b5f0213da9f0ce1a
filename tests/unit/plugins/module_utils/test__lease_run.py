# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import threading
import typing as t
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import NodeLock
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_lease import RANK, SimulatedLeaseNode


@pytest.fixture
def node(tmp_path: Path) -> SimulatedLeaseNode:
    return SimulatedLeaseNode(tmp_path)


def files(node: SimulatedLeaseNode) -> list[str]:
    directory = Path(node.store.directory)
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_report_changes_nothing(node: SimulatedLeaseNode) -> None:
    result = node.lease("report", owner=None)
    assert (result["state"], result["lease"], result["fired"], result["changed"]) == ("none", None, None, False)
    assert files(node) == []


def test_held_renewed_released(node: SimulatedLeaseNode) -> None:
    held = node.lease("held", floor="2 GiB")
    assert held["changed"] and held["state"] == "own" and held["msg"] == ""
    assert held["lease"]["remaining"] == 60 and held["lease"]["owner"]["user"] == "alice" and held["lease"]["floor"] == 2 * 1024**3
    assert node.units.left() == ["guard", "timer", "boot"]
    assert files(node) == ["agent.pyz", "lease.json"]
    assert node.units.commands[0][-1] == str(Path(node.store.directory) / "agent.pyz")
    node.machine.clock += 40
    renewed = node.lease("renewed", ttl=100, launch_id="l9")
    assert renewed["changed"] and renewed["lease"]["remaining"] == 100 and renewed["lease"]["launch_id"] == "l9"
    released = node.lease("released")
    assert released["changed"] and released["state"] == "none"
    assert node.units.left() == [] and files(node) == []
    assert not node.lease("released")["changed"]


def test_held_twice_is_held_once_and_no_longer(node: SimulatedLeaseNode) -> None:
    node.lease("held")
    node.machine.clock += 20
    again = node.lease("held", ttl=500)
    assert not again["changed"] and again["lease"]["remaining"] == 40


def test_what_somebody_stopped_is_started_again(node: SimulatedLeaseNode) -> None:
    node.lease("held", floor="1 GiB")
    for state in ("held", "renewed"):
        node.units.running.discard("guard")
        assert node.lease(state)["changed"]
        assert node.units.missing(True) == []


def test_another_run_is_refused_with_owner_start_and_expiry(node: SimulatedLeaseNode) -> None:
    first = node.lease("held")
    node.machine.clock += 10
    for state in ("held", "settled"):
        second = node.lease(state, owner="b")
        assert not second["changed"] and second["state"] == "foreign"
        for part in ("alice@desk", "process 7", first["lease"]["start"], first["lease"]["expiry"], "in 50 s", "Nothing was touched", "take_over: 'a'"):
            assert part in second["msg"]
    assert node.lease("report", owner="b")["lease"] == node.lease("report", owner="a")["lease"]
    assert node.lease("released", owner="b")["changed"] is False
    assert node.lease("report")["state"] == "own"


def test_check_mode_refuses_too_and_arms_nothing(node: SimulatedLeaseNode) -> None:
    would = node.lease("held", check=True)
    assert would["changed"] and would["state"] == "none" and would["diff"]["before"] != would["diff"]["after"]
    assert files(node) == [] and node.units.left() == []
    node.lease("held")
    assert "another run holds this node" in node.lease("held", owner="b", check=True)["msg"]
    for state in ("renewed", "released"):
        assert node.lease(state, check=True)["changed"]
    assert node.lease("report")["lease"]["remaining"] == 60


def test_after_the_end_the_next_run_settles_and_holds(node: SimulatedLeaseNode) -> None:
    node.add_service()
    node.lease("held")
    node.evict()
    node.add_rank()
    assert node.service() == ("inactive", "disabled")
    node.machine.clock += 61
    assert node.lease("report", owner="b")["state"] == "expired"
    taken = node.lease("held", owner="b")
    assert taken["state"] == "own" and taken["msg"] == "" and taken["lease"]["owner"]["id"] == "b"
    assert taken["settled"]["stopped"] == [RANK] and taken["settled"]["removed"] == [RANK]
    assert node.service() == ("active", "enabled") and node.rank_names == []
    assert node.machine.log.index(f"SIGTERM {RANK}") < node.machine.log.index("start vllm-embeddings.service")


def test_settled_leaves_no_lease(node: SimulatedLeaseNode) -> None:
    node.add_service()
    node.lease("held")
    node.evict()
    node.machine.clock += 61
    assert node.lease("settled", owner="b", check=True)["changed"] and node.service()[0] == "inactive"
    settled = node.lease("settled", owner="b")
    assert settled["changed"] and settled["state"] == "none" and settled["settled"]["verdict"] == "settled"
    assert node.service() == ("active", "enabled") and node.units.left() == [] and files(node) == []
    assert not node.lease("settled", owner="b")["changed"]


def test_a_dead_run_is_taken_over_by_name_only(node: SimulatedLeaseNode) -> None:
    node.lease("held")
    assert node.lease("held", owner="b", take_over="somebody")["msg"]
    assert node.lease("held", owner="b", take_over="a")["lease"]["owner"]["id"] == "b"
    # The lease came to somebody else meanwhile: the name that was read before is no longer the right one.
    assert node.lease("held", owner="c", take_over="a")["msg"]


def test_what_cannot_be_settled_stays_and_refuses(node: SimulatedLeaseNode) -> None:
    node.add_service()
    node.lease("held")
    node.evict()
    node.add_rank()
    node.machine.clock += 61
    node.docker.stubborn = True
    failed = node.lease("held", owner="b")
    assert "could not be settled" in failed["msg"] and "not even by SIGKILL" in failed["msg"] and "alice@desk" in failed["msg"]
    assert failed["settled"]["verdict"] == "not_settled"
    assert node.service()[0] == "inactive", "no service is put beside a rank that still holds the memory"
    assert node.lease("report", owner="b")["state"] == "expired"


def test_a_lost_lease_is_not_renewed(node: SimulatedLeaseNode) -> None:
    assert "is lost" in node.lease("renewed")["msg"]
    node.lease("held", owner="b")
    lost = node.lease("renewed")
    assert "is lost" in lost["msg"] and "it is held by" in lost["msg"] and lost["state"] == "foreign"
    node.lease("released", owner="b")
    node.lease("held")
    lease = node.store.load()
    assert lease is not None
    node.store.save_fired(lease, node.clock, {"reason": "expired", "detail": "undone"})
    node.store.remove()
    lost = node.lease("renewed")
    assert "acted by itself (expired): undone" in lost["msg"]


def test_run_out_and_unnoticed_it_is_renewed(node: SimulatedLeaseNode) -> None:
    node.lease("held")
    node.machine.clock += 61
    assert node.lease("renewed")["lease"]["remaining"] == 60


def test_a_breach_of_the_floor_fails_the_renewal_and_keeps_the_node(node: SimulatedLeaseNode) -> None:
    node.lease("held", floor="2 GiB")
    lease = node.store.load()
    assert lease is not None
    node.store.save_fired(lease, node.clock, {"reason": "memory_floor", "detail": "it stayed below 2 GiB"})
    node.machine.clock += 30
    renewed = node.lease("renewed")
    assert "it stayed below 2 GiB" in renewed["msg"]
    assert renewed["lease"]["remaining"] == 60 and renewed["fired"]["reason"] == "memory_floor"
    node.lease("released")
    assert node.lease("report")["fired"]["reason"] == "memory_floor", "kept for the diagnosis"
    assert node.lease("held")["fired"] is None
    assert node.lease("renewed")["msg"] == ""


def test_nothing_is_held_where_the_node_cannot_guard_itself(node: SimulatedLeaseNode) -> None:
    node.proof = "ended with status 1: SyntaxError"
    failed = node.lease("held")
    assert "SyntaxError" in failed["msg"] and "nothing was touched" in failed["msg"]
    node.proof = None
    node.units.refuses = "unimem-lease.service cannot be started: no systemd"
    failed = node.lease("held")
    assert "no systemd" in failed["msg"]
    node.units.refuses = ""
    node.docker.hung = True
    assert "does not answer" in node.lease("held")["msg"]
    assert files(node) == [] and node.units.left() == [] and node.lease("report")["state"] == "none"


def test_while_the_node_settles_others_wait_for_it(node: SimulatedLeaseNode) -> None:
    node.lease("held")
    settling = NodeLock(node.locks, {"pid": 1, "user": "the node's own timer", "state": "settling an expired lease"}, "lease.lock")
    settling.__enter__()
    done = threading.Timer(0.5, lambda: (node.store.remove(), settling.__exit__()))
    done.start()
    assert node.lease("report")["state"] == "own", "to look needs no lock"
    assert "is lost" in node.lease("renewed")["msg"]
    done.join()


def test_a_run_that_undoes_all_of_it_takes_the_node_as_it_is(node: SimulatedLeaseNode) -> None:
    node.add_service()
    node.lease("held")
    node.evict()
    node.machine.clock += 61
    taken = node.lease("held", owner="b", settle=False)
    assert taken["changed"] and taken["settled"] is None and taken["lease"]["owner"]["id"] == "b"
    assert node.service()[0] == "inactive"
    assert node.lease("held", owner="c", settle=False)["state"] == "foreign"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ttl": 5}, "at least 15"),
        ({"timeout": 3}, "at least 30"),
        ({"floor_seconds": 0}, "at least 1"),
        ({"floor": "2G"}, "2G"),
        ({"deployment": "../etc"}, "deployment"),
        ({"journal": "here.json"}, "absolute"),
        ({"launch_directory": "/etc"}, "not below"),
        ({"launch_directory": "/var/lib/unimem/../../../etc", "journal": "/var/lib/unimem/q.json"}, "not below"),
        ({"launch_directory": "/var/lib/unimem", "journal": "/var/lib/unimem/q.json"}, "not below"),
    ],
)
def test_what_cannot_be_meant_is_refused(node: SimulatedLeaseNode, changes: dict[str, t.Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        node.lease("held", **changes)
    assert files(node) == []


@pytest.mark.parametrize("kept", [True, False])
def test_it_tells_whether_a_rank_is_kept_across_boots(node: SimulatedLeaseNode, kept: bool) -> None:
    node.kept = kept
    assert node.lease("report")["kept"] is kept


def test_the_journal_follows_the_deployment(node: SimulatedLeaseNode) -> None:
    assert node.lease("held", journal=None, deployment="qwen")["lease"]["journal"] == "/var/lib/unimem/qwen.json"


def test_ranks_and_evictions_are_reported(node: SimulatedLeaseNode) -> None:
    node.add_service()
    node.lease("held")
    node.evict()
    node.add_rank(launch="l7")
    report = node.lease("report")
    assert [(row["container"], row["launch_id"], row["running"], row["ready"]) for row in report["ranks"]] == [(RANK, "l7", True, True)]
    assert [(entry["name"], entry["state"]) for entry in report["evicted"]] == [("vllm-embeddings.service", "stopped")]
    assert "host" not in report["ranks"][0]
