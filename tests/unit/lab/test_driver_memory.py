# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver holds real memory for its clients, and gives it back when they end."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from gb10_driver import MIB, Driver, running_driver, wait_until


def held(driver: Driver) -> int:
    """Bytes that the driver says it holds for processes."""
    return sum(line["bytes"] for line in driver.status()["allocations"])


def meminfo(path: Path, *, free: int, available: int, total: int = 6144 * MIB) -> Path:
    path.write_text(f"MemTotal: {total // 1024} kB\nMemFree: {free // 1024} kB\nMemAvailable: {available // 1024} kB\n")
    return path


def test_memory_is_the_drivers_not_the_clients(driver_binaries: Path, short_directory: Path) -> None:
    with running_driver(driver_binaries, short_directory, "--backing", "anonymous") as driver:
        before = driver.resident()
        client = driver.client()
        client.hold(192 * MIB)
        assert driver.resident() - before >= 200 * MIB
        statm = Path(f"/proc/{client.pid}/statm").read_text().split()
        assert int(statm[1]) * 4096 < 100 * MIB, "the client must not show it"
        client.end()
        wait_until(lambda: driver.resident() < before + 16 * MIB, "the memory is back")
        assert held(driver) == 0


def test_kernel_backing_shows_in_no_process(driver_binaries: Path, short_directory: Path) -> None:
    with running_driver(driver_binaries, short_directory, "--backing", "kernel") as driver:
        before = driver.resident()
        driver.client().hold(128 * MIB)
        (context, allocation) = sorted(driver.status()["allocations"], key=lambda line: line["bytes"])
        assert (context["bytes"], allocation["bytes"]) == (8 * MIB, 128 * MIB)
        assert {context["backing"], allocation["backing"]} == {"kernel"}
        assert driver.resident() - before < 8 * MIB
        # One descriptor holds one full pipe of 1 MiB: that they are there is that the memory is there.
        pipes = [entry for entry in Path(f"/proc/{driver.process.pid}/fd").iterdir() if str(entry.readlink()).startswith("pipe:")]
        assert len(pipes) == 136


def test_ends_by_any_signal_and_by_itself(driver: Driver) -> None:
    for how in (signal.SIGKILL, signal.SIGTERM):
        client = driver.client()
        client.hold(16 * MIB)
        assert held(driver) == 24 * MIB
        client.process.send_signal(how)
        wait_until(lambda: held(driver) == 0, f"released after {how.name}")
    client = driver.client()
    client.hold(16 * MIB)
    assert client.process.stdin is not None
    client.process.stdin.close()
    wait_until(lambda: held(driver) == 0, "released after a regular end")


def test_free_gives_back_one_allocation_and_destroy_all(driver: Driver) -> None:
    client = driver.client()
    client.hold(32 * MIB)
    client.do(f"kept.append(cuda.alloc({5 * MIB}))")
    assert held(driver) == (8 + 32 + 6) * MIB, "rounded up to 2 MiB"
    assert client.do("kept[0].free()") == "None"
    assert held(driver) == 14 * MIB
    assert "invalid argument" in client.do("kept[0].free()")
    assert client.do("cuda.destroy_context()") == "None"
    assert held(driver) == 0
    assert "invalid device context" in client.do(f"cuda.alloc({MIB})")


def test_a_second_context_of_a_process_is_the_first(driver: Driver) -> None:
    client = driver.client()
    assert client.do("cuda.create_context()") == client.do("cuda.create_context()") == str(8 * MIB)
    assert held(driver) == 8 * MIB


def test_children_own_what_they_ask_for(driver: Driver) -> None:
    client = driver.client(prelude="import os, signal\n")
    client.do("cuda.create_context()")
    client.do("kept.append(__import__('os').fork()) or kept[0] or (cuda.create_context(), __import__('time').sleep(60))")
    wait_until(lambda: held(driver) == 16 * MIB, "two contexts")
    assert len({line["pid"] for line in driver.status()["allocations"]}) == 2
    client.do("__import__('os').kill(kept[0], 9)")
    wait_until(lambda: held(driver) == 8 * MIB, "the child's is back, the parent's is not")


def test_context_fails_by_memfree_though_cache_could_go(driver_binaries: Path, short_directory: Path) -> None:
    pool = meminfo(short_directory / "meminfo", free=15 * MIB, available=4096 * MIB)
    with running_driver(driver_binaries, short_directory, "--meminfo", str(pool)) as driver:
        client = driver.client()
        assert client.do("cuda.mem_get_info()") == str((15 * MIB, 6144 * MIB))
        assert client.do("cuda.mem_available()") == str(4096 * MIB)
        failure = client.do("cuda.create_context()")
        assert "builtins.RuntimeError: CUDA error: out of memory" in failure
        assert "CUDA kernel errors might be asynchronously reported" in failure
        assert held(driver) == 0
        meminfo(pool, free=16 * MIB, available=4096 * MIB)
        assert client.do("cuda.create_context()") == str(8 * MIB)


def test_alloc_fails_cleanly_before_the_pool_is_empty(driver_binaries: Path, short_directory: Path) -> None:
    pool = meminfo(short_directory / "meminfo", free=500 * MIB, available=600 * MIB)
    with running_driver(driver_binaries, short_directory, "--meminfo", str(pool)) as driver:
        client = driver.client()
        client.do("cuda.create_context()")
        failure = client.do(f"cuda.alloc({537 * MIB})")
        assert "CUDA out of memory. Tried to allocate 537.00 MiB. GPU 0 has a total capacity of 6.00 GiB of which 500.00 MiB is free." in failure
        assert held(driver) == 8 * MIB
        assert client.do(f"kept.append(cuda.alloc({100 * MIB}))") == "None"
        assert "CUDA out of memory" in client.do(f"cuda.alloc({2**63})")


