# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd that reads its unit files again can take the GPU away from containers that run: no role and no playbook makes it do so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
MODULES = {f"ansible.builtin.{name}" for name in ("systemd", "systemd_service", "service")}
#: What these do by reading all unit files again.
RELOADING = {"daemon_reload", "daemon_reexec", "enabled", "masked"}


def dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """All that are in a document, however deep."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from dictionaries(inner)


def test_no_task_makes_systemd_read_its_files_again() -> None:
    files = [*(ROOT / "roles").glob("*/tasks/*.yml"), *(ROOT / "roles").glob("*/handlers/*.yml"), *(ROOT / "playbooks").rglob("*.yml")]
    assert files
    for path in files:
        for task in dictionaries(yaml.safe_load(path.read_text(encoding="utf-8"))):
            for name in MODULES & set(task):
                assert not RELOADING & set(task[name]), f"{path}: {task.get('name')}"
            assert "daemon-reload" not in str(task), f"{path}: {task.get('name')}"
