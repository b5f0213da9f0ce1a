# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Whether a node's files are the model's files: content hashes, and the index that spares reading them again.

The index keeps for each file what `stat` said when it was hashed: size, mtime, ctime (both in ns) and inode. Any difference,
and the file is hashed again. It is a cache beside the model, written by whoever may write the model.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import stat
import tempfile
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import OWN_FOLDER, Entry

_MAX_INDEX: t.Final = 32 << 20
#: Bytes that are read, hashed and forgotten at a time.
_CHUNK: t.Final = 8 << 20
_VERSION: t.Final = 1

#: size, mtime_ns, ctime_ns, inode, digest
Stamp = tuple[int, int, int, int, str]


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """What must be unchanged for a stamp to hold."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def key_of(model_path: str, root: str) -> str:
    """The name of a model below OWN_FOLDER, the same on every node."""
    name = os.path.relpath(model_path, root)
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass
class Index:
    """The stamps of one model on this node."""

    path: str
    stamps: dict[str, Stamp] = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def load(cls, root: str, key: str) -> Index:
        """Read the index; one that is absent, unreadable or of another version is an empty one."""
        index = cls(os.path.join(root, OWN_FOLDER, f"{key}.json"))
        try:
            descriptor = os.open(index.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return index
        with os.fdopen(descriptor, "rb") as handle:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_INDEX:
                return index
            try:
                told = parse_json(handle.read())
            except ValueError:
                return index
        files = told.get("files") if isinstance(told, dict) and told.get("version") == _VERSION else None
        for name, value in files.items() if isinstance(files, dict) else ():
            if isinstance(value, list) and len(value) == 5 and all(isinstance(number, int) for number in value[:4]) and isinstance(value[4], str):
                index.stamps[name] = (value[0], value[1], value[2], value[3], value[4])
        return index

    def known(self, entry: Entry, status: os.stat_result, algorithm: str) -> str | None:
        """The digest of a file that has not changed since it was hashed with this algorithm."""
        stamp = self.stamps.get(entry.path)
        if stamp is None or stamp[:4] != identity(status) or not stamp[4].startswith(algorithm + ":"):
            return None
        return stamp[4]

    def note(self, path: str, status: os.stat_result, digest: str) -> None:
        """Remember a file's digest."""
        stamp = (*identity(status), digest)
        if self.stamps.get(path) != stamp:
            self.stamps[path] = stamp
            self.changed = True

    def keep_only(self, paths: t.Collection[str]) -> None:
        """Forget files that are not part of the model any more."""
        for path in set(self.stamps) - set(paths):
            del self.stamps[path]
            self.changed = True

    def save(self) -> None:
        """Write the index, all of it or nothing. Raises OSError."""
        folder = os.path.dirname(self.path)
        os.makedirs(folder, mode=0o755, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=folder, prefix=".index-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as handle:
                json.dump({"version": _VERSION, "files": self.stamps}, handle)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(scratch, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            raise
        self.changed = False


def algorithm_of(entry: Entry) -> str:
    """The algorithm of the digest that an entry is compared by."""
    return entry.digest.split(":", 1)[0] if entry.digest else "sha256"


def hash_file(path: str, algorithm: str) -> tuple[str, os.stat_result]:
    """Hash a regular file without leaving it in the page cache; return its digest and the state it was read in.

    Raises OSError, also when the file changed while it was read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as handle:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(f"{path} is not a regular file")
        if algorithm == "git-sha1":
            digest = hashlib.sha1(b"blob %d\0" % before.st_size, usedforsecurity=False)
        elif algorithm == "sha256":
            digest = hashlib.sha256()
        else:
            raise OSError(f"{path} is to be compared by {algorithm}, which is not known here")
        buffer = bytearray(_CHUNK)
        view = memoryview(buffer)
        offset = 0
        while True:
            count = handle.readinto(buffer)
            if not count:
                break
            digest.update(view[:count])
            # Reading 118 GiB must not push them through the page cache of a machine that has 120.
            os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_DONTNEED)
            offset += count
        after = os.fstat(descriptor)
    if identity(before) != identity(after):
        raise OSError(f"{path} changed while it was read")
    return f"{algorithm}:{digest.hexdigest()}", after


def hash_all(root: str, entries: t.Sequence[Entry], index: Index) -> int:
    """Bring the index up to date for these files, several at once; return the bytes that had to be read. Raises OSError."""
    todo = []
    for entry in entries:
        if index.known(entry, os.lstat(os.path.join(root, entry.path)), algorithm_of(entry)) is None:
            todo.append(entry)
    # hashlib lets go of the interpreter's lock: threads are enough. More of them would only make the disk seek.
    workers = min(4, os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
        jobs = {entry.path: pool.submit(hash_file, os.path.join(root, entry.path), algorithm_of(entry)) for entry in todo}
        for path, job in jobs.items():
            digest, status = job.result()
            index.note(path, status, digest)
    return sum(entry.size for entry in todo)


@dataclass
class Comparison:
    """What of a model this node lacks or has wrong."""

    #: path -> absent, kind, target, size, content
    wrong: dict[str, str] = field(default_factory=dict)
    hashed: int = 0
    #: paths that were compared by size only, because reading them was not allowed
    unverified: list[str] = field(default_factory=list)


def compare(root: str, expected: t.Sequence[Entry], index: Index, content: bool, read: bool = True) -> Comparison:
    """Hold what is below `root` against what is expected. With `content`, every file's digest must be known and equal. Raises OSError.

    Without `read`, nothing is hashed: a file whose digest the index does not know counts as right, and as unverified. So does one
    whose digest nobody has said.
    """
    result = Comparison()
    candidates = []
    for entry in expected:
        full = os.path.join(root, entry.path)
        try:
            status = os.lstat(full)
        except (FileNotFoundError, NotADirectoryError):
            result.wrong[entry.path] = "absent"
            continue
        if entry.kind == "link":
            if not stat.S_ISLNK(status.st_mode):
                result.wrong[entry.path] = "kind"
            elif os.readlink(full) != entry.target:
                result.wrong[entry.path] = "target"
        elif not stat.S_ISREG(status.st_mode):
            result.wrong[entry.path] = "kind"
        elif status.st_size != entry.size:
            result.wrong[entry.path] = "size"
        else:
            candidates.append(entry)
    if content and not read:
        for entry in candidates:
            known = index.known(entry, os.lstat(os.path.join(root, entry.path)), algorithm_of(entry))
            if not known or not entry.digest:
                result.unverified.append(entry.path)
            elif known != entry.digest:
                result.wrong[entry.path] = "content"
    elif content:
        result.unverified = [entry.path for entry in candidates if not entry.digest]
        candidates = [entry for entry in candidates if entry.digest]
        result.hashed = hash_all(root, candidates, index)
        for entry in candidates:
            if index.stamps[entry.path][4] != entry.digest:
                result.wrong[entry.path] = "content"
    return result
