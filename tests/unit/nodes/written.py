# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes written from documented values: this module makes the node.json of each directory beside it (run it to write them).

None of them was recorded on a machine. MemTotal, names, PCI ids, driver builds, process sizes and error codes are ones that
NVIDIA documents or that owners of the hardware reported; what nobody reported (start times, ids) is invented. The memory
figures of a node add up as the kernel's do, with the memory of CUDA in none of its buckets.
"""

from __future__ import annotations

import json
import typing as t
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ABOUT = "Written from documented values, not recorded on a machine; see written.py."
KIB_IN_GIB = 1024 * 1024
MIB = 1024 * 1024
BOOT_ID = "2b7c1d5e-8f3a-4c6b-9d0e-1a2b3c4d5e6f"
INITIAL_NAMESPACE = "pid:[4026531836]"
GB10_UUID = "GPU-5e1f2f5c-4d7c-4b5e-9a0e-1f2a3b4c5d6e"

#: /proc/meminfo MemTotal in kB: firmware of 2025 and of 2026, and a box with driver 590.48.01.
SPARK_2025 = 125513720
SPARK_2026 = 127600524
SPARK_590 = 123218076
#: 16 GiB of swap file.
SPARK_SWAP = 16777212

GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,uuid,pci.device_id,compute_cap,driver_version,memory.total,memory.used,memory.free,mig.mode.current,addressing_mode,name",
    "--format=csv,noheader,nounits",
)
SHORT_GPU_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,driver_version,memory.total,memory.used,memory.free,name", "--format=csv,noheader,nounits")
APP_QUERY = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")
TABLE = ("nvidia-smi",)
XML = ("nvidia-smi", "-q", "-x")

NOT_SUPPORTED = {"code": 3, "text": "Not Supported"}


def meminfo(
    total: int,
    *,
    cuda: float = 0.0,
    cached: float = 6.0,
    anon: float = 3.0,
    shared: float = 0.05,
    locked: float = 0.02,
    dirty: float = 0.001,
    swap_total: int = SPARK_SWAP,
    swap_used: int = 0,
    huge_pages: int = 0,
    huge_size: int = 2048,
) -> str:
    """/proc/meminfo of a machine of ``total`` kB; the other sizes are GiB. ``cuda`` is in no bucket, as on a GB10; MemFree is the rest."""

    def kib(size: float) -> int:
        return int(size * KIB_IN_GIB)

    buffers, slab, stack, tables, percpu = kib(0.3), kib(1.2), kib(0.02), kib(0.05), kib(0.03)
    huge = huge_pages * huge_size
    free = total - sum((kib(cuda), kib(cached), kib(anon), buffers, slab, stack, tables, percpu, huge))
    files = kib(cached) + buffers - kib(shared) - kib(locked)
    # Half of the page cache counts as inactive; below the watermarks nothing is available.
    available = max(0, free + files + slab // 2 - kib(0.15))
    lines = [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", available),
        ("Buffers", buffers),
        ("Cached", kib(cached)),
        ("SwapCached", 0),
        ("Active", files // 2 + kib(anon)),
        ("Inactive", files - files // 2),
        ("Active(anon)", kib(anon)),
        ("Inactive(anon)", kib(shared)),
        ("Active(file)", files // 2),
        ("Inactive(file)", files - files // 2),
        ("Unevictable", kib(locked)),
        ("Mlocked", kib(locked)),
        ("SwapTotal", swap_total),
        ("SwapFree", swap_total - swap_used),
        ("Dirty", kib(dirty)),
        ("Writeback", 0),
        ("AnonPages", kib(anon)),
        ("Mapped", kib(0.4)),
        ("Shmem", kib(shared)),
        ("KReclaimable", slab // 2),
        ("Slab", slab),
        ("SReclaimable", slab // 2),
        ("SUnreclaim", slab - slab // 2),
        ("KernelStack", stack),
        ("PageTables", tables),
        ("SecPageTables", 0),
        ("CommitLimit", swap_total + total // 2),
        ("Committed_AS", kib(anon)),
        ("Percpu", percpu),
        ("CmaTotal", 131072),
        ("CmaFree", 120000),
    ]
    text = "".join(f"{name + ':':<16}{value:>10} kB\n" for name, value in lines)
    counts = [("HugePages_Total", huge_pages), ("HugePages_Free", huge_pages), ("HugePages_Rsvd", 0), ("HugePages_Surp", 0)]
    text += "".join(f"{name + ':':<16}{value:>10}\n" for name, value in counts)
    return text + f"{'Hugepagesize:':<16}{huge_size:>10} kB\n{'Hugetlb:':<16}{huge:>10} kB\n"


#: Free blocks of orders 0 to 10. A fresh machine has its memory in the largest ones; one after a week of loads has crumbs.
FRESH = (1021, 870, 640, 512, 410, 300, 220, 160, 120, 90, 26000)
WEEK_OLD = (912345, 803211, 512000, 220100, 90210, 20111, 4100, 512, 27, 5, 0)


def buddyinfo(orders: Iterable[int]) -> str:
    """/proc/buddyinfo with one DMA and one normal zone."""
    return f"Node 0, zone      DMA {' '.join(f'{count:>6}' for count in (2, 1, 1, 0, 1, 0, 1, 0, 1, 1, 480))} \nNode 0, zone   Normal " + (
        " ".join(f"{count:>6}" for count in orders) + " \n"
    )


@dataclass
class Proc:
    """A process of a written node. ``memory`` is MiB at the driver; None: the driver does not say; ``listed`` False: it does not know it."""

    pid: int
    argv: tuple[str, ...]
    comm: str
    cgroup: str = "0::/user.slice/user-1000.slice/session-3.scope"
    parent: int = 1
    uid: int = 0
    executable: str | None = None
    state: str = "S"
    start_time: int = 0
    memory: int | None = None
    kinds: str = "C"
    driver_name: str | None = None
    listed: bool = True
    visible: bool = True
    instance: int | None = None

    def stat(self) -> str:
        start = self.start_time or 100000 + self.pid
        return f"{self.pid} ({self.comm}) {self.state} {self.parent} {self.pid} {self.pid} 0 -1 4194560 100 0 0 0 7 3 0 0 20 0 9 0 {start} 1000000 2000\n"


@dataclass
class Node:
    """A machine, built up into what a RecordingWorld would have kept."""

    name: str
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, list[str]] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=lambda: {"0": "root", "1000": "alice", "120": "gdm"})
    commands: list[dict[str, t.Any]] = field(default_factory=list)
    probes: dict[str, dict[str, t.Any]] = field(default_factory=dict)
    responses: list[dict[str, t.Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    uid: int = 0

    def command(self, argv: Iterable[str], stdout: str = "", rc: int = 0, stderr: str = "", timed_out: bool = False) -> None:
        """A command and what it prints."""
        self.commands.append(
            {
                "argv": list(argv),
                "rc": rc,
                "stdout": stdout.split("\n"),
                "stderr": stderr.split("\n"),
                "timed_out": timed_out,
                "missing": False,
            }
        )

    def add(self, *processes: Proc) -> None:
        """Processes, as /proc shows them."""
        for one in processes:
            if not one.visible:
                continue
            base = f"/proc/{one.pid}"
            self.processes[str(one.pid)] = one.comm
            self.files[f"{base}/stat"] = one.stat()
            self.files[f"{base}/status"] = f"Name:\t{one.comm}\nUid:\t{one.uid}\t{one.uid}\t{one.uid}\t{one.uid}\n"
            self.files[f"{base}/cmdline"] = "".join(word + "\0" for word in one.argv)
            self.files[f"{base}/cgroup"] = one.cgroup if one.cgroup.endswith("\n") else one.cgroup + "\n"
            if one.executable:
                self.links[f"{base}/exe"] = one.executable
            else:
                self.failures[f"{base}/exe"] = "permission denied" if self.uid else "no such file"

    def systemctl(self, *blocks: tuple[str, str, str], user: str | None = None) -> None:
        """Units as (name, invocation id, Restart)."""
        scope = ["--user", f"--machine={user}@.host"] if user else []
        text = "\n".join(f"Restart={restart}\nId={unit}\nInvocationID={invocation}\n" for unit, invocation, restart in sorted(blocks))
        argv = ["systemctl", *scope, "show", "--property=Id,InvocationID,Restart", "--", *sorted(unit for unit, _invocation, _restart in blocks)]
        self.command(argv, text)

    def container(self, container_id: str, name: str, policy: str, labels: dict[str, str] | None = None, socket: str = "/run/docker.sock") -> None:
        """A container as Docker describes it."""
        self.responses.append(
            {
                "socket": socket,
                "path": f"/containers/{container_id}/json",
                "status": 200,
                "error": None,
                "body": {
                    "Id": container_id,
                    "Name": "/" + name,
                    "State": {"Status": "running", "Running": True},
                    "HostConfig": {"RestartPolicy": {"Name": policy, "MaximumRetryCount": 0}, "AutoRemove": False},
                    "Config": {"Image": "vllm/vllm-openai", "Labels": labels or {}},
                },
            }
        )

    def document(self) -> dict[str, t.Any]:
        """node.json."""
        return {
            "format": 1,
            "about": ABOUT,
            "uid": self.uid,
            "files": {path: self.files[path].split("\n") for path in sorted(self.files)},
            "links": dict(sorted(self.links.items())),
            "directories": dict(sorted(self.directories.items())),
            "processes": dict(sorted(self.processes.items(), key=lambda one: int(one[0]))),
            "users": self.users,
            "commands": self.commands,
            "probes": self.probes,
            "responses": self.responses,
            "failures": dict(sorted(self.failures.items())),
        }


def reading(devices: list[dict[str, t.Any]], processes: Iterable[Proc] = (), driver: str = "580.142", cuda: str = "13.0") -> dict[str, t.Any]:
    """What the child process says that asks pynvml."""
    entries = [
        {
            "gpu": 0,
            "pid": one.pid,
            "kind": kind,
            "memory": None if one.memory is None else one.memory * MIB,
            "name": one.driver_name if one.driver_name is not None else one.argv[0] if one.argv else None,
            "instance": one.instance,
        }
        for one in processes
        if one.listed
        for letter, kind in (("C", "compute"), ("G", "graphics"))
        if letter in one.kinds
    ]
    data = {
        "driver_version": driver,
        "cuda_version": cuda,
        "devices": devices,
        "entries": entries,
        "problems": {},
        "failure": None,
        "absent": False,
    }
    return {"data": data, "error": None, "timed_out": False}


def no_pynvml() -> dict[str, t.Any]:
    """The child process where pynvml is not installed, as on a stock Spark."""
    failure = {"code": None, "text": "pynvml (nvidia-ml-py) is not installed for /usr/bin/python3"}
    data = {"driver_version": None, "cuda_version": None, "devices": [], "entries": [], "problems": {}, "failure": failure, "absent": True}
    return {"data": data, "error": None, "timed_out": False}


def gb10(**changes: t.Any) -> dict[str, t.Any]:
    """The GB10 as pynvml describes it: both memory calls answer NVML_ERROR_NOT_SUPPORTED (3)."""
    device = {
        "index": 0,
        "uuid": GB10_UUID,
        "name": "NVIDIA GB10",
        "compute_capability": "12.1",
        "addressing_mode": "ATS",
        "memory_total": None,
        "memory_used": None,
        "memory_free": None,
        "mig": None,
        "pci_device": "2e12",
        "numa_node": None,
        "integrated": None,
        "lost": False,
        "problems": {name: NOT_SUPPORTED for name in ("memory_total", "memory_used", "memory_free", "mig")},
    }
    return {**device, **changes}


def table(rows: Iterable[Proc], *, name: str = "NVIDIA GB10", memory: str = "Not Supported", driver: str = "580.142", header: str = "") -> str:
    """The table that nvidia-smi prints without options; the processes' names are cut at 40 characters, with dots before them."""
    heading = header or f"NVIDIA-SMI {driver:<23}Driver Version: {driver:<15}CUDA Version: 13.0"
    lines = [
        "Tue Sep  1 10:00:00 2026       ",
        "+-----------------------------------------------------------------------------------------+",
        f"| {heading:<88}|",
        "+-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
        f"|   0  {name:<27}    On  |   0000000F:01:00.0 Off |                  N/A |",
        f"| N/A   42C    P8              4W /  N/A  | {memory:<22} |      0%      Default |",
        "|                                         |                        |                  N/A |",
        "+-----------------------------------------+------------------------+----------------------+",
        "                                                                                         ",
        "+-----------------------------------------------------------------------------------------+",
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
    ]
    found = False
    for one in rows:
        if not one.listed:
            continue
        found = True
        title = one.driver_name if one.driver_name is not None else one.argv[0] if one.argv else "[Not Found]"
        title = title if len(title) <= 40 else "..." + title[-36:]
        size = "N/A" if one.memory is None else f"{one.memory}MiB"
        instance = "N/A" if one.instance is None else str(one.instance)
        lines.append(f"|    0  {instance:>4}  {'N/A' if one.instance is None else '0':>3}  {one.pid:>15}  {one.kinds:>5}   {title:<40} {size:>7} |")
    if not found:
        lines.append("|  No running processes found                                                             |")
    lines.append("+-----------------------------------------------------------------------------------------+")
    return "\n".join(lines) + "\n"


