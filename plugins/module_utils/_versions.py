# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Versions that two nodes of a launch are compared by, and the driver's own pools, which explain memory that nobody holds."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import Reading, parse_assignments
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

_KERNEL_MODULE = re.compile(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\s", re.MULTILINE)
_POOLS = re.compile(r"^EnableSystemMemoryPools:\s*(\d{1,10})\s*$", re.MULTILINE)


def kernel_module_version(text: str) -> str | None:
    """Version of the loaded kernel module, from /proc/driver/nvidia/version."""
    match = _KERNEL_MODULE.search(text)
    return match[1] if match else None


def driver_pools(params: str | None) -> bool | None:
    """Whether the driver keeps freed pages in pools of its own (from 590 on, unless NVreg_EnableSystemMemoryPools=0); None when unknown."""
    if params is None:
        return None
    match = _POOLS.search(params)
    return bool(match and int(match[1]))


def read_versions(world: World, reading: Reading) -> dict[str, t.Any]:
    """The ``versions`` of the facts: driver, kernel_module, cuda, kernel, os, dgx_release, driver_pools."""
    release = parse_assignments(world.read_text("/etc/dgx-release") or "")
    kernel_module = kernel_module_version(world.read_text("/proc/driver/nvidia/version") or "")
    kernel = world.read_text("/proc/sys/kernel/osrelease")
    return {
        "driver": reading["driver_version"] or kernel_module,
        "kernel_module": kernel_module,
        "cuda": reading["cuda_version"],
        "kernel": kernel.strip() if kernel else None,
        "os": parse_assignments(world.read_text("/etc/os-release") or "").get("PRETTY_NAME"),
        # Each update over the air adds a line; the last one is what runs now.
        "dgx_release": release.get("DGX_OTA_VERSION") or release.get("DGX_SWBUILD_VERSION"),
        "driver_pools": driver_pools(world.read_text("/proc/driver/nvidia/params")),
    }
