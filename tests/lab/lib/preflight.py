# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must be true of the machine before anything is made: looked at first, judged by pure functions after."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from . import cgroups, mounts, network, plan
from .command import run
from .errors import LabError
from .paths import Paths

GIB = plan.GIB
#: Disk that the hosts themselves use: images of the engine in both Dockers, containers, logs.
STATE_BYTES = 8 * GIB
#: Room to make the root file system and the engine's image, which is there as a tree and as an archive for a while.
CACHE_BYTES = 10 * GIB
#: What the machine itself keeps of its memory beside the two pools.
MACHINE_MEMORY = 1 * GIB
FILESYSTEMS = ("fuse", "overlay")


@dataclass(frozen=True)
class Machine:
    """What was seen of the machine. Sizes in bytes."""

    user: int = 0
    cgroup_writable: bool = True
    cgroup_lacking: tuple[str, ...] = ()
    namespaces: str = ""  # why a network and mount namespace cannot be made; empty when they can
    filesystems: frozenset[str] = frozenset(FILESYSTEMS)
    fuse_device: bool = True
    memory_total: int = 24 * GIB
    disk_free: dict[str, int] = field(default_factory=dict)  # directory -> bytes free
    disk_needed: dict[str, int] = field(default_factory=dict)  # directory -> bytes that the lab may still write there
    addresses: dict[str, tuple[str, ...]] = field(default_factory=dict)  # interface -> addresses with prefix
    routes: tuple[tuple[str, str], ...] = ()  # (destination, interface)
    taken_namespaces: tuple[str, ...] = ()
    taken_mounts: tuple[str, ...] = ()


def judge(machine: Machine) -> list[LabError]:
    """All that is wrong, in the order in which a person would want to solve it. An empty list: go on."""
    if machine.user != 0:
        return [LabError("The lab must run as root: it makes namespaces, mounts and control groups.", "Run it again with sudo.")]
    return [*_kernel(machine), *_cgroups(machine), *_room(machine), *_names(machine)]


def _kernel(machine: Machine) -> list[LabError]:
    found = []
    if machine.namespaces:
        found.append(
            LabError(
                f"This machine does not allow network and mount namespaces: {machine.namespaces}",
                "Inside a container, start that with --privileged; else use a machine of its own.",
            )
        )
    for name in sorted(set(FILESYSTEMS) - machine.filesystems):
        found.append(LabError(f"This kernel has no {name} file system.", f"Load its module (modprobe {name}), then try again."))
    if not machine.fuse_device:
        found.append(LabError("There is no /dev/fuse on this machine.", "Load the module fuse; inside a container, start that with --device /dev/fuse."))
    return found


def _cgroups(machine: Machine) -> list[LabError]:
    if not machine.cgroup_writable:
        return [LabError("No control group can be made on this machine.", "Inside a container, start that with --privileged and --cgroupns=host.")]
    if machine.cgroup_lacking:
        return [
            LabError(
                f"The control groups of this machine lack {', '.join(machine.cgroup_lacking)}.",
                "Use a newer kernel (Debian 12's and Ubuntu 24.04's have it all), "
                "or boot with systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1.",
            )
        ]
    return []


def _room(machine: Machine) -> list[LabError]:
    found = []
    needed = len(plan.HOSTS) * plan.POOL + MACHINE_MEMORY
    if machine.memory_total < needed:
        found.append(
            LabError(
                f"This machine has {machine.memory_total / GIB:.1f} GiB of memory; the lab needs {needed / GIB:.0f} GiB "
                f"({len(plan.HOSTS)} hosts of {plan.POOL / GIB:.0f} GiB, and {MACHINE_MEMORY / GIB:.0f} GiB for the machine).",
                "Use a larger machine.",
            )
        )
    for directory, needed in machine.disk_needed.items():
        free = machine.disk_free[directory]
        if free < needed:
            found.append(
                LabError(
                    f"{directory} has {free / GIB:.1f} GiB free; the lab needs {needed / GIB:.1f} GiB there.",
                    "Free some space, or point LAB_DIR (hosts) or LAB_CACHE (root file system and images) to another disk.",
                )
            )
    return found


