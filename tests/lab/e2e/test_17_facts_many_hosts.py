# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""The facts of 32 hosts at once: each of the lab's two hosts under 16 names, each name with an ssh connection of its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness import INVENTORY, run_module
from two_ways import ADDRESSES, MODULE

# Part of `make soak` for the time that it takes.
pytestmark = pytest.mark.soak

HOSTS = 32
FORKS = 16
#: As ansible.cfg has them, but the kept connections end with the test.
SSH_ARGS = "-o ControlMaster=auto -o ControlPersist=3s"


def _inventory(path: Path, number: int) -> Path:
    """So many names of the two hosts. Ansible shares a kept connection among names of one address, unless its socket is named apart."""
    addresses = [*ADDRESSES.values()]
    common = f"-F {INVENTORY.parent.parent / '.lab' / 'ssh_config'}"
    lines = ["all:", f"  vars: {{ansible_user: root, ansible_python_interpreter: /usr/bin/python3, ansible_ssh_common_args: '{common}'}}", "  hosts:"]
    for one in range(number):
        # The directory is Ansible's own: the path of a socket can be no longer than 108 characters.
        lines.append(f"    spark-{one + 1:02}: {{ansible_host: {addresses[one % 2]}, ansible_control_path: '%(directory)s/e2e-{number}-{one:02}'}}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _seconds_a_host(path: Path, number: int) -> float:
    inventory = _inventory(path / f"{number}.yml", number)
    start = time.monotonic()
    run = run_module(MODULE, "", "all", "--forks", str(FORKS), inventory=inventory, environment={"ANSIBLE_SSH_ARGS": SSH_ARGS})
    took = time.monotonic() - start
    assert run.rc == 0 and not run.failures and not run.unreachable, run.failures or run.unreachable or run.output
    names = [f"spark-{one + 1:02}" for one in range(number)]
    facts = [run.fact("gpu_memory", name) for name in names]
    assert [each["class"] for each in facts] == ["unified"] * number
    assert [bool(each["processes"]) for each in facts] == [False, True] * (number // 2), "the names are not the hosts that they should be"
    return took / number


def test_thirty_two_hosts_sixteen_at_a_time(tmp_path: Path) -> None:
    few, many = _seconds_a_host(tmp_path, 2), _seconds_a_host(tmp_path, HOSTS)
    print(f"\nfacts of {HOSTS} hosts, {FORKS} at a time: {many:.2f} s a host, none failed; of 2 hosts: {few:.2f} s a host")
    assert many < few
