# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever goes wrong with the driver: the right facts, in time, the same by pynvml and by nvidia-smi."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import GIB, empty_page_cache, on_host
from two_ways import PYNVML, SMI, TwoWays, agree

HOST = "spark-02"
MIB = 1024**2
#: Seconds that a driver that hangs is given here.
PATIENCE = 2.0
HOLDER = "unimem-e2e-holder.service"
SECRET = "hf_0123456789abcdefghij"
HELD = 96 * MIB
#: What the rest of the host takes or gives back between two looks: unattributed is a remainder of all of it.
NOISE = 32 * MIB
#: Holds a context and 32 MiB more (multiples of 2 MiB, as CUDA gives them out).
PROGRAM = "import sys,time;sys.path.insert(0,'/usr/lib/gb10-sim');import gb10_cuda as c;c.create_context();c.alloc(32<<20);time.sleep(600)"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> TwoWays:
    return TwoWays(HOST, tmp_path_factory.mktemp("two_ways"))


@pytest.fixture
def turn() -> Iterator[Callable[..., None]]:
    """Turns knobs of the host's driver. Afterwards the driver is as it was, whatever happened."""

    def turn_knobs(*knobs: str) -> None:
        on_host(HOST, "gb10-sim-ctl", "set", *knobs)

    on_host(HOST, "gb10-sim-ctl", "reset")
    try:
        yield turn_knobs
    finally:
        on_host(HOST, "gb10-sim-ctl", "reset")


def _main_pid(unit: str) -> int:
    return int(on_host(HOST, "systemctl", "show", "--property=MainPID", "--value", unit).stdout)


@pytest.fixture
def holder() -> Iterator[int]:
    """A unit whose process holds 96 MiB, and has a secret on its command line; its pid."""
    empty_page_cache(HOST)
    on_host(HOST, "systemd-run", "--quiet", f"--unit={HOLDER}", "--property=Restart=always", "python3", "-c", PROGRAM, "--token", SECRET)
    try:
        end = time.monotonic() + 20
        while _held().get(pid := _main_pid(HOLDER), 0) < HELD:
            assert time.monotonic() < end, f"{HOLDER} does not get its memory: {_held()}"
            time.sleep(0.1)
        yield pid
    finally:
        on_host(HOST, "gb10-sim-ctl", "thaw")
        # A test may have ended it: then its unit is gone.
        on_host(HOST, "systemctl", "stop", HOLDER, check=False)


def _held() -> dict[int, int]:
    """What the driver itself says: pid -> bytes."""
    held: dict[int, int] = {}
    for one in json.loads(on_host(HOST, "gb10-sim-ctl", "status", "--json").stdout)["allocations"]:
        held[one["pid"]] = held.get(one["pid"], 0) + one["bytes"]
    return held


def _owners(facts: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(process["owner"]["kind"], process["owner"]["name"]): process for process in facts["processes"]}


def _without_state(processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in process.items() if name != "state"} for process in processes]


def test_nothing_is_wrong(host: TwoWays, holder: int) -> None:
    seen = host.look()
    held = _held()
    for one in agree(seen):
        assert one.facts["class"] == "unified" and [gpu["name"] for gpu in one.facts["gpus"]] == ["NVIDIA GB10"]
        assert one.facts["gpus"][0]["memory_total"] is None and "gpus.0.memory_total" in one.reasons
        assert {process["pid"]: process["memory"] for process in one.facts["processes"]} == held
        assert one.facts["process_memory"] == sum(held.values())
        owners = _owners(one.facts)
        assert set(owners) == {("container", "vllm_embeddings"), ("process", "llama-server"), ("unit", HOLDER)}
        assert owners["container", "vllm_embeddings"]["owner"]["unit"] == "vllm-embeddings.service"
        assert "restart policy unless-stopped" in owners["container", "vllm_embeddings"]["owner"]["restarted_by"]
        assert owners["unit", HOLDER]["owner"]["restarted_by"] == "systemd (Restart=always)"
        assert owners["process", "llama-server"]["user"] == "alice"
        assert SECRET not in json.dumps(one.facts) and "********" in owners["unit", HOLDER]["command"]
        assert one.facts["versions"]["driver"] == one.facts["versions"]["kernel_module"] == "580.142"
        assert one.facts["versions"]["driver_pools"] is False
    assert {way: one.facts["sources"]["gpu"] for way, one in seen.items()} == {SMI: SMI, PYNVML: PYNVML}
    assert seen[PYNVML].facts["memory"]["cuda_free"] == seen[PYNVML].facts["memory"]["free"]


