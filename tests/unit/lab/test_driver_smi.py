# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated nvidia-smi: texts, columns and exit codes of a GB10's."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gb10_driver import MIB, Driver

# As five driver builds on a real GB10 print it.
GB10_TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.142                Driver Version: 580.142        CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   42C    P8              4W /  N/A  | Not Supported          |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""


def test_table(driver: Driver) -> None:
    done = driver.nvidia_smi()
    date, _newline, table = done.stdout.partition("\n")
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}", date)
    assert table == GB10_TABLE
    assert done.returncode == 0


def test_table_of_610(driver: Driver) -> None:
    driver.set(version="610.43.02", cuda="13.3", persistence="off", utilization=5, power=11)
    lines = driver.nvidia_smi().stdout.splitlines()
    assert lines[2] == "| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |"
    assert lines[8] == "|   0  NVIDIA GB10                    Off |   0000000F:01:00.0 Off |                  N/A |"
    assert lines[9] == "| N/A   42C    P0             11W /  N/A  | Not Supported          |      5%      Default |"


def test_table_of_two(driver: Driver) -> None:
    driver.set(gpus=2, second_gpu="discrete")
    lines = driver.nvidia_smi().stdout.splitlines()
    assert lines[12] == "|   1  NVIDIA RTX PRO 4000 Blac...    On  |   00000000:02:00.0 Off |                  N/A |"
    assert lines[13] == "| N/A   42C    P8              4W /  N/A  |     300MiB /  24467MiB |      0%      Default |"
    assert {len(line) for line in lines[1:16] if line} == {91}


def test_processes_in_table_csv_xml_and_query_agree(driver: Driver) -> None:
    engine = driver.client(argv0="/srv/llama.cpp/releases/llama-b9536/build/bin/llama-server")
    engine.hold(24 * MIB)
    desktop = driver.client(argv0="/usr/lib/xorg/Xorg")
    driver.ctl("register", str(desktop.pid), "--kind", "G", "--bytes", "18MiB")
    both = driver.client(argv0="both & <one>")
    both.hold(2 * MIB)
    driver.ctl("register", str(both.pid), "--kind", "G", "--bytes", "2MiB")

    table = driver.nvidia_smi().stdout
    assert f"|    0   N/A  N/A{engine.pid:16}      C   ...-b9536/build/bin/llama-server         32MiB |" in table
    assert f"|    0   N/A  N/A{desktop.pid:16}      G   /usr/lib/xorg/Xorg                       18MiB |" in table
    assert f"|    0   N/A  N/A{both.pid:16}    C+G   both & <one>                             12MiB |" in table

    csv = driver.nvidia_smi("--query-compute-apps=pid,process_name,used_memory", "--format=csv").stdout.splitlines()
    assert csv[0] == "pid, process_name, used_gpu_memory [MiB]"
    assert set(csv[1:]) == {f"{engine.pid}, /srv/llama.cpp/releases/llama-b9536/build/bin/llama-server, 32 MiB", f"{both.pid}, both & <one>, 12 MiB"}

    tree = ElementTree.fromstring(driver.nvidia_smi("-q", "-x").stdout.split("\n", 2)[2])
    listed = {
        int(entry.findtext("pid", "")): (entry.findtext("type"), entry.findtext("process_name"), entry.findtext("used_memory"))
        for entry in tree.iterfind("gpu/processes/process_info")
    }
    assert listed == {
        engine.pid: ("C", "/srv/llama.cpp/releases/llama-b9536/build/bin/llama-server", "32 MiB"),
        desktop.pid: ("G", "/usr/lib/xorg/Xorg", "18 MiB"),
        both.pid: ("C+G", "both & <one>", "12 MiB"),
    }
    query = driver.nvidia_smi("-q").stdout
    assert re.search(rf"Process ID +: {both.pid}\n +Type +: C\+G\n +Name +: both & <one>\n +Used GPU Memory +: 12 MiB\n", query)


def test_unnamed_and_unsized(driver: Driver) -> None:
    client = driver.client()
    client.hold(2 * MIB)
    driver.set(unnamed="all", unsized="all")
    assert re.search(rf"{client.pid}      C   \[Not Found\] +N/A \|", driver.nvidia_smi().stdout)
    csv = driver.nvidia_smi("--query-compute-apps=pid,name,used_memory", "--format=csv,noheader,nounits")
    assert csv.stdout == f"{client.pid}, [Not Found], [N/A]\n"
    assert "<used_memory>N/A</used_memory>" in driver.nvidia_smi("-q", "-x").stdout


def test_query_gpu(driver: Driver) -> None:
    fields = "index,gpu_name,pci.bus_id,driver_version,compute_cap,memory.total,memory.used,memory.free,utilization.gpu,power.draw,addressing_mode"
    done = driver.nvidia_smi(f"--query-gpu={fields}", "--format=csv")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        (
            "index, name, pci.bus_id, driver_version, compute_cap, memory.total [MiB], memory.used [MiB], memory.free [MiB], "
            "utilization.gpu [%], power.draw [W], addressing_mode"
        ),
        "0, NVIDIA GB10, 0000000F:01:00.0, 580.142, 12.1, [N/A], [N/A], [N/A], 0 %, 4.00 W, ATS",
    ]
    bare = driver.nvidia_smi("--query-gpu=memory.total,utilization.gpu,clocks.max.sm", "--format=csv,noheader,nounits")
    assert bare.stdout == "[N/A], 0, 3003\n"
    header_only = driver.nvidia_smi("--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv")
    assert (header_only.stdout, header_only.returncode) == ("pid, used_gpu_memory [MiB], gpu_uuid\n", 0)