def compute_apps(rows: Iterable[Proc], uuid: str = GB10_UUID) -> str:
    """The CSV of compute processes: graphics ones are not in it."""
    return "".join(
        f"{uuid}, {one.pid}, {'[N/A]' if one.memory is None else one.memory}, {one.driver_name if one.driver_name is not None else one.argv[0]}\n"
        for one in rows
        if one.listed and "C" in one.kinds
    )


def linux(name: str, memory: str, orders: Iterable[int] = FRESH, uid: int = 0) -> Node:
    """What every machine has."""
    node = Node(name, uid=uid)
    node.files.update(
        {
            "/proc/meminfo": memory,
            "/proc/buddyinfo": buddyinfo(orders),
            "/proc/vmstat": "nr_free_pages 1\ncompact_stall 12\ncompact_fail 3\ncompact_success 9\n",
            "/proc/sys/vm/min_free_kbytes": "67584\n",
            "/proc/sys/kernel/random/boot_id": BOOT_ID + "\n",
            "/proc/sys/kernel/osrelease": "6.11.0-1016-nvidia\n",
            "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nID=ubuntu\n',
            "/proc/self/mounts": "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n",
        }
    )
    node.links["/proc/self"] = "9000"
    node.links["/proc/self/ns/pid"] = INITIAL_NAMESPACE
    node.add(
        Proc(1, ("/sbin/init", "splash"), "systemd", "0::/init.scope", parent=0, executable="/usr/lib/systemd/systemd", listed=False),
        Proc(812, ("/usr/sbin/sshd", "-D"), "sshd", "0::/system.slice/ssh.service", executable="/usr/sbin/sshd", listed=False),
        Proc(9000, ("/usr/bin/python3", "module.py"), "python3", parent=812, uid=uid, executable="/usr/bin/python3.12", listed=False),
    )
    node.files["/proc/1/comm"] = "systemd\n"
    return node


