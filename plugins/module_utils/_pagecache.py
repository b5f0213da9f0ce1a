# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The page cache of files: what was read or written to copy a model must not be what the next launch fails on.

On a unified-memory machine CUDA takes its memory from MemFree, and pages of files that nobody needs any more count as used
until somebody evicts them (facts of vLLM and PyTorch users on GB10: a launch right after a copy fails).
"""

from __future__ import annotations

import os
import stat

#: Reading, and forgetting what was read, in steps of this many bytes.
CHUNK = 8 << 20


def forget(descriptor: int, offset: int = 0, length: int = 0) -> None:
    """Drop an open file's clean pages from the page cache; `length` 0 means to the end. Where the platform has no fadvise, nothing happens."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        advise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def evict(path: str) -> int:
    """Write a regular file's dirty pages back and drop it from the page cache; return its size. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return 0
        # Only clean pages can be dropped.
        os.fsync(descriptor)
        forget(descriptor)
        return status.st_size
    finally:
        os.close(descriptor)
