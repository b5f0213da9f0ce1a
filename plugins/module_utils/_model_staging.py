# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Receiving a model: a staging folder beside it, verified there, then renamed into place, so that no engine sees half of one.

Weights and other contents come first, what leads to them (indexes, configurations, links, refs) last. What arrived before an
interruption stays in the staging folder and is not sent again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_index import Comparison, Index, compare
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import OWN_FOLDER, Entry, TreeError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._page_cache import evict_files


@dataclass
class Receipt:
    """What became of the files that were sent."""

    #: bytes renamed into place
    published: int = 0
    #: files and links renamed into place
    moved: int = 0
    #: paths that did not arrive
    absent: list[str] = field(default_factory=list)
    #: paths whose content was wrong; they are no longer in the staging folder
    corrupt: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.absent and not self.corrupt


def staging_of(root: str, key: str) -> str:
    """The folder that a model is received in: on the model's own file system, so that it can be renamed."""
    return os.path.join(root, OWN_FOLDER, key)


def staged_bytes(staging: str) -> int:
    """Bytes on disk that an earlier, interrupted copy has left there."""
    total = 0
    for folder, _folders, names in os.walk(staging):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def free_bytes(path: str) -> int:
    """Bytes that this user can still write below `path`, which need not exist yet."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def missing_bytes(expected: t.Iterable[Entry], wrong: t.Mapping[str, str]) -> int:
    """Bytes of the files that have to be sent."""
    return sum(entry.size for entry in expected if entry.path in wrong)


def _rank(entry: Entry) -> tuple[int, str]:
    """Contents before what names them."""
    name = os.path.basename(entry.path)
    if entry.kind == "link":
        return 2, entry.path
    if "refs" in entry.path.split("/"):
        return 3, entry.path
    return int(name.endswith((".index.json", "config.json"))), entry.path


def check_places(root: str, todo: t.Iterable[Entry]) -> None:
    """Raise TreeError where one of these could not be renamed into its place: found before anything is sent, and before the first rename."""
    base = _existing(root)
    device = os.stat(base).st_dev
    seen: set[str] = set()
    for entry in todo:
        final = os.path.join(root, entry.path)
        if os.path.isdir(final) and not os.path.islink(final):
            raise TreeError(f"{final} is a directory, and has to become a {entry.kind}: remove it first")
        folder = _existing(os.path.dirname(final))
        if folder in seen:
            continue
        seen.add(folder)
        status = os.stat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise TreeError(f"{folder} is in the way: it has to be a directory; remove it first")
        if status.st_dev != device:
            raise TreeError(f"{folder} lies on another file system than {base}: name a root (model_sync_root) on the one that holds the model")
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise TreeError(f"{folder} is on a file system that is mounted read-only: mount it for writing, or name another place for the model")
        if not os.access(folder, os.W_OK | os.X_OK):
            owner = f"user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
            text = f"user {os.geteuid()} may not write in {folder} ({owner}): run with become, or `chown -R {os.geteuid()} {folder}` there"
            raise TreeError(text)


def _existing(path: str) -> str:
    """The path, or the nearest one above it that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def publish(root: str, key: str, expected: t.Sequence[Entry], index: Index, content: bool, read: bool = True) -> Receipt:
    """Verify what lies in the staging folder and move it into place, all of it or nothing. Raises OSError, TreeError.

    Without `read`, files in place that the index does not know are taken as right; what arrived is read in any case.
    """
    staging = staging_of(root, key)
    wrong = compare(root, expected, index, content, read).wrong
    todo = sorted((entry for entry in expected if entry.path in wrong), key=_rank)
    arrived = Index(os.path.join(staging, "unused"))
    receipt = _inspect(staging, todo, compare(staging, todo, arrived, content))
    if not receipt.complete:
        return receipt
    check_places(root, todo)
    for entry in todo:
        if entry.kind == "file":
            # Written back before it has its name: a crash must not leave an empty file under a blob's. And out of the page cache.
            evict_files([os.path.join(staging, entry.path)])
            receipt.published += entry.size
    folders = set()
    for entry in todo:
        staged, final = os.path.join(staging, entry.path), os.path.join(root, entry.path)
        _make_folders(staging, root, os.path.dirname(entry.path))
        os.replace(staged, final)
        receipt.moved += 1
        folders.add(os.path.dirname(final))
        if entry.kind == "file" and content and entry.digest:
            index.note(entry.path, os.lstat(final), entry.digest)
    for folder in sorted(folders):
        _sync_folder(folder)
    if os.path.isdir(staging):
        shutil.rmtree(staging)
    index.keep_only([entry.path for entry in expected if entry.kind == "file"])
    if content and index.changed:
        index.save()
    return receipt


def _inspect(staging: str, todo: t.Sequence[Entry], seen: Comparison) -> Receipt:
    """Sort out what did not arrive and what arrived damaged; what is damaged is removed, so that it is sent again."""
    receipt = Receipt()
    for entry in todo:
        reason = seen.wrong.get(entry.path)
        if reason == "absent":
            receipt.absent.append(entry.path)
        elif reason is not None:
            receipt.corrupt.append(entry.path)
            os.unlink(os.path.join(staging, entry.path))
    return receipt


def _make_folders(staging: str, root: str, path: str) -> None:
    """Make the folders of a path below root, with the modes and owners that rsync gave them in the staging folder."""
    done = ""
    for part in path.split("/") if path else ():
        done = os.path.join(done, part)
        final = os.path.join(root, done)
        if os.path.isdir(final):
            continue
        os.mkdir(final, 0o755)
        status = os.stat(os.path.join(staging, done))
        os.chmod(final, stat.S_IMODE(status.st_mode))
        if os.geteuid() == 0:
            os.chown(final, status.st_uid, status.st_gid)


def _sync_folder(path: str) -> None:
    """Make renames in a folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