def spark(name: str, memory: str, orders: Iterable[int] = FRESH, driver: str = "580.142", release: str = "7.3.1", uid: int = 0) -> Node:
    """A Founders Edition, without its GPU processes."""
    node = linux(name, memory, orders, uid)
    node.files.update(
        {
            "/sys/class/dmi/id/sys_vendor": "NVIDIA\n",
            "/sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n",
            "/etc/dgx-release": (
                'DGX_NAME="DGX Spark"\nDGX_PRETTY_NAME="NVIDIA DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\n'
                f'DGX_PLATFORM="DGX Server for KVM"\nDGX_OTA_VERSION="7.2.3"\nDGX_OTA_VERSION="{release}"\n'
            ),
            "/sys/bus/pci/devices/000f:01:00.0/vendor": "0x10de\n",
            "/sys/bus/pci/devices/000f:01:00.0/class": "0x030000\n",
            "/sys/bus/pci/devices/000f:01:00.0/device": "0x2e12\n",
            "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x15b3\n",
            "/proc/driver/nvidia/version": (
                f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {driver}  Release Build  (dvs-builder@U22)  Mon Jan  5 10:00:00 UTC 2026\n"
            ),
            "/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRegisterPCIDriver: 1\nMemoryPoolSize: 0\n",
        }
    )
    return node


