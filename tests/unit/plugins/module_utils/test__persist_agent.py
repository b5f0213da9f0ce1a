# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A boot, and what follows, on an invented node. What its systemd would do is done by ``Kept.unit``."""

from __future__ import annotations

import socket
import subprocess
import sys
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _persist_agent as agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._agent_archive import build_archive
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._liveness import Answer, Pulse
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import DAY, Liveness, PersistStore, Record
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_units import PAUSE, REFUSED
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_lease import RANK, SimulatedLeaseNode
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import GIB, Proc
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.test__persist import RECORD

LIVENESS = Liveness("http://127.0.0.1:8000", "m", "p", 60.0, 120.0, 3, "VLLM_API_KEY")


class Links:
    """The way to the other nodes, as a test says."""

    def __init__(self) -> None:
        self.address = True
        self.missing: set[str] = set()
        self.head = True

    def has(self, address: str) -> bool:
        return self.address

    def unreached(self, source: str, peers: t.Sequence[str], port: int) -> dict[str, str]:
        return {peer: "no answer" for peer in peers if peer in self.missing}

    def is_open(self, source: str, address: str, port: int) -> str:
        return "" if self.head else "Connection refused"


class Kept:
    """A node whose rank is kept. ``at`` plans what happens when the clock gets there; ``until`` ends the unit then, as a shutdown does."""

    def __init__(self, directory: Path) -> None:
        self.node = SimulatedLeaseNode(directory)
        self.links = Links()
        self.store = PersistStore("default", str(directory / "persist"))
        self.said: list[str] = []
        self.answer = Answer(True)
        self.pauses = 0
        self.keys: list[str] = []
        self.plans: list[tuple[float, t.Callable[[], object]]] = []
        self.rank = self.node.add_rank(gpu=60 * GIB)
        self.label(**{"io.unimem.need": str(80 * GIB)})
        self.keep()
        self.node.pause = self.pause  # type: ignore[method-assign]

    def keep(self, **changes: t.Any) -> Record:
        record = replace(RECORD, liveness=None, **changes)
        self.store.save(record)
        return record

    def label(self, **labels: str) -> None:
        made = self.node.machine.containers[self.rank.key]
        self.node.machine.containers[self.rank.key] = made._replace(labels={**made.labels, **labels})

    def pause(self, seconds: float) -> None:
        self.node.machine.clock += seconds
        self.pauses += 1
        assert self.pauses < 10000, "nothing ends it"
        for when, what in sorted(self.plans, key=lambda plan: plan[0]):
            if when <= self.node.machine.clock:
                self.plans = [plan for plan in self.plans if plan[1] is not what]
                what()

    def at(self, when: float, what: t.Callable[[], object]) -> None:
        self.plans.append((when, what))

    def until(self, when: float) -> None:
        def stop() -> None:
            raise agent._Stop

        self.at(when, stop)

    def boot(self, clean: bool = True) -> None:
        """The node goes down, and comes up again."""
        self.node.clock.boot = f"boot {self.node.clock.boot}"
        if self.running:
            self.end(143 if clean else 137)
        self.node.machine.log.clear()

    def end(self, status: int) -> None:
        self.node.docker.statuses[RANK] = status
        self.node.docker.signal(self.rank.id, "SIGKILL")

    def health(self, word: str | None) -> None:
        made = self.node.machine.containers[self.rank.key]
        self.node.machine.containers[self.rank.key] = made._replace(health=word)

    @property
    def running(self) -> bool:
        made = self.node.machine.containers.get(self.rank.key)
        return made is not None and made.running

    @property
    def starts(self) -> int:
        return self.node.machine.log.count(f"start {RANK}")

    def ask(self, _wanted: Liveness, key: str) -> Answer:
        self.keys.append(key)
        return self.answer

    def run(self) -> int:
        pulse = Pulse(self.ask, lambda work: work())
        return agent.Keeper(self.node, self.store, self.links, pulse, lambda: 1e6 + self.node.machine.clock, self.said.append).run()

    def unit(self, most: int = 50) -> list[int]:
        """The unit until systemd leaves it: Restart=on-failure, RestartPreventExitStatus."""
        ended = [self.run()]
        while ended[-1] == agent.FAILED and len(ended) < most:
            self.node.machine.clock += PAUSE
            ended.append(self.run())
        return ended


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


