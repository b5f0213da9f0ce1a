# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""One line about all copies (or downloads) that are under way, from several workers that know only one each.

Ansible forks a worker for each host. They meet in a directory of their task on the controller: each keeps a file with what it
knows of its copy, and whoever finds that a line is due prints it, about all of them. On a terminal a line is due every 5 seconds,
in a log whenever another tenth of the bytes has gone over.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size

#: Seconds between two lines on a terminal.
INTERVAL: t.Final = 5.0
#: A worker that has written nothing for this long is gone: its copy is not counted any more.
STALE: t.Final = 60.0
_TENTHS: t.Final = 10


@dataclass(frozen=True)
class Share:
    """How far the copy to one host is. Sizes in bytes, times in seconds."""

    host: str
    sent: int
    total: int
    #: since its first byte
    seconds: float
    #: another copy to the same place has to end first
    waiting: bool = False
    finished: bool = False

    @property
    def done(self) -> float:
        """From 0 to 1."""
        return self.sent / self.total if self.total else 1.0

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.sent / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds to the end; None where nothing is known yet."""
        return (self.total - self.sent) / self.rate if self.rate > 0 else None


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def line(shares: t.Sequence[Share], what: str = "copy", where: str = "to") -> str:
    """What is shown: bytes, rate, time left, and with several hosts the slowest of them. `what` is done `where` a host."""
    sent, total = sum(share.sent for share in shares), sum(share.total for share in shares)
    active = [share for share in shares if not share.finished]
    waiting = [share.host for share in active if share.waiting]
    # Who waits for another download does not know yet what will be left to do.
    parts = [f"{format_size(sent)} of {format_size(total)} ({100 * sent // total if total else 100} %)"] if total or not waiting else []
    rate = sum(share.rate for share in active)
    if rate > 0:
        parts.append(f"{format_size(int(rate))}/s")
    left = [share.left for share in active]
    known = [seconds for seconds in left if seconds is not None]
    if known and len(known) == len(left):
        parts.append(f"{duration(max(known))} left")
    if waiting:
        parts.append(f"{', '.join(waiting)}: an earlier {what} has to end first")
    if len(shares) > 1:
        slowest = min(active or shares, key=lambda share: (share.done, share.rate))
        parts.append(f"{len(shares) - len(active)} of {len(shares)} hosts done, slowest {slowest.host} ({int(100 * slowest.done)} %)")
    elif shares:
        parts.append(f"{where} {shares[0].host}")
    return f"{what}: " + ", ".join(parts)


class Board:
    """The directory where the workers meet."""

    def __init__(self, directory: str, terminal: bool, clock: t.Callable[[], float] = time.time, words: tuple[str, str] = ("copy", "to")) -> None:
        self.directory = directory
        self._words = words
        self._terminal = terminal
        self._clock = clock
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def tell(self, share: Share) -> str | None:
        """Note how far one copy is; return the line that is now due, None where none is."""
        with open(os.path.join(self.directory, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._load()
            now = self._clock()
            shares: dict[str, t.Any] = {host: told for host, told in state["shares"].items() if told["finished"] or now - told["at"] < STALE}
            shares[share.host] = {**dataclasses.asdict(share), "at": now}
            state["shares"] = shares
            everything = [Share(**{name: value for name, value in told.items() if name != "at"}) for _host, told in sorted(shares.items())]
            due = self._due(state, everything, now)
            self._save(state)
        return line(everything, *self._words) if due else None

    def _due(self, state: dict[str, t.Any], shares: t.Sequence[Share], now: float) -> bool:
        total = sum(share.total for share in shares)
        tenth = _TENTHS * sum(share.sent for share in shares) // total if total else _TENTHS
        if total != state["total"]:
            # Another copy has begun: its bytes are still to come.
            state["total"], state["tenth"] = total, min(state["tenth"], tenth)
        ended = all(share.finished for share in shares)
        due = ended or (now - state["printed"] >= INTERVAL if self._terminal else tenth > state["tenth"])
        if due:
            state["printed"], state["tenth"] = now, tenth
        return due

    def _load(self) -> dict[str, t.Any]:
        with contextlib.suppress(OSError, ValueError), open(os.path.join(self.directory, "state.json"), encoding="utf-8") as handle:
            loaded: dict[str, t.Any] = json.load(handle)
            return loaded
        return {"shares": {}, "printed": 0.0, "tenth": 0, "total": 0}

    def _save(self, state: t.Mapping[str, t.Any]) -> None:
        path = os.path.join(self.directory, "state.json")
        with open(path + ".new", "w", encoding="utf-8") as handle:
            json.dump(state, handle)
        os.replace(path + ".new", path)