DOCKER_ID = "3f4e8d0c5b6a79881726354453627180f1e2d3c4b5a697887766554433221100"
EMBEDDINGS_ID = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90"

GREETER = (
    Proc(
        3421,
        ("/usr/lib/xorg/Xorg", "vt1", "-displayfd", "3"),
        "Xorg",
        "0::/user.slice/user-120.slice/session-c1.scope",
        executable="/usr/lib/xorg/Xorg",
        memory=18,
        kinds="G",
    ),
    Proc(
        3480,
        ("/usr/bin/gnome-shell",),
        "gnome-shell",
        "0::/user.slice/user-120.slice/user@120.service/session.slice/org.gnome.Shell@x11.service",
        uid=120,
        executable="/usr/bin/gnome-shell",
        memory=6,
        kinds="G",
    ),
)


def spark_2025_idle() -> Node:
    """Firmware of 2025, nothing running but the login screen; stock, so without pynvml."""
    node = spark("spark-2025-idle", meminfo(SPARK_2025, cuda=0.05, cached=2.4, anon=0.9), driver="580.95.05", release="7.2.3")
    node.add(*GREETER)
    node.systemctl(("org.gnome.Shell@x11.service", "5d0c2f8e1b7a4c3d9e6f0a1b2c3d4e5f", "no"), user="gdm")
    node.probes["pynvml"] = no_pynvml()
    node.command(GPU_QUERY, f"0, {GB10_UUID}, 0x2E1210DE, 12.1, 580.95.05, [N/A], [N/A], [N/A], [N/A], ATS, NVIDIA GB10\n")
    node.command(APP_QUERY)
    node.command(TABLE, table(GREETER, driver="580.95.05"))
    return node


