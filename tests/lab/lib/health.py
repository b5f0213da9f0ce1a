# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the two hosts are as they should be, asked of the hosts themselves."""

from __future__ import annotations

from dataclasses import dataclass

from . import cgroups, plan, remote, seed
from .errors import LabError
from .paths import Paths

PROBE = ["docker", "info", "--format", "{{.Driver}} {{.ServerVersion}}"]


@dataclass(frozen=True)
class Health:
    """One host. ``problem`` is empty when it is well."""

    host: str
    problem: str = ""
    system: str = ""
    docker: str = ""
    memory: dict[str, int] | None = None

    def __str__(self) -> str:
        if self.problem:
            return f"{self.host}: {self.problem}"
        figures = self.memory or {}
        shown = {"total": "MemTotal", "free": "MemFree", "available": "MemAvailable"}
        sizes = ", ".join(f"{name} {figures.get(key, 0) / plan.GIB:.2f}" for name, key in shown.items())
        return f"{self.host}: {self.system}; Docker {self.docker}; memory in GiB: {sizes}"


def check(paths: Paths, groups: cgroups.Groups, host: plan.Host) -> Health:
    """Ask one host; never raises for an unhealthy one."""
    if not groups.processes(host.name):
        return Health(host.name, "is not running")
    try:
        figures = seed.memory(host)
        system = remote.call(paths, host, ["systemctl", "is-system-running"], check=False, timeout=20).stdout.strip()
        if system != "running":
            failed = remote.call(paths, host, ["systemctl", "--failed", "--no-legend", "--plain"], check=False, timeout=20).stdout
            units = " ".join(line.split()[0] for line in failed.splitlines() if line.split())
            return Health(host.name, f"systemd says {system or 'nothing (ssh does not answer)'}; failed units: {units or 'none'}")
        docker = remote.call(paths, host, PROBE, timeout=30).stdout.strip()
        if not docker.startswith("overlay2 "):
            return Health(host.name, f"Docker does not use overlay2 but {docker}")
    except LabError as problem:
        return Health(host.name, problem.problem)
    return Health(host.name, "", system, docker, figures)
