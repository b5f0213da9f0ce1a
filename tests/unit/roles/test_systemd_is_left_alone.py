# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd that reads its unit files again can take the GPU away from containers that run: no role and no playbook makes it do so."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODULES = ("systemd", "systemd_service", "service")


def test_no_task_makes_systemd_read_its_files_again() -> None:
    files = [*(ROOT / "roles").glob("*/tasks/*.yml"), *(ROOT / "roles").glob("*/handlers/*.yml"), *(ROOT / "playbooks").rglob("*.yml")]
    assert files
    for path in files:
        text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#"))
        assert "daemon_reload" not in text and "daemon-reload" not in text, path
        # Enabling by these does so as well; what has to be enabled is so by modules of this collection.
        assert not any(f"ansible.builtin.{name}:" in text for name in MODULES), path
