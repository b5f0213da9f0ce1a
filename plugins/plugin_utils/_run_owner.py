# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Which run this is, on the controller, and whether another one still lives.

A run is its main process: the machine's boot, the PID namespace, the pid and its start time. Where /proc does not tell these (a
controller that is no Linux), a run has an id all the same, and no other can be proved dead.
"""

from __future__ import annotations

import multiprocessing
import os
import pwd
import socket
import time
import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import boot_id, read_stat
from ansible_collections.unimem.dgx_spark.plugins.module_utils._signals import DEAD_STATES
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld, World

_PID_NAMESPACE = "/proc/self/ns/pid"


def main_process() -> int:
    """The pid of the run. Ansible evaluates most templates in processes that it forks for each task and host."""
    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def host_of(world: World) -> str:
    """The boot and the PID namespace that pids are of; empty where that cannot be told."""
    boot, namespace = boot_id(world), world.read_link(_PID_NAMESPACE)
    return f"{boot}/{namespace}" if boot and namespace else ""


def run_owner(world: World | None = None, pid: int | None = None) -> dict[str, t.Any]:
    """This run, as node_lease takes its owner."""
    world = world or LiveWorld()
    pid = main_process() if pid is None else pid
    host = host_of(world)
    stat = read_stat(world, pid) if host else None
    controller = socket.gethostname()
    start = stat.start_time if stat is not None else 0
    started = _date_of(start) if start else ""
    return {
        "id": f"{host}/{pid}/{start}" if start else f"{controller}/{pid}",
        "user": os.environ.get("SUDO_USER") or _user_name(),
        "controller": controller,
        "pid": pid,
        "started": started,
        "host": host,
        "start_time": start,
    }


def has_ended(owner: Mapping[str, t.Any], world: World | None = None) -> bool:
    """Whether that run is known to have ended: it was on this machine, in this boot and PID namespace, and its process is no more."""
    world = world or LiveWorld()
    host, pid, start = str(owner.get("host") or ""), owner.get("pid"), owner.get("start_time")
    if not host or host != host_of(world) or not isinstance(pid, int) or not isinstance(start, int) or pid <= 0 or start <= 0:
        return False
    stat = read_stat(world, pid)
    if stat is None:
        # Where /proc hides other users' processes, it is the signal that tells.
        return not _exists(pid)
    return stat.state in DEAD_STATES or stat.start_time != start


def _exists(pid: int) -> bool:
    """Whether there is a process of that pid, anybody's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _date_of(start_time: int) -> str:
    """The date of a start time in clock ticks after boot. Since CLOCK_BOOTTIME counts from there, no boot time has to be known."""
    ago = time.clock_gettime(time.CLOCK_BOOTTIME) - start_time / os.sysconf("SC_CLK_TCK")
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() - ago))


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
