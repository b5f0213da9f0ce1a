# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie: in the checkout, below it, and in the cache that outlives a clone."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build"
LOGS = BUILD / "logs"
COLLECTIONS = ROOT / ".collections"
REQUIREMENTS = ROOT / "tests" / "requirements"
NAMESPACE = "unimem"
NAME = "dgx_spark"


def cache_dir() -> Path:
    """The per-user cache, shared by all clones: what is slow to make and depends on nothing in the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "unimem-dgx-spark"
