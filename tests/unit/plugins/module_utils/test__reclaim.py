# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import random
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _lock
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._journal import Journal, JournalError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lock import LockError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._private_dir import PathError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim_run import run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import RunResult
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import (
    GIB,
    Died,
    Proc,
    SimulatedEngine,
    SimulatedNode,
    container,
    unit,
)

EMBEDDINGS = "unit:vllm-embeddings.service"


def params(tmp_path: t.Any, **changes: t.Any) -> dict[str, t.Any]:
    made = {
        "state": "freed",
        "stop": [],
        "protect": [],
        "need": 0,
        "always": [],
        "kill_leftovers": False,
        "drop_page_cache": False,
        "cache_paths": [],
        "grace": 30,
        "timeout": 300,
        "rounds": 3,
        "restore": {},
        "reason": "any",
        "journal": str(tmp_path / "state" / "journal.json"),
    }
    made.update(changes)
    return made


def go(node: SimulatedNode, tmp_path: t.Any, check: bool = False, **changes: t.Any) -> dict[str, t.Any]:
    """Run the module on a simulated node; the result, with ``failed`` and ``msg`` where it fails."""
    result, failure = run(node, params(tmp_path, **changes), check, str(tmp_path / "locks"))
    return {**result, "failed": failure is not None, "msg": failure or ""}


