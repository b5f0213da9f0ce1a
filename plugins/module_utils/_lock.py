# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time on a node: an advisory lock that ends with its process, and says who holds it.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._private_dir import PathError, open_private_directory, open_private_file

#: Held while a module stops or restores something on this node.
LOCK_NAME = "reclaim.lock"

#: Pause between two tries for a lock: nobody announces that it is free.
_RETRY = 0.2


def lock_directory() -> str:
    """Where the node's locks are: a directory that only we can write to, gone with the boot like everything that they guard."""
    uid = os.geteuid()
    return "/run/unimem" if uid == 0 else f"/run/user/{uid}/unimem"


class LockError(Exception):
    """The lock was not taken. ``holder`` tells who has it, as far as that process said; ``denied`` a lack of permission from anything else."""

    def __init__(self, message: str, holder: dict[str, t.Any] | None = None, denied: bool = False) -> None:
        super().__init__(message)
        self.holder = holder or {}
        self.denied = denied


class NodeLock:
    """The lock of a node, as a context manager. With ``wait`` it is tried for so many seconds.

    It is a flock, so the kernel gives it back when the holder dies, however it dies. The file stays: removing it would let
    two processes lock two files of one name.
    """

    def __init__(self, directory: str, who: t.Mapping[str, t.Any], name: str = LOCK_NAME, wait: float = 0.0) -> None:
        self.path = os.path.join(directory, name)
        self._directory = directory
        self._name = name
        self._wait = wait
        self._who = dict(who)
        self._descriptor = -1

    def __enter__(self) -> NodeLock:
        try:
            parent = open_private_directory(self._directory, create=True)
            try:
                self._descriptor = open_private_file(parent, self._name, os.O_RDWR | os.O_CREAT)
            finally:
                os.close(parent)
        except PathError as exc:
            raise LockError(f"the lock {self.path} cannot be used: {exc}", denied=exc.denied) from exc
        deadline = time.monotonic() + self._wait
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as exc:
                if time.monotonic() >= deadline:
                    holder = self._read()
                    self._close()
                    raise LockError(f"another run is at work on this node: {_describe(holder)}", holder) from exc
            time.sleep(_RETRY)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(self._who, sort_keys=True).encode(), 0)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> dict[str, t.Any]:
        try:
            told = parse_json(os.pread(self._descriptor, 4096, 0))
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}


def _describe(holder: t.Mapping[str, t.Any]) -> str:
    if not holder:
        return "it has not said who it is; try again when it has ended"
    parts = [f"process {holder.get('pid')}"]
    if holder.get("user"):
        parts.append(f"of {holder['user']}")
    if holder.get("state"):
        parts.append(f"with state={holder['state']}")
    if holder.get("journal"):
        parts.append(f"and journal {holder['journal']}")
    if holder.get("since"):
        parts.append(f"since {holder['since']}")
    return " ".join(str(part) for part in parts)
