# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_guard import FloorWatch, Guard, stay_in_memory
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_lease import RANK, SimulatedLeaseNode
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import GIB, Proc


@pytest.fixture
def node(tmp_path: Path) -> SimulatedLeaseNode:
    made = SimulatedLeaseNode(tmp_path)
    made.lease("held", floor="2 GiB", floor_seconds=5)
    made.add_rank()
    return made


def look(guard: Guard, node: SimulatedLeaseNode, seconds: int) -> None:
    for _second in range(seconds):
        assert guard.look()
        node.machine.clock += 1


def test_a_dip_is_no_breach() -> None:
    watch = FloorWatch(100, 5.0)
    readings = [200, 99, 99, 99, 99, 200, 99, 99, 99, 99, None, 99, 99]
    assert [watch.look(reading, float(second)) for second, reading in enumerate(readings)] == [False] * 11 + [True, True]
    assert watch.lowest == 99


def test_exactly_the_floor_is_no_breach() -> None:
    watch = FloorWatch(100, 1.0)
    assert not any(watch.look(100, float(second)) for second in range(10))


def test_below_the_floor_the_ranks_are_killed_and_it_is_said_why(node: SimulatedLeaseNode) -> None:
    guard = Guard(node)
    look(guard, node, 10)
    node.free = GIB
    look(guard, node, 5)
    assert node.docker.list_running() != []
    look(guard, node, 2)
    assert (500, 9) in node.machine.signals, "its first process, known beforehand"
    report = node.lease("report")
    assert report["fired"]["reason"] == "memory_floor" and report["fired"]["lowest"] == GIB and report["fired"]["stopped"] == [RANK]
    for part in ("2.0 GiB", "5 s", "1.0 GiB", RANK):
        assert part in report["fired"]["detail"]
    assert report["state"] == "own", "what was evicted is the play's to restore, or the timer's"


def test_it_needs_no_answer_of_docker(node: SimulatedLeaseNode) -> None:
    guard = Guard(node)
    look(guard, node, 7)
    node.docker.hung = True
    node.free = GIB
    look(guard, node, 7)
    assert (500, 9) in node.machine.signals
    assert node.lease("report")["fired"]["stopped"] == [RANK]


def test_a_rank_that_came_a_moment_ago_is_found(node: SimulatedLeaseNode) -> None:
    node.machine.containers.clear()
    guard = Guard(node)
    look(guard, node, 1)
    node.free = GIB
    look(guard, node, 4)
    node.add_rank()
    look(guard, node, 3)
    assert f"SIGKILL {RANK}" in node.machine.log


def test_nobody_else_is_touched(tmp_path: Path) -> None:
    node = SimulatedLeaseNode(tmp_path)
    node.add_service()
    node.lease("held", floor="2 GiB")
    other = node.add_rank()
    labels = {**other.labels, "io.unimem.deployment": "another"}
    node.machine.containers[other.key] = other._replace(labels=labels, name="unimem-another-rank1")
    node.free = GIB
    look(Guard(node), node, 20)
    assert node.machine.signals == [] and node.machine.log == [] and node.lease("report")["fired"] is None


def test_a_pid_that_is_somebody_elses_by_now_is_not_signalled(node: SimulatedLeaseNode) -> None:
    guard = Guard(node)
    look(guard, node, 7)
    node.docker.hung = True
    node.machine.procs[500] = Proc(500, "sshd", uid=0, start_time=999_999)
    node.free = GIB
    look(guard, node, 7)
    assert node.machine.signals == []


def test_it_ends_with_the_lease(node: SimulatedLeaseNode) -> None:
    guard = Guard(node)
    assert guard.look()
    node.clock.boot = "another boot"
    assert not guard.look()
    node.lease("settled", owner="b")
    assert not guard.look()


def test_no_floor_no_guard(tmp_path: Path) -> None:
    node = SimulatedLeaseNode(tmp_path)
    node.lease("held")
    assert node.units.running == {"timer"}
    assert not Guard(node).look()


def test_it_stays_in_memory() -> None:
    child = os.fork()
    if child == 0:
        kept = stay_in_memory()
        locked = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmLck"))
        os._exit(0 if not kept or int(locked.split()[1]) > 1000 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.platform == "linux"
