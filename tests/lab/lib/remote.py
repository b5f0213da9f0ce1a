# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reach the hosts the way Ansible does: over ssh, the second through the first."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Sequence

from . import plan
from .command import run
from .errors import LabError
from .paths import Paths

SSH_FAILED = 255


def command(paths: Paths, host: plan.Host, words: Sequence[str]) -> list[str]:
    """The ssh command line. The words arrive on the host as they are here: ssh's own join is quoted first."""
    return ["ssh", "-F", str(paths.ssh_config), host.name, *([shlex.join(words)] if words else [])]


def call(paths: Paths, host: plan.Host, words: Sequence[str], *, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command on a host; raises LabError that names the host when ``check`` and it failed."""
    done = run(command(paths, host, words), check=False, timeout=timeout)
    if check and done.returncode != 0:
        raise LabError(f"{host.name}: '{shlex.join(words)}' failed with {done.returncode}.", (done.stderr or done.stdout).strip())
    return done


def answers(address: str, timeout: float = 1.0) -> bool:
    """Whether the machine can open a connection to sshd there."""
    try:
        with socket.create_connection((address, 22), timeout):
            return True
    except OSError:
        return False


def wait_booted(paths: Paths, host: plan.Host, timeout: float) -> str:
    """Wait until a host has started all its units; returns systemd's word, 'running' when all is well."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        left = max(1.0, end - time.monotonic())
        try:
            done = call(paths, host, ["systemctl", "is-system-running", "--wait"], check=False, timeout=left)
        except LabError:
            break
        word = done.stdout.strip()
        if done.returncode != SSH_FAILED and word not in ("", "offline", "starting", "initializing"):
            return word
        time.sleep(0.25)
    raise LabError(f"{host.name} did not finish its start within {timeout:g} seconds.", f"Its console is in {paths.logs / (host.name + '.log')}.")
