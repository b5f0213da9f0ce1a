# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hashes of recipes: what is cached under a hash is rebuilt exactly when its recipe changes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

IGNORED_DIRECTORIES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
IGNORED_SUFFIXES = {".pyc", ".md"}
LENGTH = 16


def files_of(path: Path) -> Iterable[Path]:
    """The files and links below ``path`` (or itself) that count, in a fixed order."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for directory, names, files in os.walk(path):
        names[:] = sorted(name for name in names if name not in IGNORED_DIRECTORIES)
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        names[:] = [name for name in names if name not in links]
        for name in sorted(files + links):
            if Path(name).suffix not in IGNORED_SUFFIXES:
                yield Path(directory) / name


def hash_paths(base: Path, inputs: Iterable[Path], extra: Iterable[str] = ()) -> str:
    """Hash names, contents, link targets and the executable bit. Times and owners do not count: a clone has its own."""
    digest = hashlib.sha256()
    for text in extra:
        digest.update(f"text {len(text)} {text}\n".encode())
    seen: dict[str, Path] = {}
    for path in inputs:
        for file in files_of(path):
            seen[os.path.relpath(file, base)] = file
    for name in sorted(seen):
        file = seen[name]
        if file.is_symlink():
            content, kind = os.readlink(file).encode(), "link"
        else:
            content = file.read_bytes()
            kind = "program" if file.stat().st_mode & stat.S_IXUSR else "file"
        digest.update(f"{kind} {name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:LENGTH]
