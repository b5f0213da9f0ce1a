# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""One hash for a build context: the same wherever a checkout lies and whoever made it, another as soon as a build could differ.

Hashed are names relative to the directory, contents, link targets, and whether a file is executable (git keeps no more of a
mode than that); not times, owners, or the umask's bits.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import typing as t

_CHUNK: t.Final = 1 << 20
#: Made by running or importing a context's own files; no build means them.
SKIPPED: t.Final = frozenset({"__pycache__", ".git"})


class TreeHashError(ValueError):
    """The directory cannot be hashed; the text says why."""


def tree_hash(directory: str, salt: t.Any = None) -> str:
    """SHA-256 (hex) of a directory tree and of `salt`, which is anything that JSON can hold (build arguments, say)."""
    if not os.path.isdir(directory):
        raise TreeHashError(f"there is no directory {directory}")
    digest = hashlib.sha256()
    _feed(digest, "salt", json.dumps(salt, sort_keys=True, default=str))
    count = 0
    for path in _walk(directory, ""):
        count += 1
        full = os.path.join(directory, path)
        status = os.lstat(full)
        if stat.S_ISLNK(status.st_mode):
            _feed(digest, "link", path, os.readlink(full))
        elif stat.S_ISDIR(status.st_mode):
            _feed(digest, "folder", path)
        elif stat.S_ISREG(status.st_mode):
            _feed(digest, "program" if status.st_mode & 0o100 else "file", path, _content(full))
        else:
            raise TreeHashError(f"{full} is neither a file nor a directory nor a link")
    if not count:
        raise TreeHashError(f"{directory} is empty")
    return digest.hexdigest()


def _walk(directory: str, below: str) -> t.Iterator[str]:
    """All paths below a directory, relative, in an order that depends on nothing but the names."""
    for name in sorted(os.listdir(os.path.join(directory, below))):
        if name in SKIPPED or name.endswith(".pyc"):
            continue
        path = os.path.join(below, name)
        yield path
        full = os.path.join(directory, path)
        if os.path.isdir(full) and not os.path.islink(full):
            yield from _walk(directory, path)


def _content(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _feed(digest: t.Any, *fields: str) -> None:
    """Add fields so that no two lists of fields give the same bytes."""
    for field in fields:
        data = field.encode("utf-8", "surrogateescape")
        digest.update(b"%d:" % len(data))
        digest.update(data)
