# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals that cannot reach the wrong process.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

A pid alone names nothing: it is used again. A process is (boot id, pid, start time), and it is signalled through a pidfd.
The order is what makes that safe: open the pidfd first, then read the start time. A pidfd stays with its process for good,
so if the start time read afterwards is the expected one, the pidfd is of the expected process, and stays so.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import boot_id, read_stat
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: States of /proc/PID/stat in which a process holds nothing any more.
DEAD_STATES = ("Z", "X", "x")


class Identity(t.NamedTuple):
    """What a process is, for as long as the machine runs and after it has been booted again."""

    boot_id: str
    pid: int
    start_time: int  # clock ticks after boot, field 22 of /proc/PID/stat


class SignalError(Exception):
    """A signal was not sent. ``code``: gone, not_the_same, not_permitted or unsupported."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_identity(world: World, pid: int) -> Identity | None:
    """The identity of a live process; None when it is gone or a zombie, which holds no memory."""
    stat = read_stat(world, pid)
    if stat is None or stat.state in DEAD_STATES:
        return None
    return Identity(boot_id(world) or "", pid, stat.start_time)


class ProcessHandle:
    """One process, pinned. Use as a context manager; made by Signaller.open."""

    def __init__(self, world: World, identity: Identity, descriptor: int) -> None:
        self.identity = identity
        self._world = world
        self._descriptor = descriptor

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the process go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def state(self) -> str | None:
        """The scheduler state (``R``, ``S``, ``D`` ...); None when the process has ended."""
        if self._ended(0.0):
            return None
        stat = read_stat(self._world, self.identity.pid)
        return stat.state if stat else None

    def send(self, number: int) -> None:
        """Send a signal after checking the identity once more. Raises SignalError."""
        _check(self._world, self.identity)
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError as exc:
            raise SignalError("gone", f"process {self.identity.pid} has ended") from exc
        except PermissionError as exc:
            raise SignalError("not_permitted", f"signalling process {self.identity.pid} is not permitted: {exc.strerror}") from exc

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended, at most that long, without polling. Whether it has."""
        return self._ended(max(0.0, seconds))

    def _ended(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(seconds * 1000))


class Signaller:
    """Opens processes of the running machine by identity."""

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, identity: Identity) -> ProcessHandle:
        """Pin the process of that identity. Raises SignalError when it is gone, another one, or pidfds are not to be had."""
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            raise SignalError("unsupported", "this Python cannot signal through a pidfd (Python 3.9 on Linux 5.3 or newer is needed)")
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError as exc:
            raise SignalError("gone", f"process {identity.pid} has ended") from exc
        except OSError as exc:
            code = "not_permitted" if exc.errno in (errno.EPERM, errno.EACCES) else "unsupported"
            raise SignalError(code, f"process {identity.pid} cannot be opened as a pidfd: {exc.strerror}") from exc
        handle = ProcessHandle(self._world, identity, descriptor)
        try:
            _check(self._world, identity)
        except SignalError:
            handle.close()
            raise
        return handle


def _check(world: World, identity: Identity) -> None:
    now = read_identity(world, identity.pid)
    if now is None:
        raise SignalError("gone", f"process {identity.pid} has ended")
    if now != identity:
        raise SignalError("not_the_same", f"pid {identity.pid} belongs to another process now; it is left alone")
