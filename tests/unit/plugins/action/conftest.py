# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _followed_job


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> list[str]:
    """What the plugins of jobs that are followed have shown; they do not wait."""
    lines: list[str] = []
    monkeypatch.setattr(_followed_job, "POLL", 0.0)
    monkeypatch.setattr(_followed_job, "MOST_POLL", 0.0)
    monkeypatch.setattr(_followed_job, "ON_TERMINAL", False)
    monkeypatch.setattr(_followed_job.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(_followed_job.display, "display", lines.append)
    monkeypatch.setattr(_followed_job.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    return lines
