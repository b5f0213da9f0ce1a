# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Readings of the GPU by pynvml (distribution nvidia-ml-py). Run it in a child process: a call into a wedged driver never returns."""

from __future__ import annotations

import importlib.util
import sys
import typing as t
from collections.abc import Callable

from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import (
    NOT_SUPPORTED,
    UNIFIED_NAMES,
    UNIFIED_PCI_DEVICES,
    Device,
    Entry,
    Problem,
    Reading,
    cuda_version,
    new_device,
    new_reading,
    pci_device_id,
)

#: Values of nvmlDeviceGetAddressingMode (nvml.h).
ADDRESSING_MODES = {0: "none", 1: "HMM", 2: "ATS"}

#: CU_DEVICE_ATTRIBUTE_INTEGRATED (cuda.h).
_INTEGRATED = 18

_ALL_FIELDS = ("uuid", "name", "compute_capability", "addressing_mode", "memory_total", "memory_used", "memory_free", "mig")

_T = t.TypeVar("_T")


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class _Asker:
    """Asks NVML one thing after the other; what cannot be answered becomes a problem of that field."""

    def __init__(self, pynvml: t.Any) -> None:
        self._pynvml = pynvml

    def ask(self, problems: dict[str, Problem], name: str, call: Callable[[], _T]) -> _T | None:
        try:
            return call()
        except self._pynvml.NVMLError as error:
            problems[name] = Problem(code=getattr(error, "value", None), text=_text(str(error)))
        except AttributeError as error:
            problems[name] = Problem(code=None, text=f"this pynvml is too old: {error}")
        except (TypeError, ValueError, UnicodeDecodeError) as error:
            problems[name] = Problem(code=None, text=f"the driver's answer makes no sense: {error}")
        return None


def installed() -> bool:
    """Whether there is a pynvml that could be imported. Finding it imports nothing."""
    try:
        return importlib.util.find_spec("pynvml") is not None
    except ValueError:  # a module without a specification, of whoever put it there
        return True


def read_pynvml() -> dict[str, t.Any]:
    """Import pynvml and read; a Reading as a dictionary."""
    try:
        import pynvml
    except ImportError:
        return dict(new_reading(Problem(code=None, text=f"pynvml (nvidia-ml-py) is not installed for {sys.executable}"), absent=True))
    return dict(read(pynvml))


