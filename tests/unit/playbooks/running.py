# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "inventory" / "recorded.yml"


def play(name: str, directory: Path, *arguments: str, inventory: Path | None = RECORDED, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook of the collection, or one at a path, from *directory* with extra *variables*."""
    path = Path(name) if "/" in name or "." in name else ROOT / "playbooks" / f"{name}.yml"
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(path), *arguments]
    if inventory is not None:
        command += ["-i", str(inventory)]
    if variables:
        command += ["-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=300)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """All that it said."""
    return done.stdout + done.stderr
