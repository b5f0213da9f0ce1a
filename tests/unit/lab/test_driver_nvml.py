# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real pynvml on the simulated libnvidia-ml.so.1: the answers and codes of a GB10."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gb10_driver import MIB, Driver, wait_until

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, NOT_LOADED, LIBRARY_NOT_FOUND, LOST, MISMATCH = 3, 4, 6, 9, 12, 15, 18


def error_of(answer: Any) -> int:
    assert isinstance(answer, dict), answer
    return int(answer["error"])


def test_identity(driver: Driver) -> None:
    answers = driver.nvml(
        "[p.nvmlSystemGetDriverVersion(), p.nvmlSystemGetNVMLVersion(), p.nvmlSystemGetCudaDriverVersion(), p.nvmlSystemGetCudaDriverVersion_v2(),"
        " len(handles), p.nvmlDeviceGetName(gpu), p.nvmlDeviceGetCudaComputeCapability(gpu), p.nvmlDeviceGetArchitecture(gpu) == p.NVML_DEVICE_ARCH_BLACKWELL,"
        " p.nvmlDeviceGetBrand(gpu) == p.NVML_BRAND_NVIDIA_RTX, p.nvmlDeviceGetAddressingMode(gpu) == p.NVML_DEVICE_ADDRESSING_MODE_ATS,"
        " p.nvmlDeviceGetPersistenceMode(gpu), p.nvmlDeviceGetC2cModeInfoV(gpu).isC2cEnabled, p.nvmlDeviceGetVbiosVersion(gpu)]"
    )
    assert answers == ["580.142", "13.580.142", 13000, 13000, 1, "NVIDIA GB10", [12, 1], True, True, True, 1, 1, "9A.0B.25.00.00"]


def test_pci(driver: Driver) -> None:
    pci = driver.nvml("(lambda i: [i.busId, i.busIdLegacy, i.domain, i.bus, i.device, i.pciDeviceId, i.pciSubSystemId])(p.nvmlDeviceGetPciInfo(gpu))")
    assert pci == ["0000000F:01:00.0", "000F:01:00.0", 0xF, 1, 0, 0x2E1210DE, 0x10DE]


def test_handles_by_uuid_and_bus_id(driver: Driver) -> None:
    uuid = driver.nvml("p.nvmlDeviceGetUUID(gpu)")
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
    assert driver.nvml("p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByUUID(p.nvmlDeviceGetUUID(gpu).encode()))") == 0
    assert driver.nvml("p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByPciBusId(b'0000000f:01:00.0'))") == 0
    assert error_of(driver.nvml("p.nvmlDeviceGetHandleByUUID(b'GPU-1')")) == NOT_FOUND
    assert error_of(driver.nvml("p.nvmlDeviceGetHandleByIndex(1)")) == 2


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetMemoryInfo(gpu)",
        "nvmlDeviceGetMemoryInfo(gpu, version=p.nvmlMemory_v2)",
        "nvmlDeviceGetBAR1MemoryInfo(gpu)",
        "nvmlDeviceGetMigMode(gpu)",
        "nvmlDeviceGetNumaNodeId(gpu)",
        "nvmlDeviceGetFanSpeed(gpu)",
        "nvmlDeviceGetEnforcedPowerLimit(gpu)",
        "nvmlDeviceGetEccMode(gpu)",
        "nvmlDeviceGetSerial(gpu)",
    ],
)
def test_not_supported(driver: Driver, call: str) -> None:
    assert driver.nvml(f"p.{call}") == {"error": NOT_SUPPORTED, "text": "Not Supported"}


def test_readings(driver: Driver) -> None:
    driver.set(utilization=96, temperature=71, power=83)
    assert driver.nvml(
        "[p.nvmlDeviceGetUtilizationRates(gpu).gpu, p.nvmlDeviceGetUtilizationRates(gpu).memory, p.nvmlDeviceGetPowerUsage(gpu),"
        " p.nvmlDeviceGetTemperature(gpu, p.NVML_TEMPERATURE_GPU), p.nvmlDeviceGetPerformanceState(gpu), p.nvmlDeviceGetMaxClockInfo(gpu, 1)]"
    ) == [96, 0, 83000, 71, 0, 3003]
    assert error_of(driver.nvml("p.nvmlDeviceGetClockInfo(gpu, p.NVML_CLOCK_MEM)")) == NOT_SUPPORTED


