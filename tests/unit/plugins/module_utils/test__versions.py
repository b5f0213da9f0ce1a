# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import new_reading
from ansible_collections.unimem.dgx_spark.plugins.module_utils._versions import driver_pools, kernel_module_version, read_versions
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build  (dvs-builder@U22)  Mon\nGCC version:", "580.142"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Thu Mar 20 20:00:00 UTC 2025\n", "570.133.20"),
        ("", None),
    ],
)
def test_kernel_module(text: str, version: str | None) -> None:
    assert kernel_module_version(text) == version


@pytest.mark.parametrize(
    ("params", "pools"),
    [("EnableSystemMemoryPools: 529\n", True), ("EnableSystemMemoryPools: 0\n", False), ("MemoryPoolSize: 0\n", False), (None, None)],
)
def test_driver_pools(params: str | None, pools: bool | None) -> None:
    assert driver_pools(params) is pools


def test_the_last_update_is_the_release() -> None:
    release = 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\nDGX_OTA_VERSION="7.2.3"\nDGX_OTA_VERSION=7.6.0\n'
    files = {"/etc/dgx-release": release, "/proc/sys/kernel/osrelease": "6.11.0\n", "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\n'}
    versions = read_versions(FakeWorld(files), {**new_reading(), "driver_version": "580.178.04", "cuda_version": "13.0"})
    assert versions == {
        "driver": "580.178.04",
        "kernel_module": None,
        "cuda": "13.0",
        "kernel": "6.11.0",
        "os": "Ubuntu 24.04.3 LTS",
        "dgx_release": "7.6.0",
        "driver_pools": None,
    }
