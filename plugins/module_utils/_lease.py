# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The lease on a node: who works on it, until when, and what the node is to undo by itself when nobody renews it in time.

There is one lease a node, since there is one memory pool. It is a file that only root reads and writes, replaced as a whole
and synced; that file is the truth, timers and services only look at it. Time is CLOCK_BOOTTIME, which neither a set clock nor
a suspended machine moves, together with the boot's id: after a boot every lease is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import typing as t
from dataclasses import asdict, dataclass, field, replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._private_dir import (
    PathError,
    read_private_file,
    remove_private_files,
    replace_private_file,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import refuse_deployment

DIRECTORY = "/var/lib/unimem/lease"
LEASE_FILE = "lease.json"
FIRED_FILE = "fired.json"
LOCK_NAME = "lease.lock"
VERSION = 1
FORMAT = "unimem.dgx_spark lease"
FIRED_FORMAT = "unimem.dgx_spark lease that fired"

#: Why a lease fired.
EXPIRED, MEMORY_FLOOR, REBOOT = "expired", "memory_floor", "reboot"

#: For a lease seen by somebody: there is none, it is theirs, somebody else's, or over (whosever it was).
NONE, OWN, FOREIGN, OVER = "none", "own", "foreign", "expired"

BOOT_ID = "/proc/sys/kernel/random/boot_id"

_MAX_BYTES = 1024 * 1024
_MAX_NAME = 200


class LeaseError(Exception):
    """A lease cannot be used: a sentence for the user. ``denied`` tells a lack of permission from anything else."""

    def __init__(self, message: str, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class Clock(t.Protocol):
    """The node's time."""

    def boottime(self) -> float:
        """Seconds since the machine was booted, suspended times included."""

    def boot_id(self) -> str:
        """Which boot that was."""

    def date(self, ahead: float = 0.0) -> str:
        """The date and time so many seconds from now, for people."""


class LiveClock:
    """This machine's."""

    def boottime(self) -> float:
        """See Clock."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """See Clock. Raises LeaseError where the kernel does not say."""
        try:
            with open(BOOT_ID, encoding="ascii") as file:
                return file.read(64).strip()
        except OSError as exc:
            raise LeaseError(f"{BOOT_ID} cannot be read: {exc.strerror}") from exc

    def date(self, ahead: float = 0.0) -> str:
        """See Clock."""
        return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() + ahead))


@dataclass(frozen=True)
class Owner:
    """A run that holds a lease. ``id`` is what tells it from all others; the rest is for people, and to find out whether it still lives."""

    id: str
    user: str = ""
    controller: str = ""
    pid: int = 0
    started: str = ""
    host: str = ""  # which machine, boot and pid namespace the pid is of
    start_time: int = 0  # in clock ticks after that boot

    def describe(self) -> str:
        """``alice@desk, process 4711, started at ...``."""
        name = f"{self.user or 'somebody'}@{self.controller or 'an unnamed controller'}"
        parts = [name]
        if self.pid:
            parts.append(f"process {self.pid}")
        if self.started:
            parts.append(f"started at {self.started}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Lease:
    """One lease. Times are seconds of CLOCK_BOOTTIME of the boot ``boot_id``, sizes bytes."""

    owner: Owner
    deployment: str
    journal: str
    boot_id: str
    began: float
    began_at: str
    expires: float
    expires_at: str
    ttl: float
    launch_id: str = ""
    reason: str = "failure"  # why things are put back, see gpu_process_reclaim
    floor: int = 0  # 0: memory is not guarded
    floor_seconds: float = 5.0
    grace: int = 30
    timeout: int = 300
    launch_directory: str = ""  # what the ranks read, removed with them
    #: The deployment's containers that ran when the lease began, and what the journal was: while both are as they were, nothing was done yet.
    standing: list[str] = field(default_factory=list)
    journal_digest: str = ""
    attempts: int = 0
    retry: float = 0.0

    def remaining(self, clock: Clock) -> float:
        """Seconds until it is over; never above 0 once the machine was booted again."""
        if clock.boot_id() != self.boot_id:
            return 0.0
        return max(0.0, self.expires - clock.boottime())

    def seen_by(self, owner_id: str | None, clock: Clock) -> str:
        """What it is to somebody: OWN, FOREIGN or OVER."""
        if self.remaining(clock) <= 0.0:
            return OVER
        return OWN if owner_id and self.owner.id == owner_id else FOREIGN

    def renewed(self, clock: Clock, ttl: float, launch_id: str | None = None) -> Lease:
        """The same lease, to end ``ttl`` seconds from now."""
        return replace(
            self, expires=clock.boottime() + ttl, expires_at=clock.date(ttl), ttl=ttl, launch_id=self.launch_id if launch_id is None else launch_id
        )

    def describe(self, clock: Clock) -> str:
        """Whose it is, since when and until when, in one sentence part."""
        return f"deployment {self.deployment} of {self.owner.describe()}, since {self.began_at}, until {self.expires_at} (in {self.remaining(clock):.0f} s)"

    def public(self, clock: Clock) -> dict[str, t.Any]:
        """What a user is told."""
        return {
            "owner": asdict(self.owner),
            "deployment": self.deployment,
            "launch_id": self.launch_id,
            "journal": self.journal,
            "reason": self.reason,
            "start": self.began_at,
            "expiry": self.expires_at,
            "remaining": round(self.remaining(clock), 1),
            "ttl": self.ttl,
            "floor": self.floor,
            "floor_seconds": self.floor_seconds,
            "attempts": self.attempts,
        }


def make_owner(told: t.Mapping[str, t.Any]) -> Owner:
    """An owner from what a playbook says: short printable texts, since they end up in other people's error messages. Raises LeaseError."""
    identifier = _text(told.get("id"))
    if not identifier:
        raise LeaseError("owner: it needs an id, a text that no other run has, such as the one of the lookup unimem.dgx_spark.run_owner")
    return Owner(
        id=identifier,
        user=_text(told.get("user")),
        controller=_text(told.get("controller")),
        pid=_number(told.get("pid")),
        started=_text(told.get("started")),
        host=_text(told.get("host")),
        start_time=_number(told.get("start_time")),
    )


def check_deployment(name: str) -> str:
    """A deployment's name. Raises LeaseError."""
    refusal = refuse_deployment(name)
    if refusal:
        raise LeaseError(refusal)
    return name


def check_launch_directory(path: str, journal: str) -> str:
    """A directory that may be removed as a whole: below the journal's, which only root enters. Raises LeaseError."""
    normal = os.path.normpath(path) if path else ""
    if normal and not normal.startswith(os.path.dirname(journal) + "/"):
        raise LeaseError(f"launch_directory: {path!r} is not below {os.path.dirname(journal)!r}, the directory of the journal")
    return normal


def _text(value: t.Any) -> str:
    text = "" if value is None else str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_NAME]).strip()


