# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A rank's log, read once from its beginning and kept in bounded form, however long it is: its first and last lines, the known
messages in it, how it ended, which transport NCCL chose, and what rank_supervisor.py says of clocks and memory. Secrets are masked in
all that is kept.
"""

from __future__ import annotations

import calendar
import re
import typing as t
from collections import deque

from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import EXCEPTION, ROOT, Match, by_name, find
from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import CUT, mask_command

#: Characters of a line that are looked at and kept.
LINE_LENGTH = 2000
#: Known messages kept of each level: the first ones, since what comes later follows from them.
FINDINGS = 12
#: Readings of the memory kept; beyond that every second one is dropped.
SAMPLES = 400

#: Transports kept of a log: by their name and the node that chose them.
TRANSPORTS = 16

#: How rank_supervisor.py ends a rank whose end is another rank's doing.
PEER_ENDED, PEER_LOST, STOPPED = 70, 71, 143

#: Kinds of causes that pass by themselves or come from outside: the next start need not end as this one did.
_PASSING = ("network", "timeout", "docker", "killed", "controller")
#: What differs from start to start in the same words: addresses and numbers.
_VARIES = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}")

_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)$")
_PROCESS = re.compile(r"^\[(?P<process>[a-z0-9_-]{1,40})\] ")
_END = re.compile(r"^\S{20} ending with status (?P<status>\d{1,3}): (?P<reason>.{1,1000})")
_START = re.compile(r"^\S{20} rank \d{1,6} of ")
_READY = re.compile(r"^\S{20} the group is ready$")
_CLOCK = re.compile(r"^\S{20} met rank 0; its clock is (?P<offset>[+-]\d{1,12}\.\d{1,6}) s from this one")
_MEMORY = re.compile(r"^\S{20} memory: (?P<available>\d{1,9}) MiB available, (?P<free>\d{1,9}) MiB free, (?P<cache>\d{1,9}) MiB cached")

#: What NCCL prints with NCCL_DEBUG=INFO: once for each communicator (2.4 to 2.31), and once for each connection.
_TRANSPORT = re.compile(r"NCCL INFO (?:Using network |Assigned NET plugin |Channel [^\n]{1,80}? via NET/)(?P<name>[A-Za-z0-9_]{1,40})")
#: Whose line it is, where Ray shows the head's log the words of another node's process.
_RAY_PROCESS = re.compile(r"\([^()\n]{1,60} pid=[0-9]{1,9}, ip=(?P<address>[0-9A-Fa-f.:]{2,45})\)")


def parse_stamp(text: str) -> float | None:
    """Seconds since 1970 of a time stamp as Docker writes it (RFC 3339, up to nanoseconds); None when it is none."""
    found = _STAMP.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[number]) for number in range(1, 7))
    seconds = float(calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0)))
    if found[7]:
        seconds += int(found[7]) / 10 ** len(found[7])
    if found[8] != "Z":
        away = int(found[8][1:3]) * 3600 + int(found[8][4:6]) * 60
        seconds += -away if found[8][0] == "+" else away
    return seconds


def says_ready(line: str) -> bool:
    """Whether a line of a rank's log, with Docker's time stamp before it, is the supervisor's word that the whole group is ready."""
    text = line.partition(" ")[2]
    named = _PROCESS.match(text)
    return named is not None and named["process"] == "rank" and _READY.match(text[named.end() :]) is not None


