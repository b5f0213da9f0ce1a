# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One lab.py at a time on a machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LabError


@contextmanager
def held(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file ``path`` for the block and remove it; raises LabError if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise LabError(
                f"Another run of the lab is at work on this machine ({holder or 'unnamed'}).", "Wait for it to end, or end it, and try again."
            ) from problem
        if _still_there(path, descriptor):
            break
        os.close(descriptor)  # its last holder removed it between our open and our lock
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"lab.py {purpose}, process {os.getpid()}".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
