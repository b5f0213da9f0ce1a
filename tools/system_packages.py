# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian and Ubuntu packages that the tools need: says first what it installs, and installs only what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from tools.console import ToolError, need, say


def installed(package: str) -> bool:
    """Whether dpkg has this package fully installed."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package], check=False, capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.startswith("ii")


def ensure(packages: Sequence[str], why: str) -> None:
    """Install the missing ones of these packages with apt-get; without root or apt-get, say what to do instead."""
    if shutil.which("dpkg-query") is None:
        raise ToolError(f"this is not a Debian or Ubuntu machine: install {' '.join(packages)} ({why}) the way your system does, then run this again")
    missing = [package for package in packages if not installed(package)]
    if not missing:
        return
    if os.geteuid() != 0:
        raise ToolError(f"{why} needs the packages {' '.join(missing)}: run `apt-get install {' '.join(missing)}` as root, then this again")
    say(f"installing Debian packages for {why}: {' '.join(missing)}")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    need(["apt-get", "update", "-qq"], env)
    need(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env)
