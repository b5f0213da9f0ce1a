# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole module against pids that are used again while it works: a wrong signal would end a bystander."""

from __future__ import annotations

import os
import subprocess

import pytest

from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.pid_reuse import UNSHARE, judge, rounds


@pytest.fixture(autouse=True)
def namespace() -> None:
    if os.geteuid() != 0 or not hasattr(os, "pidfd_open"):
        pytest.skip("a PID namespace needs root, and pidfds Python 3.9")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine permits no PID namespaces")


def test_pids_used_again() -> None:
    judge(rounds(30, seed=7), 30)