def test_process_list_protocol(driver: Driver) -> None:
    """Called with no room, the library says how much it needs; with too little as well."""
    raw = (
        "(lambda c, n: [(n.__setattr__('value', room), c.nvmlDeviceGetComputeRunningProcesses_v3(gpu, c_byref(n), buffer), n.value)[1:] "
        "for room, buffer in ((0, None), (1, (p.c_nvmlProcessInfo_v2_t * 1)()), (9, (p.c_nvmlProcessInfo_v2_t * 9)()))])"
        "(p.nvmlLib, p.c_uint())"
    ).replace("c_byref", "p.byref")
    assert driver.nvml(raw) == [[0, 0], [0, 0], [0, 0]]
    clients = [driver.client(), driver.client()]
    for client in clients:
        client.hold(4 * MIB)
    assert driver.nvml(raw) == [[7, 2], [7, 2], [0, 2]]
    listed = driver.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)")
    assert {entry["pid"]: entry["usedGpuMemory"] for entry in listed} == {client.pid: 12 * MIB for client in clients}
    assert {entry["gpuInstanceId"] for entry in listed} == {0xFFFFFFFF}
    assert driver.nvml("p.nvmlDeviceGetGraphicsRunningProcesses(gpu)") == []


def test_process_in_both_lists(driver: Driver) -> None:
    client = driver.client()
    client.hold(4 * MIB)
    driver.ctl("register", str(client.pid), "--kind", "G", "--bytes", "6MiB")
    both = driver.nvml("[f(gpu)[0].usedGpuMemory for f in (p.nvmlDeviceGetComputeRunningProcesses, p.nvmlDeviceGetGraphicsRunningProcesses)]")
    assert both == [18 * MIB, 18 * MIB]


def test_process_names_are_argv0(driver: Driver) -> None:
    client = driver.client(argv0="VLLM::Worker_TP1")
    client.hold(2 * MIB)
    assert driver.nvml(f"p.nvmlSystemGetProcessName({client.pid})") == "VLLM::Worker_TP1"
    assert error_of(driver.nvml("p.nvmlSystemGetProcessName(2**22 + 1)")) == NOT_FOUND


def test_unnamed_and_unsized(driver: Driver) -> None:
    first, second = driver.client(), driver.client()
    for client in (first, second):
        client.hold(2 * MIB)
    driver.set(unnamed=first.pid, unsized=f"{first.pid},1")
    assert error_of(driver.nvml(f"p.nvmlSystemGetProcessName({first.pid})")) == NOT_FOUND
    assert driver.nvml(f"p.nvmlSystemGetProcessName({second.pid})") == sys.executable
    sizes = {entry["pid"]: entry["usedGpuMemory"] for entry in driver.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)")}
    assert sizes == {first.pid: None, second.pid: 10 * MIB}
    driver.set(unnamed="all", unsized="all")
    assert error_of(driver.nvml(f"p.nvmlSystemGetProcessName({second.pid})")) == NOT_FOUND
    assert {entry["usedGpuMemory"] for entry in driver.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)")} == {None}


def test_no_gpu_and_two(driver: Driver) -> None:
    driver.set(gpus=0)
    assert driver.nvml("p.nvmlDeviceGetCount()") == 0
    assert "CUDA error: no CUDA-capable device is detected" in driver.client().do("cuda.create_context()")
    driver.set(gpus=2)
    assert driver.nvml("[p.nvmlDeviceGetName(h) for h in handles]") == ["NVIDIA GB10", "NVIDIA GB10"]
    assert len(set(driver.nvml("[p.nvmlDeviceGetUUID(h) for h in handles]"))) == 2
    client = driver.client()
    assert client.do("cuda.create_context(1)") == str(8 * MIB)
    assert driver.nvml("[len(p.nvmlDeviceGetComputeRunningProcesses(h)) for h in handles]") == [0, 1]
    driver.set(second_gpu="discrete")
    assert driver.nvml("[p.nvmlDeviceGetName(h) for h in handles]") == ["NVIDIA GB10", "NVIDIA RTX PRO 4000 Blackwell"]
    memory = driver.nvml("p.nvmlDeviceGetMemoryInfo(handles[1])")
    assert memory == {"total": 24467 * MIB, "used": 308 * MIB, "free": 24159 * MIB}
    assert error_of(driver.nvml("p.nvmlDeviceGetMemoryInfo(handles[0])")) == NOT_SUPPORTED


def test_memory_info_variants(driver: Driver) -> None:
    driver.set(memory_info="zero")
    assert driver.nvml("p.nvmlDeviceGetMemoryInfo(gpu)") == {"total": 0, "free": 0, "used": 0}
    driver.set(memory_info="meminfo")
    memory = driver.nvml("p.nvmlDeviceGetMemoryInfo(gpu, version=p.nvmlMemory_v2)")
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert memory["total"] == total
    assert memory["used"] + memory["free"] == total
    assert 0 < memory["used"] < total