def _number(value: t.Any) -> int:
    try:
        return max(0, min(int(value or 0), 2**62))
    except (TypeError, ValueError):
        return 0


class LeaseStore:
    """The lease and what became of the last one, on disk. The writer holds the node's lease lock."""

    def __init__(self, directory: str = DIRECTORY) -> None:
        self.directory = directory

    def load(self) -> Lease | None:
        """The lease, if there is one. Raises LeaseError for a file that is not ours, damaged or newer than this code."""
        document = self._read(LEASE_FILE, FORMAT)
        if document is None:
            return None
        try:
            return _parse(document)
        except (KeyError, TypeError, ValueError) as exc:
            raise LeaseError(f"{self._path(LEASE_FILE)} is not understood ({exc}); {_REMEDY}") from exc

    def save(self, lease: Lease) -> None:
        """Write the lease. Raises LeaseError."""
        self._write(LEASE_FILE, {"format": FORMAT, "version": VERSION, **asdict(lease)})

    def fired(self) -> dict[str, t.Any] | None:
        """What the node did by itself for the last lease; None when it did nothing. What cannot be read counts as nothing."""
        try:
            document = self._read(FIRED_FILE, FIRED_FORMAT)
        except LeaseError:
            return None
        if document is None or not isinstance(document.get("reason"), str) or not isinstance(document.get("owner"), dict):
            return None
        return {name: value for name, value in document.items() if name not in ("format", "version")}

    def save_fired(self, lease: Lease, clock: Clock, event: t.Mapping[str, t.Any]) -> None:
        """Note that the node acted for this lease. The first reason stays the reason; what follows for the same owner is added under ``later``."""
        known = self.fired()
        dated = {"at": clock.date(), **event}
        if known is not None and known["owner"].get("id") == lease.owner.id and known.get("began_at") == lease.began_at:
            record = {**known, "later": [*known.get("later", []), dated][-20:]}
        else:
            record = {
                "owner": asdict(lease.owner),
                "deployment": lease.deployment,
                "launch_id": lease.launch_id,
                "began_at": lease.began_at,
                **dated,
                "later": [],
            }
        self._write(FIRED_FILE, {"format": FIRED_FORMAT, "version": VERSION, **record})

    def remove(self, *names: str) -> list[str]:
        """Remove files of ours, by default the lease. Says which were there. Raises LeaseError."""
        try:
            return remove_private_files(self.directory, names or (LEASE_FILE,))
        except PathError as exc:
            raise LeaseError(f"{self.directory}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise LeaseError(f"{self.directory}: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc

    def leave(self) -> None:
        """Remove the directory if nothing is in it any more."""
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)

    def write_bytes(self, name: str, data: bytes) -> str:
        """Put another private file there and return its path. Raises LeaseError."""
        try:
            replace_private_file(self.directory, name, data)
        except PathError as exc:
            raise LeaseError(f"{self._path(name)}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise LeaseError(f"{self._path(name)} cannot be written: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc
        return self._path(name)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _write(self, name: str, document: t.Mapping[str, t.Any]) -> None:
        self.write_bytes(name, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())

    def _read(self, name: str, expected: str) -> dict[str, t.Any] | None:
        try:
            document = json.loads(read_private_file(self.directory, name, _MAX_BYTES).decode())
        except PathError as exc:
            if exc.missing:
                return None
            raise LeaseError(f"{self._path(name)}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise LeaseError(f"{self._path(name)} cannot be read: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc
        except ValueError as exc:
            raise LeaseError(f"{self._path(name)} is damaged ({exc}); {_REMEDY}") from exc
        if not isinstance(document, dict) or document.get("format") != expected:
            raise LeaseError(f"{self._path(name)} is none of this collection's; {_REMEDY}")
        version = document.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise LeaseError(f"{self._path(name)} has version {version!r}, this collection writes {VERSION}; use the collection that wrote it")
        return document


_REMEDY = "look what runs on this node, restore what the journal beside it names (gpu_process_reclaim with state=restored), and remove the file"


def _parse(document: t.Mapping[str, t.Any]) -> Lease:
    values = dict(document)
    for name in ("format", "version"):
        values.pop(name)
    owner = make_owner(values.pop("owner"))
    numbers = ("began", "expires", "ttl", "floor_seconds", "retry")
    wholes = ("floor", "grace", "timeout", "attempts")
    texts = ("deployment", "journal", "boot_id", "began_at", "expires_at", "launch_id", "reason", "journal_digest", "launch_directory")
    for name in texts:
        if not isinstance(values[name], str):
            raise ValueError(f"{name} is no text")
    for name in numbers:
        values[name] = float(values[name])
    for name in wholes:
        values[name] = int(values[name])
    if not isinstance(values["standing"], list) or not all(isinstance(entry, str) for entry in values["standing"]):
        raise ValueError("standing is no list of ids")
    check_deployment(values["deployment"])
    if not os.path.isabs(values["journal"]):
        raise ValueError("journal is no absolute path")
    check_launch_directory(values["launch_directory"], values["journal"])
    return Lease(owner=owner, **{name: values[name] for name in (*texts, *numbers, *wholes, "standing")})
