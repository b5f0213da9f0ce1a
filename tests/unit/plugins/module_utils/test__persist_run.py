# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import PersistStore, Tries
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_run import Host, run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_units import PersistUnits
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_lease import RANK, SimulatedLeaseNode
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_persist import NAME, Systemd

LIVENESS = {"url": "http://127.0.0.1:8000/", "model": "m", "prompt": "p", "interval": 60, "timeout": 120, "failures": 3, "key_variable": ""}


class Node:
    """A node with a rank, and the module on it."""

    def __init__(self, directory: Path) -> None:
        self.node = SimulatedLeaseNode(directory)
        self.systemd = Systemd()
        self.directory, self.system = str(directory / "persist"), str(directory / "system")
        self.wrong: str | None = None
        self.proved: list[list[str]] = []
        self.store = PersistStore("default", self.directory)
        self.units = PersistUnits(self.systemd, "default", self.system)
        self.rank = self.node.add_rank()

    def prove(self, command: t.Sequence[str]) -> str | None:
        self.proved.append(list(command))
        return self.wrong

    def persist(self, state: str = "present", check: bool = False, **changes: t.Any) -> dict[str, t.Any]:
        parameters: dict[str, t.Any] = {
            "state": state, "deployment": "default", "address": "192.168.200.13", "addresses": ["192.168.200.12", "192.168.200.13"],
            "control_port": 29400, "probe_port": 22, "tries": 3, "stop_timeout": 75, "floor": "2 GiB", "liveness": None, **changes,
        }
        host = Host(self.systemd, lambda: [self.node.docker], self.directory, self.system, self.prove)
        result, failure = run(host, parameters, check)
        return {**result, "msg": failure or ""}

    def relabel(self, **labels: str) -> None:
        made = self.node.machine.containers[self.rank.key]
        self.node.machine.containers[self.rank.key] = made._replace(labels={**made.labels, **labels})

    @property
    def left(self) -> list[str]:
        paths = [os.path.join(folder, name) for top in (self.directory, self.system) for folder, _directories, names in os.walk(top) for name in names]
        return sorted(os.path.basename(path) for path in paths)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_kept_and_kept_no_longer(node: Node) -> None:
    made = node.persist()
    assert made["msg"] == "" and made["changed"] and made["unit"] == NAME
    assert node.left == ["agent.pyz", "rank.json", NAME, NAME] and node.systemd.states[NAME] == "active"
    record = node.store.load()
    assert record is not None
    assert (record.launch_id, record.container, record.name, record.rank) == ("l1", node.rank.id, RANK, 1)
    assert (record.head, record.peers) == ("192.168.200.12", ["192.168.200.12"])
    assert node.proved[0][-2:] == [node.store.path("agent.pyz"), "default"] and f'"{node.store.path("agent.pyz")}" "default"' in node.units.text()
    assert not node.persist()["changed"], "a second run"
    gone = node.persist("absent")
    assert gone["changed"] and node.left == [] and node.systemd.states[NAME] == "inactive"
    assert node.node.machine.containers[node.rank.key].running, "the rank goes on"
    assert not node.persist("absent")["changed"]
    assert not node.systemd.reloaded


def test_check_mode_says_the_same_and_does_nothing(node: Node) -> None:
    told = node.persist(check=True)
    assert told["changed"] and node.left == [] and node.systemd.argvs == [] and node.proved == []
    made = node.persist()
    assert told["diff"] == made["diff"] and made["diff"]["before"] == "" and '"launch_id": "l1"' in made["diff"]["after"]
    assert not node.persist(check=True)["changed"]
    for check in (True, False):
        changed = node.persist(check=check, tries=5)
        assert changed["changed"] and '"tries": 3' in changed["diff"]["before"] and '"tries": 5' in changed["diff"]["after"]
    told = node.persist("absent", check=True)
    assert told["changed"] and node.left != [] and node.systemd.states[NAME] == "active"
    assert told["diff"] == node.persist("absent")["diff"]


def test_check_mode_before_the_launch(node: Node) -> None:
    node.node.machine.containers.clear()
    assert node.persist(check=True)["changed"]
    assert "has 0 ranks" in node.persist()["msg"] and node.left == []


def test_what_changes_while_the_rank_runs_stops_nothing(node: Node) -> None:
    node.persist()
    node.node.machine.log.clear()
    stops: list[str] = []
    node.systemd.on_stop = lambda: stops.append("stop")
    assert node.persist(tries=7)["changed"]
    record = node.store.load()
    assert record is not None and record.tries == 7 and stops == [] and node.node.machine.log == []


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_a_unit_that_somebody_stopped_runs_again(node: Node, state: str) -> None:
    node.persist()
    node.systemd.states[NAME] = state
    assert node.persist()["changed"] and node.systemd.states[NAME] == "active"


@pytest.mark.parametrize("what", ["link", "file", "archive"])
def test_what_somebody_removed_comes_back(node: Node, what: str) -> None:
    node.persist()
    path = {"link": f"{node.system}/multi-user.target.wants/{NAME}", "file": f"{node.system}/{NAME}", "archive": node.store.path("agent.pyz")}[what]
    os.unlink(path)
    assert node.persist()["changed"] and os.path.exists(path) and not node.persist()["changed"]


def test_a_new_launch_begins_anew(node: Node) -> None:
    node.persist()
    node.store.save_tries(Tries([1.0]))
    node.persist(tries=4)
    assert node.store.tries().failures == [1.0], "the same launch has its failures"
    stops: list[str] = []
    node.systemd.on_stop = lambda: stops.append("stop")
    node.relabel(**{"io.unimem.launch-id": "l2"})
    assert node.persist()["changed"]
    assert node.store.tries() == Tries() and stops == ["stop"] and node.systemd.states[NAME] == "active"


def test_damaged_files_are_written_anew(node: Node) -> None:
    node.persist()
    Path(node.store.path("rank.json")).write_text("{", encoding="utf-8")
    assert node.persist()["changed"] and node.store.load() is not None


def test_a_program_that_cannot_run_starts_no_unit(node: Node) -> None:
    node.wrong = "ended with status 1: no zlib"
    assert "no zlib" in node.persist()["msg"]
    assert NAME not in node.left and NAME not in node.systemd.states


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tries": 0}, "tries: 0"),
        ({"floor": "2 G"}, "floor is '2 G'"),
        ({"address": "10.0.0.1"}, "not among the addresses"),
        ({"deployment": "../x"}, "is no name"),
    ],
)
def test_what_cannot_be_meant_is_refused(node: Node, changes: dict[str, t.Any], words: str) -> None:
    assert words in node.persist(**changes)["msg"] and node.left == []


def test_only_the_head_asks_for_tokens(node: Node) -> None:
    node.persist(liveness=LIVENESS)
    worker = node.store.load()
    assert worker is not None and worker.liveness is None
    node.relabel(**{"io.unimem.rank": "0"})
    node.persist(liveness=LIVENESS, address="192.168.200.12")
    head = node.store.load()
    assert head is not None and head.liveness is not None and head.liveness.url == "http://127.0.0.1:8000"
    assert "liveness.interval" in node.persist(liveness={**LIVENESS, "interval": 1}, address="192.168.200.12")["msg"]