@pytest.mark.parametrize(
    ("knobs", "code"),
    [
        ({"mismatch": "on"}, MISMATCH),
        ({"no_permission": "all"}, NO_PERMISSION),
        ({"driver": "unloaded"}, NOT_LOADED),
        ({"lost": "on"}, LOST),
        ({"library": "missing"}, LIBRARY_NOT_FOUND),
    ],
)
def test_what_init_says_when_something_is_wrong(driver: Driver, knobs: dict[str, str], code: int) -> None:
    assert driver.nvml("len(handles)") == 1
    driver.set(**knobs)
    assert error_of(driver.nvml("len(handles)")) == code
    driver.ctl("reset")
    assert driver.nvml("len(handles)") == 1


def test_no_driver_at_all(driver: Driver) -> None:
    (driver.directory / "driver.sock").rename(driver.directory / "gone")
    assert error_of(driver.nvml("1")) == NOT_LOADED
    assert "No CUDA GPUs are available" in driver.client().do("cuda.create_context()")
    assert driver.client().do("cuda.is_available()") == "False"


def test_calls_before_init(driver: Driver) -> None:
    code = "import ctypes; l = ctypes.CDLL('libnvidia-ml.so.1'); n = ctypes.c_uint(); print(l.nvmlDeviceGetCount_v2(ctypes.byref(n)), l.nvmlShutdown())"
    done = subprocess.run([sys.executable, "-c", code], env=driver.environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


@pytest.mark.parametrize("how", ["all", "processes"])
def test_hang_blocks_and_ignores_all_but_kill(driver: Driver, how: str) -> None:
    driver.set(hang=how)
    program = "import sys, pynvml as p\np.nvmlInit()\nprint('initialised', flush=True)\np.nvmlDeviceGetComputeRunningProcesses(p.nvmlDeviceGetHandleByIndex(0))"
    with subprocess.Popen([sys.executable, "-c", program], env=driver.environment, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        if how == "processes":
            assert victim.stdout.readline() == "initialised\n"
        wait_until(lambda: driver.status()["hanging"] == 1, "it is in the driver")
        victim.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            victim.wait(0.3)
        victim.kill()
        assert victim.wait(10) == -signal.SIGKILL
    assert driver.ctl("knobs").returncode == 0, "the knobs never hang"


def test_a_hang_can_pass(driver: Driver) -> None:
    driver.set(hang="all")
    with subprocess.Popen([driver.smi, "-L"], env=driver.environment, stdout=subprocess.PIPE, text=True) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.3)
        driver.ctl("reset")
        assert waiting.stdout is not None
        assert waiting.stdout.read().startswith("GPU 0: NVIDIA GB10 (UUID: GPU-")
        assert waiting.wait(10) == 0


def test_proc_driver(driver: Driver) -> None:
    version = driver.directory / "nvidia" / "version"
    params = driver.directory / "nvidia" / "params"
    assert "Kernel Module for aarch64  580.142  Release Build" in version.read_text()
    assert "EnableSystemMemoryPools" not in params.read_text()
    driver.set(version="610.57.04")
    assert "  610.57.04  " in version.read_text()
    assert "EnableSystemMemoryPools: 529\n" in params.read_text()
    driver.set(driver="unloaded")
    assert not version.exists()


def test_runs_on_older_c_libraries(driver_binaries: Path) -> None:
    """What is built on a new distribution must start on the hosts (2.36), and the library in older images too."""
    limits = {"gb10-simd": (2, 34), "nvidia-smi": (2, 34), "libnvidia-ml.so.1": (2, 17)}
    for name, limit in limits.items():
        symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", driver_binaries / name], capture_output=True, text=True, check=True).stdout
        needed = {tuple(int(part) for part in version.split(".")) for version in re.findall(r"@GLIBC_([\d.]+)", symbols)}
        assert needed, name
        assert max(needed)[:2] <= limit, name


def test_everything_that_pynvml_could_ask_of_memory_exists(driver_binaries: Path) -> None:
    symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", driver_binaries / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r"FUNC\s+GLOBAL DEFAULT\s+\d+ (\w+)$", symbols, re.MULTILINE))
    assert {name for name in exported if not name.startswith("nvml")} == set(), "nothing of ours leaks into the process that loads it"
    assert {"nvmlInitWithFlags", "nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetMemoryInfo_v2"} <= exported


@pytest.mark.skipif(not Path("/sys/fs/cgroup/freezer/cgroup.procs").exists(), reason="a process that no signal ends needs the freezer of cgroup v1")
def test_unkillable_process(driver: Driver) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as victim:
        driver.ctl("freeze", str(victim.pid))
        victim.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            victim.wait(0.5)
        driver.ctl("thaw")
        assert victim.wait(10) == -signal.SIGKILL
