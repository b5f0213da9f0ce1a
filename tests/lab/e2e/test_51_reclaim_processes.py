# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes that belong to nothing: orphans under cut and rewritten names, respawners, zombies, what no signal ends, what must not be touched."""

from __future__ import annotations

import time
from typing import Any

import pytest
from stand_ins import LIBRARY, MIB, StandIns, codes, outcomes, wait_for

# Part of `make soak` for the time that it takes.
pytestmark = pytest.mark.soak


def test_engine_core_that_its_parent_left_behind(strangers: StandIns) -> None:
    """Its name is cut at 15 characters, and another one has the same 15."""
    parent = strangers.process("vllm", "--mib", "-1", "--child", "E2E::EngineCore-0:40", "--child", "E2E::EngineCore-1:8")
    orphan, other = (int(word) for word in strangers.run("pgrep", "--parent", str(parent)).split())
    strangers.pids += [orphan, other]
    strangers.run("kill", "-KILL", str(parent))
    assert strangers.run("cat", f"/proc/{orphan}/comm") == strangers.run("cat", f"/proc/{other}/comm") == "E2E::EngineCore"
    assert strangers.run("ps", "-o", "ppid=", "-p", str(orphan)) == "1"
    freed = strangers.reclaim(stop=["process:E2E::EngineCore-0"])
    assert freed["verdict"] == "freed", freed["msg"]
    assert outcomes(freed) == {(f"E2E::EngineCore-0 (pid {orphan})", "terminate"): "ended"}
    assert not strangers.alive(orphan) and strangers.alive(other)


def test_children_with_gpu_memory_must_be_listed_too(strangers: StandIns) -> None:
    parent = strangers.process("e2e-vllm", "--mib", "8", "--child", "e2e-engine:40")
    refused = strangers.reclaim(stop=["process:e2e-vllm"])
    assert refused["verdict"] == "not_permitted" and not refused["changed"] and strangers.alive(parent)
    assert {code for _target, code in codes(refused)} == {"takes_along"}
    assert "process:e2e-engine" in refused["refused"][0]["inventory"]
    freed = strangers.reclaim(stop=["process:e2e-vllm", "process:e2e-engine"])
    assert freed["verdict"] == "freed" and not strangers.alive(parent)


def test_ray_workers_that_ray_stop_left(strangers: StandIns) -> None:
    pid = strangers.process("ray::RayWorkerWrapper.execute_method", "--mib", "40")
    raylet = strangers.process("raylet", "--mib", "-1")
    freed = strangers.reclaim(stop=["process:ray::*"])
    assert freed["verdict"] == "freed" and not strangers.alive(pid)
    assert strangers.alive(raylet), "what the driver does not list is not matched"


def test_term_comes_first_and_kill_only_where_it_is_allowed(strangers: StandIns) -> None:
    polite, stubborn = strangers.process("e2e-polite", "--end-after", "0.5"), strangers.process("e2e-stubborn", "--ignore-term")
    wanted: dict[str, Any] = {"stop": ["process:e2e-polite", "process:e2e-stubborn"], "grace": 1}
    freed = strangers.reclaim(**wanted)
    assert freed["verdict"] == "still_held" and "kill_leftovers" in freed["msg"]
    assert not strangers.alive(polite) and strangers.alive(stubborn)
    freed = strangers.reclaim(**wanted, kill_leftovers=True)
    assert freed["verdict"] == "freed" and outcomes(freed) == {(f"e2e-stubborn (pid {stubborn})", "terminate"): "killed"}


