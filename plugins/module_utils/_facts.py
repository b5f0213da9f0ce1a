# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The facts of one machine, put together: class, memory, GPUs, processes with their owners, and why something is not known."""

from __future__ import annotations

import typing as t
from collections.abc import Callable

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fragmentation import page_size_of, read_fragmentation
from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import (
    NO_PERMISSION,
    Device,
    GpuProcess,
    Hardware,
    Problem,
    Reading,
    classify,
    merge_entries,
    new_reading,
    read_hardware,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._guards import read_guards
from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import mask_argv, mask_command
from ansible_collections.unimem.dgx_spark.plugins.module_utils._meminfo import driver_residual, memory_sum, read_memory_with_reasons
from ansible_collections.unimem.dgx_spark.plugins.module_utils._nvml import installed, read_pynvml
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import INITIAL_PID_NAMESPACE, Process, ancestors, boot_id, read_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._protect import own_pid, protection
from ansible_collections.unimem.dgx_spark.plugins.module_utils._versions import read_versions
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import KERNEL_LOG, Deadline, PendingProbe, World

#: Name of the child process's reading in a recorded node.
PROBE = "pynvml"

#: Seconds beside the driver's deadline for the other readings (systemd, Docker), of which each has a shorter one of its own.
OTHER_READINGS = 0.7

#: Fields of a GPU that every driver is asked for; the others are for the class only.
_GPU_FIELDS = ("index", "uuid", "name", "compute_capability", "memory_total", "memory_used", "memory_free", "addressing_mode", "mig")


def gather(world: World, timeout: float = 10.0, raw: bool = False) -> dict[str, t.Any]:
    """The inner ``gpu_memory`` dictionary of the facts. Never raises for what a machine lacks: that is null, with a reason.

    ``timeout``: seconds that the GPU driver may take. ``raw``: add every text that was read, secrets masked.
    """
    if not raw:
        return _Gathering(world, timeout).facts()
    # Not imported where it is not needed: a node compiles all that is imported, each time.
    from ansible_collections.unimem.dgx_spark.plugins.module_utils._recording import RecordingWorld

    recorder = RecordingWorld(world)
    facts = _Gathering(recorder, timeout).facts()
    facts["raw"] = recorder.recording()
    return facts


class _Gathering:
    def __init__(self, world: World, timeout: float) -> None:
        self._world = world
        self._timeout = timeout
        self._gpu_deadline = Deadline(world, timeout)
        self._deadline = Deadline(world, timeout + OTHER_READINGS)
        self._reasons: dict[str, str] = {}

    def facts(self) -> dict[str, t.Any]:
        # The driver works in its own process while everything else is read.
        pending = self._world.start_probe(PROBE, read_pynvml, self._timeout)
        # Without pynvml that is over at once, and it is nvidia-smi that works meanwhile.
        answer = None if installed() else self._ask_gpu(pending)
        hardware = read_hardware(self._world)
        table = self._world.process_table()
        guards = read_guards(self._world, table)
        source, reading, hung = (answer or self._ask_gpu(pending))()
        klass, evidence, classes = ("unresponsive", [_text(reading["failure"])], {}) if hung else classify(reading, hardware)
        memory, reasons, meminfo = read_memory_with_reasons(self._world, klass)
        self._reasons.update(reasons)
        if klass in ("coherent", "discrete"):
            self._own_memory(memory, reading)
        fragmentation, reason = read_fragmentation(self._world, page_size_of(meminfo))
        if reason:
            self._reasons["fragmentation"] = reason
        elif fragmentation and fragmentation["driver_no_memory"] is None:
            self._reasons["fragmentation.driver_no_memory"] = f"{KERNEL_LOG}: {self._world.reasons.get(KERNEL_LOG, 'unreadable')}"
        if not table:
            self._reasons["guards"] = "/proc shows no process"
        versions = read_versions(self._world, reading)
        nothing_here = reading["absent"] and not hardware.gpu_present and versions["kernel_module"] is None
        processes, process_memory = self._processes(reading, source, nothing_here)
        self._explain(hardware, klass, reading["failure"] is not None)
        in_pool = merge_entries(entry for entry in reading["entries"] if classes.get(entry["gpu"]) == "unified")
        return {
            "class": klass,
            "class_evidence": evidence,
            "product": hardware.product,
            "memory": memory,
            "gpus": [self._gpu(device, reading, classes) for device in reading["devices"]],
            "processes": processes,
            "process_memory": process_memory,
            "unattributed": self._unattributed(meminfo, klass, None if process_memory is None else in_pool),
            "fragmentation": fragmentation,
            "guards": guards,
            "versions": versions,
            "boot_id": boot_id(self._world),
            "sources": {"gpu": source, "reasons": self._reasons},
        }

    # -- the driver -------------------------------------------------------------------------------------------------------------

    def _ask_gpu(self, pending: PendingProbe) -> Callable[[], tuple[str, Reading, bool]]:
        """Hear pynvml, and where it says nothing ask nvidia-smi. What is returned waits for that, and gives source, reading, and whether the driver
        hung: then nothing of it is used.
        """
        probe = pending.finish()
        if probe.timed_out:
            self._reasons["gpus"] = f"the GPU driver gave pynvml {probe.error}"
            return lambda: ("none", new_reading(Problem(code=None, text=self._reasons["gpus"])), True)
        reading = t.cast("Reading | None", probe.data)
        if reading is not None and not reading["failure"]:
            return lambda: ("pynvml", reading, False)
        self._reasons["sources.pynvml"] = _text(reading["failure"]) if reading else f"pynvml: {probe.error}"

        from ansible_collections.unimem.dgx_spark.plugins.module_utils import _nvsmi  # only where pynvml gave nothing

        asked = _nvsmi.Asked(self._world, self._gpu_deadline)
        return lambda: self._hear_nvidia_smi(reading, *asked.finish())

    def _hear_nvidia_smi(self, reading: Reading | None, second: Reading, hung: bool) -> tuple[str, Reading, bool]:
        """Source, reading and whether the driver hung, after pynvml gave nothing (or the failure that ``reading`` tells of)."""
        if not second["failure"]:
            return "nvidia-smi", second, False
        self._reasons["sources.nvidia_smi"] = _text(second["failure"])
        self._reasons["gpus"] = f"{self._reasons['sources.pynvml']}; {_text(second['failure'])}"
        # Of several failures the one with an NVML error code tells most.
        problem = next((one["failure"] for one in (reading, second) if one and one["failure"] and not one["absent"]), None)
        text = "neither pynvml nor nvidia-smi is installed" if problem is None and reading and reading["absent"] else self._reasons["gpus"]
        # Without nvidia-smi there is no driver; pynvml alone says nothing, it can be installed anywhere.
        return "none", new_reading(Problem(code=problem["code"] if problem else None, text=text), absent=second["absent"]), hung

    def _gpu(self, device: Device, reading: Reading, classes: dict[int, str]) -> dict[str, t.Any]:
        for field, problem in device["problems"].items():
            if field in _GPU_FIELDS:
                self._reasons[f"gpus.{device['index']}.{field}"] = _text(problem)
        if device["memory_total"] is not None and classes.get(device["index"]) == "unified":
            self._reasons[f"gpus.{device['index']}.memory_total"] = "the driver reports the machine's pool or a part of it; the GPU has no memory of its own"
        gpu: dict[str, t.Any] = {field: device[field] for field in _GPU_FIELDS}  # type: ignore[literal-required]
        gpu["driver_version"] = reading["driver_version"]
        for field, value in gpu.items():
            if value is None:
                self._reasons.setdefault(f"gpus.{device['index']}.{field}", "the driver gives no value that makes sense")
        return gpu

    def _own_memory(self, memory: dict[str, int | None], reading: Reading) -> None:
        free = [device["memory_free"] for device in reading["devices"] if device["memory_free"] is not None]
        if free:
            memory["allocatable"] = max(free)
            self._reasons["memory.allocatable"] = "the GPU has memory of its own: this is the free memory of the GPU that has most of it"

    # -- the processes ----------------------------------------------------------------------------------------------------------

    def _processes(self, reading: Reading, source: str, nothing_here: bool) -> tuple[list[dict[str, t.Any]], int | None]:
        if source == "none" and nothing_here:
            return [], 0
        if source == "none":
            self._reasons["processes"] = "unknown, not none: the driver could not be asked (see gpus)"
            self._reasons["process_memory"] = self._reasons["processes"]
            return [], None
        listed = merge_entries(reading["entries"])
        self._judge_list(reading, listed)
        if not listed:
            if "processes" in self._reasons:
                self._reasons["process_memory"] = self._reasons["processes"]
                return [], None
            return [], 0
        return self._describe(listed), memory_sum(one.memory for one in listed)

    def _describe(self, listed: list[GpuProcess]) -> list[dict[str, t.Any]]:
        from ansible_collections.unimem.dgx_spark.plugins.module_utils._owners import OwnerReader, unseen_owner  # only where something is owned

        seen = {process.pid: process for process in (read_process(self._world, one.pid) for one in listed) if process}
        owners = OwnerReader(self._world, self._deadline)
        owner_of = owners.owners(seen.values())
        own_line = ancestors(self._world, own_pid(self._world))
        processes = []
        for one in listed:
            process = self._process(one, seen.get(one.pid))
            process["owner"] = owner_of.get(one.pid) or unseen_owner(process["name"])
            process["protected"] = self._protected(process, seen.get(one.pid), own_line)
            processes.append(process)
        for pid, reason in owners.reasons.items():
            self._reasons[f"processes.{pid}.owner"] = reason
        return processes

    @staticmethod
    def _protected(process: dict[str, t.Any], seen: Process | None, own_line: list[int]) -> str | None:
        return protection({**process, "comm": seen.comm if seen else None, "kernel_thread": bool(seen and seen.kernel_thread)}, own_line)

    def _process(self, listed: GpuProcess, seen: Process | None) -> dict[str, t.Any]:
        name = mask_command(listed.name) if listed.name else None
        if name and name.startswith("/"):
            name = name.rsplit("/", 1)[-1]
        entry: dict[str, t.Any] = {
            "pid": listed.pid,
            "start_time": seen.start_time if seen else None,
            "kinds": listed.kinds,
            "memory": listed.memory,
            "name": seen.name if seen else name,
            "command": " ".join(mask_argv(seen.argv)) or None if seen else None,
            "executable": seen.executable if seen else None,
            "user": None,
            "state": seen.state if seen else None,
            "gpus": listed.gpus,
        }
        if seen and seen.uid is not None:
            entry["user"] = self._world.user_name(seen.uid) or str(seen.uid)
        if seen is None:
            self._reasons[f"processes.{listed.pid}"] = f"the driver lists this pid and /proc does not have it: {self._why_unseen()}"
        elif seen.executable is None and not seen.kernel_thread:
            why = self._world.reasons.get(f"/proc/{listed.pid}/exe", "unreadable")
            self._reasons[f"processes.{listed.pid}.executable"] = why
        if listed.memory is None:
            self._reasons[f"processes.{listed.pid}.memory"] = "the driver does not say how much it holds"
        elif listed.partial:
            self._reasons[f"processes.{listed.pid}.memory"] = "the driver says it for some of its GPUs or instances only; it holds more"
        return entry

    def _why_unseen(self) -> str:
        if self._hidepid():
            return "/proc is mounted with hidepid, so that this user cannot see it"
        if self._own_pid_namespace():
            return "it lives outside of this PID namespace, or it has ended"
        return "it has ended, or lives in a PID namespace that cannot be seen from here"

    def _hidepid(self) -> bool:
        if self._world.effective_uid() == 0:
            return False
        for line in (self._world.read_text("/proc/self/mounts") or "").split("\n"):
            fields = line.split()
            if (
                len(fields) >= 4
                and fields[1] == "/proc"
                and any(option in fields[3].split(",") for option in ("hidepid=1", "hidepid=2", "hidepid=noaccess", "hidepid=invisible"))
            ):
                return True
        return False

    def _own_pid_namespace(self) -> bool:
        namespace = self._world.read_link("/proc/self/ns/pid")
        return namespace is not None and namespace != INITIAL_PID_NAMESPACE

    def _in_container(self) -> bool:
        """Whether this runs in an application container: a PID namespace of its own without an init system in it."""
        return self._own_pid_namespace() and (self._world.read_text("/proc/1/comm") or "").strip() not in ("systemd", "init")

    def _judge_list(self, reading: Reading, listed: list[GpuProcess]) -> None:
        """Whether the list can be believed when it is short or empty: unknown is never none."""
        problems = [f"{field.partition('.')[2] or 'all'}: {_text(problem)}" for field, problem in reading["problems"].items() if field.startswith("processes")]
        if problems:
            self._reasons["processes"] = "; ".join(problems)
        elif reading["devices"] and self._in_container():
            self._reasons["processes"] = "this runs in a container without the PID namespace of the machine: the driver lists nothing here, or not all"
        elif not listed and reading["devices"] and all("(nvgpu)" in (device["name"] or "") for device in reading["devices"]):
            self._reasons["processes"] = "the driver of this Jetson (nvgpu) lists no processes"

    # -- the rest ---------------------------------------------------------------------------------------------------------------

    def _unattributed(self, meminfo: dict[str, int], klass: str, in_pool: list[GpuProcess] | None) -> int | None:
        """Memory of the pool that no bucket of the kernel and no listed process accounts for: the pools of drivers, for one."""
        residual = driver_residual(meminfo)
        if residual is None:
            self._reasons["unattributed"] = "/proc/meminfo has not the lines that it is computed from"
            return None
        if klass != "unified":
            # Memory of a GPU's own is not in the pool, so that its processes explain nothing of what is missing there.
            self._reasons["unattributed"] = f"the class is {klass}: nothing of it is explained by GPU processes"
            return residual
        if in_pool is None:
            self._reasons["unattributed"] = "the GPU processes are unknown: it includes what they hold"
            return residual
        if any(process.memory is None or process.partial for process in in_pool):
            self._reasons["unattributed"] = "it includes what processes hold of which the driver does not say it"
        return max(0, residual - memory_sum(process.memory for process in in_pool))

    def _explain(self, hardware: Hardware, klass: str, failed: bool) -> None:
        if hardware.product is None:
            self._reasons["product"] = "neither the device tree nor DMI nor /etc/dgx-release names it"
        if self._world.effective_uid() != 0:
            self._reasons["privileges"] = "read without root: executables, containers and user units of others may be missing"
        if klass == "none" and hardware.gpu_present:
            said = "no driver that answers" if failed else "the driver lists none"
            self._reasons.setdefault("gpus", f"there is an NVIDIA GPU by its PCI device, the device tree or its loaded driver, and {said}")


def _text(problem: Problem | None) -> str:
    if problem is None:
        return "unknown"
    if problem["code"] == NO_PERMISSION:
        return f"{problem['text']} (NVML error {problem['code']}: not permitted to this user)"
    return problem["text"] if problem["code"] is None else f"{problem['text']} (NVML error {problem['code']})"