def seed_node() -> SimulatedNode:
    """The seed's worker: a unit that runs a container, and a process that shows up when they are gone."""
    node = SimulatedNode(total=120 * GIB, base=7 * GIB, cache=90 * GIB)
    wrapped = container("vllm_embeddings", 1, policy="unless-stopped")
    node.add_unit(
        unit("vllm-embeddings.service", commands=(("/usr/bin/docker", "run", "--name", "vllm_embeddings", "image"),)),
        Proc(100, "docker", rss=GIB // 100, uid=0, user="root", argv=("/usr/bin/docker", "run", "--name", "vllm_embeddings", "image")),
    )
    node.add_container(wrapped, Proc(101, "VLLM::EngineCore", gpu=int(11.7 * GIB)), wrapper=EMBEDDINGS)
    node.links["vllm-embeddings.service"] = {
        "/etc/systemd/system/multi-user.target.wants/vllm-embeddings.service": "/etc/systemd/system/vllm-embeddings.service"
    }
    node.late.append((EMBEDDINGS, Proc(202, "stray", gpu=int(7.8 * GIB))))
    return node


def did(result: dict[str, t.Any], round_number: int | None = None) -> list[tuple[str, str, str]]:
    return [(row["layer"], row["target"], row["action"]) for row in result["actions"] if round_number in (None, row["round"])]


# The seed


def test_seed_unit_then_container_then_stray_on_the_second_look(tmp_path):
    node = seed_node()
    before = node.state()
    result = go(node, tmp_path, stop=[EMBEDDINGS, "process:stray"], need=110 * GIB)
    assert not result["failed"], result["msg"]
    assert result["verdict"] == "freed" and result["changed"]
    assert did(result, 1) == [
        ("unit", "vllm-embeddings.service", "disable"),
        ("unit", "vllm-embeddings.service", "stop"),
        ("container", "vllm_embeddings", "set_restart_policy_no"),
        ("container", "vllm_embeddings", "stop"),
    ]
    assert did(result, 2) == [("process", "stray (pid 202)", "terminate")]
    assert node.log.index("stop vllm-embeddings.service") < node.log.index("policy vllm_embeddings no")
    assert node.signals == [(202, 15)]
    assert result["after"]["allocatable"] >= 110 * GIB
    assert not any(row["name"] in ("stray", "VLLM::EngineCore") for row in result["held_by"])
    restored = go(node, tmp_path, state="restored")
    assert restored["verdict"] == "restored" and restored["changed"], restored["msg"]
    assert node.state() == before
    again = go(node, tmp_path, state="restored")
    assert again["verdict"] == "restored" and not again["changed"]


def test_second_run_changes_nothing(tmp_path):
    node = seed_node()
    wanted = {"stop": [EMBEDDINGS, "process:stray"], "need": 110 * GIB}
    assert go(node, tmp_path, **wanted)["changed"]
    log = list(node.log)
    result = go(node, tmp_path, **wanted)
    assert (result["verdict"], result["changed"], node.log) == ("nothing_to_do", False, log)


def test_check_mode_plans_what_the_run_then_does(tmp_path):
    wanted = {"stop": [EMBEDDINGS, "process:stray"], "need": 110 * GIB}
    node = seed_node()
    plan = go(node, tmp_path, check=True, stop=[EMBEDDINGS, "process:stray"], need=0)
    assert plan["changed"] and plan["verdict"] == "freed" and node.log == []
    assert not (tmp_path / "state").exists() and not (tmp_path / "locks").exists()
    assert all(row["result"] == "planned" for row in plan["actions"])
    node = seed_node()
    real = go(node, tmp_path, stop=wanted["stop"], need=0)
    assert did(plan) == did(real, 1)
    assert did(real, 2) == [("process", "stray (pid 202)", "terminate")]


def test_report_touches_nothing_and_never_fails(tmp_path):
    node = seed_node()
    node.euid = 1000
    result = go(node, tmp_path, state="report", stop=[EMBEDDINGS], need=110 * GIB)
    assert result["verdict"] == "reported" and not result["failed"] and not result["changed"]
    assert node.log == [] and not (tmp_path / "state").exists()
    assert "root" in result["refused"][0]["reason"]


# How much


def tenants(node: SimulatedNode, *sizes: int) -> list[str]:
    selectors = []
    for number, size in enumerate(sizes, 1):
        node.add_unit(unit(f"t{number}.service"), Proc(100 + number, f"t{number}", gpu=size * GIB))
        selectors.append(f"unit:t{number}.service")
    return selectors


def test_stops_in_order_and_no_more_than_needed(tmp_path):
    node = SimulatedNode(base=6 * GIB)
    stop = tenants(node, 10, 20, 30)
    result = go(node, tmp_path, stop=stop, need=node.memory("unified")["allocatable"] + 25 * GIB)
    assert [row[1] for row in did(result) if row[2] == "stop"] == ["t1.service", "t2.service"]
    assert [row["target"] for row in result["spared"]] == ["t3.service"]
    assert node.units["unit:t3.service"].running


def test_an_early_tenant_without_which_it_is_reached_stays(tmp_path):
    node = SimulatedNode(base=6 * GIB)
    stop = tenants(node, 1, 30)
    go(node, tmp_path, stop=stop, need=node.memory("unified")["allocatable"] + 25 * GIB)
    assert node.units["unit:t1.service"].running and not node.units["unit:t2.service"].running


def test_not_enough_stops_nothing_and_says_who_holds_it(tmp_path):
    node = SimulatedNode(base=6 * GIB)
    stop = tenants(node, 10)
    node.add_unit(unit("ollama.service"), Proc(300, "ollama", gpu=40 * GIB))
    result = go(node, tmp_path, stop=stop, need=110 * GIB)
    assert result["failed"] and result["verdict"] == "not_enough" and node.log == [] and not result["changed"]
    assert "selector: 'unit:ollama.service'" in result["msg"] and "40.0 GiB" in result["msg"]
    assert not (tmp_path / "state").exists()


def test_a_failure_says_what_is_really_missing(tmp_path):
    node = SimulatedNode(base=6 * GIB, euid=1000)
    node.add_unit(unit("ollama.service"), Proc(300, "ollama", gpu=40 * GIB))
    node.add_process(Proc(301, "theirs", gpu=GIB, uid=1001, user="bob"))
    node.add_process(Proc(302, "Xorg", gpu=GIB))
    node.add_container(container("once", 3, auto_remove=True, policy="no"), Proc(303, "python3", gpu=GIB))
    stop = ["unit:ollama.service", "container:once"]
    result = go(node, tmp_path, stop=stop, need=110 * GIB)
    rows = {row["pid"]: row for row in result["held_by"]}
    refused = {row["target"]: row for row in result["refused"]}
    # Listing it once more would not do.
    assert rows[300]["inventory"] is None and "needs root" in rows[300]["missing"]
    assert (refused["ollama.service"]["inventory"], refused["ollama.service"]["missing"]) == (None, "root (become: true)")
    never = "- {selector: 'container:once', policy: if_needed, restore: never}"
    assert rows[303]["inventory"] == refused["once"]["inventory"] == never and never in result["msg"]
    assert rows[302]["inventory"] is None and rows[302]["missing"].startswith("it is never stopped: display server")
    assert "process:theirs" in rows[301]["inventory"] and "not listed" in rows[301]["missing"] and "needs root" in rows[301]["missing"]
    assert result["msg"].count("to permit stopping it") == 2


def test_need_that_is_there_already(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10)
    result = go(node, tmp_path, stop=stop, need="20 GiB")
    assert (result["verdict"], node.log) == ("nothing_to_do", [])


def test_a_process_that_the_driver_does_not_size_counts_with_what_nobody_accounts_for(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service"), Proc(1000, "t", gpu=50 * GIB, sized=False))
    result = go(node, tmp_path, stop=["unit:t.service"], need=100 * GIB)
    assert result["verdict"] == "freed"


def test_memory_that_comes_back_late_is_waited_for(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service"), Proc(1000, "t", gpu=50 * GIB, slow_release=100.0))
    result = go(node, tmp_path, stop=["unit:t.service"], need=100 * GIB)
    assert result["verdict"] == "freed" and 100 <= node.clock < 110
    values = [have for _seconds, have in result["trajectory"]]
    assert values[0] < 100 * GIB <= values[-1] and values == sorted(values)


def test_memory_that_the_driver_keeps_is_its_own_verdict(tmp_path):
    node = SimulatedNode()
    node.driver_keeps = True
    node.add_unit(unit("t.service"), Proc(1000, "t", gpu=50 * GIB))
    for need in (0, 100 * GIB):
        result = go(node, tmp_path, stop=["unit:t.service"], need=need, timeout=60)
        assert result["verdict"] == ("held_by_driver" if need == 0 else "not_enough"), result["msg"]


def test_others_that_grow_meanwhile_do_not_make_it_wait(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service"), Proc(1000, "t", gpu=20 * GIB))
    node.late.append(("unit:t.service", Proc(500, "other", gpu=15 * GIB)))
    result = go(node, tmp_path, stop=["unit:t.service"])
    assert result["verdict"] == "freed" and node.clock < 15


def test_what_the_driver_still_lists_for_the_dead_is_its_own_verdict(tmp_path):
    node = SimulatedNode()
    node.driver_keeps = True
    node.add_process(Proc(50, "trainer", gpu=50 * GIB))
    gather = node.gather

    def lists_the_dead():
        facts = gather()
        if 50 not in node.procs:
            facts["processes"].append({"pid": 50, "start_time": None, "name": None, "memory": 50 * GIB, "kinds": ["compute"], "owner": {"kind": "process"}})
            facts["unattributed"] = 0
        return facts

    node.gather = lists_the_dead
    result = go(node, tmp_path, stop=["process:trainer"], timeout=30)
    assert result["verdict"] == "held_by_driver" and node.clock >= 30


def test_no_point_of_a_long_wait_is_lost_and_the_last_one_least(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service"), Proc(1000, "t", gpu=50 * GIB, slow_release=1000.0))
    result = go(node, tmp_path, stop=["unit:t.service"], timeout=2000)
    seconds = [when for when, _have in result["trajectory"]]
    assert result["verdict"] == "freed" and len(seconds) <= 128 and seconds[0] == 0 and seconds[-1] >= 1000 and seconds == sorted(seconds)


# Processes


def test_orphan_that_starts_to_hold_memory_afterwards_is_not_called_freed(tmp_path):
    """It had none when it was looked at, so that nobody could list it."""
    node = SimulatedNode()
    node.add_process(Proc(50, "vllm", gpu=GIB))
    node.add_process(Proc(51, "VLLM::EngineCore", parent=50))
    kill = node.kill_proc

    def late(pid):
        kill(pid)
        node.procs[51].parent, node.procs[51].gpu = 1, 50 * GIB

    node.kill_proc = late
    result = go(node, tmp_path, stop=["process:vllm"], rounds=1)
    assert result["verdict"] == "still_held" and "VLLM::EngineCore (pid 51) was started by what was stopped" in result["msg"]
    assert node.signals == [(50, 15)]


def test_bare_process_gets_term_only(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(50, "llama-server", gpu=GIB, ignores_term=True))
    result = go(node, tmp_path, stop=["process:llama*"])
    assert result["verdict"] == "still_held" and node.signals == [(50, 15)]
    assert "kill_leftovers" in result["actions"][0]["result"]


def test_ray_workers_that_ray_stop_left_are_found_by_their_titles(tmp_path):
    """That ``ray stop`` has ended well says nothing. Their parent is pid 1 then, and the kernel knows 15 characters of their titles."""
    node = SimulatedNode()
    node.add_process(Proc(40, "raylet", argv=("/usr/lib/ray/raylet", "--port=1")))
    node.add_process(Proc(41, "gcs_server"))
    node.add_process(Proc(50, "ray::RayWorkerW", gpu=20 * GIB, argv=("ray::RayWorkerWrapper.execute_method",)))
    node.add_process(Proc(51, "ray::IDLE", gpu=GIB, argv=("ray::IDLE",)))
    result = go(node, tmp_path, stop=["process:ray::*", "process:raylet", "process:gcs_server"])
    assert result["verdict"] == "freed", result["msg"]
    assert sorted(node.signals) == [(50, 15), (51, 15)], "what holds nothing is left alone"


def test_kill_leftovers_kills_what_ignored_term_after_the_grace_time(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(50, "llama-server", gpu=GIB, ignores_term=True))
    result = go(node, tmp_path, stop=["process:llama*"], kill_leftovers=True, grace=7)
    assert result["verdict"] == "freed" and node.signals == [(50, 15), (50, 9)]
    assert result["actions"][0]["result"] == "killed" and node.clock >= 7


@pytest.mark.parametrize("state", ["D", "R"])
def test_stuck_in_the_kernel(tmp_path, state):
    """Asleep in a driver, or spinning in it. It is not tried again and again."""
    node = SimulatedNode()
    node.stuck = state
    node.add_process(Proc(50, "llama-server", gpu=GIB, unkillable=True))
    result = go(node, tmp_path, stop=["process:llama*"], kill_leftovers=True)
    assert result["verdict"] == "unkillable_reboot" and f"stuck in the kernel (state {state})" in result["actions"][0]["result"] and "reboot" in result["msg"]
    assert node.signals == [(50, 15), (50, 9)]


def test_respawning_names_who_starts_it_and_gives_up(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(40, "watchdog.sh", listed=False))
    node.add_process(Proc(50, "llama-server", gpu=GIB, comes_back=True, parent=40))
    result = go(node, tmp_path, stop=["process:llama*"], kill_leftovers=True)
    assert result["verdict"] == "respawning" and "watchdog.sh (pid 40)" in result["msg"]
    assert len(node.signals) == 2


@pytest.mark.parametrize("need", [0, 30 * GIB])
def test_respawning_is_seen_before_the_new_one_holds_anything(tmp_path, need):
    """Its model takes minutes to load; the memory that is back now is as good as gone."""
    node = SimulatedNode()
    node.add_process(Proc(40, "watchdog.sh", listed=False))
    node.add_process(Proc(50, "llama-server", gpu=GIB, parent=40))
    node.add_process(Proc(51, "llama-server", parent=40))  # a brother that was there all the time
    need = need and node.memory("unified")["allocatable"] + GIB // 2
    kill = node.kill_proc

    def starts_again(pid):
        kill(pid)
        node.add_process(Proc(60, "llama-server", parent=40, start_time=5000))

    node.kill_proc = starts_again
    result = go(node, tmp_path, stop=["process:llama*"], need=need)
    assert result["verdict"] == "respawning" and "llama-server (pid 60, it was 50)" in result["msg"] and "watchdog.sh (pid 40)" in result["msg"]
    assert node.signals == [(50, 15)]


@pytest.mark.parametrize("other", [{"parent": 1}, {"parent": 41}, {"argv": ("other",)}, {"uid": 1001}])
def test_another_process_of_the_name_is_no_respawning(tmp_path, other):
    node = SimulatedNode()
    node.add_process(Proc(40, "shell", listed=False))
    node.add_process(Proc(50, "python3", gpu=GIB, parent=40))
    kill = node.kill_proc

    def starts_another(pid):
        kill(pid)
        node.add_process(Proc(60, "python3", start_time=5000, **{"parent": 40, **other}))

    node.kill_proc = starts_another
    assert go(node, tmp_path, stop=["process:python3"])["verdict"] == "freed"


@pytest.mark.parametrize("need", [0, 30 * GIB])
@pytest.mark.parametrize("after", [0.2, 1.0, 2.8])
def test_respawning_is_watched_for_while_the_parent_lives(tmp_path, need, after):
    """A loop in a script sleeps before it starts it again."""
    node = SimulatedNode()
    node.add_process(Proc(40, "bash", listed=False, argv=("bash", "/opt/serve.sh", "--port", "1"), exe="/usr/bin/bash"))
    node.add_process(Proc(50, "llama-server", gpu=GIB, parent=40, comes_back_after=after))
    need = need and node.memory("unified")["allocatable"] + GIB // 2
    result = go(node, tmp_path, stop=["process:llama*"], need=need)
    assert result["verdict"] == "respawning" and result["failed"]
    assert "llama-server (pid 9001, it was 50)" in result["msg"] and "bash serve.sh (pid 40); stop that first" in result["msg"]
    assert node.signals == [(50, 15)] and node.clock < after + 0.2


def test_respawning_by_a_parents_parent_where_the_parent_ends_with_it(tmp_path):
    """``while true; do timeout 1h llama-server; done``"""
    node = SimulatedNode()
    node.add_process(Proc(30, "sshd", listed=False))
    node.add_process(Proc(40, "serve.sh", listed=False, parent=30))
    node.add_process(Proc(45, "timeout", listed=False, parent=40))
    node.add_process(Proc(50, "llama-server", gpu=GIB, parent=45))
    kill = node.kill_proc

    def ends_with_it(pid):
        kill(pid)
        if pid == 50:
            kill(45)
            node.births.append((node.clock + 1, Proc(46, "timeout", parent=40, start_time=6000)))
            pause = node.pause

            def later(seconds):
                pause(seconds)
                started = next((each for each in node.procs.values() if each.name == "timeout"), None)
                if started and not any(each.name == "llama-server" for each in node.procs.values()):
                    node.add_process(Proc(60, "llama-server", parent=started.pid, start_time=6001))

            node.pause = later

    node.kill_proc = ends_with_it
    result = go(node, tmp_path, stop=["process:llama*"])
    assert result["verdict"] == "respawning" and "serve.sh (pid 40)" in result["msg"], result["msg"]


def test_a_parent_that_lives_and_starts_nothing_is_named(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(40, "bash", listed=False))
    node.add_process(Proc(50, "llama-server", gpu=GIB, parent=40, comes_back_after=60))
    result = go(node, tmp_path, stop=["process:llama*"])
    assert result["verdict"] == "freed" and 3 <= node.clock < 3.5
    assert any("llama-server (pid 50) was started by bash (pid 40), which still runs" in note for note in result["notes"])


@pytest.mark.parametrize("parent", ["gone", "systemd", "sshd", "ends"])
def test_nothing_is_watched_for_that_nobody_could_start_again(tmp_path, parent):
    node = SimulatedNode()
    if parent == "ends":
        node.add_process(Proc(40, "timeout", listed=False))
        node.deaths.append((0.5, 40))
    elif parent != "gone":
        node.add_process(Proc(40, parent, listed=False))
    node.add_process(Proc(50, "llama-server", gpu=GIB, parent=1 if parent == "gone" else 40))
    result = go(node, tmp_path, stop=["process:llama*"])
    assert result["verdict"] == "freed" and node.clock < (0.6 if parent == "ends" else 0.3)
    assert not any("was started by" in note for note in result["notes"])


def test_units_and_containers_are_not_watched(tmp_path):
    """Their time is that of the slowest of them, and no more."""
    node = SimulatedNode()
    node.add_process(Proc(40, "bash", listed=False))
    node.add_unit(unit("t.service"), Proc(70, "t", gpu=GIB, parent=40))
    node.add_container(container("c", 2), Proc(60, "python3", gpu=8 * GIB, parent=40))
    result = go(node, tmp_path, stop=["unit:t.service", "container:c"])
    assert result["verdict"] == "freed" and node.clock < 0.3


def test_pid_that_was_used_again_is_left_alone(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(50, "llama-server", gpu=GIB))
    scene = node.scene

    def later(facts):
        seen = scene(facts)
        if not node.signals and 50 in node.procs and node.procs[50].name == "llama-server":
            node.procs[50] = Proc(50, "postgres", start_time=2000, listed=False)
        return seen

    node.scene = later
    go(node, tmp_path, stop=["process:llama*"], kill_leftovers=True)
    assert node.signals == [] and node.procs[50].name == "postgres"


def test_signalling_that_is_not_permitted(tmp_path):
    node = SimulatedNode()
    node.deny.add("signal")
    node.add_process(Proc(50, "llama-server", gpu=GIB))
    assert go(node, tmp_path, stop=["process:llama*"])["verdict"] == "not_permitted"


@pytest.mark.parametrize("place", ["unit:t.service", None])
def test_what_a_unit_left_behind_is_ended_in_a_later_round(tmp_path, place):
    """In the dead unit's control group, or elsewhere by now: it was in that unit when that was stopped."""
    node = SimulatedNode()
    node.add_unit(unit("t.service", kill_mode="process"), Proc(1000, "t", rss=GIB))
    node.add_process(Proc(1001, "VLLM::EngineCore", gpu=20 * GIB, unit=None))
    orphan = node.procs[1001]
    end_of = node.end_of

    def leave(key):
        end_of(key)
        node.procs.setdefault(1001, orphan)
        node.procs[1001].unit = place

    node.end_of = leave
    node.procs[1001].unit = "unit:t.service"
    result = go(node, tmp_path, stop=["unit:t.service"])
    assert result["verdict"] == "freed", result["msg"]
    assert node.signals == [(1001, 15)]
    assert [row["round"] for row in result["actions"] if row["layer"] == "process"] == [2]


# Containers


def test_container_policy_comes_before_its_stop(tmp_path):
    node = SimulatedNode()
    node.add_container(container("comfyui", 2), Proc(60, "python3", gpu=8 * GIB))
    result = go(node, tmp_path, stop=["container:comfyui"])
    assert result["verdict"] == "freed" and node.log == ["policy comfyui no", "SIGTERM comfyui"]
    restored = go(node, tmp_path, state="restored")
    assert restored["verdict"] == "restored"
    made = next(iter(node.containers.values()))
    assert (made.policy, made.running) == ("always", True)


def test_container_that_ignores_its_stop_signal_is_killed_only_where_allowed(tmp_path):
    for allowed, verdict in ((False, "still_held"), (True, "freed")):
        node = SimulatedNode()
        node.add_container(container("c", 2), Proc(60, "python3", gpu=8 * GIB, ignores_term=True))
        result = go(node, tmp_path / verdict, stop=["container:c"], kill_leftovers=allowed, grace=3)
        assert result["verdict"] == verdict
        assert ("SIGKILL c" in node.log) is allowed


def test_container_that_its_policy_brought_back_when_its_unit_stopped_is_stopped_too(tmp_path):
    node = seed_node()
    node.late.clear()
    node.deny.add("policy revives")
    result = go(node, tmp_path, stop=[EMBEDDINGS])
    assert result["verdict"] == "freed"
    assert not any(each.running for each in node.containers.values())


def test_second_engine_that_went_away(tmp_path):
    node = SimulatedNode()
    node.add_container(container("c", 2), Proc(60, "python3", gpu=8 * GIB))
    scene = node.scene

    def vanish(facts):
        seen = scene(facts)
        node.engines.clear()
        return seen

    node.scene = vanish
    result = go(node, tmp_path, stop=["container:c"])
    assert result["failed"] and "does not answer any more" in result["actions"][-1]["result"]


def test_container_that_ends_between_the_look_and_the_signal(tmp_path):
    node = SimulatedNode()
    made = node.add_container(container("c", 2), Proc(60, "python3", gpu=8 * GIB))
    engine = node.engines[made.engine]

    def too_late(container_id, name):
        node.end_of(made.key)
        node.containers[made.key] = node.containers[made.key]._replace(running=False, status="exited")
        raise EngineError("conflict", "container c is not running")

    engine.signal = too_late
    result = go(node, tmp_path, stop=["container:c"])
    assert result["verdict"] == "freed" and result["actions"][-1]["result"] == "stopped", result["msg"]


def test_engine_that_hangs_is_said_and_ends_it(tmp_path):
    node = SimulatedNode()
    made = node.add_container(container("c", 2), Proc(60, "python3", gpu=8 * GIB))

    def hangs(container_id, name):
        node.clock += 15
        raise EngineError("hung", "the container engine at /run/docker.sock has not answered within 15 s")

    node.engines[made.engine].signal = hangs
    result = go(node, tmp_path, stop=["container:c"])
    assert result["verdict"] == "still_held" and "has not answered within 15 s" in result["msg"] and node.clock < 20


def test_time_until_a_container_ends_is_not_rounded_up(tmp_path):
    """It is waited for in its engine, and not by looking now and then."""
    node = SimulatedNode()
    made = node.add_container(container("c", 2), Proc(60, "python3", gpu=8 * GIB, ignores_term=True))

    def wait(container_id, seconds):
        node.clock += 6.25
        node.end_of(made.key)
        node.containers[made.key] = node.containers[made.key]._replace(running=False, status="exited")

    node.engines[made.engine].wait = wait
    result = go(node, tmp_path, stop=["container:c"])
    assert result["verdict"] == "freed" and 6.25 <= node.clock < 6.5


@pytest.mark.parametrize("how", ["at once", "late", "new"])
def test_container_that_something_outside_starts_again(tmp_path, how):
    """``docker start`` in a loop before the engine could be asked, after it, and ``docker run --rm --name``."""
    node = SimulatedNode()
    node.add_process(Proc(40, "keep.sh", listed=False))
    if how == "new":
        node.add_process(Proc(41, "docker", listed=False, parent=40, argv=("docker", "run", "--rm", "--name", "c", "image")))
    made = node.add_container(container("c", 2, policy="no"), Proc(600, "python3", gpu=8 * GIB))
    engine = node.engines[made.engine]
    count = [0]

    def revive(was):
        count[0] += 1
        changes = {"id": f"{100 + count[0]:064x}"} if how == "new" else {}
        fresh = was._replace(running=True, status="running", started_at=f"2026-01-01T00:00:{count[0]:02}Z", **changes)
        node.add_container(fresh, Proc(600 + count[0], "python3", gpu=8 * GIB, start_time=1000 + count[0]))

    def signal(container_id, name):
        was = node.containers[f"container:{container_id}"]
        SimulatedEngine.signal(engine, container_id, name)
        if how == "new":
            del node.containers[was.key]
        if how == "at once":
            revive(was)

    def list_running():
        down = [each for each in node.containers.values() if not each.running]
        if how == "late" and down and node.log:
            revive(down[0])
        elif how == "new" and not node.containers:
            revive(made)
        return SimulatedEngine.list_running(engine)

    engine.signal, engine.list_running = signal, list_running
    scene = node.scene

    def looked(facts):
        list_running()
        return scene(facts)

    node.scene = looked
    result = go(node, tmp_path, stop=["container:c"])
    assert result["verdict"] == "respawning" and "container c" in result["msg"], result["msg"]
    assert ("by keep.sh (pid 40)" in result["msg"]) is (how == "new")
    assert 1 <= len([row for row in result["actions"] if row["action"] == "stop"]) <= 3
    assert any("container c was stopped and has been started again" in note for note in result["notes"])
    assert ("stopped, and started again by something else" in result["actions"][0]["result"]) is (how == "at once")


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("client", ["run", "start", "wait", "detached", "in a unit"])
def test_container_of_a_script_is_watched_for_while_the_script_lives(tmp_path, client, again):
    """``while true; do docker run --rm --name c image; sleep 1; done``"""
    words = {"run": "run --rm --name c image", "start": "start --attach c", "wait": "wait c", "in a unit": "wait c"}
    node = SimulatedNode()
    node.add_process(Proc(40, "keep.sh", listed=False))
    if client in words:
        place = "unit:other.service" if client == "in a unit" else None
        node.add_process(Proc(41, "docker", listed=False, parent=40, argv=("docker", *words[client].split()), unit=place))
    made = node.add_container(container("c", 2, policy="no"), Proc(600, "python3", gpu=8 * GIB))
    node.add_container(container("d", 3, policy="no"), Proc(601, "python3", gpu=8 * GIB))
    engine, find = node.engines[made.engine], node.engines[made.engine].find

    def looked_up(name):
        assert name == "c", "nobody could start the other one"
        if again and node.clock > 1:
            node.containers = {key: each for key, each in node.containers.items() if each.name != "c"}
            node.add_container(container("c", 9, status="created", running=False), Proc(700, "python3"))
        return find(name)

    end_of = node.end_of

    def ends_with_it(key):
        end_of(key)
        node.procs.pop(41, None)

    engine.find, node.end_of = looked_up, ends_with_it
    result = go(node, tmp_path, stop=["container:c", "container:d"])
    watched = client not in ("detached", "in a unit")
    assert result["verdict"] == ("respawning" if watched and again else "freed"), result["msg"]
    assert ("has been started again, by keep.sh (pid 40); stop that first" in result["msg"]) is (watched and again)
    assert any("container c was started by keep.sh (pid 40), which still runs" in note for note in result["notes"]) is watched
    assert (node.clock < 0.3) is not watched


def test_client_that_starts_a_container_at_this_moment(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(40, "keep.sh", listed=False))
    made = node.add_container(container("c", 2, policy="no"), Proc(600, "python3", gpu=8 * GIB))
    kill = node.kill_proc

    def kill_proc(pid):
        kill(pid)
        node.add_process(Proc(41, "docker", listed=False, parent=40, argv=("docker", "start", "c"), start_time=2000))

    pause = node.pause

    def later(seconds):
        pause(seconds)
        if node.clock > 0.8 and 41 in node.procs:
            node.containers[made.key] = made._replace(started_at="2026-01-02T00:00:00Z")

    node.kill_proc, node.pause = kill_proc, later
    result = go(node, tmp_path, stop=["container:c"])
    assert result["verdict"] == "respawning" and "docker (pid 41)" in result["msg"], result["msg"]


@pytest.mark.parametrize("kind", ["container", "unit"])
def test_what_runs_again_has_not_taken_its_memory_yet(tmp_path, kind):
    """The need is met for now; it will not be when the model is loaded again."""
    node = SimulatedNode()
    node.add_container(container("c", 2, policy="no"), Proc(600, "python3", gpu=8 * GIB))
    node.add_unit(unit("t.service"), Proc(70, "t", gpu=8 * GIB))
    need = node.memory("unified")["allocatable"] + 4 * GIB
    end_of = node.end_of

    def starts_again(key):
        end_of(key)
        node.add_process(Proc(999, "starter", start_time=7))

    scene = node.scene

    def looked(facts):
        if 999 in node.procs:
            for key, each in list(node.containers.items()):
                if not each.running:
                    node.containers[key] = each._replace(running=True, status="running", started_at="2026-01-02T00:00:00Z")
            for key, each in list(node.units.items()):
                if not each.running:
                    node.units[key] = each._replace(active_state="active", invocation="another")
        return scene(facts)

    node.end_of, node.scene = starts_again, looked
    result = go(node, tmp_path, stop=["container:c" if kind == "container" else "unit:t"], need=need)
    assert result["verdict"] == "respawning" and "has been started again" in result["msg"], result["msg"]
    assert len([row for row in result["actions"] if row["action"] == "stop"]) == 1


# Units


def test_unit_without_a_stop_timeout_gets_the_grace_time(tmp_path):
    asked = []
    node = SimulatedNode()
    node.add_unit(unit("t.service", stop_seconds=None), Proc(70, "python3", gpu=GIB))
    begin = node.systemd.start_stopping

    def start_stopping(names, uid, timeout):
        asked.append(timeout)
        return begin(names, uid, timeout)

    node.systemd.start_stopping = start_stopping
    go(node, tmp_path, stop=["unit:t"], grace=7)
    assert asked == [7]


@pytest.mark.parametrize("allowed", [False, True])
def test_unit_whose_stop_hangs_is_killed_whole_only_where_that_is_allowed(tmp_path, allowed):
    """By its manager, which ends all that is in its control group."""
    node = SimulatedNode()
    node.add_unit(unit("t.service", stop_seconds=None), Proc(70, "t", gpu=GIB), Proc(71, "VLLM::EngineCore", gpu=8 * GIB, parent=70))

    def start_stopping(names, uid, timeout):
        node.units["unit:t.service"] = node.units["unit:t.service"]._replace(active_state="deactivating")
        node.clock += timeout
        return _Hung()

    kill = node.systemd.kill

    def kill_all(name, uid, timeout):
        kill(name, uid, timeout)
        node.end_of(f"unit:{name}")

    node.systemd.start_stopping, node.systemd.kill = start_stopping, kill_all
    result = go(node, tmp_path, stop=["unit:t"], grace=7, kill_leftovers=allowed)
    (stop,) = [row for row in result["actions"] if row["action"] == "stop"]
    assert 7 <= node.clock < 10 and node.signals == []
    assert ("kill t.service" in node.log) is allowed
    if allowed:
        assert (result["verdict"], stop["result"]) == ("freed", "killed")
    else:
        assert result["verdict"] == "still_held" and "'kill_leftovers: true' would allow SIGKILL" in stop["result"]


class _Hung:
    """A ``systemctl stop`` that was left at its deadline."""

    def finish(self):
        return RunResult(-9, timed_out=True)


def test_unit_that_was_started_anew_meanwhile_is_left_alone_in_that_round(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10)
    record = node.systemd.disable
    once: list[str] = []

    def restart(name, uid, timeout):
        record(name, uid, timeout)
        if not once:
            once.append(name)
            node.units["unit:t1.service"] = node.units["unit:t1.service"]._replace(invocation="another")

    node.systemd.disable = restart
    result = go(node, tmp_path, stop=stop)
    rows = [row for row in result["actions"] if row["action"] == "stop"]
    assert "started anew" in rows[0]["result"] and rows[1]["result"] == "stopped" and rows[1]["round"] == 2


def test_failed_disable_stops_nothing_and_is_undone(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10, 20)
    disable = node.systemd.disable

    def second_fails(name, uid, timeout):
        if name == "t2.service":
            node.deny.add("disable")
        disable(name, uid, timeout)

    node.systemd.disable = second_fails
    before = node.state()
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "not_permitted" and not result["changed"]
    assert node.state() == before and not any(line.startswith("stop ") for line in node.log)


def test_stop_that_polkit_denies(tmp_path):
    node = SimulatedNode()
    node.deny.add("stop")
    stop = tenants(node, 10)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "not_permitted" and "Access denied" in result["msg"]


def test_generated_unit_is_masked_and_unmasked(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("quadlet.service", file_state="generated"), Proc(70, "python3", gpu=GIB))
    before = node.state()
    go(node, tmp_path, stop=["unit:quadlet.service"])
    assert node.units["unit:quadlet.service"].file_state == "masked"
    assert go(node, tmp_path, state="restored")["verdict"] == "restored"
    assert node.state() == before and "daemon-reload" not in node.log


def test_sockets_are_stopped_before_and_started_before_their_service(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service", triggered_by=("t.socket",)), Proc(70, "python3", gpu=GIB))
    node.others["unit:t.socket"] = unit("t.socket", triggers=("t.service",), sub_state="listening")
    before = node.state()
    go(node, tmp_path, stop=["unit:t.service"])
    assert node.log.index("stop t.socket") < node.log.index("stop t.service")
    go(node, tmp_path, state="restored")
    assert node.log.index("start t.socket") < node.log.index("start t.service")
    assert node.state() == before


def test_what_upholds_a_unit_has_ended_before_the_unit_is_stopped(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service", upheld_by=("keeper.service",)), Proc(70, "python3", gpu=GIB))
    node.add_unit(unit("keeper.service"))
    before = node.state()
    assert go(node, tmp_path, stop=["unit:t", "unit:keeper"])["verdict"] == "freed"
    assert node.log.index("stop keeper.service") < node.log.index("stop t.service")
    go(node, tmp_path, state="restored")
    assert node.state() == before


# The page cache


@pytest.mark.parametrize("check", [True, False])
def test_what_a_unit_starts_when_it_ends_is_told(tmp_path, check):
    node = SimulatedNode(total=120 * GIB, base=7 * GIB)
    for name, successors in (("one.service", ("mail.service",)), ("two.service", ())):
        node.add_unit(unit(name, successors=successors), Proc(100 + len(node.units), name, gpu=10 * GIB))
    result = go(node, tmp_path, check=check, stop=["unit:one.service", "unit:two.service"], always=["unit:one.service", "unit:two.service"])
    (told,) = [note for note in result["notes"] if "when it ends" in note]
    assert told.startswith("one.service has mail.service started")


def test_cache_alone_may_be_enough(tmp_path):
    node = seed_node()
    node.late.clear()
    result = go(node, tmp_path, stop=[EMBEDDINGS], need=90 * GIB, drop_page_cache=True)
    assert did(result) == [("cache", "page cache", "drop")] and result["verdict"] == "freed" and result["changed"]
    assert node.units[EMBEDDINGS].running
    again = go(node, tmp_path, stop=[EMBEDDINGS], need=90 * GIB, drop_page_cache=True)
    assert again["verdict"] == "nothing_to_do" and not again["changed"]


def test_files_first_and_the_whole_cache_only_if_that_was_not_enough(tmp_path):
    node = seed_node()
    node.late.clear()
    result = go(node, tmp_path, need=50 * GIB, drop_page_cache=True, cache_paths=["/models/x"])
    assert node.log == ["evict /models/x"] and result["verdict"] == "freed"
    node = seed_node()
    node.late.clear()
    go(node, tmp_path, need=100 * GIB, drop_page_cache=True, cache_paths=["/models/x"])
    assert node.log == ["evict /models/x", "drop the page cache"]


def test_whole_cache_without_root_is_said_and_not_done(tmp_path):
    node = SimulatedNode(euid=1000, cache=90 * GIB)
    result = go(node, tmp_path, need=100 * GIB, drop_page_cache=True)
    assert node.log == [] and any("needs root" in note for note in result["notes"]) and not result["changed"]


# The driver


def test_driver_that_hangs_stops_nothing(tmp_path):
    node = SimulatedNode(klass="unresponsive")
    stop = tenants(node, 10)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "unresponsive_driver" and node.log == []


# The journal


def test_damaged_journal_stops_nothing(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10)
    go(node, tmp_path, stop=stop)
    go(node, tmp_path, state="restored")
    (tmp_path / "state" / "journal.json").write_text("{")
    log = list(node.log)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "not_permitted" and "damaged" in result["msg"] and node.log == log


@pytest.mark.parametrize("broken", ["damaged", "open"])
def test_a_report_says_that_nothing_could_be_stopped_with_this_journal(tmp_path, broken):
    node = SimulatedNode()
    stop = tenants(node, 10)
    (tmp_path / "state").mkdir(mode=0o755 if broken == "open" else 0o700)
    if broken == "damaged":
        (tmp_path / "state" / "journal.json").write_text("{")
        (tmp_path / "state" / "journal.json").chmod(0o600)
    result = go(node, tmp_path, state="report", stop=stop)
    assert (result["verdict"], result["would"]) == ("reported", "not_permitted")
    assert ("damaged" if broken == "damaged" else "0700") in result["message"]
    # As `freed` itself does, which reads it first.
    assert go(node, tmp_path, state="report", stop=["unit:nobody"])["would"] == go(node, tmp_path, stop=["unit:nobody"])["verdict"] == "not_permitted"


def test_who_lacks_the_right_is_told_to_become_root(tmp_path, monkeypatch):
    def denied(path, create=False):
        raise PathError(f"{path} cannot be made: Permission denied", denied=True)

    node = SimulatedNode()
    stop = tenants(node, 10)
    monkeypatch.setattr(_lock, "open_private_directory", denied)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "not_permitted" and "Permission denied; nothing was touched. It takes root (become: true)" in result["msg"]
    assert node.log == []


def test_journal_that_cannot_be_written_stops_nothing(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10)
    (tmp_path / "state").mkdir(mode=0o755)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "not_permitted" and "0700" in result["msg"] and node.log == []


def test_journal_that_cannot_be_marked_midway_loses_nothing(tmp_path, monkeypatch):
    """The disk is full after the first stop: what was planned is on it."""
    node = SimulatedNode()
    stop = tenants(node, 10, 20)
    before = node.state()
    mark = Journal.mark

    def full(journal, keys, state, **details):
        raise JournalError("journal cannot be written: No space left on device")

    monkeypatch.setattr(Journal, "mark", full)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "freed" and any("No space left" in note and "puts it back" in note for note in result["notes"])
    monkeypatch.setattr(Journal, "mark", mark)
    assert go(node, tmp_path, state="restored")["verdict"] == "restored" and node.state() == before


def test_entry_of_an_earlier_run_is_added_to_and_keeps_the_first_state(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10, 20)
    before = node.state()
    go(node, tmp_path, stop=stop[:1])
    # Somebody starts it by hand, still disabled; then it is evicted again with another one.
    node.systemd.start("t1.service", None, 1)
    go(node, tmp_path, stop=stop)
    assert go(node, tmp_path, state="restored")["verdict"] == "restored"
    assert node.state() == before


def crash_node() -> SimulatedNode:
    node = seed_node()
    node.add_unit(unit("t.service", triggered_by=("t.socket",)), Proc(700, "python3", gpu=GIB))
    node.others["unit:t.socket"] = unit("t.socket", triggers=("t.service",), sub_state="listening")
    node.add_container(container("comfyui", 5, policy="on-failure", policy_retries=3), Proc(710, "python3", gpu=8 * GIB))
    node.add_unit(unit("quadlet.service", file_state="generated"), Proc(720, "python3", gpu=GIB))
    return node


WHOLE = [EMBEDDINGS, "unit:t.service", "container:comfyui", "unit:quadlet.service"]


@pytest.mark.parametrize("point", range(40))
def test_a_run_that_dies_at_any_point_loses_nothing(tmp_path, point):
    """SIGKILL after each thing done; and the restore itself dies once, too."""
    node = crash_node()
    before = node.state()
    node.die_after = point
    with contextlib.suppress(Died):
        go(node, tmp_path, stop=WHOLE)
    node.die_after = len(node.log) + point % 7
    with contextlib.suppress(Died):
        go(node, tmp_path, state="restored")
    node.die_after = None
    result = go(node, tmp_path, state="restored")
    assert result["verdict"] == "restored", result["msg"]
    assert node.state() == before
    assert not go(node, tmp_path, state="restored")["changed"]


def test_the_crash_points_cover_the_whole_run(tmp_path):
    node = crash_node()
    go(node, tmp_path, stop=WHOLE)
    assert 10 < len(node.log) < 40


# Never


PROTECTED = ("systemd", "sshd", "dockerd", "containerd", "Xorg", "gnome-shell", "nvidia-persistenced", "nvidia-cuda-mps-server", "kubelet", "gdm3")


def fuzz_node(chance: random.Random) -> SimulatedNode:
    node = SimulatedNode()
    node.add_process(Proc(1, "systemd", gpu=1, uid=0, user="root"))
    for index, name in enumerate(PROTECTED):
        where = chance.choice([None, "unit", "container"])
        proc = Proc(100 + index, name, gpu=chance.choice([0, GIB]), uid=chance.choice([0, 1000]), user=chance.choice(["root", "alice"]))
        if where == "unit":
            node.add_unit(unit(f"{name}.service"), proc, Proc(300 + index, "helper", gpu=GIB))
        elif where == "container" and name != "systemd":
            node.add_container(container(f"c-{name}", 100 + index), proc)
        else:
            node.add_process(proc)
    node.add_unit(unit("deploy.service"), Proc(900, "python3", gpu=GIB, own=True))
    node.add_container(container("pod", 999, labels={"io.kubernetes.pod.name": "x"}), Proc(901, "python3", gpu=GIB, runtime="kubernetes"))
    node.add_container(container("silent-pod", 998), Proc(902, "python3", gpu=GIB, runtime="crio"))
    # Protected by the unit's name alone, and by nothing that its processes show.
    node.add_unit(unit("systemd-helper.service"), Proc(903, "python3", gpu=GIB))
    for number in range(3):
        node.add_unit(unit(f"fair{number}.service"), Proc(910 + number, f"fair{number}", gpu=GIB))
        node.add_process(Proc(920 + number, f"bare{number}", gpu=GIB))
    return node


PIECES = ["*", "?", "s*", "*d", "[a-z]*", "systemd", "ssh*", "X*", "*service", "c-*"]
PIECES += ["root", "alice", "python3", "fair*", "bare?", "0", "1000", "deploy", "pod"]


def drawn_selectors(chance: random.Random, least: int, most: int) -> list[str]:
    kinds = ["unit", "container", "process", "user"]
    return [f"{chance.choice(kinds)}:{chance.choice(PIECES)}{chance.choice(['', '*'])}" for _each in range(chance.randint(least, most))]


def test_fuzzed_selectors_never_touch_what_is_protected(tmp_path, monkeypatch):
    """Neither what is protected by what it is, nor what 'protect' names, whatever 'stop' and 'always' say."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)  # not this test's subject, and most of its time
    chance = random.Random(20261130)
    stopped_something = kept_by_wish = 0
    for draw in range(1000):
        node = fuzz_node(chance)
        safe = {pid for pid, proc in node.procs.items() if proc.own or proc.pid == 1 or proc.name in PROTECTED or pid in (901, 902, 903)}
        kept = {proc.unit or proc.container for pid, proc in node.procs.items() if pid in safe} - {None}
        wishes = {
            "stop": drawn_selectors(chance, 1, 4),
            "always": chance.choice([[], [], [], drawn_selectors(chance, 1, 1)]),
            "protect": chance.choice([[], ["unit:fair1"], ["process:bare2"]]),
            "need": chance.choice([0, *[node.memory("unified")["allocatable"] + gain * GIB for gain in (1, 2, 3, 6)]]),
        }
        if "unit:fair1" in wishes["protect"]:
            kept.add("unit:fair1.service")
        if "process:bare2" in wishes["protect"]:
            safe.add(922)
        with contextlib.suppress(ValueError):  # too wide
            go(node, tmp_path / str(draw), kill_leftovers=True, rounds=2, timeout=30, **wishes)
        assert safe <= set(node.procs), (wishes, node.log)
        assert not {pid for pid, _number in node.signals} & safe, wishes
        assert all(node.units[key].running for key in kept if key in node.units), wishes
        assert all(node.containers[key].running for key in kept if key in node.containers), wishes
        stopped_something += bool(node.log)
        kept_by_wish += bool(node.log) and bool(wishes["protect"])
    assert stopped_something > 200 and kept_by_wish > 100, (stopped_something, kept_by_wish)


@pytest.mark.parametrize(
    ("selector", "known"),
    [
        ("unit:t1.service", True),
        ("unit:t*", True),
        ("unit:installed", True),
        ("unit:t1.servise*", False),
        ("unit:vllm-embedings.service", False),
        ("container:comfyui", True),
        ("container:comfyu", False),
        ("process:trainer", True),
        ("process:helper", True),
        ("process:trainr", False),
        ("user:alice", True),
        ("user:1000", True),
        ("user:alic", False),
    ],
)
def test_what_is_to_be_protected_and_is_not_there_is_told(tmp_path, selector, known):
    node = SimulatedNode()
    tenants(node, 10)
    node.add_container(container("comfyui", 2), Proc(60, "python3", gpu=8 * GIB))
    node.add_process(Proc(50, "trainer", gpu=GIB))
    node.add_process(Proc(51, "helper"))
    node.systemd.file_state = lambda name, uid=None, timeout=20.0: "disabled" if name == "installed.service" else "not-found"
    result = go(node, tmp_path, state="report", protect=[selector])
    assert result["protection"] == {"matched": [selector] if known else [], "unmatched": [] if known else [selector]}
    assert any(f"'{selector}' is to be protected, and nothing on this node matches it" in note for note in result["notes"]) is not known
    node.problems.append("using /run/docker.sock is not permitted")
    if selector.startswith("container:"):
        assert go(node, tmp_path, state="report", protect=[selector])["protection"]["unmatched"] == []


# Bad input


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop": ["vllm"]}, "known kind"),
        ({"stop": ["process:*"]}, "matches everything"),
        ({"stop": ["unit:x.slice"]}, "service"),
        ({"need": "12 G"}, "GiB"),
        ({"grace": -1}, "grace"),
        ({"rounds": 0}, "rounds"),
        ({"journal": "relative.json"}, "absolute"),
        ({"cache_paths": ["models"]}, "absolute"),
        ({"stop": ["unit:a.service"], "restore": {"unit:b.service": "never"}}, "not listed"),
        ({"stop": ["unit:a.service"], "restore": {"unit:a.service": "later"}}, "none of"),
    ],
)
def test_bad_parameters_are_refused_with_a_sentence(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        go(SimulatedNode(), tmp_path, **changes)


def test_two_runs_at_once(tmp_path):
    node = SimulatedNode()
    stop = tenants(node, 10)
    inner: dict[str, t.Any] = {}
    gather = node.gather

    def second_run():
        if not inner:
            inner["result"] = {}
            inner["result"] = go(SimulatedNode(), tmp_path, stop=["unit:x.service"])
        return gather()

    node.gather = second_run
    assert go(node, tmp_path, stop=stop)["verdict"] == "freed"
    assert inner["result"]["verdict"] == "not_permitted"
    assert inner["result"]["evicted"] == []
    assert "another run is at work" in inner["result"]["msg"] and "state=freed" in inner["result"]["msg"]


def test_a_run_that_fails_says_what_is_evicted(tmp_path, monkeypatch):
    """Whatever it fails for: somebody has to put it back."""
    node = SimulatedNode()
    stop = tenants(node, 10)
    node.add_process(Proc(50, "stubborn", gpu=GIB, ignores_term=True))
    result = go(node, tmp_path, stop=[*stop, "process:stubborn"], grace=1)
    assert result["verdict"] == "still_held" and [row["name"] for row in result["evicted"] if row["kind"] == "unit"] == ["t1.service"]
    assert "Evicted now: unit t1.service; 'state: restored' puts back" in result["msg"]

    def held(_self):
        raise LockError("another run is at work")

    monkeypatch.setattr(_lock.NodeLock, "__enter__", held)
    result = go(node, tmp_path, stop=stop)
    assert result["verdict"] == "not_permitted" and "unit t1.service" in result["msg"] and result["evicted"]


# Last defences


def test_what_stays_does_not_keep_the_memory_of_the_others_from_being_waited_for(tmp_path):
    node = SimulatedNode()
    node.add_process(Proc(50, "stubborn", gpu=GIB, ignores_term=True))
    node.add_unit(unit("t.service"), Proc(70, "t", gpu=50 * GIB, slow_release=60.0))
    have = node.memory("unified")["allocatable"]
    result = go(node, tmp_path, stop=["process:stubborn", "unit:t"], need=have + 50 * GIB + GIB // 2, grace=1)
    assert result["verdict"] == "still_held" and "stubborn (pid 50)" in result["msg"] and 60 <= node.clock < 70
    assert result["freed"] > 45 * GIB


def test_what_is_denied_is_said_at_once(tmp_path):
    node = SimulatedNode()
    node.deny.add("stop")
    assert go(node, tmp_path, stop=tenants(node, 10))["verdict"] == "not_permitted" and node.clock < 5


def test_a_match_that_shows_up_while_waiting_is_not_waited_with(tmp_path):
    """The first one's memory comes back late; the second is stopped meanwhile."""
    node = seed_node()
    node.procs[101].slow_release = 100.0
    go(node, tmp_path, stop=[EMBEDDINGS, "process:stray"], need=110 * GIB)
    traced = [when for when, line in zip(node.times, node.log) if line.startswith("signal")]
    assert traced and traced[0] < 20


def test_what_outlives_its_unit_under_a_protected_name_is_not_called_freed(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("t.service", kill_mode="process"), Proc(1001, "engine", gpu=20 * GIB))
    kept = node.procs[1001]
    end_of = node.end_of

    def leave(key):
        end_of(key)
        kept.name = "Xorg"
        node.procs[1001] = kept

    node.end_of = leave
    result = go(node, tmp_path, stop=["unit:t.serv*"])
    assert result["verdict"] == "still_held" and "pid 1001" in result["msg"] and node.signals == []


def test_what_is_on_its_way_back_does_not_cost_another_service(tmp_path):
    node = SimulatedNode()
    node.add_unit(unit("a.service"), Proc(1000, "a", gpu=50 * GIB, slow_release=100.0))
    node.add_unit(unit("b.service"), Proc(1001, "b", gpu=20 * GIB))
    have = node.memory("unified")["allocatable"]
    # Something new that matches makes it look again while the memory is still on its way.
    node.late.append(("unit:a.service", Proc(500, "tiny", gpu=GIB // 100)))
    result = go(node, tmp_path, stop=["unit:a", "process:tiny", "unit:b"], need=have + 40 * GIB)
    assert result["verdict"] == "freed" and node.units["unit:b.service"].running and node.clock >= 100
