# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's hosts as the benches use them, past Ansible."""

from __future__ import annotations

import shlex
import subprocess

from tools.console import ToolError
from tools.places import ROOT


def on_host(host: str, *argv: str, stdin: str = "") -> str:
    """What a command on a host prints, over the lab's ssh. ToolError when it fails."""
    words = ["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), host, shlex.join(argv)]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolError(f"{host}: {shlex.join(argv)[:200]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
