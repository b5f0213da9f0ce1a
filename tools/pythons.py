# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Python interpreters this machine has: on PATH, in the usual prefixes, and those of version managers.

An interpreter counts only if it runs: a version manager's shim can exist and refuse to start.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

PROBE = "import sys; print('%d.%d' % sys.version_info[:2]); print(getattr(sys, '_base_executable', sys.executable))"


def _places() -> list[Path]:
    """Directories with interpreters, most explicit first."""
    found = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    found += [Path("/usr/local/bin"), Path("/usr/bin")]
    managers = {
        Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"): "versions/*/bin",
        Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"): "uv/python/*/bin",
    }
    for base, pattern in managers.items():
        found += sorted(base.glob(pattern))
    return list(dict.fromkeys(found))


def _version(path: Path) -> tuple[str, str] | None:
    """(version, executable) as the interpreter itself says it, or None where it does not run."""
    try:
        done = subprocess.run([str(path), "-I", "-c", PROBE], check=False, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return (lines[0], lines[1]) if done.returncode == 0 and len(lines) == 2 else None


@functools.cache
def find(version: str) -> Path | None:
    """A working interpreter of exactly this version (like "3.12"), or None."""
    for place in _places():
        for name in (f"python{version}", "python3"):
            path = place / name
            if os.access(path, os.X_OK):
                seen = _version(path)
                if seen is not None and seen[0] == version:
                    return Path(seen[1])
    return None


def first(versions: tuple[str, ...]) -> tuple[str, Path] | None:
    """The first of these versions that the machine has."""
    for version in versions:
        path = find(version)
        if path is not None:
            return version, path
    return None
