# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""How far a long job of a module is, in a file that its action plugin reads from the controller."""

from __future__ import annotations

import contextlib
import json
import os
import time


class ProgressFile:
    """The file, written anew each time. That it cannot be written is no reason to stop the job."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._start = time.monotonic()

    def write(self, sent: int, total: int, waiting: bool = False) -> None:
        """Bytes dealt with so far, and bytes in all; `waiting` while another job has to end first."""
        if not self.path:
            return
        if waiting:
            self._start = time.monotonic()
        text = json.dumps({"sent": sent, "total": total, "waiting": waiting, "seconds": round(time.monotonic() - self._start, 3)})
        try:
            descriptor = os.open(self.path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as handle:
                handle.write(text)
            os.replace(self.path + ".new", self.path)
        except OSError:
            self.path = None

    def end(self) -> None:
        """Nothing more will be written, and nothing is left."""
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
