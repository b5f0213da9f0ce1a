# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _lease_agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_agent import RETRIES, boot, expire
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import NodeLock
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_lease import RANK, SimulatedLeaseNode
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import Died, Proc


@pytest.fixture
def node(tmp_path: Path) -> SimulatedLeaseNode:
    """A deployment under way: held, evicted, a rank that loads."""
    made = SimulatedLeaseNode(tmp_path)
    made.add_service()
    made.lease("held", floor="2 GiB")
    made.evict()
    made.add_rank()
    return made


def undone(node: SimulatedLeaseNode) -> bool:
    return node.service() == ("active", "enabled") and node.rank_names == [] and node.units.left() == [] and node.lease("report")["state"] == "none"


def test_a_lease_that_lives_is_left_alone(node: SimulatedLeaseNode) -> None:
    node.machine.clock += 59
    assert expire(node) == 0
    assert node.rank_names == [RANK] and node.service()[0] == "inactive" and node.lease("report")["fired"] is None


def test_when_it_runs_out_the_node_undoes_everything(node: SimulatedLeaseNode) -> None:
    node.machine.clock += 60
    assert expire(node) == 0
    assert undone(node)
    fired = node.lease("report")["fired"]
    assert (fired["reason"], fired["verdict"], fired["stopped"], fired["removed"]) == ("expired", "settled", [RANK], [RANK])
    assert fired["restored"]["verdict"] == "restored" and fired["owner"]["id"] == "a"
    assert not (Path(node.store.directory) / "agent.pyz").exists()
    assert expire(node) == 0 and node.lease("report")["fired"] == fired


def test_what_the_ranks_read_goes_with_them(tmp_path: Path) -> None:
    node = SimulatedLeaseNode(tmp_path)
    directory = str(Path(node.journal).parent / "launch" / "default")
    node.lease("held", launch_directory=directory + "/")
    node.add_rank()
    node.machine.clock += 60
    expire(node)
    assert node.machine.log[-2:] == [f"remove {RANK}", f"remove {directory}"]


def test_what_would_start_the_ranks_again_goes_before_them(node: SimulatedLeaseNode) -> None:
    node.kept, node.stuck = True, "unimem-rank-default.service cannot be stopped"
    node.machine.clock += 60
    assert expire(node) == 1 and node.rank_names == [RANK]
    fired = node.lease("report")["fired"]
    assert fired["verdict"] == "not_settled" and "cannot be stopped" in fired["detail"]
    node.stuck = ""
    node.machine.clock += RETRIES[0]
    assert expire(node) == 0
    assert undone(node) and not node.kept


def test_a_renewal_moves_it(node: SimulatedLeaseNode) -> None:
    node.machine.clock += 50
    node.lease("renewed")
    node.machine.clock += 50
    expire(node)
    assert node.rank_names == [RANK]
    node.machine.clock += 10
    expire(node)
    assert undone(node)


def test_a_set_clock_moves_nothing(node: SimulatedLeaseNode) -> None:
    node.clock.wall += 10**6
    expire(node)
    assert node.rank_names == [RANK]


def test_after_a_boot_it_is_over_and_says_so(node: SimulatedLeaseNode) -> None:
    node.clock.boot = "the next boot"
    node.machine.clock = 3.0
    node.docker.signal(node.machine.containers[f"container:{100:064x}"].id, "SIGKILL")  # nothing ran on through a boot
    assert boot(node) == 0
    assert undone(node) and node.lease("report")["fired"]["reason"] == "reboot"


def test_it_is_tried_again_later_and_left_to_others_in_the_end(node: SimulatedLeaseNode) -> None:
    node.docker.hung = True
    node.machine.clock += 60
    tries = []
    for _second in range(1000):
        before = node.store.load()
        assert before is not None
        if expire(node) == 1:
            tries.append(node.machine.clock)
        node.machine.clock += 1
    assert len(tries) >= len(RETRIES) + 1
    pauses = [later - earlier for earlier, later in zip(tries, tries[1:])]
    assert all(pause >= wanted for pause, wanted in zip(pauses, RETRIES)), pauses
    assert node.units.running == set() and node.units.boot, "the next boot tries again"
    fired = node.lease("report")["fired"]
    assert fired["verdict"] == "not_settled" and "does not answer" in fired["detail"] and fired["later"]
    node.docker.hung = False
    assert node.lease("settled", owner="b")["msg"] == ""
    assert undone(node)