def spark_2026_idle() -> Node:
    """Firmware of 2026, multi-user target, pynvml installed."""
    node = spark("spark-2026-idle", meminfo(SPARK_2026, cached=2.1, anon=0.8))
    node.probes["pynvml"] = reading([gb10()])
    return node


LOADED = Proc(
    6330,
    ("VLLM::EngineCore",),
    "VLLM::EngineCor",
    f"0::/system.slice/docker-{DOCKER_ID}.scope",
    executable="/usr/bin/python3.12",
    memory=89093,
)


def spark_2026_loaded() -> Node:
    """One model loaded, in a container of a compose project that Docker starts again."""
    node = spark("spark-2026-loaded", meminfo(SPARK_2026, cuda=87.0 + 1.2, cached=12.0, anon=4.5))
    node.add(LOADED)
    node.container(DOCKER_ID, "llm-vllm-1", "unless-stopped", {"com.docker.compose.project": "llm", "com.docker.compose.service": "vllm"})
    node.probes["pynvml"] = reading([gb10()], [LOADED])
    return node


FIREFOX = Proc(
    5120,
    ("/snap/firefox/4173/usr/lib/firefox/firefox", "--new-window", "https://alice:pass1234@example.org/"),
    "firefox",
    "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-5120.scope",
    uid=1000,
    executable="/snap/firefox/4173/usr/lib/firefox/firefox",
    memory=273,
    kinds="G",
)
DESKTOP = (
    Proc(3421, ("/usr/lib/xorg/Xorg", "vt2"), "Xorg", "0::/user.slice/user-1000.slice/session-2.scope", executable="/usr/lib/xorg/Xorg", memory=84, kinds="G"),
    Proc(
        3666,
        ("/usr/bin/gnome-shell",),
        "gnome-shell",
        "0::/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@x11.service",
        uid=1000,
        executable="/usr/bin/gnome-shell",
        memory=48,
        kinds="G",
    ),
    FIREFOX,
    # A model that was started by hand, with a key on its command line, and that draws as well.
    Proc(
        7001,
        ("./build/bin/llama-server", "-m", "model.gguf", "--api-key", "sk-1234567890abcdef1234", "--port", "8080"),
        "llama-server",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-0c5d.scope",
        uid=1000,
        executable="/home/alice/llama.cpp-b9536/build/bin/llama-server",
        memory=20480,
        kinds="C+G",
        driver_name="/home/alice/llama.cpp-b9536/build/bin/llama-server",
    ),
)


