# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""How much of a repository's commit is on disk, without asking the Hub.

Whether a model is complete is for the model's own files to say: index, numbers, headers. They do not say whether a tokenizer is missing, or of
which commit a plain directory is. The Hub's client says that: since 1.30 or so it writes down which files a commit has before it fetches
them (`trees/COMMIT.json`), and of a plain directory's files it has always noted the commit (`.cache/huggingface/download/*.metadata`).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import fnmatch
import hashlib
import os
import re
import stat
import typing as t
from dataclasses import dataclass, field

from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import Place, Request
from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import MAX_ENTRIES, TreeError, check_relative, read_tree
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import ERROR
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size

_MAX_LISTING: t.Final = 32 << 20
_UNFINISHED: t.Final = ".incomplete"
#: Named for one process: no other will ever go on with it. Without the eight digits, older clients do.
_ABANDONED: t.Final = re.compile(r"(?<=.)\.[0-9a-f]{8}\.incomplete\Z")


@dataclass
class Look:
    """What is there of a commit."""

    #: why it is not complete; empty where it is
    reasons: list[str] = field(default_factory=list)
    #: the client's own list of the commit's files, as far as they are asked for, with their sizes; None where there is none
    listing: dict[str, int] | None = None
    #: those of them that are not there, or not in this commit's version
    lacking: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.reasons


def wanted(name: str, request: Request) -> bool:
    """Whether a file of the repository is asked for, by the client's own rule."""

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatch(name, pattern + "*" if pattern.endswith("/") else pattern) for pattern in patterns)

    return (not request.include or matches(request.include)) and not matches(request.exclude)


def read_listing(place: Place, request: Request) -> dict[str, int] | None:
    """The client's list of the commit's files that are asked for. None where it has written none, or one that is not understood."""
    try:
        if os.path.getsize(place.listing) > _MAX_LISTING:
            return None
        with open(place.listing, "rb") as handle:
            told = parse_json(handle.read())
    except (OSError, ValueError):
        return None
    files = told.get("files") if isinstance(told, dict) and told.get("format_version") == 1 else None
    if not isinstance(files, dict) or not files or len(files) > MAX_ENTRIES:
        return None
    listing = {}
    for name, entry in files.items():
        size = entry.get("size") if isinstance(entry, dict) else None
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            return None
        try:
            check_relative(name)
        except TreeError:
            return None
        if wanted(name, request):
            listing[name] = size
    return listing


def _noted(place: Place, name: str) -> str:
    """The commit that a plain directory's file was fetched for, as the client noted it; "" where it did not."""
    try:
        with open(os.path.join(place.locks, f"{name}.metadata"), encoding="ascii", errors="replace") as handle:
            return handle.readline(100).strip()
    except OSError:
        return ""


def look(place: Place, request: Request, root: str | None) -> Look:
    """Tell whether the commit is complete. Reads names, sizes and headers; touches no network."""
    seen = Look(listing=read_listing(place, request))
    try:
        tree = read_tree(place.folder, request.revision if place.layout == "cache" else None, root)
    except TreeError as exc:
        seen.reasons.append(str(exc))
        seen.lacking = dict(seen.listing or {})
        return seen
    seen.reasons += [problem["message"] for problem in tree.problems.as_list() if problem["severity"] == ERROR]
    if seen.listing is not None:
        for name, size in seen.listing.items():
            _compare(place, request, name, size, seen)
    elif any(True for _path in unfinished(place)):
        seen.reasons.append("a download of it was interrupted")
    elif place.layout == "plain":
        names = [entry.path[len(os.path.relpath(place.folder, tree.root)) + 1 :] for entry in tree.entries]
        noted = {name: _noted(place, name) for name in names}
        # What others have put there has no note; what an engine cannot do without has to have one.
        needed = (".safetensors", ".bin", ".gguf", "config.json")
        foreign = [name for name, commit in noted.items() if commit != request.revision and (commit or name.endswith(needed))]
        if foreign:
            commit = noted[foreign[0]]
            seen.reasons.append(f"{foreign[0]} is of {f'commit {commit}' if commit else 'an unknown commit'}")
    return seen


def _compare(place: Place, request: Request, name: str, size: int, seen: Look) -> None:
    """Hold one file against the client's list."""
    path = os.path.join(place.model_path, name)
    try:
        actual = os.stat(path).st_size
    except OSError:
        seen.lacking[name] = size
        seen.reasons.append(f"{name} is not there")
        return
    if place.layout == "plain" and _noted(place, name) != request.revision:
        seen.lacking[name] = size
        seen.reasons.append(f"{name} is not that of commit {request.revision}")
    elif actual != size:
        # The client looks at names only: it would take this one as fetched for ever.
        seen.reasons.append(f"{os.path.realpath(path)} has {format_size(actual)} of {format_size(size)}: remove it and {path}")


def unfinished(place: Place) -> t.Iterator[str]:
    """Files that a download has begun and not finished."""
    base = os.path.join(place.folder, "blobs") if place.layout == "cache" else place.locks
    for folder, _folders, names in os.walk(base):
        for name in names:
            if name.endswith(_UNFINISHED):
                yield os.path.join(folder, name)


def _on_disk(path: str) -> int:
    """Bytes that a file really has by now: one may have its full length from the beginning."""
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return min(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else 0


def unfinished_bytes(place: Place) -> int:
    """What they take."""
    return sum(_on_disk(path) for path in unfinished(place))


#: size, inode, mtime in ns
Stamp = tuple[int, int, int]


def finished(place: Place) -> dict[str, Stamp]:
    """The repository's files on disk: of all its commits, and those of them that lie in a store that repositories share."""
    found: dict[str, Stamp] = {}

    def note(path: str) -> None:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found[path] = (status.st_size, status.st_ino, status.st_mtime_ns)

    if place.layout == "cache":
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(place.folder, "blobs")):
                if not name.endswith(_UNFINISHED):
                    note(os.path.join(place.folder, "blobs", name))
        return found
    for folder, folders, names in os.walk(place.folder):
        folders[:] = [name for name in folders if name != ".cache"]
        for name in names:
            note(os.path.join(folder, name))
        if len(found) > MAX_ENTRIES:
            raise TreeError(f"{place.folder} has more than {MAX_ENTRIES} files: that is no model")
    return found


def fresh(before: t.Mapping[str, Stamp], after: t.Mapping[str, Stamp]) -> dict[str, int]:
    """What has come, with its size. The client renames what it has fetched into its place, so that it is another file there."""
    return {path: stamp[0] for path, stamp in after.items() if before.get(path) != stamp}


def _lock_of(place: Place, path: str, blob: str) -> str:
    """The client's lock for what it is writing there."""
    if place.layout == "cache":
        return os.path.join(place.locks, f"{blob}.lock")
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(".lock"):
                short = base64.urlsafe_b64encode(hashlib.sha1(f"{name[:-5]}.metadata".encode()).digest()).decode()
                if blob.startswith(short):
                    return os.path.join(folder, name)
    return ""


def remove_abandoned(place: Place) -> int:
    """Remove what a download that was killed has left and no other will go on with; return its bytes.

    A download that lives holds the client's lock for that file. Where the lock cannot be taken, or is not understood, the file stays.
    """
    freed = 0
    for path in list(unfinished(place)):
        name = os.path.basename(path)
        match = _ABANDONED.search(name)
        lock = _lock_of(place, path, name[: match.start()]) if match else ""
        if not lock:
            continue
        size = _on_disk(path)
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
                freed += size
            finally:
                os.close(descriptor)
    return freed