def test_respawning_names_who_starts_it(strangers: StandIns) -> None:
    server = "/home/alice/llama.cpp/build/bin/llama-server"
    strangers.run("sh", "-c", f"cp {server} {LIBRARY}/e2e-again && chmod 755 {LIBRARY}/e2e-again && head -c 64M /dev/zero > {LIBRARY}/e2e.gguf")
    keeper = strangers.process("e2e-keeper", "--mib", "-1", "--again-argv", f"{LIBRARY}/e2e-again -m {LIBRARY}/e2e.gguf --port 7996", scope="keeper")
    wait_for(lambda: any("e2e-again" in strangers.run("cat", f"/proc/{pid}/comm", check=False) for pid in strangers.listed()))
    for need in (0, strangers.available() + 24 * MIB):
        freed = strangers.reclaim(stop=["process:e2e-again"], need=need, kill_leftovers=True)
        assert freed["verdict"] == "respawning", freed["msg"]
        assert f"e2e-keeper (pid {keeper}) in {strangers.scopes[-1]}" in freed["msg"]
        assert 1 <= len(freed["actions"]) <= 2, "it gives up, and does not shoot on"
    assert strangers.alive(keeper)


@pytest.mark.parametrize("after", [0.3, 1.5])
def test_respawning_after_a_while_is_waited_for(strangers: StandIns, after: float) -> None:
    """A loop in a script sleeps before it starts it again; seconds later it would hold its memory."""
    keeper = strangers.process("e2e-keeper", "--mib", "-1", "--again", "e2e-later:16", "--again-after", str(after), scope="keeper")
    wait_for(lambda: any("e2e-later" in strangers.run("cat", f"/proc/{pid}/comm", check=False) for pid in strangers.listed()))
    freed = strangers.reclaim(stop=["process:e2e-later"])
    assert freed["verdict"] == "respawning", freed["msg"]
    assert f"e2e-keeper (pid {keeper}) in {strangers.scopes[-1]}" in freed["msg"] and len(freed["actions"]) == 1
    assert strangers.alive(keeper)


def test_parent_that_lives_is_named_and_one_that_is_gone_costs_no_time(strangers: StandIns) -> None:
    orphan = strangers.process("e2e-orphan", "--mib", "16")
    begin = time.monotonic()
    freed = strangers.reclaim(stop=["process:e2e-orphan"])
    alone = time.monotonic() - begin
    assert freed["verdict"] == "freed" and not strangers.alive(orphan) and not any("was started by" in note for note in freed["notes"])
    parent = strangers.process("e2e-parent", "--mib", "-1", "--child", "e2e-child:16", "--keep-zombies", scope="parent")
    begin = time.monotonic()
    freed = strangers.reclaim(stop=["process:e2e-child"])
    took = time.monotonic() - begin
    assert freed["verdict"] == "freed" and any(f"was started by e2e-parent (pid {parent})" in note for note in freed["notes"]), freed["notes"]
    assert alone < took - 2 and took < alone + 5


def test_supervisor_is_named_before_anything_is_stopped(strangers: StandIns) -> None:
    supervisor = strangers.process("supervisord", "--mib", "-1", "--again", "e2e-supervised:16")
    wait_for(lambda: any("e2e-superv" in strangers.run("cat", f"/proc/{pid}/comm", check=False) for pid in strangers.listed()))
    freed = strangers.reclaim(stop=["process:e2e-supervised"])
    assert freed["verdict"] == "not_permitted" and freed["actions"] == [] and not freed["changed"]
    assert {code for _target, code in codes(freed)} == {"revived"} and f"supervisord (pid {supervisor})" in freed["msg"]


def test_display_servers_viewers_and_ourselves_are_left_alone(strangers: StandIns) -> None:
    xorg, persistence = strangers.process("Xorg", "--mib", "-1"), strangers.process("nvidia-persistenced", "--mib", "16")
    viewer, trainer = strangers.process("e2e-viewer", "--mib", "-1"), strangers.process("e2e-trainer", "--mib", "16")
    for pid in (xorg, viewer):
        strangers.run("gb10-sim-ctl", "register", str(pid), "--kind", "G", "--bytes", "18MiB")
    stop = ["user:spark", "process:Xor*", "process:nvidia-*", "process:ssh*"]
    freed = strangers.reclaim(stop=stop, kill_leftovers=True, grace=1)
    assert freed["verdict"] == "freed", freed["msg"]
    assert list(outcomes(freed)) == [(f"e2e-trainer (pid {trainer})", "terminate")]
    assert strangers.alive(xorg) and strangers.alive(persistence) and strangers.alive(viewer)
    assert {(f"Xorg (pid {xorg})", "protected"), (f"nvidia-persistenced (pid {persistence})", "protected")} <= codes(freed)
    named = strangers.reclaim(stop=["process:e2e-viewer"])
    assert named["verdict"] == "freed" and not strangers.alive(viewer), "asked for by name"