def spark_2026_desktop() -> Node:
    """Someone works at it: a session, a browser, and a model started in a terminal. Stock, so by nvidia-smi."""
    node = spark("spark-2026-desktop", meminfo(SPARK_2026, cuda=20.7, cached=9.0, anon=7.0, shared=0.9), driver="580.159.03")
    node.add(*DESKTOP)
    node.add(Proc(1201, ("/usr/bin/earlyoom", "-m", "2", "-s", "80", "--prefer", "VLLM|sglang"), "earlyoom", "0::/system.slice/earlyoom.service", listed=False))
    node.add(Proc(655, ("/usr/lib/systemd/systemd-oomd",), "systemd-oomd", "0::/system.slice/systemd-oomd.service", listed=False))
    node.files["/etc/systemd/oomd.conf.d/10-oomd-defaults.conf"] = "[OOM]\nDefaultMemoryPressureDurationSec=20s\n"
    node.systemctl(("org.gnome.Shell@x11.service", "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "no"), user="alice")
    node.probes["pynvml"] = no_pynvml()
    node.command(GPU_QUERY, f"0, {GB10_UUID}, 0x2E1210DE, 12.1, 580.159.03, [N/A], [N/A], [N/A], [N/A], ATS, NVIDIA GB10\n")
    node.command(APP_QUERY, compute_apps(DESKTOP))
    node.command(TABLE, table(DESKTOP, driver="580.159.03"))
    return node


def spark_2025_cache_full() -> Node:
    """Measured on a Spark after 60 GB were written: cudaMemGetInfo answers 41.5 GiB of MemFree, 115.7 GiB are available."""
    node = spark("spark-2025-cache-full", meminfo(SPARK_2025, cached=72.7, anon=2.2), orders=WEEK_OLD, driver="580.126.09")
    node.probes["pynvml"] = reading([gb10()], driver="580.126.09")
    return node


EMBEDDINGS = Proc(
    4411,
    ("VLLM::EngineCore",),
    "VLLM::EngineCor",
    f"0::/system.slice/docker-{EMBEDDINGS_ID}.scope",
    executable="/usr/bin/python3.12",
    memory=11981,
)
STRAY = Proc(
    5200,
    ("/usr/bin/python3", "serve.py", "--hf-token", "hf_abcdefghijklmnopqrstuvwx"),
    "python3",
    "0::/user.slice/user-1000.slice/session-7.scope",
    uid=1000,
    executable="/usr/bin/python3.12",
    memory=200,
)


def seed_worker() -> Node:
    """The worker of the seed: 119.7 GiB, 11.7 of them held by the embeddings service, and a page cache full of the copied weights."""
    node = spark("seed-worker", meminfo(SPARK_2025, cuda=12.0, cached=97.6, anon=4.9), driver="580.95.05", release="7.2.3")
    docker = ("docker", "run", "--rm=false", "--name", "vllm_embeddings", "--gpus", "all", "-e", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "vllm/vllm-openai")
    node.add(EMBEDDINGS, STRAY, Proc(4302, docker, "docker", "0::/system.slice/vllm-embeddings.service", executable="/usr/bin/docker", listed=False))
    node.container(EMBEDDINGS_ID, "vllm_embeddings", "always")
    node.systemctl(("vllm-embeddings.service", "77aa1d5e8f3a4c6b9d0e1a2b3c4d5e6f", "always"))
    node.probes["pynvml"] = reading([gb10()], [EMBEDDINGS, STRAY], driver="580.95.05")
    return node


def seed_head() -> Node:
    """The head of the seed: nothing runs on it, and its page cache is full of the weights that it has sent."""
    node = spark("seed-head", meminfo(SPARK_2025, cuda=0.0, cached=98.0, anon=3.0), driver="580.95.05", release="7.2.3")
    node.probes["pynvml"] = reading([gb10()], driver="580.95.05")
    return node


def spark_container() -> Node:
    """In a container of a Spark, without the PID namespace of the machine: the driver lists nothing, while a model is loaded."""
    node = spark("spark-container", meminfo(SPARK_2026, cuda=88.0, cached=12.0, anon=4.0))
    node.links["/proc/self/ns/pid"] = "pid:[4026533221]"
    node.files["/proc/1/comm"] = "bash\n"
    node.processes["1"] = "bash"
    node.probes["pynvml"] = reading([gb10()], cuda="13.2")
    return node


def spark_hung() -> Node:
    """The driver does not answer: any call sleeps in the kernel."""
    node = spark("spark-hung", meminfo(SPARK_2026, cuda=88.0, cached=12.0, anon=4.0))
    node.probes["pynvml"] = {"data": None, "error": "no answer within 10 s", "timed_out": True}
    return node


def spark_590_pools() -> Node:
    """An unofficial driver that keeps freed pages: 60 GiB are used by nobody, and no process is listed."""
    node = spark("spark-590-pools", meminfo(SPARK_590, cuda=60.0, cached=6.0, anon=2.0), driver="590.48.01")
    node.files["/proc/driver/nvidia/params"] += "EnableSystemMemoryPools: 529\n"
    node.probes["pynvml"] = reading([gb10()], driver="590.48.01", cuda="13.1")
    return node


def spark_mismatch() -> Node:
    """After an update without a reboot: the library is newer than the kernel module."""
    node = spark("spark-mismatch", meminfo(SPARK_2026))
    failure = {"code": 18, "text": "RM has detected an NVML/RM version mismatch."}
    node.probes["pynvml"] = reading([])
    node.probes["pynvml"]["data"]["failure"] = failure
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n"
    for argv in (GPU_QUERY, APP_QUERY, TABLE):
        node.command(argv, said, rc=18)
    return node


UNSEEN = Proc(7777, (), "", memory=512, driver_name="", visible=False)


def spark_unprivileged() -> Node:
    """Read by a user that may not ask Docker, with one process hidden."""
    node = spark("spark-unprivileged", meminfo(SPARK_2026, cuda=89.0, cached=12.0, anon=4.5), uid=1000)
    node.files["/proc/self/mounts"] = "proc /proc proc rw,nosuid,nodev,noexec,relatime,hidepid=invisible 0 0\n"
    node.add(Proc(**{**LOADED.__dict__, "executable": None}))
    node.responses.append({"socket": "/run/docker.sock", "path": f"/containers/{DOCKER_ID}/json", "status": None, "body": None, "error": "permission denied"})
    unsized = Proc(6400, ("/usr/bin/python3", "train.py"), "python3", uid=1000, executable="/usr/bin/python3.12", memory=None)
    node.add(unsized)
    node.probes["pynvml"] = reading([gb10()], [LOADED, unsized, UNSEEN])
    return node


XML_610 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
\t<timestamp>Tue Sep  1 10:00:00 2026</timestamp>
\t<driver_version>610.57.04 [Deprecated; will be removed]</driver_version>
\t<kmd_version>610.57.04</kmd_version>
\t<cuda_umd_version>13.4</cuda_umd_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="0000000F:01:00.0">
\t\t<product_name>NVIDIA GB10</product_name>
\t\t<product_brand>NVIDIA RTX</product_brand>
\t\t<addressing_mode>ATS</addressing_mode>
\t\t<mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>
\t\t<uuid>GPU-5e1f2f5c-4d7c-4b5e-9a0e-1f2a3b4c5d6e</uuid>
\t\t<gpu_numa_id>N/A</gpu_numa_id>
\t\t<pci><pci_device_id>2E1210DE</pci_device_id></pci>
\t\t<fb_memory_usage><total>N/A</total><reserved>N/A</reserved><used>N/A</used><free>N/A</free></fb_memory_usage>
\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<pid>6330</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>VLLM::EngineCore</process_name>
\t\t\t\t<used_memory>89093 MiB</used_memory>
\t\t\t</process_info>
\t\t</processes>
\t</gpu>
</nvidia_smi_log>
"""


def spark_610_smi() -> Node:
    """A driver of the 610 generation whose nvidia-smi refuses a field of the query: its XML is read, deprecations and all."""
    node = spark("spark-610-smi", meminfo(SPARK_2026, cuda=88.2, cached=12.0, anon=4.5), driver="610.57.04")
    node.add(LOADED)
    node.container(DOCKER_ID, "llm-vllm-1", "no")
    node.probes["pynvml"] = no_pynvml()
    node.command(GPU_QUERY, 'Field "addressing_mode" is not a valid field to query.\n\n', rc=2)
    node.command(APP_QUERY, compute_apps([LOADED]))
    node.command(TABLE, table([LOADED], header="NVIDIA-SMI 610.57.04    KMD Version: 610.57.04    CUDA UMD Version: 13.4"))
    node.command(XML, XML_610)
    return node


def gh200() -> Node:
    """A GH200: ATS too, but memory of its own, which is a NUMA node of the system."""
    node = linux("gh200", meminfo(502 * KIB_IN_GIB, cached=80.0, anon=10.0, swap_total=0))
    node.files["/sys/class/dmi/id/sys_vendor"] = "Supermicro\n"
    node.files["/sys/class/dmi/id/product_name"] = "ARS-111GL-NHR\n"
    holder = Proc(2500, ("python3", "train.py"), "python3", "0::/system.slice/train.service", executable="/usr/bin/python3.10", memory=22000)
    node.add(holder)
    node.systemctl(("train.service", "1122334455667788990011223344556f", "on-failure"))
    device = gb10(
        name="NVIDIA GH200 480GB",
        compute_capability="9.0",
        memory_total=97871 * MIB,
        memory_used=22500 * MIB,
        memory_free=75371 * MIB,
        mig=False,
        pci_device="2342",
        numa_node=1,
        problems={},
    )
    node.probes["pynvml"] = reading([device], [holder], driver="575.57.08", cuda="12.9")
    return node


def jetson_thor() -> Node:
    """A Jetson Thor: memory Not Supported, MIG Disabled, processes with their memory."""
    node = linux("jetson-thor", meminfo(int(122.8 * KIB_IN_GIB), cuda=8.1, cached=20.0, anon=5.0, swap_total=0))
    node.files["/proc/device-tree/model"] = "NVIDIA Jetson AGX Thor Developer Kit\0"
    node.files["/etc/nv_tegra_release"] = "# R38 (release), REVISION: 2.0\n"
    processes = (
        Proc(3000, ("/usr/lib/xorg/Xorg",), "Xorg", "0::/user.slice/user-1000.slice/session-2.scope", executable="/usr/lib/xorg/Xorg", memory=0, kinds="G"),
        Proc(3300, ("ollama", "runner"), "ollama", "0::/system.slice/ollama.service", uid=1000, executable="/usr/local/bin/ollama", memory=8200),
    )
    node.add(*processes)
    node.systemctl(("ollama.service", "99887766554433221100ffeeddccbbaa", "always"))
    node.probes["pynvml"] = no_pynvml()
    uuid = "GPU-9d1a2b3c-0001-4b5e-9a0e-1f2a3b4c5d6e"
    node.command(GPU_QUERY, f"0, {uuid}, 0x2B0010DE, 11.0, 580.00, [N/A], [N/A], [N/A], Disabled, ATS, NVIDIA Thor\n")
    node.command(APP_QUERY, compute_apps(processes, uuid))
    node.command(TABLE, table(processes, name="NVIDIA Thor", driver="580.00"))
    return node


def jetson_orin() -> Node:
    """A Jetson Orin: nothing is known but its name, and its driver (nvgpu) never lists a process."""
    node = linux("jetson-orin", meminfo(int(61.4 * KIB_IN_GIB), cuda=6.0, cached=12.0, anon=4.0, swap_total=0))
    node.files["/proc/device-tree/model"] = "NVIDIA Jetson AGX Orin Developer Kit\0"
    node.files["/etc/nv_tegra_release"] = "# R36 (release), REVISION: 4.3\n"
    node.probes["pynvml"] = no_pynvml()
    node.command(GPU_QUERY, "0, [N/A], [N/A], [N/A], 540.4.0, [N/A], [N/A], [N/A], [N/A], [N/A], Orin (nvgpu)\n")
    node.command(APP_QUERY, "")
    node.command(TABLE, table((), name="Orin (nvgpu)", memory="Not Supported", driver="540.4.0"))
    return node


def discrete_mig() -> Node:
    """An H100 divided into instances: the parent reports numbers, and processes carry their instance."""
    node = linux("discrete-mig", meminfo(503 * KIB_IN_GIB, cached=120.0, anon=30.0, swap_total=0))
    node.files.update(
        {
            "/sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n",
            "/sys/bus/pci/devices/0000:17:00.0/class": "0x030200\n",
            "/sys/bus/pci/devices/0000:17:00.0/device": "0x2330\n",
            "/sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
            "/sys/class/dmi/id/product_name": "PowerEdge XE8545\n",
        }
    )
    pod = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice/cri-containerd-{DOCKER_ID}.scope"
    holder = Proc(5100, ("tritonserver",), "tritonserver", pod, executable="/opt/tritonserver/bin/tritonserver", memory=9000, instance=1)
    other = Proc(5101, ("python3",), "python3", pod, executable="/usr/bin/python3.10", memory=4000, instance=2)
    node.add(holder, other)
    node.directories["/var/log/containers"] = [f"triton-0_serving_triton-{DOCKER_ID}.log"]
    device = gb10(
        uuid="GPU-0a0b0c0d-1111-2222-3333-444455556666",
        name="NVIDIA H100 80GB HBM3",
        compute_capability="9.0",
        addressing_mode="HMM",
        memory_total=81559 * MIB,
        memory_used=13500 * MIB,
        memory_free=68059 * MIB,
        mig=True,
        pci_device="2330",
        problems={},
    )
    node.probes["pynvml"] = reading([device], [holder, other], driver="570.133.20", cuda="12.8")
    return node


def no_gpu() -> Node:
    """A machine without a GPU."""
    node = linux("no-gpu", meminfo(32 * KIB_IN_GIB, cached=8.0, anon=4.0, swap_total=0))
    node.probes["pynvml"] = no_pynvml()
    return node


NODES = (
    spark_2025_idle,
    spark_2026_idle,
    spark_2026_loaded,
    spark_2026_desktop,
    spark_2025_cache_full,
    seed_worker,
    seed_head,
    spark_container,
    spark_hung,
    spark_590_pools,
    spark_mismatch,
    spark_unprivileged,
    spark_610_smi,
    gh200,
    jetson_thor,
    jetson_orin,
    discrete_mig,
    no_gpu,
)


def text_of(node: Node) -> str:
    """node.json as it lies on disk."""
    return json.dumps(node.document(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every node."""
    for make in NODES:
        node = make()
        directory = HERE / node.name
        directory.mkdir(exist_ok=True)
        (directory / "node.json").write_text(text_of(node), encoding="utf-8")


if __name__ == "__main__":
    main()