def test_errors_are_torchs_where_torch_is_imported(driver_binaries: Path, short_directory: Path) -> None:
    torch = (
        "import sys, types\ntorch = sys.modules['torch'] = types.ModuleType('torch')\n"
        "torch.AcceleratorError = type('AcceleratorError', (RuntimeError,), {'__module__': 'torch'})\n"
        "torch.OutOfMemoryError = type('OutOfMemoryError', (RuntimeError,), {'__module__': 'torch'})\n"
    )
    pool = meminfo(short_directory / "meminfo", free=15 * MIB, available=200 * MIB)
    with running_driver(driver_binaries, short_directory, "--meminfo", str(pool)) as driver:
        client = driver.client(prelude=torch)
        assert "torch.AcceleratorError: CUDA error: out of memory" in client.do("cuda.create_context()")
        meminfo(pool, free=100 * MIB, available=200 * MIB)
        client.do("cuda.create_context()")
        assert "torch.OutOfMemoryError: CUDA out of memory" in client.do(f"cuda.alloc({300 * MIB})")


def test_retain_keeps_memory_after_the_end(driver: Driver) -> None:
    driver.set(retain=2)
    client = driver.client()
    client.hold(16 * MIB)
    client.end()
    ended = time.monotonic()
    assert held(driver) == 24 * MIB
    assert driver.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)") == []
    wait_until(lambda: held(driver) == 0, "released late")
    assert time.monotonic() - ended > 1.5

    driver.set(retain="forever", retain_listed="on")
    client = driver.client()
    client.hold(16 * MIB)
    client.end()
    (listed,) = driver.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)")
    assert (listed["pid"], listed["usedGpuMemory"]) == (client.pid, 24 * MIB)
    assert f"{client.pid}, [Not Found], 24 MiB" in driver.nvidia_smi("--query-compute-apps=pid,name,used_memory", "--format=csv,noheader").stdout
    driver.ctl("reset")
    assert held(driver) == 0


def test_pool_is_held_for_nobody(driver_binaries: Path, short_directory: Path) -> None:
    with running_driver(driver_binaries, short_directory, "--backing", "anonymous") as driver:
        before = driver.resident()
        driver.set(pool="96MiB")
        assert driver.resident() - before >= 96 * MIB
        assert driver.status()["pool"] == 96 * MIB
        assert driver.status()["allocations"] == []
        assert "No running processes found" in driver.nvidia_smi().stdout
        assert "the pool cannot give that much" in driver.ctl("set", "pool=4096GiB", check=False).stderr
        assert re.search(r"^  pool +0 ", driver.ctl("knobs").stdout, re.MULTILINE), "what is held is what the knob says"
        assert driver.resident() < before + 16 * MIB


def test_registered_processes_hold_too(driver: Driver) -> None:
    with subprocess.Popen(["/usr/lib/xorg/Xorg", "60"], executable="/bin/sleep") as desktop:
        driver.ctl("register", str(desktop.pid), "--kind", "G", "--bytes", "18MiB")
        assert held(driver) == 18 * MIB
        assert driver.nvml("p.nvmlDeviceGetComputeRunningProcesses(gpu)") == []
        (listed,) = driver.nvml("p.nvmlDeviceGetGraphicsRunningProcesses(gpu)")
        assert (listed["pid"], listed["usedGpuMemory"]) == (desktop.pid, 18 * MIB)
        desktop.kill()
    wait_until(lambda: held(driver) == 0, "released with the process")
    assert "no such process" in driver.ctl("register", str(desktop.pid), check=False).stderr


def test_only_one_driver_a_directory_and_stale_sockets_do_not_matter(driver: Driver, driver_binaries: Path) -> None:
    second = subprocess.run([driver_binaries / "gb10-simd"], env=driver.environment, capture_output=True, text=True, check=False, timeout=120)
    assert second.returncode == 1
    assert "another gb10-simd is listening there" in second.stderr
    driver.process.kill()
    driver.process.wait()
    assert (driver.directory / "driver.sock").exists()
    driver.process = subprocess.Popen([driver_binaries / "gb10-simd"], env=driver.environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: driver.ctl("knobs", check=False).returncode == 0, "the third one listens")


@pytest.mark.parametrize("knob", ["nosuch=1", "hang=maybe", "pool=12G", "retain=-1", "gpus=3", "unnamed=a", "version=", "temperature=1000000"])
def test_bad_knobs_are_refused_whole(driver: Driver, knob: str) -> None:
    done = driver.ctl("set", "utilization=7", knob, check=False)
    assert done.returncode == 1
    assert knob.partition("=")[0] in done.stderr
    assert "utilization      0" in driver.ctl("knobs").stdout


def test_bad_configuration_does_not_start(driver_binaries: Path, short_directory: Path) -> None:
    (short_directory / "conf").write_text("# fine\n\ncontext_bytes=1MiB\nhang=sometimes\n")
    done = subprocess.run([driver_binaries / "gb10-simd", "--config", short_directory / "conf"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "knob hang takes off|all|processes" in done.stderr