@pytest.mark.parametrize("knobs", [("hang=all",), ("hang=processes",), ("hang=all", "hang_unkillable=on")], ids=" ".join)
def test_a_driver_that_hangs_is_left_behind(host: TwoWays, turn: Callable[..., None], knobs: tuple[str, ...]) -> None:
    turn(*knobs)
    for one in agree(host.look(PATIENCE)):
        assert one.seconds <= PATIENCE + 1
        assert one.facts["class"] == "unresponsive" and one.facts["sources"]["gpu"] == "none"
        assert one.facts["processes"] == [] and one.facts["process_memory"] is None and "unknown" in one.reasons["processes"]
        assert re.search(r"within (2(\.0)?|1\.\d) s", one.reasons["gpus"])
        assert abs(one.facts["memory"]["total"] - 6 * GIB) < MIB and one.facts["memory"]["allocatable"] > 0


def test_a_driver_that_answers_in_the_end_is_heard(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("hang=all")
    on_host(HOST, "systemd-run", "--quiet", "sh", "-c", "sleep 1; exec gb10-sim-ctl set hang=off")
    for one in agree(host.look()):
        assert one.facts["class"] == "unified" and one.process(holder)["memory"] == HELD


def test_processes_that_the_driver_has_no_name_for(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    before = host.look()
    turn("unnamed=all")
    for one, earlier in zip(agree(host.look()), before.values(), strict=True):
        assert _without_state(one.facts["processes"]) == _without_state(earlier.facts["processes"])


def test_a_process_without_a_size_is_not_one_of_size_zero(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    before = host.look()
    turn(f"unsized={holder}")
    others = sum(size for pid, size in _held().items() if pid != holder)
    for one, earlier in zip(agree(host.look()), before.values(), strict=True):
        assert one.process(holder)["memory"] is None and "does not say" in one.reasons[f"processes.{holder}.memory"]
        assert one.facts["process_memory"] == others
        assert one.facts["unattributed"] >= earlier.facts["unattributed"] + HELD - NOISE and "unattributed" in one.reasons


def test_no_process_has_a_size(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("unsized=all")
    for one in agree(host.look()):
        assert len(one.facts["processes"]) == 3 and all(process["memory"] is None for process in one.facts["processes"])
        assert one.facts["process_memory"] == 0 and one.facts["unattributed"] >= sum(_held().values()) - NOISE


def test_memory_that_stays_after_its_process(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("retain=forever")
    before = host.look()
    on_host(HOST, "systemctl", "stop", HOLDER)
    for one, earlier in zip(agree(host.look()), before.values(), strict=True):
        assert holder not in [process["pid"] for process in one.facts["processes"]]
        assert one.facts["unattributed"] >= earlier.facts["unattributed"] + HELD - NOISE


def test_a_process_that_has_ended_and_is_still_listed(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("retain=forever", "retain_listed=on")
    on_host(HOST, "systemctl", "stop", HOLDER)
    for one in agree(host.look()):
        ghost = one.process(holder)
        assert ghost["memory"] == HELD and ghost["start_time"] is None and ghost["command"] is None
        assert ghost["protected"] and "it has ended" in one.reasons[f"processes.{holder}"]


def test_pages_that_the_driver_keeps_for_nobody(host: TwoWays, turn: Callable[..., None]) -> None:
    before = host.look()
    turn("version=590.48.01", "pool=512MiB")
    for one, earlier in zip(agree(host.look()), before.values(), strict=True):
        assert one.facts["versions"]["driver_pools"] is True
        assert one.facts["unattributed"] >= earlier.facts["unattributed"] + 512 * MIB - NOISE
        assert one.facts["process_memory"] == earlier.facts["process_memory"]


def test_a_process_asleep_in_the_driver(freezer: None, host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    on_host(HOST, "gb10-sim-ctl", "freeze", str(holder))
    for one in agree(host.look(PATIENCE)):
        assert one.seconds <= PATIENCE + 1
        assert one.process(holder)["state"] == "D" and one.process(holder)["memory"] == HELD


def test_a_display_server_is_protected_and_its_memory_counted_once(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    unit = "unimem-e2e-display.service"
    on_host(HOST, "systemd-run", "--quiet", f"--unit={unit}", "bash", "-c", "exec -a /usr/lib/xorg/Xorg sleep 600")
    try:
        pid = _main_pid(unit)
        on_host(HOST, "gb10-sim-ctl", "register", str(pid), "--kind", "G", "--bytes", "18MiB")
        on_host(HOST, "gb10-sim-ctl", "register", str(holder), "--kind", "C+G", "--bytes", "4MiB")
        for one in agree(host.look()):
            assert "display server" in one.process(pid)["protected"] and one.process(holder)["protected"] is None
            assert one.process(pid)["kinds"] == ["graphics"] and one.process(pid)["memory"] == 18 * MIB
            assert one.process(holder)["kinds"] == ["compute", "graphics"] and one.process(holder)["memory"] == HELD + 4 * MIB
            assert one.facts["process_memory"] == sum(_held().values())
    finally:
        on_host(HOST, "systemctl", "stop", unit)


@pytest.mark.parametrize("second", ["gb10", "discrete"])
def test_a_second_gpu(host: TwoWays, turn: Callable[..., None], holder: int, second: str) -> None:
    turn("gpus=2", f"second_gpu={second}")
    for one in agree(host.look()):
        assert one.facts["class"] == "unified" and [gpu["index"] for gpu in one.facts["gpus"]] == [0, 1]
        assert len({gpu["uuid"] for gpu in one.facts["gpus"]}) == 2
        assert (one.facts["gpus"][1]["memory_total"] is None) == (second == "gb10")
        assert one.process(holder)["gpus"] == [0]


def test_no_gpu(host: TwoWays, turn: Callable[..., None]) -> None:
    turn("gpus=0")
    # Without a GPU nvidia-smi says nothing else either.
    for one in agree(host.look(), without_version="cuda"):
        assert one.facts["class"] == "none" and one.facts["class_evidence"] == ["the driver knows no GPU"]
        assert one.facts["gpus"] == [] and one.facts["processes"] == [] and one.facts["process_memory"] == 0


def _nobody_answered(one: Any) -> None:
    assert one.facts["sources"]["gpu"] == "none" and one.facts["gpus"] == [] and one.facts["processes"] == []
    assert one.facts["process_memory"] is None and "unknown" in one.reasons["processes"]


@pytest.mark.parametrize(
    ("knobs", "code", "words"),
    [
        (("mismatch=on",), "NVML error 18", "ersion mismatch"),
        (("driver=unloaded",), "NVML error 9", "river"),
        (("library=missing",), "NVML error 12", "libnvidia-ml"),
        (("lost=on",), "NVML error 15", "GPU is lost"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_driver_that_cannot_be_asked(host: TwoWays, turn: Callable[..., None], knobs: tuple[str, ...], code: str, words: str) -> None:
    turn(*knobs)
    seen = host.look()
    for one in agree(seen):
        assert one.facts["class"] in ("none", "unified")
        assert code in one.reasons["gpus"] and words in one.reasons["gpus"]
        _nobody_answered(one)
    assert code in seen[PYNVML].reasons["sources.pynvml"] and code in seen[SMI].reasons["sources.nvidia_smi"]


def test_nobody_may_ask(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("no_permission=all")
    for one in agree(host.look()):
        _nobody_answered(one)
        assert "ermission" in one.reasons["gpus"]


def test_only_root_may_ask(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("no_permission=users")
    for one in agree(host.look()):
        assert one.process(holder)["memory"] == HELD
    for one in agree(host.look(10.0, "--become", "--become-user", "spark")):
        _nobody_answered(one)
        assert "ermission" in one.reasons["gpus"] and "without root" in one.reasons["privileges"]


def test_without_the_program_there_is_still_the_library(host: TwoWays, turn: Callable[..., None], holder: int) -> None:
    turn("nvidia_smi=missing")
    seen = host.look()
    assert seen[PYNVML].facts["class"] == "unified" and seen[PYNVML].process(holder)["memory"] == HELD
    _nobody_answered(seen[SMI])
    assert "nvidia-smi is not installed" in seen[SMI].reasons["gpus"] and "pynvml" in seen[SMI].reasons["gpus"]


@pytest.mark.parametrize("version", ["610.57.04", "550.54.15"])
def test_another_driver(host: TwoWays, turn: Callable[..., None], holder: int, version: str) -> None:
    turn(f"version={version}", "cuda=13.3")
    for one in agree(host.look()):
        assert one.facts["versions"]["driver"] == version and one.facts["versions"]["cuda"] == "13.3"
        assert one.facts["gpus"][0]["driver_version"] == version and one.process(holder)["memory"] == HELD


@pytest.mark.parametrize("answer", ["zero", "meminfo"])
def test_a_driver_that_gives_the_pool_as_the_gpus_own_memory(host: TwoWays, turn: Callable[..., None], answer: str) -> None:
    turn(f"memory_info={answer}")
    for one in agree(host.look()):
        assert one.facts["class"] == "unified" and "gpus.0.memory_total" in one.reasons
        assert one.facts["memory"]["cuda_free"] == one.facts["memory"]["free"]
        assert (one.facts["gpus"][0]["memory_total"] is None) == (answer == "zero")


def test_a_user_who_is_nobody_special_is_told_what_could_not_be_seen(host: TwoWays, holder: int) -> None:
    for one in agree(host.look(10.0, "--become", "--become-user", "alice")):
        assert "without root" in one.reasons["privileges"]
        assert one.process(holder)["executable"] is None and "permission" in one.reasons[f"processes.{holder}.executable"]
        (container,) = (process for process in one.facts["processes"] if process["owner"]["kind"] == "container")
        assert container["owner"]["name"] == container["owner"]["id"][:12] and "permission denied" in one.reasons[f"processes.{container['pid']}.owner"]
        assert one.facts["process_memory"] == sum(_held().values())


def test_check_mode_reads_the_same(host: TwoWays, holder: int) -> None:
    for one in agree(host.look(10.0, "--check")):
        assert one.process(holder)["memory"] == HELD
