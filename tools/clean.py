# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make clean`: removes what the tools made in the checkout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.console import ToolError, main, say
from tools.places import BUILD, COLLECTIONS, ROOT, cache_dir

CACHES = (".ansible", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "tests/output")


def _run() -> int:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    mounted = [mount for mount in mounts if mount.startswith(f"{ROOT}{os.sep}")]
    if mounted:
        raise ToolError(f"{mounted[0]} is mounted: the lab is up, or went down half way; `make lab-down` first")
    for path in (BUILD, COLLECTIONS, *(ROOT / name for name in CACHES)):
        if path.is_dir():
            shutil.rmtree(path)
            say(f"removed {path.relative_to(ROOT)}")
    say(f"kept {cache_dir()} (the wheel with the collections, ansible-test's environments) and .lab")
    return 0


if __name__ == "__main__":
    main(_run)