# --- a boot --------------------------------------------------------------------------------------------------------------------


def test_a_boot_starts_the_container_that_the_deployment_made(kept: Kept) -> None:
    kept.boot()
    kept.at(20, lambda: kept.health("healthy"))
    kept.until(100)
    assert kept.unit() == [agent.DONE]
    assert kept.node.machine.log == [f"start {RANK}", f"SIGTERM {RANK}"], "started, and stopped with the unit"
    assert kept.said == [f"{RANK} of launch l1 is started", f"{RANK} was stopped"]
    assert kept.store.tries().failures == [] and kept.store.tries().begun is None


def test_a_rank_that_runs_is_followed_and_not_touched(kept: Kept) -> None:
    kept.health("healthy")
    kept.node.lease("held")  # the run that has just launched it
    kept.at(50, lambda: kept.node.lease("released"))
    kept.until(5000)
    assert kept.unit() == [agent.DONE]
    assert kept.starts == 0 and kept.said[0] == f"{RANK} runs; it is followed"


def test_docker_the_address_and_the_head_are_waited_for(kept: Kept) -> None:
    kept.boot()
    kept.node.docker.hung, kept.links.address, kept.links.head = True, False, False
    kept.at(60, lambda: setattr(kept.node.docker, "hung", False))
    kept.at(120, lambda: setattr(kept.links, "address", True))
    kept.at(2000, lambda: setattr(kept.links, "head", True))
    kept.at(1990, lambda: kept.node.machine.log.append("so far"))
    kept.until(2100)
    assert kept.unit() == [agent.DONE]
    assert kept.node.machine.log[:2] == ["so far", f"start {RANK}"]
    assert kept.said[0] == "waiting for rank 0 at 192.168.200.12 port 29400"


def test_the_head_waits_for_the_other_nodes(kept: Kept) -> None:
    kept.keep(rank=0, address="192.168.200.12", peers=["192.168.200.13"])
    kept.boot()
    kept.links.missing = {"192.168.200.13"}
    kept.links.head = False
    kept.at(900, kept.links.missing.clear)
    kept.until(1000)
    assert kept.unit() == [agent.DONE] and kept.starts == 1
    assert kept.said[0] == "waiting for 192.168.200.13"


@pytest.mark.parametrize(
    ("what", "words"),
    [("docker", "Docker has not answered"), ("address", "has not got its fabric address 192.168.200.13"), ("head", "rank 0 was not started at 192.168.200.12")],
)
def test_what_does_not_come_ends_it_with_a_sentence(kept: Kept, what: str, words: str) -> None:
    kept.boot()
    kept.node.docker.hung, kept.links.address, kept.links.head = what == "docker", what != "address", what != "head"
    assert kept.unit() == [REFUSED]
    assert words in kept.said[-1] and kept.starts == 0 and kept.store.tries().failures == []


def test_a_node_that_does_not_come_ends_it(kept: Kept) -> None:
    kept.keep(rank=0, address="192.168.200.12", peers=["192.168.200.13"])
    kept.boot()
    kept.links.missing = {"192.168.200.13"}
    assert kept.unit() == [REFUSED] and "192.168.200.13: no answer. Nothing was started" in kept.said[-1] and kept.starts == 0


# --- the budget gate -----------------------------------------------------------------------------------------------------------


def test_short_of_memory_nothing_is_started_and_who_holds_it_is_said(kept: Kept) -> None:
    kept.boot()
    kept.node.machine.add_process(Proc(77, "ollama", gpu=50 * GIB))
    assert kept.unit() == [REFUSED] and kept.starts == 0
    assert kept.said[-1] == (
        f"refused: {RANK} needs 80.0 GiB, and a new CUDA process could get 64.0 GiB of 120.0 GiB (held by ollama: 50.0 GiB). Nothing was started"
    )


