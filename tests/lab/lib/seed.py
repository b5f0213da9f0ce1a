# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The situation that the lab starts from: the worker serves embeddings, and its page cache is full."""

from __future__ import annotations

import json
from dataclasses import dataclass

from . import meminfo, plan, remote
from .errors import LabError
from .paths import Paths

SERVICE = "vllm-embeddings.service"
STRAY = "unimem-lab-stray.service"
LAUNCH_LABEL = "io.unimem.launch-id"
HEALTH = "http://127.0.0.1:8001/health"
#: curl asks again every second, for two minutes at most, until there is a good answer.
WAIT_FOR = ["curl", "--silent", "--fail", "--output", "/dev/null", "--retry", "120", "--retry-delay", "1", "--retry-max-time", "120", "--retry-all-errors"]
FILL = "/usr/lib/unimem-lab/fill-cache"


@dataclass(frozen=True)
class Deployment:
    """What the product has running on the hosts: names of its containers, by host."""

    containers: dict[str, list[str]]

    @property
    def running(self) -> bool:
        return any(self.containers.values())

    def __str__(self) -> str:
        return ", ".join(f"{' '.join(names)} on {host}" for host, names in self.containers.items() if names)


def deployment(paths: Paths) -> Deployment:
    """The rank containers that run on the hosts now."""
    argv = ["docker", "ps", "--filter", f"label={LAUNCH_LABEL}", "--format", "{{.Names}}"]
    return Deployment({host.name: remote.call(paths, host, argv).stdout.split() for host in plan.HOSTS})


def units(paths: Paths) -> list[str]:
    """Those of the seed's units that the services layer has put on the worker."""
    argv = ["systemctl", "list-unit-files", "--no-legend", "--full", "--output=json", SERVICE, STRAY]
    text = remote.call(paths, plan.SEED_HOST, argv, check=False).stdout
    return [entry["unit_file"] for entry in json.loads(text or "[]")]


def establish(paths: Paths) -> list[str]:
    """Bring the worker into the seed's situation; returns sentences on what holds now. Idempotent."""
    sentences = []
    for unit in units(paths):
        remote.call(paths, plan.SEED_HOST, ["systemctl", "start", unit], timeout=180)
        sentences.append(f"{unit} is active on {plan.SEED_HOST.name}")
        if unit == SERVICE:
            remote.call(paths, plan.SEED_HOST, [*WAIT_FOR, HEALTH], timeout=180)
            sentences.append(f"the embeddings service answers at {HEALTH} there")
    sentences.append(fill_cache(paths))
    return sentences


def fill_cache(paths: Paths) -> str:
    """Fill the worker's page cache; returns a sentence with the figures."""
    remote.call(paths, plan.SEED_HOST, [FILL, str(plan.FREE_WHEN_FULL)], timeout=300)
    figures = memory(plan.SEED_HOST)
    return (
        f"the page cache of {plan.SEED_HOST.name} is full: {figures['MemFree'] / plan.GIB:.2f} GiB free, "
        f"{figures['MemAvailable'] / plan.GIB:.2f} GiB available of {figures['MemTotal'] / plan.GIB:.2f}"
    )


def memory(host: plan.Host) -> dict[str, int]:
    """The host's memory figures in bytes, read on the machine."""
    try:
        return meminfo.parse_meminfo((host.pool / "meminfo").read_text(encoding="ascii"))
    except OSError as problem:
        raise LabError(f"The memory figures of {host.name} cannot be read: {problem}", "Start the lab again: lab.py down, then lab.py up.") from problem
