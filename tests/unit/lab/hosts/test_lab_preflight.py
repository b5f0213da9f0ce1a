# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each thing that may be wrong with a machine has one sentence and a remedy; a good machine has none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lib import packages, plan
from lib.preflight import Machine, judge

GIB = plan.GIB
GOOD = Machine(
    disk_free={"/var/cache": 50 * GIB},
    disk_needed={"/var/cache": 10 * GIB},
    addresses={"lo": ("127.0.0.1/8", "::1/128"), "eth0": ("192.0.2.2/24", "fd00::2/64")},
    routes=(("default", "eth0"), ("192.0.2.0/24", "eth0"), ("10.0.0.0/8", "eth0")),
)


def test_a_good_machine_is_not_complained_about() -> None:
    assert judge(GOOD) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user": 1000}, "must run as root"),
        ({"namespaces": "unshare failed: Operation not permitted"}, "Operation not permitted"),
        ({"filesystems": frozenset({"fuse"})}, "no overlay file system"),
        ({"fuse_device": False}, "/dev/fuse"),
        ({"cgroup_writable": False}, "No control group"),
        ({"cgroup_lacking": ("the controller cpuset", "memory.reclaim (Linux 5.19)")}, "lack the controller cpuset, memory.reclaim"),
        ({"memory_total": 8 * GIB}, "8.0 GiB of memory; the lab needs 13 GiB"),
        ({"disk_free": {"/var/cache": 3 * GIB}}, "/var/cache has 3.0 GiB free; the lab needs 10.0 GiB"),
        ({"addresses": {"unimem-mgmt": ()}}, "interface unimem-mgmt exists"),
        ({"addresses": {"docker1": ("10.1.230.5/16",)}}, "docker1 has the address 10.1.230.5/16"),
        ({"routes": (("10.1.230.128/25", "tun0"),)}, "routes 10.1.230.128/25 to tun0"),
        ({"taken_namespaces": ("unimem-spark-01",)}, "namespace unimem-spark-01 exists"),
        ({"taken_mounts": ("/run/unimem-lab/x",)}, "mounted at /run/unimem-lab/x"),
    ],
)
def test_one_problem_one_sentence_one_remedy(change: dict[str, object], words: str) -> None:
    found = judge(replace(GOOD, **change))  # type: ignore[arg-type]
    assert len(found) == 1
    assert words in found[0].problem
    assert found[0].remedy


def test_all_problems_are_told_at_once() -> None:
    assert len(judge(replace(GOOD, fuse_device=False, memory_total=GIB, taken_namespaces=("unimem-spark-01",)))) == 3


def test_only_installed_packages_count() -> None:
    text = "gcc installed\nlibc6-dev not-installed\ndebootstrap config-files\n"
    assert packages.parse_status(text) == {"gcc"}