def read(pynvml: t.Any) -> Reading:
    """Everything that NVML says of the GPUs and their processes."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return new_reading(Problem(code=getattr(error, "value", None), text=_text(str(error))))
    try:
        return _read_all(pynvml, _Asker(pynvml))
    finally:
        pynvml.nvmlShutdown()


def _read_all(pynvml: t.Any, asker: _Asker) -> Reading:
    reading = new_reading()
    problems = reading["problems"]
    driver = asker.ask(problems, "driver_version", pynvml.nvmlSystemGetDriverVersion)
    reading["driver_version"] = _text(driver) if driver is not None else None

    def ask_cuda_version() -> int:
        # Looked up when asked: an old pynvml has no such function.
        return int(pynvml.nvmlSystemGetCudaDriverVersion_v2())

    reading["cuda_version"] = cuda_version(asker.ask(problems, "cuda_version", ask_cuda_version))
    count = asker.ask(problems, "gpus", pynvml.nvmlDeviceGetCount)
    if count is None:
        reading["failure"] = problems["gpus"]
        return reading
    for index in range(count):
        device = new_device(index)
        reading["devices"].append(device)
        handle = asker.ask(device["problems"], "uuid", lambda index=index: pynvml.nvmlDeviceGetHandleByIndex(index))  # type: ignore[misc]
        if handle is None:
            problem = device["problems"]["uuid"]
            device["lost"] = True
            device["problems"] = dict.fromkeys(_ALL_FIELDS, problem)
            problems["processes"] = problem
            continue
        _read_device(pynvml, asker, handle, device)
        reading["entries"] += _read_processes(pynvml, asker, handle, device, problems)
    if reading["devices"] and all(device["lost"] for device in reading["devices"]):
        reading["failure"] = problems["processes"]
    return reading


def _read_device(pynvml: t.Any, asker: _Asker, handle: t.Any, device: Device) -> None:
    problems = device["problems"]
    for name, function in (("uuid", "nvmlDeviceGetUUID"), ("name", "nvmlDeviceGetName")):
        value = asker.ask(problems, name, lambda function=function: getattr(pynvml, function)(handle))  # type: ignore[misc]
        if value is not None:
            device[name] = _text(value)  # type: ignore[literal-required]
    capability = asker.ask(problems, "compute_capability", lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    if capability is not None:
        device["compute_capability"] = f"{capability[0]}.{capability[1]}"
    mode = asker.ask(problems, "addressing_mode", lambda: pynvml.nvmlDeviceGetAddressingMode(handle))
    if mode is not None:
        device["addressing_mode"] = ADDRESSING_MODES.get(int(mode))
    pci = asker.ask({}, "pci_device", lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    if pci is not None:
        device["pci_device"] = pci_device_id(pci.pciDeviceId)
    mig = asker.ask(problems, "mig", lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mig is not None:
        device["mig"] = bool(mig[0])
    device["numa_node"] = asker.ask({}, "numa_node", lambda: pynvml.nvmlDeviceGetNumaNodeId(handle))
    _read_memory(pynvml, asker, handle, device)
    if _doubtful(device) and pci is not None:
        device["integrated"] = is_integrated(_text(pci.busId))


def _read_memory(pynvml: t.Any, asker: _Asker, handle: t.Any, device: Device) -> None:
    problems = device["problems"]
    # Version 2 does not count what the driver keeps for itself as used, and so agrees with nvidia-smi.
    attempt: dict[str, Problem] = {}
    memory = asker.ask(attempt, "memory_total", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if memory is None and attempt["memory_total"]["code"] != NOT_SUPPORTED:
        memory = asker.ask(attempt, "memory_total", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is not None and int(memory.total) == 0:
        # Some drivers of GPUs without memory of their own answer success, and nothing.
        attempt["memory_total"] = Problem(code=NOT_SUPPORTED, text="the driver answers 0 bytes")
        memory = None
    if memory is None:
        for name in ("memory_total", "memory_used", "memory_free"):
            problems[name] = attempt["memory_total"]
        return
    device["memory_total"], device["memory_used"], device["memory_free"] = int(memory.total), int(memory.used), int(memory.free)


def _doubtful(device: Device) -> bool:
    """Whether CUDA has to be asked: the driver reports no memory, and no name, id or addressing mode says why."""
    problem = device["problems"].get("memory_total")
    return (
        problem is not None
        and problem["code"] == NOT_SUPPORTED
        and not device["mig"]
        and device["addressing_mode"] != "ATS"
        and device["pci_device"] not in UNIFIED_PCI_DEVICES
        and not UNIFIED_NAMES.search(device["name"] or "")
    )


def is_integrated(bus_id: str) -> bool | None:
    """CU_DEVICE_ATTRIBUTE_INTEGRATED of the GPU at a PCI address, without creating a context; None when CUDA does not say."""
    import ctypes  # rarely needed

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        number, value = ctypes.c_int(), ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetByPCIBusId(ctypes.byref(number), bus_id.encode("ascii", "replace")):
            return None
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), _INTEGRATED, number):
            return None
    except (OSError, AttributeError):
        return None
    return bool(value.value)


def _read_processes(pynvml: t.Any, asker: _Asker, parent: t.Any, device: Device, problems: dict[str, Problem]) -> list[Entry]:
    handles = [parent]
    if device["mig"]:
        most = asker.ask({}, "mig", lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)) or 0
        for number in range(most):
            instance = asker.ask({}, "mig", lambda number=number: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, number))  # type: ignore[misc]
            if instance is not None:
                handles.append(instance)
    entries: list[Entry] = []
    names: dict[int, str | None] = {}
    answered: set[str] = set()
    lists = (
        ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
        ("compute", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    )
    attempts: dict[str, Problem] = {}
    for handle in handles:
        for kind, function in lists:
            found = asker.ask(attempts, kind, lambda function=function, handle=handle: getattr(pynvml, function)(handle))  # type: ignore[misc]
            if found is None:
                continue
            answered.add(kind)
            for process in found:
                pid = int(process.pid)
                if pid not in names:
                    name = asker.ask({}, "name", lambda pid=pid: pynvml.nvmlSystemGetProcessName(pid))  # type: ignore[misc]
                    names[pid] = _text(name) if name else None
                entries.append(
                    Entry(
                        gpu=device["index"],
                        pid=pid,
                        kind=kind,
                        memory=None if process.usedGpuMemory is None else int(process.usedGpuMemory),
                        name=names[pid],
                        instance=_instance(process),
                    )
                )
    for kind, problem in attempts.items():
        # Where one of several lists of a kind answers (a MIG instance, no MPS), the kind is known.
        if kind not in answered:
            problems[f"processes.{kind}"] = problem
    return entries


def _instance(process: t.Any) -> int | None:
    instance = getattr(process, "gpuInstanceId", None)
    return None if instance is None or int(instance) == 0xFFFFFFFF else int(instance)
