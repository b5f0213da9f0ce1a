# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take the lab away. All of it is found by its names, so this works after any crash and without any state file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from . import cgroups, mounts, network, nspawn, packages, plan
from .paths import Paths

#: Seconds for the hosts to shut down by themselves; a container that ignores TERM is given ten by Docker.
POWER_OFF = 30.0


def exists(groups: cgroups.Groups) -> bool:
    """Whether the lab, or a rest of it, is on the machine.

    The directory below /run is the mark of interfaces, namespaces and mounts: made before them and removed after them.
    Without it, what bears one of our names there is somebody else's, and is not touched.
    """
    return plan.RUN.is_dir() or any(top.is_dir() for top in groups.tops())


def down(paths: Paths, groups: cgroups.Groups, say: Callable[[str], None]) -> list[str]:
    """Power the hosts off and remove everything but the files in LAB_DIR and LAB_CACHE; returns what is left, in words."""
    packages.remove_policy()
    if not exists(groups):
        return []
    _power_off(groups, say)
    for group in groups.groups():
        groups.kill(group)
    for host in plan.EVERY:
        if groups.memory_directory(host.name).is_dir():
            groups.forget_cache(host.name)
    # Unmounting ends the helpers that serve the memory figures, so it comes before their group is empty for good.
    mounts.unmount_below([plan.RUN, paths.cache])
    if plan.RUN.is_dir():
        network.remove()
        nspawn.forget()
    left = leftovers(groups)
    if not left:
        left = [f"control group {directory}" for directory in groups.remove()]
    if not left and plan.RUN.is_dir():
        shutil.rmtree(plan.RUN)
    return left


def _power_off(groups: cgroups.Groups, say: Callable[[str], None]) -> None:
    hosts = [name for name in groups.groups() if name not in (cgroups.HELPERS, cgroups.BUILDS) and groups.processes(name)]
    if not hosts:
        return
    say(f"shutting down {' and '.join(hosts)}")
    for name in hosts:
        nspawn.power_off(groups, name)
    end = time.monotonic() + POWER_OFF
    while any(groups.processes(name) for name in hosts) and time.monotonic() < end:
        time.sleep(0.1)


def leftovers(groups: cgroups.Groups) -> list[str]:
    """What of the lab is on the machine, in words; its control groups, which go last, apart."""
    left = [f"process {pid} in the control group {group}" for group in groups.groups() for pid in sorted(groups.processes(group))]
    if not plan.RUN.is_dir():
        return left
    left += [f"mount {point}" for point in mounts.below([plan.RUN])]
    left += [f"network namespace {name}" for name in network.namespaces()]
    left += [f"network interface {plan.MACHINE_LINK}"] if network.machine_link_exists() else []
    return left