def test_memory_that_comes_back_late_is_waited_for(kept: Kept) -> None:
    kept.boot()
    kept.node.machine.add_process(Proc(77, "ollama", gpu=50 * GIB))
    kept.at(200, lambda: kept.node.machine.kill_proc(77))
    kept.until(300)
    assert kept.unit() == [agent.DONE] and kept.starts == 1


def test_page_cache_in_the_way_is_dropped_first(kept: Kept) -> None:
    kept.boot()
    kept.node.machine.cache = 60 * GIB
    kept.until(100)
    kept.unit()
    assert kept.node.machine.log[:2] == ["drop the page cache", f"start {RANK}"]


def test_page_cache_that_is_not_in_the_way_stays(kept: Kept) -> None:
    kept.boot()
    kept.until(100)
    kept.unit()
    assert "drop the page cache" not in kept.node.machine.log


@pytest.mark.parametrize("need", ["", "plenty", "-1"])
def test_without_a_need_a_full_node_is_still_refused(kept: Kept, need: str) -> None:
    kept.label(**{"io.unimem.need": need})
    kept.boot()
    kept.node.machine.add_process(Proc(77, "ollama", gpu=113 * GIB))
    assert kept.unit() == [REFUSED] and "needs 2.0 GiB" in kept.said[-1]