def test_list_select_and_version(driver: Driver) -> None:
    driver.set(gpus=2)
    lines = driver.nvidia_smi("-L").stdout.splitlines()
    assert [line.split(" (")[0] for line in lines] == ["GPU 0: NVIDIA GB10", "GPU 1: NVIDIA GB10"]
    uuid = lines[1].split("UUID: ")[1].rstrip(")")
    for chosen in ("1", uuid, "0000000F:02:00.0"):
        assert driver.nvidia_smi("-i", chosen, "--query-gpu=index", "--format=csv,noheader").stdout == "1\n"
    assert driver.nvidia_smi("-i", "7").returncode == 6
    assert driver.nvidia_smi("--version").stdout.splitlines() == [
        "NVIDIA-SMI version  : 580.142",
        "NVML version        : 580.142",
        "DRIVER version      : 580.142",
        "CUDA Version        : 13.0",
    ]
    driver.set(version="610.43.02", cuda="13.3")
    assert driver.nvidia_smi("--version").stdout.splitlines()[1:5] == [
        "NVML version        : 610.43",
        'DRIVER version      : Deprecated, see "KMD version" instead',
        'CUDA version        : Deprecated, see "CUDA UMD version" instead',
        "KMD version         : 610.43.02",
    ]


def test_full_query(driver: Driver) -> None:
    text = driver.nvidia_smi("-q").stdout
    for line in (
        "Driver Version                                         : 580.142",
        "Attached GPUs                                          : 1",
        "GPU 0000000F:01:00.0",
        "    Product Name                                       : NVIDIA GB10",
        "    Addressing Mode                                    : ATS",
        "        Current                                        : N/A",
        "    GPU C2C Mode                                       : Enabled",
        "        Device Id                                      : 0x2E1210DE",
        "    Processes                                          : None",
    ):
        assert f"\n{line}\n" in text
    assert re.search(r"FB Memory Usage\n +Total +: N/A\n +Reserved +: N/A\n +Used +: N/A\n +Free +: N/A\n", text)
    driver.set(version="610.57.04", cuda="13.3")
    text = driver.nvidia_smi("-q").stdout
    assert ": 610.57.04 [Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]\n" in text
    assert "\nKMD Version                                            : 610.57.04\n" in text
    tree = ElementTree.fromstring(driver.nvidia_smi("-q", "-x").stdout.split("\n", 2)[2])
    assert tree.findtext("kmd_version") == "610.57.04"
    assert tree.findtext("gpu/fb_memory_usage/total") == "N/A"


@pytest.mark.parametrize(
    ("knobs", "code", "text"),
    [
        ({"gpus": "0"}, 6, "No devices were found\n"),
        ({"mismatch": "on"}, 18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n"),
        ({"no_permission": "all"}, 4, "Failed to initialize NVML: Insufficient Permissions\n"),
        ({"driver": "unloaded"}, 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ({"lost": "on"}, 15, "Unable to determine the device handle for GPU0: GPU is lost.  Reboot the system to recover this GPU\n"),
        ({"library": "missing"}, 12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."),
    ],
)
def test_what_goes_wrong(driver: Driver, knobs: dict[str, str], code: int, text: str) -> None:
    driver.set(**knobs)
    for arguments in ((), ("--query-gpu=name", "--format=csv,noheader"), ("-q", "-x")):
        done = driver.nvidia_smi(*arguments)
        assert (done.returncode, done.stdout[: len(text)]) == (code, text)
    driver.ctl("reset")
    assert driver.nvidia_smi().returncode == 0


def test_program_missing(driver: Driver) -> None:
    driver.set(nvidia_smi="missing")
    assert not driver.smi.exists()
    driver.process.terminate()
    assert driver.process.wait(10) == 0
    assert driver.smi.exists(), "put back when the driver stops"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--query-gpu=nosuch", "--format=csv"), 'Field "nosuch" is not a valid field to query.'),
        (("--query-gpu=name",), "Invalid combination of input arguments."),
        (("--format=csv",), "Invalid combination of input arguments."),
        (("--nosuch",), "Invalid combination of input arguments."),
        (("-L", "-q"), "Invalid combination of input arguments."),
    ],
)
def test_wrong_arguments(driver: Driver, arguments: tuple[str, ...], text: str) -> None:
    done = driver.nvidia_smi(*arguments)
    assert (done.returncode, done.stdout[: len(text)]) == (2, text)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
def test_ordinary_users_see_all_and_turn_no_knobs(driver: Driver, driver_binaries: Path) -> None:
    client = driver.client()
    client.hold(2 * MIB)
    for path in (driver.directory, driver_binaries, *driver_binaries.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(0o755)

    def as_nobody(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(word) for word in command], env=driver.environment, capture_output=True, text=True, check=False, user=65534, group=65534)

    query = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert as_nobody(driver.smi, *query).stdout == f"{client.pid}, 10 MiB\n"
    reset = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(b'reset\\n'); print(s.recv(99))"
    refused = as_nobody("/usr/bin/python3", "-c", reset, driver.directory / "driver.sock")
    assert "only%20root%20turns%20the%20knobs" in refused.stdout
    driver.set(no_permission="users")
    assert as_nobody(driver.smi, *query).returncode == 4
    assert driver.nvidia_smi().returncode == 0
