# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""One at a time, for work that outlives the playbook that started it: the next run waits until it has ended, and finds what it did.

The lock is the name of an abstract socket: no file, given back by the kernel when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import time
import typing as t

#: How often it is looked whether it is free.
_PAUSE: t.Final = 1.0


class BusyError(RuntimeError):
    """It was not free in time."""


@contextlib.contextmanager
def hold(kind: str, place: str, limit: float, waiting: t.Callable[[], None]) -> t.Iterator[None]:
    """Hold a place for one kind of work; `waiting` is called once a second until it is free. Raises BusyError after `limit` seconds."""
    name = f"\0unimem-{kind}-" + hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
    end = time.monotonic() + limit
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        while True:
            try:
                lock.bind(name)
                break
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise
                if time.monotonic() >= end:
                    raise BusyError(place) from exc
            waiting()
            time.sleep(_PAUSE)
        yield
