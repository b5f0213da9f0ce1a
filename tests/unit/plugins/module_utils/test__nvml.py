# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types
import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _nvml


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Library:
    """A pynvml whose answers are these; one that is an int is raised as that error, one that is missing is missing in this pynvml."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, **answers: t.Any) -> None:
        self.down = False
        self._answers = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "580.142",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "gpu",
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetName": b"NVIDIA GB10",
            "nvmlDeviceGetCudaComputeCapability": (12, 1),
            "nvmlDeviceGetAddressingMode": 2,
            "nvmlDeviceGetPciInfo": types.SimpleNamespace(pciDeviceId=0x2E1210DE, busId="0000000F:01:00.0"),
            "nvmlDeviceGetMigMode": NVMLError(3),
            "nvmlDeviceGetNumaNodeId": NVMLError(3),
            "nvmlDeviceGetMemoryInfo": NVMLError(3),
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": [],
            "nvmlSystemGetProcessName": "/usr/bin/python3",
            **answers,
        }

    def nvmlShutdown(self) -> None:
        self.down = True

    def __getattr__(self, name: str) -> t.Any:
        if name not in self._answers or self._answers[name] is MISSING:
            raise AttributeError(name)

        def call(*arguments: t.Any, **named: t.Any) -> t.Any:
            answer = self._answers[name]
            if callable(answer):
                answer = answer(*arguments, **named)
            if isinstance(answer, NVMLError):
                raise answer
            return answer

        return call


MISSING = object()


def running(pid: int, memory: int | None, instance: int = 0xFFFFFFFF) -> types.SimpleNamespace:
    return types.SimpleNamespace(pid=pid, usedGpuMemory=memory, gpuInstanceId=instance)


def test_a_gb10() -> None:
    library = Library(
        nvmlDeviceGetComputeRunningProcesses=[running(7, 100), running(8, None)],
        nvmlDeviceGetGraphicsRunningProcesses=[running(7, 100)],
    )
    reading = _nvml.read(library)
    (device,) = reading["devices"]
    assert device["name"] == "NVIDIA GB10"
    assert device["compute_capability"] == "12.1"
    assert device["addressing_mode"] == "ATS"
    assert device["pci_device"] == "2e12"
    assert device["mig"] is None
    assert device["memory_total"] is None
    assert device["problems"]["memory_total"]["code"] == 3
    assert [(entry["pid"], entry["kind"], entry["memory"], entry["instance"]) for entry in reading["entries"]] == [
        (7, "compute", 100, None),
        (8, "compute", None, None),
        (7, "graphics", 100, None),
    ]
    assert (reading["driver_version"], reading["cuda_version"], reading["failure"], reading["problems"]) == ("580.142", "13.0", None, {})
    assert library.down


@pytest.mark.parametrize("memory", [types.SimpleNamespace(total=0, used=0, free=0), NVMLError(3)])
def test_no_memory_of_its_own_is_said_in_two_ways(memory: t.Any) -> None:
    device = _nvml.read(Library(nvmlDeviceGetMemoryInfo=memory))["devices"][0]
    assert (device["memory_total"], device["memory_used"], device["memory_free"]) == (None, None, None)
    assert device["problems"]["memory_free"]["code"] == 3


def test_another_error_than_not_supported_is_kept_apart() -> None:
    device = _nvml.read(Library(nvmlDeviceGetMemoryInfo=NVMLError(4)))["devices"][0]
    assert device["problems"]["memory_total"]["code"] == 4


def test_an_old_pynvml_without_the_second_version_of_the_call() -> None:
    def info(handle: str, version: int | None = None) -> t.Any:
        if version is not None:
            return NVMLError(13)
        return types.SimpleNamespace(total=100, used=60, free=40)

    device = _nvml.read(Library(nvmlDeviceGetMemoryInfo=info))["devices"][0]
    assert (device["memory_total"], device["memory_used"], device["memory_free"]) == (100, 60, 40)


@pytest.mark.parametrize("code", [4, 9, 12, 18])
def test_a_library_that_does_not_start(code: int) -> None:
    reading = _nvml.read(Library(nvmlInit=NVMLError(code)))
    assert reading["failure"] is not None
    assert reading["failure"]["code"] == code
    assert reading["devices"] == []


def test_a_missing_function_is_that_fields_problem_only() -> None:
    reading = _nvml.read(Library(nvmlDeviceGetAddressingMode=MISSING, nvmlDeviceGetMPSComputeRunningProcesses_v3=MISSING))
    (device,) = reading["devices"]
    assert device["addressing_mode"] is None
    assert "too old" in device["problems"]["addressing_mode"]["text"]
    assert reading["problems"] == {}


def test_a_list_that_may_not_be_read_is_a_problem_of_the_processes() -> None:
    reading = _nvml.read(Library(nvmlDeviceGetGraphicsRunningProcesses=NVMLError(4)))
    assert reading["problems"]["processes.graphics"]["code"] == 4
    assert "processes.compute" not in reading["problems"]


def test_a_lost_gpu_beside_a_good_one() -> None:
    library = Library(nvmlDeviceGetCount=2, nvmlDeviceGetHandleByIndex=lambda index: NVMLError(15) if index == 0 else "gpu")
    reading = _nvml.read(library)
    assert [device["lost"] for device in reading["devices"]] == [True, False]
    assert reading["devices"][0]["problems"]["name"]["code"] == 15
    assert reading["failure"] is None
    assert reading["problems"]["processes"]["code"] == 15


def test_when_all_gpus_are_lost_nothing_was_read() -> None:
    reading = _nvml.read(Library(nvmlDeviceGetHandleByIndex=NVMLError(15)))
    assert reading["failure"] is not None
    assert reading["failure"]["code"] == 15


def test_instances_of_a_divided_gpu() -> None:
    def compute(handle: str) -> t.Any:
        return {"gpu": NVMLError(4), "one": [running(7, 100, 1)], "two": [running(8, 50, 2)]}[handle]

    library = Library(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=3,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda parent, number: ["one", "two", NVMLError(6)][number],
        nvmlDeviceGetComputeRunningProcesses=compute,
    )
    reading = _nvml.read(library)
    assert reading["devices"][0]["mig"] is True
    assert [(entry["pid"], entry["instance"]) for entry in reading["entries"]] == [(7, 1), (8, 2)]
    assert "processes.compute" not in reading["problems"]


def test_a_name_the_driver_does_not_know() -> None:
    library = Library(nvmlDeviceGetComputeRunningProcesses=[running(7, 1)], nvmlSystemGetProcessName=NVMLError(6))
    assert _nvml.read(library)["entries"][0]["name"] is None


@pytest.mark.parametrize(("name", "mode", "asked"), [("NVIDIA GB10", 2, False), ("NVIDIA Odd", 2, False), ("NVIDIA Odd", 0, True)])
def test_cuda_is_asked_only_in_doubt(name: str, mode: int, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(_nvml, "is_integrated", lambda bus_id: calls.append(bus_id) or True)
    pci = types.SimpleNamespace(pciDeviceId=0x123410DE, busId=b"00000000:01:00.0")
    device = _nvml.read(Library(nvmlDeviceGetName=name, nvmlDeviceGetAddressingMode=mode, nvmlDeviceGetPciInfo=pci))["devices"][0]
    assert (device["integrated"] is True) is asked
    assert bool(calls) is asked


def test_a_machine_without_cuda_does_not_say_integrated() -> None:
    assert _nvml.is_integrated("no such bus") is None


def test_without_pynvml_the_source_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    reading = _nvml.read_pynvml()
    assert reading["absent"] is True
    assert "not installed" in reading["failure"]["text"]