class RankLog:
    """Takes the lines of a log in their order; ``told()`` is what came of them."""

    def __init__(self, keep: int) -> None:
        self._head: list[tuple[str, str]] = []
        self._tail: deque[tuple[str, str]] = deque(maxlen=max(1, keep - keep // 4))
        self._keep_head = keep // 4
        self._lines = 0
        self._found: dict[int, list[dict[str, t.Any]]] = {}
        self._exceptions: list[dict[str, t.Any]] = []
        self._end: dict[str, t.Any] | None = None
        self._ready: float | None = None
        self._transports: list[dict[str, str]] = []
        self._offset: float | None = None
        self._memory: list[list[float]] = []
        self._every = 1
        self._seen = 0
        self._last = 0.0
        self._second: tuple[str, float | None] = ("", None)

    def feed(self, line: str) -> None:
        """One line, with Docker's time stamp before it where it has one."""
        self._lines += 1
        stamp, blank, text = line.partition(" ")
        time = self._time(stamp) if blank else None
        if time is None:
            stamp, text, time = "", line, self._last
        self._last = time
        process = ""
        named = _PROCESS.match(text)
        if named is not None:
            process, text = named["process"], text[named.end() :]
        if process == "rank":
            self._supervisor(time, text)
        if len(text) > LINE_LENGTH:
            text = text[:LINE_LENGTH] + CUT
        self._look(time, process, text)
        if "NCCL INFO" in text:
            self._transport(text)
        self._keep(f"{stamp} " if stamp else "", process, text)

    def _time(self, stamp: str) -> float | None:
        """parse_stamp, which is asked again and again within one second."""
        second, dot, fraction = stamp[:-1].partition(".")
        if not dot or stamp[-1:] != "Z" or not fraction.isdecimal() or len(fraction) > 9:
            return parse_stamp(stamp)
        if second != self._second[0]:
            self._second = (second, parse_stamp(second + "Z"))
        whole = self._second[1]
        return None if whole is None else whole + int(fraction) / 10 ** len(fraction)

    def _keep(self, stamp: str, process: str, text: str) -> None:
        # Masked only when it is told: most lines of a long log never are.
        kept = (stamp + (f"[{process}] " if process else ""), text)
        if len(self._head) < self._keep_head:
            self._head.append(kept)
        else:
            self._tail.append(kept)

    def _supervisor(self, time: float, text: str) -> None:
        end = _END.match(text)
        if end is not None:
            self._ready = None
            if self._end is None:
                self._end = {"time": time, "status": int(end["status"]), "reason": mask_command(end["reason"])}
            return
        if _READY.match(text) is not None:
            self._ready = time
            return
        if _START.match(text) is not None:
            self._ready = None  # another start of the same container
            return
        clock = _CLOCK.match(text)
        if clock is not None:
            self._offset = float(clock["offset"])
            return
        memory = _MEMORY.match(text)
        if memory is not None:
            self._seen += 1
            if self._seen % self._every == 0:
                self._memory.append([time, *(float(int(memory[name]) * 1024**2) for name in ("available", "free", "cache"))])
            if len(self._memory) > SAMPLES:
                self._memory = self._memory[::2]
                self._every *= 2

    def _transport(self, text: str) -> None:
        found = _TRANSPORT.search(text)
        if found is None or len(self._transports) >= TRANSPORTS:
            return
        other = _RAY_PROCESS.search(text)
        entry = {"name": found["name"], "address": other["address"] if other is not None else ""}
        if entry not in self._transports:
            self._transports.append(entry)

    def _look(self, time: float, process: str, text: str) -> None:
        if process == "rank" and f"ending with status {PEER_ENDED}:" in text:
            return  # another rank's words
        match: Match | None = find(text)
        entry: dict[str, t.Any] = {"time": time, "process": process}
        if match is not None:
            kept = self._found.setdefault(match.cause.level, [])
            if len(kept) < FINDINGS:
                fields = {name: mask_command(value) for name, value in match.fields.items()}
                kept.append({**entry, "cause": match.cause.name, "fields": fields, "line": mask_command(text.strip())})
            return
        if process != "rank" and len(self._exceptions) < FINDINGS:
            error = EXCEPTION.search(text)
            if error is not None and error["text"]:
                self._exceptions.append({**entry, "line": mask_command(text.strip())})

    def told(self) -> dict[str, t.Any]:
        """What came of the log; times are seconds since 1970 by the node's clock, sizes bytes."""
        dropped = self._lines - len(self._head) - len(self._tail)
        return {
            "lines": self._lines,
            "head": [before + mask_command(text) for before, text in self._head],
            "tail": [before + mask_command(text) for before, text in self._tail],
            "left_out": dropped,
            "found": sorted((entry for kept in self._found.values() for entry in kept), key=lambda entry: t.cast(float, entry["time"])),
            "exceptions": self._exceptions,
            "end": self._end,
            "ready": self._ready,
            "transports": self._transports,
            "clock_offset": self._offset,
            "memory": self._memory,
        }


def failed_by(told: t.Mapping[str, t.Any]) -> str:
    """By what a start failed, in words that are the same when another one fails alike: the first message that is a cause of its own, else all exceptions.

    All of them, since an engine may log one at each start that it gets over. Empty where nothing is known, or nothing that would have to come again.
    """
    if any(entry["cause"] == "signal" for entry in told["found"]):
        return ""  # somebody killed it, and what it said then follows from that
    for entry in told["found"]:
        cause = by_name(entry["cause"])
        if cause is not None and cause.level == ROOT:
            return "" if cause.kind in _PASSING else cause.name
    lines = [_VARIES.sub("#", entry["line"])[:200] for entry in told["exceptions"]]
    return "; ".join(dict.fromkeys(lines))[:1000]


def split_frames(chunks: t.Iterable[bytes], limit: int) -> t.Iterator[str]:
    """The lines of Docker's log stream: frames of eight bytes of header (the stream, three zeros, the length) and a payload.

    The two streams are put together line by line, each with its time stamp. At most ``limit`` bytes are read; a last
    line without an end is a line too.
    """
    buffer = bytearray()
    open_lines: dict[int, bytearray] = {}
    read = 0
    for chunk in chunks:
        read += len(chunk)
        buffer += chunk
        while len(buffer) >= 8:
            length = int.from_bytes(buffer[4:8], "big")
            if len(buffer) < 8 + length:
                break
            stream, payload = buffer[0], bytes(buffer[8 : 8 + length])
            del buffer[: 8 + length]
            line = open_lines.setdefault(stream, bytearray())
            line += payload
            while True:
                end = line.find(b"\n")
                if end < 0:
                    break
                yield line[:end].decode("utf-8", "replace").rstrip("\r")
                del line[: end + 1]
        if read > limit:
            break
    for line in open_lines.values():
        if line:
            yield line.decode("utf-8", "replace")
