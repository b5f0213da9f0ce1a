# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages that the lab needs on the machine: which are missing, and their installation without starting a service."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .command import run, run_logged
from .errors import LabError

#: program -> package. What a fresh Debian or Ubuntu always has (mount, unshare, chroot) is not here.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
}
POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# unimem-lab: no service may be started while the lab's packages are installed"


def missing_programs() -> list[str]:
    """The packages whose program is not on the path."""
    return [package for program, package in PROGRAMS.items() if shutil.which(program) is None]


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those of the packages that are not installed, by dpkg's own record."""
    if not names:
        return []
    done = run(["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *names], check=False)
    installed = parse_status(done.stdout)
    return [name for name in names if name not in installed]


def parse_status(text: str) -> set[str]:
    """The installed ones of 'name status' lines."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0] for pair in pairs if len(pair) == 2 and pair[1] == "installed"}


@contextmanager
def services_kept_off() -> Iterator[None]:
    """Debian's own way to install without starting: policy-rc.d. A policy that the machine has already is left alone."""
    if POLICY.exists() and MARK not in POLICY.read_text(encoding="utf-8", errors="replace"):
        yield
        return
    POLICY.write_text(f"#!/bin/sh\n{MARK}\nexit 101\n", encoding="ascii")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        remove_policy()


def remove_policy() -> None:
    """Remove our policy-rc.d, also one that an interrupted run left."""
    if POLICY.exists() and MARK in POLICY.read_text(encoding="utf-8", errors="replace"):
        POLICY.unlink()


def install(names: Sequence[str], log: Path) -> None:
    """Install packages with apt; raises LabError with the end of its output."""
    if shutil.which("apt-get") is None:
        raise LabError(f"This machine has no apt-get to install {', '.join(names)} with.", "Install them by hand: the lab is for Debian and Ubuntu.")
    environment = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l", "LC_ALL": "C.UTF-8"}
    with services_kept_off():
        run_logged(["apt-get", "update"], log, what="apt-get update", timeout=600, env=environment)
        argv = ["apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *names]
        run_logged(argv, log, what=f"The installation of {', '.join(names)}", timeout=1200, env=environment)
