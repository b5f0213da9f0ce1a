# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole module against pids that are used again while it works: a wrong signal would end a bystander."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
#: From this kernel on a PID namespace has a pid_max of its own; before, writing it would change the machine's.
OWN_PID_MAX = (6, 14)


def rounds(number: int, seed: int) -> dict[str, int]:
    """So many rounds in a PID namespace; the counts."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    size = "tiny" if release and (int(release[1]), int(release[2])) >= OWN_PID_MAX else "usual"
    program = Path(__file__).with_name("pid_reuse.py")
    done = subprocess.run([*UNSHARE, sys.executable, str(program), str(number), str(seed), size], capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    assert size != "tiny" or counts["pid_max"] == 400
    return counts


@pytest.fixture(autouse=True)
def namespace() -> None:
    if os.geteuid() != 0 or not hasattr(os, "pidfd_open"):
        pytest.skip("a PID namespace needs root, and pidfds Python 3.9")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine permits no PID namespaces")


def judge(counts: dict[str, int], number: int) -> None:
    assert counts["rounds"] == number and counts["wrong"] == 0
    # It did its work where the pid stayed with its process, and gave a good part of the bystanders their chance.
    assert counts["ended"] == counts["never"] > 0
    assert counts["swapped"] == number - counts["never"] > number / 2
    assert counts["signals"] >= counts["never"]


def test_pids_used_again() -> None:
    judge(rounds(40, seed=7), 40)


@pytest.mark.soak
def test_pids_used_again_two_thousand_times() -> None:
    judge(rounds(2000, seed=11), 2000)
