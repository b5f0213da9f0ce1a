# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hosts' power switch: a host goes down, in order or at once, and boots again with its disks. Its network stays, which is the machine's."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests" / "lab"))

from lib import cgroups, disk, lock, nspawn, plan, remote  # noqa: E402
from lib.paths import Paths  # noqa: E402

#: Seconds for the hosts to shut down, which includes that their ranks stop, and to start again.
DOWN, BOOT = 120.0, 300.0


def reboot(names: Sequence[str], cut: bool = False) -> None:
    """Reboot hosts together. ``cut``: without a word to them, as when the power fails."""
    paths, groups = Paths.from_environment(), cgroups.find()
    hosts = [plan.host(name) for name in names]
    with lock.held(plan.LOCK, "reboot"):
        for host in hosts:
            if cut:
                groups.kill(host.name)
            else:
                nspawn.power_off(groups, host.name)
        end = time.monotonic() + DOWN
        while any(groups.processes(host.name) for host in hosts):
            assert time.monotonic() < end, f"{', '.join(names)} did not shut down within {DOWN:.0f} s"
            time.sleep(0.2)
        for host in hosts:
            groups.forget_cache(host.name)
            _remove_groups(groups, host.name)
            nspawn.boot(groups, host, disk.docker(paths, host), paths.logs / f"{host.name}.log")
        for host in hosts:
            remote.wait_booted(paths, host, BOOT)


def _remove_groups(groups: cgroups.Groups, name: str) -> None:
    """A machine that boots has no control groups of the boot before."""
    for top in groups.directories(name):
        for directory, _names, _files in os.walk(top, topdown=False):
            if directory != str(top):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
