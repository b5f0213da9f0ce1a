# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that root acts upon: opened without following links that anybody else could have planted, and private.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import stat
import typing as t

_MAX_LINKS = 16
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class PathError(Exception):
    """A path is not safe to use, or not there. ``missing`` tells the second from the first, ``denied`` a lack of permission."""

    def __init__(self, message: str, missing: bool = False, denied: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.denied = denied


def open_private_directory(path: str, create: bool = False) -> int:
    """Open a directory that is ours alone (0700) and return its descriptor. Raises PathError.

    Each part of the path is opened relative to the one before and without following links; a link is taken only where
    nobody but root (or we) could have placed it. With ``create`` the last missing parts are made, 0700.
    """
    if not os.path.isabs(path) or "\0" in path:
        raise PathError(f"{path!r} is not an absolute path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise PathError(f"{path!r} must name a directory of its own, without '..'")
    current = os.open("/", _DIRECTORY)
    links = 0
    walked = ""
    try:
        while parts:
            part = parts.pop(0)
            try:
                following = _step(current, part, f"{walked}/{part}", create)
            except _Link as link:
                links += 1
                if links > _MAX_LINKS:
                    raise PathError(f"{path} goes through too many links") from None
                target = [each for each in link.target.split("/") if each not in ("", ".")]
                if ".." in target:
                    raise PathError(f"{walked}/{part} is a link with '..' in it; give the real path") from None
                parts = target + parts
                if link.target.startswith("/"):
                    os.close(current)
                    current = os.open("/", _DIRECTORY)
                    walked = ""
                continue
            os.close(current)
            current = following
            walked = f"{walked}/{part}"
        state = os.fstat(current)
        if state.st_uid != os.geteuid():
            raise PathError(f"{walked} belongs to uid {state.st_uid}, not to uid {os.geteuid()}")
        if state.st_mode & _OTHERS:
            mode = f"{stat.S_IMODE(state.st_mode):04o}"
            raise PathError(f"{walked} is open to others (mode {mode}) and must be 0700: give a directory of its own, made with 'install -d -m 0700'")
    except BaseException:
        os.close(current)
        raise
    return current


def open_private_file(directory: int, name: str, flags: int) -> int:
    """Open a file in an open directory: a plain file of ours with one name, 0600, never through a link. Raises PathError."""
    if not name or "/" in name or name in (".", ".."):
        raise PathError(f"{name!r} is not a file name")
    try:
        # O_NONBLOCK: somebody's FIFO must not hang us before it is refused.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=directory)
    except FileNotFoundError as exc:
        raise PathError(f"{name} does not exist", missing=True) from exc
    except OSError as exc:
        raise PathError(f"{name} cannot be opened safely: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc
    state = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(state.st_mode):
        problem = "is not a plain file"
    elif state.st_uid != os.geteuid():
        problem = f"belongs to uid {state.st_uid}, not to uid {os.geteuid()}"
    elif state.st_nlink != 1:
        problem = "has a second name (a hard link)"
    elif state.st_mode & _OTHERS:
        problem = f"is open to others (mode {stat.S_IMODE(state.st_mode):04o}); it must be 0600"
    if problem:
        os.close(descriptor)
        raise PathError(f"{name} {problem}")
    return descriptor


class _Link(Exception):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target


def _step(parent: int, part: str, shown: str, create: bool) -> int:
    owner = os.fstat(parent)
    trusted = owner.st_uid in (0, os.geteuid()) and not owner.st_mode & _OTHERS_WRITE
    try:
        state = os.stat(part, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError as exc:
        if not create:
            raise PathError(f"{shown} does not exist", missing=True) from exc
        try:
            os.mkdir(part, 0o700, dir_fd=parent)
            os.fsync(parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise PathError(f"{shown} cannot be made: {error.strerror}", denied=isinstance(error, PermissionError)) from error
        state = os.stat(part, dir_fd=parent, follow_symlinks=False)
    except OSError as exc:
        raise PathError(f"{shown} cannot be read: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc
    if stat.S_ISLNK(state.st_mode):
        if not trusted:
            raise PathError(f"{shown} is a link in a directory that others can write to")
        raise _Link(os.readlink(part, dir_fd=parent))
    if not trusted and not (owner.st_mode & stat.S_ISVTX and state.st_uid in (0, os.geteuid())):
        raise PathError(f"{shown} lies in a directory that others can write to")
    try:
        return os.open(part, _DIRECTORY, dir_fd=parent)
    except OSError as exc:
        raise PathError(f"{shown} cannot be opened as a directory: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_all(descriptor: int, limit: int) -> bytes:
    """Read a file to its end; raises PathError beyond ``limit`` bytes."""
    chunks: list[bytes] = []
    size = 0
    while True:
        chunk: bytes = os.read(descriptor, 65536)
        if not chunk:
            return b"".join(chunks)
        size += len(chunk)
        if size > limit:
            raise PathError(f"is larger than {limit} bytes")
        chunks.append(chunk)


def read_private_file(directory: str, name: str, limit: int) -> bytes:
    """The bytes of a private file in a private directory. Raises PathError, with ``missing`` when there is none."""
    parent = open_private_directory(directory)
    try:
        descriptor = open_private_file(parent, name, os.O_RDONLY)
        try:
            return read_all(descriptor, limit)
        finally:
            os.close(descriptor)
    finally:
        os.close(parent)


def replace_private_file(directory: str, name: str, data: bytes) -> None:
    """Put a file there as a whole: written beside, synced, renamed, the directory synced. Raises PathError and OSError.

    What is there under that name must be a private file of ours, or nothing. One writer at a time: the caller holds a lock.
    """
    beside = f".{name}.new"
    parent = open_private_directory(directory, create=True)
    try:
        try:
            os.close(open_private_file(parent, name, os.O_RDONLY))
        except PathError as exc:
            if not exc.missing:
                raise
        # Of a run that died while writing.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=parent)
        descriptor = open_private_file(parent, beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
        os.fsync(parent)
    finally:
        os.close(parent)


def remove_private_files(directory: str, names: t.Iterable[str]) -> list[str]:
    """Remove files from a private directory, and say which were there. Raises PathError and OSError."""
    removed: list[str] = []
    try:
        parent = open_private_directory(directory)
    except PathError as exc:
        if exc.missing:
            return removed
        raise
    try:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
                removed.append(name)
        if removed:
            os.fsync(parent)
    finally:
        os.close(parent)
    return removed


__all__: t.Sequence[str] = (
    "PathError",
    "open_private_directory",
    "open_private_file",
    "read_all",
    "read_private_file",
    "remove_private_files",
    "replace_private_file",
    "write_all",
)