def test_at_boot_it_stays_until_it_is_done(node: SimulatedLeaseNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.clock.boot = "the next boot"
    node.docker.hung = True
    pause = node.pause

    def and_docker_comes_up(seconds: float) -> None:
        pause(seconds)
        node.docker.hung = node.machine.clock < 100

    monkeypatch.setattr(node, "pause", and_docker_comes_up)
    assert boot(node) == 0
    assert undone(node)


def test_a_run_that_has_the_lease_in_hand_goes_first(node: SimulatedLeaseNode) -> None:
    node.machine.clock += 60
    with NodeLock(node.locks, {}, "lease.lock"):
        assert expire(node) == 0
    assert node.rank_names == [RANK]


def test_a_group_that_ran_before_and_was_not_touched_stays(tmp_path: Path) -> None:
    node = SimulatedLeaseNode(tmp_path)
    node.add_service()
    node.add_rank()
    node.lease("held")
    node.machine.clock += 60
    expire(node)
    assert node.rank_names == [RANK] and node.machine.log == []
    fired = node.lease("report")["fired"]
    assert fired["verdict"] == "untouched" and node.lease("report")["state"] == "none" and node.units.left() == []


def test_a_group_that_was_touched_goes_whole(tmp_path: Path) -> None:
    node = SimulatedLeaseNode(tmp_path)
    node.add_service()
    node.add_rank()
    node.lease("held")
    node.evict()
    node.machine.clock += 60
    expire(node)
    assert undone(node)


def test_memory_that_comes_back_late_is_waited_for(node: SimulatedLeaseNode) -> None:
    node.machine.add_process(Proc(900, "VLLM::Worker", gpu=2**30, container=f"container:{100:064x}"))
    gather = node.machine.gather
    looks = []

    def slowly() -> dict[str, object]:
        facts = gather()
        looks.append(node.machine.clock)
        if len(looks) < 5:
            row = {"pid": 900, "start_time": 1, "memory": 2**30, "name": "VLLM::Worker", "owner": {"kind": "container", "name": RANK}}
            facts["processes"] = [*facts["processes"], row]
        return facts

    node.machine.gather = slowly  # type: ignore[method-assign]
    node.machine.clock += 60
    expire(node)
    assert undone(node)
    assert len(looks) >= 5 and node.machine.times[node.machine.log.index("start vllm-embeddings.service")] >= looks[4]


def test_a_driver_that_does_not_answer_is_waited_for_and_is_none_that_holds_nothing(node: SimulatedLeaseNode) -> None:
    gather, silent = node.machine.gather, True

    def without_driver() -> dict[str, object]:
        facts = gather()
        return {**facts, "class": "unresponsive", "processes": []} if silent else facts

    node.machine.gather = without_driver  # type: ignore[method-assign]
    node.machine.clock += 60
    expire(node)
    fired = node.lease("report")["fired"]
    assert fired["verdict"] == "not_settled" and "has not answered" in fired["detail"] and not undone(node)
    silent = False
    assert node.lease("settled", owner="b")["settled"]["verdict"] == "settled"


def test_a_rank_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    node = SimulatedLeaseNode(tmp_path)
    node.add_service()
    node.lease("held")
    node.evict()
    node.add_rank(ignores_term=True)
    node.machine.clock += 60
    expire(node)
    assert undone(node) and f"SIGKILL {RANK}" in node.machine.log


def test_killed_at_any_point_the_next_look_ends_it(tmp_path: Path) -> None:
    for death in range(12):
        node = SimulatedLeaseNode(tmp_path / str(death))
        node.add_service()
        node.lease("held")
        node.evict()
        node.add_rank()
        node.machine.clock += 60
        node.machine.die_after = len(node.machine.log) + death
        try:
            expire(node)
            died = False
        except Died:
            died = True
        node.machine.die_after = None
        node.machine.clock += 10
        assert expire(node) == 0
        assert undone(node), f"after a death at {death}"
        if not died:
            assert death >= 3, "nothing was done before the first death"
            return
    raise AssertionError("it never came to its end")


def test_its_words_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert _lease_agent.main(["agent.pyz"]) == 2
    assert _lease_agent.main(["agent.pyz", "destroy"]) == 2
    assert "expire|guard|boot|check" in capsys.readouterr().out