def test_a_driver_that_does_not_answer_is_waited_for(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.boot()
    gather = kept.node.machine.gather

    def gathered() -> dict[str, t.Any]:
        there = kept.node.machine.clock > 90
        return {**gather(), "sources": {"gpu": "pynvml" if there else "none", "reasons": {} if there else {"gpus": "no driver"}}}

    monkeypatch.setattr(kept.node.machine, "gather", gathered)
    kept.until(200)
    assert kept.unit() == [agent.DONE] and kept.starts == 1


# --- beside a run ----------------------------------------------------------------------------------------------------------------


def test_nothing_is_started_on_a_leased_node(kept: Kept) -> None:
    kept.end(143)
    kept.node.lease("held", ttl=600)
    assert kept.unit() == [agent.DONE] and kept.starts == 0
    assert kept.said[-1].startswith("left alone: the node is leased, for deployment default of alice@desk")


def test_a_lease_of_an_earlier_boot_is_for_others_to_settle(kept: Kept) -> None:
    kept.node.lease("held")
    kept.boot()
    assert kept.unit() == [agent.DONE] and kept.starts == 0


def test_a_lease_taken_while_it_waits_counts(kept: Kept) -> None:
    kept.boot()
    kept.links.head = False
    kept.at(50, lambda: kept.node.lease("held", ttl=600))
    kept.at(60, lambda: setattr(kept.links, "head", True))
    assert kept.unit() == [agent.DONE] and kept.starts == 0


def test_a_rank_that_ends_under_a_lease_is_not_started_again(kept: Kept) -> None:
    kept.node.lease("held", ttl=600)
    kept.at(50, lambda: kept.end(137))
    assert kept.unit() == [agent.DONE] and kept.starts == 0 and kept.store.tries().failures == []


def test_stopped_under_a_lease_the_rank_is_left_to_the_run(kept: Kept) -> None:
    kept.node.lease("held", ttl=600)
    kept.until(50)
    assert kept.unit() == [agent.DONE] and kept.running


def test_kept_no_longer_it_ends_and_the_rank_goes_on(kept: Kept) -> None:
    kept.at(50, kept.store.remove)
    assert kept.unit() == [agent.DONE] and kept.running
    assert kept.said[-1] == "left alone: the rank is not to be kept any more"


@pytest.mark.parametrize("running", [True, False])
def test_another_launch_is_none_of_its_business(kept: Kept, running: bool) -> None:
    if not running:
        kept.end(137)
    kept.label(**{"io.unimem.launch-id": "l2"})
    assert kept.unit() == [agent.DONE] and kept.running == running
    assert "of launch l1 is gone" in kept.said[-1]


def test_a_container_that_is_removed_meanwhile(kept: Kept) -> None:
    def remove() -> None:
        kept.end(143)
        kept.node.docker.remove(kept.rank.id)

    kept.at(50, remove)
    assert kept.unit() == [agent.DONE] and kept.said[-1] == f"left alone: the container {RANK} is gone"


# --- how it ends -----------------------------------------------------------------------------------------------------------------


def crash_after(kept: Kept, seconds: float, status: int = 1, healthy: bool = False) -> None:
    """Each time that the rank is started it ends so many seconds later."""
    start = kept.node.docker.start

    def started(container_id: str) -> None:
        start(container_id)
        kept.health("healthy" if healthy else "starting")
        kept.at(kept.node.machine.clock + seconds, lambda: kept.end(status))

    kept.node.docker.start = started  # type: ignore[method-assign]


def test_a_rank_that_fails_is_tried_so_many_times_and_no_more(kept: Kept) -> None:
    kept.boot()
    crash_after(kept, 20)
    assert kept.unit() == [agent.FAILED, agent.FAILED, REFUSED]
    assert kept.starts == 3
    assert "has failed 3 times within a day" in kept.said[-1] and "docker logs" in kept.said[-1]
    kept.boot()
    assert kept.unit() == [REFUSED] and kept.starts == 0, "nor at the next boot"
    kept.node.machine.clock += DAY
    assert kept.unit() == [agent.FAILED, agent.FAILED, REFUSED]


def says(kept: Kept, *lines: str) -> None:
    """What the rank's log has of its last start."""
    kept.node.docker.log = b"".join(
        b"\x01\0\0\0" + len(line).to_bytes(4, "big") + line for line in (f"2026-11-30T09:12:01Z {text}\n".encode() for text in lines)
    )


END = "[rank] 2026-11-30T09:12:29Z ending with status 1: engine ended with exit status 1"


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA out of memory. Tried to allocate 512.00 MiB", "cuda_allocation"),
        ("(EngineCore pid=7) ValueError: bad block 3 at 0x7f00", "(EngineCore pid=9) ValueError: bad block 4 at 0x7fff", "ValueError: bad block # at #"),
        ("ValueError: bad block", "KeyError: 'layers'", ""),
        ("ImportError: No module named 'nice_to_have'", "no word of it", ""),
        ("no word of it", "no word of it", ""),
        # Each of these may be gone at the next start.
        ("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms",) * 2 + ("",),
        ("ending with status 137: engine was killed by signal 9",) * 2 + ("",),
    ],
)
def test_a_rank_that_fails_twice_in_the_same_way_is_not_started_a_third_time(kept: Kept, first: str, second: str, alike: str) -> None:
    kept.keep(tries=5)
    kept.boot()
    words = iter([first, second, "a third way to end", "a fourth", "a fifth"])
    crash_after(kept, 20)
    start = kept.node.docker.start

    def started(container_id: str) -> None:
        start(container_id)
        says(kept, f"[rank] {text}" if "killed by" in (text := next(words)) else f"[engine] {text}", END)

    kept.node.docker.start = started  # type: ignore[method-assign]
    if not alike:
        assert kept.unit() == [agent.FAILED] * 4 + [REFUSED] and kept.starts == 5
        return
    assert kept.unit() == [agent.FAILED, REFUSED] and kept.starts == 2
    assert "2 times in a row in the same way" in kept.said[-1] and alike in kept.said[-1] and "tries.json" in kept.said[-1]
    kept.boot()
    assert kept.unit() == [REFUSED] and kept.starts == 0, "nor at the next boot"
    kept.node.machine.clock += DAY
    assert kept.run() == agent.FAILED


def test_a_log_of_an_earlier_start_is_not_read(kept: Kept) -> None:
    asked: list[int] = []

    def read_log(container_id: str, seconds: float, since: int = 0) -> t.Iterator[bytes]:
        asked.append(since)
        raise EngineError("failed", "configured logging driver does not support reading")

    kept.node.docker.read_log = read_log  # type: ignore[method-assign]
    kept.boot()
    crash_after(kept, 20)
    assert kept.unit() == [agent.FAILED, agent.FAILED, REFUSED], "without a log they are counted all the same"
    assert asked == [1767225600] * 3 and "its log cannot be read: configured" in " ".join(kept.said)


