# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What is never stopped, whatever is asked, and why.

Names are chosen by processes. A name in this list protects, so that a process that borrows one is left alone: the safe side.
"""

from __future__ import annotations

import functools
import os
import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import ancestors, read_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: Patterns of program names -> what they are. A name of 15 characters is compared with the first 15 of each pattern too.
PROTECTED_PROGRAMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("init", ("init", "systemd", "systemd-*", "(sd-pam)", "dbus-daemon", "dbus-broker*", "udevd", "elogind", "polkitd")),
    ("remote access", ("sshd", "sshd-session", "sshd-auth", "dropbear", "agetty", "login", "NetworkManager", "wpa_supplicant", "tailscaled")),
    (
        "container runtime",
        (
            "dockerd",
            "docker-init",
            "docker-proxy",
            "containerd",
            "containerd-shim*",
            "runc",
            "crun",
            "youki",
            "conmon",
            "conmonrs",
            "crio",
            "podman",
            "rootlesskit",
            "slirp4netns",
            "buildkitd",
            "kubelet",
            "k3s*",
            "rke2",
            "nvidia-container*",
            "lxcfs",
        ),
    ),
    (
        "display server or desktop",
        (
            "Xorg",
            "X",
            "Xwayland",
            "Xvfb",
            "Xvnc",
            "Xtigervnc",
            "gdm",
            "gdm3",
            "gdm-*",
            "sddm",
            "sddm-*",
            "lightdm",
            "gnome-shell",
            "gnome-session*",
            "gnome-remote-de*",
            "mutter*",
            "kwin*",
            "ksmserver",
            "plasmashell",
            "startplasma*",
            "xfwm4",
            "xfce4-session",
            "xfdesktop",
            "cinnamon*",
            "marco",
            "mate-session",
            "weston",
            "sway",
            "Hyprland",
            "labwc",
            "xrdp*",
            "dcvserver",
            "dcvagent",
            "nxserver*",
            "nxnode*",
            "sunshine",
        ),
    ),
    (
        "GPU service",
        (
            "nvidia-persiste*",
            "nvidia-powerd",
            "nvidia-fabricma*",
            "nv-fabricmanager",
            "nv-hostengine",
            "nvidia-cuda-mps*",
            "nvidia-imex*",
            "nvidia-gridd",
            "dcgm-exporter",
            "dcgmproftester*",
            "nvsm*",
        ),
    ),
)

#: Patterns of units -> what they are: stopping such a unit would cut the machine off or stop what is not ours.
PROTECTED_UNITS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("init", ("init.scope", "systemd-*.service", "dbus*.service", "user@*.service", "polkit.service")),
    ("scope or slice", ("*.slice", "*.scope")),
    (
        "remote access",
        ("ssh.service", "sshd.service", "ssh@*.service", "NetworkManager.service", "networking.service", "wpa_supplicant.service", "tailscaled.service"),
    ),
    (
        "container runtime",
        (
            "docker.service",
            "docker.socket",
            "containerd.service",
            "crio.service",
            "podman.service",
            "kubelet.service",
            "k3s*.service",
            "rke2*.service",
            "snap.docker.*",
            "libvirtd.service",
        ),
    ),
    (
        "display server or desktop",
        ("display-manager.service", "gdm.service", "gdm3.service", "sddm.service", "lightdm.service", "xrdp*.service", "dcvserver.service"),
    ),
    ("GPU service", ("nvidia-*.service", "dcgm*.service", "nvsm*.service")),
)

_COMM_LENGTH = 15


def _is_like(name: str, pattern: str) -> bool:
    """Whether a name is as a pattern says, which has at most one ``*``. (fnmatch would compile a hundred expressions for each look at a node.)"""
    start, star, end = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(start) + len(end) and name.startswith(start) and name.endswith(end)


def _matches(name: str, pattern: str) -> bool:
    if _is_like(name, pattern):
        return True
    # The kernel cuts names: nvidia-persistenced is nvidia-persiste.
    return len(name) == _COMM_LENGTH and len(pattern) > _COMM_LENGTH and name == pattern[:_COMM_LENGTH]


@functools.lru_cache(maxsize=4096)
def protected_program(name: str) -> str | None:
    """Why a program of this name is never stopped; None when nothing speaks against it."""
    for what, patterns in PROTECTED_PROGRAMS:
        if any(_matches(name, pattern) for pattern in patterns):
            return f"{what} ({name})"
    return None


def protected_unit(unit: str) -> str | None:
    """Why a systemd unit of this name is never stopped; None when nothing speaks against it."""
    for what, patterns in PROTECTED_UNITS:
        if any(_is_like(unit, pattern) for pattern in patterns):
            return f"{what} ({unit})"
    return None


def protection(process: Mapping[str, t.Any], own_line: t.Collection[int] = ()) -> str | None:
    """Why a process is never stopped, from what is known of it; None when nothing speaks against it.

    ``process`` is an entry of the facts' process list; of it pid, start_time, name, command, executable, kernel_thread, comm
    and owner are looked at, where present. ``own_line``: this process and its ancestors.
    """
    pid = process.get("pid")
    if pid == 1:
        return "pid 1"
    if pid in own_line:
        return "this very run, or an ancestor of it"
    if process.get("start_time") is None:
        return "it is not visible in /proc, so that it cannot be identified"
    if process.get("kernel_thread") or pid == 2:
        return "kernel thread"
    command = str(process.get("command") or "")
    candidates = (
        process.get("name"),
        process.get("comm"),
        os.path.basename(str(process.get("executable") or "")),
        # A title written over the command line ends at a blank or colon: "sshd: alice [priv]".
        os.path.basename(command.split(" ", 1)[0].rstrip(":")),
    )
    for name in candidates:
        reason = protected_program(str(name)) if name else None
        if reason:
            return reason
    owner = process.get("owner") or {}
    if owner.get("kind") == "desktop":
        return f"part of a desktop ({owner.get('name')})"
    if owner.get("runtime") == "kubernetes":
        return "Kubernetes pod: its node agent would start it again; scale it down in the cluster"
    if owner.get("kind") in ("unit", "user_unit") and owner.get("name"):
        return protected_unit(str(owner["name"]))
    return None


def protection_of(world: World, pid: int, process: Mapping[str, t.Any] | None = None) -> str | None:
    """Why a process is never stopped, read now from /proc and the process's entry in the facts, where there is one."""
    known: dict[str, t.Any] = {**(process or {}), "pid": pid}
    now = read_process(world, pid)
    if now is None:
        known["start_time"] = None
    else:
        known.update(start_time=now.start_time, comm=now.comm, kernel_thread=now.kernel_thread, executable=now.executable or known.get("executable"))
        known.setdefault("name", now.name)
        known.setdefault("command", " ".join(now.argv))
    return protection(known, ancestors(world, own_pid(world)))


def own_pid(world: World) -> int:
    """The pid of this very process; 0 on a machine that is recorded, where this process does not exist."""
    target = world.read_link("/proc/self")
    return int(target) if target and target.isdecimal() else 0