def _names(machine: Machine) -> list[LabError]:
    found = []
    if plan.MACHINE_LINK in machine.addresses:
        problem = f"A network interface {plan.MACHINE_LINK} exists that the lab did not make."
        found.append(LabError(problem, f"Remove or rename it (ip link delete {plan.MACHINE_LINK})."))
    ours = plan.MACHINE_ADDRESS.network
    for interface, addresses in machine.addresses.items():
        for text in addresses:
            address = ipaddress.ip_interface(text)
            if address.version == 4 and address.network.overlaps(ours) and interface != plan.MACHINE_LINK:
                found.append(
                    LabError(
                        f"The interface {interface} has the address {text}, in the network {ours} that the lab uses.",
                        "The lab's addresses are those of the deployment it reproduces; run it on a machine without that network.",
                    )
                )
    for destination, interface in machine.routes:
        if destination == "default" or interface == plan.MACHINE_LINK or interface in machine.addresses and _direct(machine, destination, interface):
            continue
        network_of_route = ipaddress.ip_network(destination, strict=False)
        if network_of_route.version == 4 and network_of_route.prefixlen >= ours.prefixlen and network_of_route.overlaps(ours):
            found.append(LabError(f"This machine routes {destination} to {interface}; the lab uses {ours}.", "Remove that route while the lab is up."))
    for name in machine.taken_namespaces:
        found.append(LabError(f"A network namespace {name} exists that the lab did not make.", f"Remove it: ip netns delete {name}"))
    for name in machine.taken_mounts:
        found.append(LabError(f"Something is mounted at {name}, where the lab mounts its hosts.", f"Unmount it: umount {name}"))
    return found


def _direct(machine: Machine, destination: str, interface: str) -> bool:
    """Whether a route merely comes with an address of its interface (the address is reported then)."""
    return any(str(ipaddress.ip_interface(text).network) == destination for text in machine.addresses[interface])


def look(paths: Paths, groups: cgroups.Groups, *, building: bool) -> Machine:
    """Look at the machine; ``building``: whether the cache lacks something. While a lab is up, what bears its names is not somebody else's."""
    ours = plan.RUN.is_dir()
    state, cache = _existing(paths.state), _existing(paths.cache)
    needed = {str(state): STATE_BYTES}
    if any(paths.state.glob("hosts/*/docker/image")):  # the hosts' disks are there already
        needed[str(state)] = 2 * GIB
    cache_bytes = CACHE_BYTES if building else 0
    same = os.stat(state).st_dev == os.stat(cache).st_dev
    needed[str(state if same else cache)] = cache_bytes + (needed[str(state)] if same else 0)
    writable = _can_make_group(groups)
    addresses, routes = _network() if shutil.which("ip") else ({}, ())
    if ours:
        addresses.pop(plan.MACHINE_LINK, None)
    return Machine(
        user=os.geteuid(),
        cgroup_writable=writable,
        cgroup_lacking=tuple(groups.lacking()) if writable else (),
        namespaces=_namespaces(),
        filesystems=_filesystems(),
        fuse_device=Path("/dev/fuse").exists(),
        memory_total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk_free={directory: shutil.disk_usage(directory).free for directory in needed},
        disk_needed=needed,
        addresses=addresses,
        routes=routes,
        taken_namespaces=() if ours else tuple(network.namespaces()),
        taken_mounts=() if ours else tuple(str(point) for point in mounts.below([plan.RUN])),
    )


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    while not path.is_dir():
        path = path.parent
    return path


def _can_make_group(groups: cgroups.Groups) -> bool:
    try:
        groups.create(cgroups.BUILDS)
    except OSError:
        return False
    return True


def _filesystems() -> frozenset[str]:
    """Those that the kernel knows; what it has as a module is loaded first, as a mount would."""

    def known() -> frozenset[str]:
        return frozenset(line.split()[-1] for line in Path("/proc/filesystems").read_text(encoding="ascii").splitlines())

    missing = [name for name in FILESYSTEMS if name not in known()]
    if missing and shutil.which("modprobe"):
        run(["modprobe", "--all", *missing], check=False)
    return known()


def _namespaces() -> str:
    """Why a namespace cannot be made; empty if it can."""
    done = run(["unshare", "--net", "--mount", "true"], check=False)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"unshare ended with {done.returncode}")


def _network() -> tuple[dict[str, tuple[str, ...]], tuple[tuple[str, str], ...]]:
    """The machine's addresses by interface, and its routes."""
    links = json.loads(run(["ip", "-json", "address", "show"]).stdout)
    addresses = {
        link["ifname"]: tuple(f"{entry['local']}/{entry['prefixlen']}" for entry in link.get("addr_info", []) if "local" in entry)
        for link in links
        if "ifname" in link
    }
    routes = tuple((route["dst"], route["dev"]) for route in json.loads(run(["ip", "-json", "-4", "route", "show"]).stdout) if "dev" in route)
    return addresses, routes