def test_memory_that_the_driver_keeps_is_not_called_freed(strangers: StandIns) -> None:
    """The process is gone, the driver lists it still, and as a zombie in the other case."""
    strangers.run("gb10-sim-ctl", "set", "retain=forever", "retain_listed=on")
    pid = strangers.process("e2e-kept", "--mib", "300")
    freed = strangers.reclaim(stop=["process:e2e-kept"], timeout=4)
    assert freed["verdict"] == "held_by_driver" and freed["failed"] and not strangers.alive(pid)
    assert freed["actions"][0]["result"] == "ended"
    assert pid in {row["pid"] for row in freed["held_by"]}, "and it is shown"
    report = strangers.reclaim("report", stop=["user:spark"])
    row = next(row for row in report["held_by"] if row["pid"] == pid)
    assert row["start_time"] is None and row["permit"] is None and "not visible in /proc" in row["protected"]


def test_zombies_hold_nothing_and_are_sent_nothing(strangers: StandIns) -> None:
    strangers.run("gb10-sim-ctl", "set", "retain=forever", "retain_listed=on")
    parent = strangers.process("e2e-careless", "--mib", "-1", "--child", "e2e-dead:40", "--keep-zombies")
    child = int(strangers.run("pgrep", "--parent", str(parent)))
    strangers.run("kill", "-KILL", str(child))
    wait_for(lambda: not strangers.alive(child))
    freed = strangers.reclaim(stop=["process:e2e-dead"])
    assert freed["verdict"] == "nothing_to_do" and freed["actions"] == [] and strangers.alive(parent)


@pytest.mark.soak
def test_process_that_no_signal_ends_needs_a_reboot(freezer: None, strangers: StandIns) -> None:
    pid = strangers.process("e2e-stuck", "--mib", "40")
    strangers.run("gb10-sim-ctl", "freeze", str(pid))
    try:
        freed = strangers.reclaim(stop=["process:e2e-stuck"], kill_leftovers=True, grace=1)
        assert freed["verdict"] == "unkillable_reboot" and "reboot" in freed["msg"]
        assert "stuck in the kernel (state D)" in freed["actions"][0]["result"]
        assert len(freed["actions"]) == 1, "it is not tried again and again"
    finally:
        strangers.run("gb10-sim-ctl", "thaw")


@pytest.mark.soak
def test_driver_that_hangs_stops_nothing(strangers: StandIns) -> None:
    pid = strangers.process("e2e-trainer", "--mib", "40")
    strangers.run("gb10-sim-ctl", "set", "hang=all")
    freed = strangers.reclaim(stop=["process:e2e-trainer"], kill_leftovers=True)
    assert freed["verdict"] == "unresponsive_driver" and freed["failed"] and strangers.alive(pid) and freed["done"] == []


def test_shells_and_runs_that_are_called_the_same_are_not_meant(strangers: StandIns) -> None:
    """Names are compared, not searched for in command lines: neither this run's own shell nor an editor of that name matches."""
    pid = strangers.process("e2e-server", "--mib", "16")
    editor = strangers.process("vi e2e-server", "--mib", "16")
    freed = strangers.reclaim(stop=["process:e2e-server"], kill_leftovers=True)
    assert freed["verdict"] == "freed" and not strangers.alive(pid) and strangers.alive(editor)