def test_a_rank_that_takes_its_nodes_memory_twice_is_not_started_a_third_time(kept: Kept) -> None:
    kept.keep(tries=5)
    kept.boot()
    kept.node.free = GIB
    assert kept.unit() == [agent.FAILED, REFUSED] and kept.starts == 2
    assert "in the same way (its node's last memory was taken)" in kept.said[-1]


def test_a_rank_that_works_for_a_while_each_time_is_bounded_too(kept: Kept) -> None:
    kept.boot()
    crash_after(kept, 3600, healthy=True)
    assert kept.unit() == [agent.FAILED, agent.FAILED, REFUSED] and kept.starts == 3


def test_a_model_that_takes_its_node_down_does_so_only_so_often(kept: Kept) -> None:
    class PowerIsOff(BaseException):
        pass

    def lost() -> None:
        raise PowerIsOff

    for number in range(3):
        kept.boot(clean=False)
        kept.at(kept.node.machine.clock + 20, lost)
        with pytest.raises(PowerIsOff):
            kept.run()
        assert kept.starts == 1, number
    kept.boot(clean=False)
    assert kept.unit() == [REFUSED] and kept.starts == 0


def test_boots_of_a_group_that_stood_are_no_failures(kept: Kept) -> None:
    for _time in range(10):
        kept.boot(clean=False)
        kept.at(kept.node.machine.clock + 20, lambda: kept.health("healthy"))

        def cut() -> None:
            raise KeyboardInterrupt

        kept.at(kept.node.machine.clock + 1000, cut)
        with pytest.raises(KeyboardInterrupt):
            kept.run()
        assert kept.starts == 1
    assert kept.store.tries().failures == []


def test_a_rank_that_ends_with_another_comes_again_without_having_failed(kept: Kept) -> None:
    kept.at(50, lambda: kept.end(70))
    kept.until(200)
    assert kept.unit() == [agent.FAILED, agent.DONE]
    assert kept.starts == 1 and kept.store.tries().failures == []


def test_a_lost_connection_counts_on_both_sides(kept: Kept) -> None:
    kept.at(50, lambda: kept.end(71))
    kept.until(200)
    kept.unit()
    assert kept.starts == 1 and len(kept.store.tries().failures) == 1


def test_what_somebody_stopped_stays_stopped(kept: Kept) -> None:
    kept.at(50, lambda: kept.end(143))
    assert kept.unit() == [agent.DONE] and kept.starts == 0
    assert "systemctl start unimem-rank-default.service" in kept.said[-1]


def test_a_docker_that_is_silent_for_a_moment_ends_nothing(kept: Kept) -> None:
    kept.at(50, lambda: setattr(kept.node.docker, "hung", True))
    kept.at(200, lambda: setattr(kept.node.docker, "hung", False))
    kept.until(400)
    assert kept.unit() == [agent.DONE] and kept.said == [f"{RANK} runs; it is followed", f"{RANK} was stopped"]


def test_a_load_that_takes_the_nodes_last_memory_is_ended(kept: Kept) -> None:
    kept.boot()
    kept.at(30, lambda: setattr(kept.node, "free", GIB))
    kept.at(34, lambda: setattr(kept.node, "free", 3 * GIB))  # a dip
    kept.at(60, lambda: setattr(kept.node, "free", GIB))
    kept.until(80)
    assert kept.run() == agent.FAILED
    assert not kept.running and 65 <= kept.node.machine.clock < 75
    assert "stayed below 2.0 GiB for 5 s (down to 1.0 GiB)" in kept.said[-1] and len(kept.store.tries().failures) == 1


def test_without_a_floor_nothing_is_guarded(kept: Kept) -> None:
    kept.keep(floor=0)
    kept.boot()
    kept.at(30, lambda: setattr(kept.node, "free", 1))
    kept.until(100)
    assert kept.run() == agent.DONE and kept.starts == 1


