# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Page cache eviction: file by file where the files are known, the whole cache where nothing else helps.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import os
import stat

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

DROP_CACHES = "/proc/sys/vm/drop_caches"

#: A tree with more files than this is no model; the rest of it is left.
MAX_FILES = 200000


def evict_files(paths: list[str]) -> tuple[int, list[str]]:
    """Tell the kernel that the pages of these files, and of files below these directories, are not needed.

    No root is needed. Dirty pages stay, so each file is synced first where we may. Links are not followed.
    Returns the number of files and a sentence for each path that could not be used.
    """
    count = 0
    problems: list[str] = []
    for path in paths:
        try:
            mode = os.lstat(path).st_mode
        except OSError as exc:
            problems.append(f"{path}: {exc.strerror}")
            continue
        if stat.S_ISDIR(mode):
            for directory, _directories, names in os.walk(path, followlinks=False):
                for name in names:
                    if count >= MAX_FILES:
                        problems.append(f"{path} has more than {MAX_FILES} files; the rest is left")
                        return count, problems
                    count += _evict(os.path.join(directory, name))
        elif stat.S_ISREG(mode):
            count += _evict(path)
        else:
            problems.append(f"{path} is neither a plain file nor a directory")
    return count, problems


def _evict(path: str) -> int:
    try:
        # O_NONBLOCK: a FIFO among the files must not hang us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return 0
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return 1


def drop_all(world: World, timeout: float) -> str | None:
    """Drop the whole page cache and the shrinkable caches of drivers (drivers from 590 on keep freed pages there).

    Writes ``3``, as NVIDIA's guides for the Spark do. Returns None, or a sentence that says why it was not done.
    """
    if world.effective_uid() != 0:
        return "dropping the whole page cache needs root (become: true)"
    # Dirty pages cannot be dropped. A file system that hangs must not hang us, so this has a deadline.
    synced = world.run(["sync"], timeout)
    if synced.timed_out:
        return f"writing dirty pages back (sync) has not ended within {timeout:.0f} s"
    try:
        descriptor = os.open(DROP_CACHES, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"3\n")
        finally:
            os.close(descriptor)
    except OSError as exc:
        return f"{DROP_CACHES} cannot be written: {exc.strerror}"
    return None