def test_the_memory_of_a_group_that_is_ready_is_its_own_business(kept: Kept) -> None:
    kept.health("healthy")
    kept.node.free = GIB
    kept.until(100)
    assert kept.run() == agent.DONE


def test_damaged_files_start_nothing(kept: Kept) -> None:
    kept.boot()
    Path(kept.store.path("tries.json")).touch(0o600)
    Path(kept.store.path("tries.json")).write_text("{", encoding="utf-8")
    assert kept.unit() == [REFUSED] and "damaged" in kept.said[-1] and kept.starts == 0


# --- liveness --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def head(kept: Kept) -> Kept:
    """A head that is asked for tokens, and is ready."""
    kept.store.save(replace(RECORD, rank=0, address="192.168.200.12", peers=["192.168.200.13"], liveness=LIVENESS))
    kept.health("healthy")
    kept.node.docker.environment = ["PATH=/bin", "VLLM_API_KEY=s3cret=1"]
    return kept


def test_as_long_as_tokens_come_nothing_is_done(head: Kept) -> None:
    head.until(2000)
    assert head.unit() == [agent.DONE] and head.starts == 0
    assert set(head.keys) == {"s3cret=1"} and 30 <= len(head.keys) <= 33
    assert not any("s3cret" in line for line in head.said) and "s3cret" not in head.store.text()


def test_three_times_no_token_and_the_group_is_started_anew(head: Kept) -> None:
    head.answer = Answer(False, "timed out")
    stop = head.node.docker.stop

    def stopped(container_id: str, seconds: int) -> None:
        stop(container_id, seconds)
        head.answer = Answer(True)

    head.node.docker.stop = stopped  # type: ignore[method-assign]
    head.until(1000)
    assert head.unit() == [agent.FAILED, agent.DONE]
    assert head.node.machine.log == [f"SIGTERM {RANK}", f"start {RANK}", f"SIGTERM {RANK}"]
    assert "3 of 3 times in a row" in head.said[3] and "started again" in head.said[4]
    assert len(head.store.tries().failures) == 1


def test_a_group_that_never_answers_is_left_as_it_is_in_the_end(head: Kept) -> None:
    head.answer = Answer(False, "timed out")
    head.until(20000)
    assert head.unit() == [agent.FAILED, agent.FAILED, agent.DONE]
    assert head.starts == 2
    assert len([line for line in head.said if "it is left as it is" in line]) == 1


def test_nobody_asks_a_group_that_starts(head: Kept) -> None:
    head.health("starting")
    head.answer = Answer(False, "refused")
    head.until(2000)
    assert head.unit() == [agent.DONE] and head.keys == []


def test_nobody_asks_while_the_node_is_leased(head: Kept) -> None:
    head.node.lease("held", ttl=5000)
    head.answer = Answer(False, "refused")
    head.at(2000, lambda: head.node.lease("released"))
    head.until(2050)
    assert head.unit() == [agent.DONE] and head.keys == []


# --- the program itself -----------------------------------------------------------------------------------------------------------


def test_it_runs_from_its_archive(tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(build_archive(agent))
    for arguments, status, words in ((["default", "check"], 0, "ready"), ([], REFUSED, "usage"), (["../x"], REFUSED, "refused: deployment")):
        done = subprocess.run([sys.executable, "-I", "-B", str(archive), *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, words in done.stdout) == (status, True), done


def test_the_links_of_this_machine() -> None:
    links = agent.LiveLinks()
    assert links.has("127.0.0.1") and not links.has("192.0.2.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert "refused" in links.is_open("127.0.0.1", "127.0.0.1", port)
        assert links.unreached("127.0.0.1", ["127.0.0.1"], port) == {}, "a refusal proves the way"
        listener.listen()
        assert links.is_open("127.0.0.1", "127.0.0.1", port) == ""
    assert list(links.unreached("192.0.2.1", ["127.0.0.1"], port)) == ["127.0.0.1"]
