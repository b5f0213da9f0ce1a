# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a node knows of a rank that it keeps across boots: which container, when it may be started, and how often it failed.

One directory a deployment, which only root enters. No secret is in it: the API key stays in the container's environment.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field, replace

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._private_dir import (
    PathError,
    read_private_file,
    remove_private_files,
    replace_private_file,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import refuse_deployment
from ansible_collections.unimem.dgx_spark.plugins.module_utils._unit_files import UNIT_DIRECTORY, unit_paths

DIRECTORY = "/var/lib/unimem/persist"
RECORD_FILE = "rank.json"
TRIES_FILE = "tries.json"
ARCHIVE = "agent.pyz"
FORMAT = "unimem.dgx_spark persistence"
VERSION = 1

#: The label of a rank's container with the bytes of the pool that it needs.
NEED_LABEL = "io.unimem.need"

#: Seconds for which a failure counts. Sparks have gone off the network after some 35 restarts; a few a day are none of that.
DAY = 86400.0

_MAX_BYTES = 1024 * 1024


class PersistError(Exception):
    """It cannot be kept, or not be let go: a sentence for the user. ``denied`` tells a lack of permission from anything else."""

    def __init__(self, message: str, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


@dataclass(frozen=True)
class Liveness:
    """How the head is asked for a token. Times in seconds."""

    url: str  # of the endpoint, as the head itself reaches it, without a path
    model: str
    prompt: str
    interval: float
    timeout: float
    failures: int
    key_variable: str = ""  # of the container's environment; empty: no key


@dataclass(frozen=True)
class Record:
    """A rank of one launch, and what it waits for before it is started."""

    deployment: str
    launch_id: str
    container: str  # full id
    name: str
    rank: int
    address: str  # this node's, on the fabric
    head: str  # rank 0's there
    control_port: int
    peers: list[str]  # the other nodes'
    probe_port: int
    tries: int
    stop_seconds: int
    floor: int  # bytes below which MemAvailable may not stay while it loads; 0: it may
    liveness: Liveness | None = None

    def text(self) -> str:
        """The file, the same every time."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Tries:
    """The failures of a rank, by the clock on the wall: they have to outlive a boot, since a model that takes its node down comes back with it.

    A start is a failure until it has proved itself, so that one that ends the node itself counts.
    """

    failures: list[float] = field(default_factory=list)
    begun: float | None = None
    #: What the last failure began with, empty where that is not known, and how many in a row began so.
    why: str = ""
    alike: int = 0

    def start(self, now: float) -> Tries:
        """It is started now."""
        return replace(self.settle(now), begun=now)

    def settle(self, now: float) -> Tries:
        """A start that nobody saw end has failed, and what is older than a day is forgotten."""
        failures = [*self.failures, *([] if self.begun is None else [self.begun])]
        # Also in the future: a clock that was set back must not make failures last.
        kept = [at for at in failures if abs(now - at) < DAY]
        # What nobody saw end may have ended in any way.
        alike = min(self.alike, len(kept)) if self.begun is None else 0
        return Tries(kept, None, self.why if alike else "", alike)

    def good(self) -> Tries:
        """The start has proved itself, or was ended by somebody's wish."""
        return replace(self, begun=None, why="", alike=0)

    def fail(self, now: float, why: str = "") -> Tries:
        """It has failed, during its start or later. ``why``: what that began with, where it is known."""
        failures = [*self.settle(now).failures, *([now] if self.begun is None else [])]
        before = self.alike if why == self.why and failures[:-1] else 0
        return Tries(failures, None, why, before + 1 if why else 0)


def check_deployment(name: str) -> str:
    """A deployment's name, which becomes part of paths and of a unit's name. Raises PersistError."""
    refusal = refuse_deployment(name)
    if refusal:
        raise PersistError(refusal)
    return name


class PersistStore:
    """The files of one deployment."""

    def __init__(self, deployment: str, directory: str = DIRECTORY) -> None:
        self._above = directory
        self.directory = os.path.join(directory, check_deployment(deployment))

    def text(self) -> str:
        """The record as it is, an empty text when there is none. Raises PersistError."""
        return self._read(RECORD_FILE).decode("utf-8", "replace")

    def load(self) -> Record | None:
        """The record. Raises PersistError for one that is damaged or newer than this code."""
        text = self.text()
        return parse_record(text) if text else None

    def save(self, record: Record) -> None:
        """Write the record. Raises PersistError."""
        self._write(RECORD_FILE, record.text().encode())

    def tries(self) -> Tries:
        """The failures so far. Raises PersistError."""
        data = self._read(TRIES_FILE)
        if not data:
            return Tries()
        try:
            told = parse_json(data)
            begun = told["begun"]
            failures = [float(at) for at in told["failures"]]
            return Tries(failures, None if begun is None else float(begun), str(told.get("why", "")), int(told.get("alike", 0)))
        except (KeyError, TypeError, ValueError) as exc:
            raise PersistError(f"{self.path(TRIES_FILE)} is damaged; remove it, and every try counts anew") from exc

    def save_tries(self, tries: Tries) -> None:
        """Write the failures so far. Raises PersistError."""
        self._write(TRIES_FILE, (json.dumps(asdict(tries)) + "\n").encode())

    def forget_tries(self) -> None:
        """All tries count anew. Raises PersistError."""
        self._remove(TRIES_FILE)

    def archive(self) -> bytes:
        """The agent as it is; empty when there is none. Raises PersistError."""
        return self._read(ARCHIVE)

    def save_archive(self, data: bytes) -> None:
        """Put the agent there. Raises PersistError."""
        self._write(ARCHIVE, data)

    def remove(self) -> None:
        """Remove all of it. Raises PersistError."""
        names = [RECORD_FILE, TRIES_FILE, ARCHIVE]
        self._remove(*names, *(f".{name}.new" for name in names))
        for path in (self.directory, self._above):
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def exists(self) -> bool:
        """Whether anything of it is there."""
        return os.path.lexists(self.directory)

    def path(self, name: str) -> str:
        """The path of one of the files."""
        return os.path.join(self.directory, name)

    def _remove(self, *names: str) -> None:
        try:
            remove_private_files(self.directory, names)
        except PathError as exc:
            raise PersistError(f"{self.directory}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise PersistError(f"{self.directory}: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc

    def _read(self, name: str) -> bytes:
        try:
            return read_private_file(self.directory, name, _MAX_BYTES)
        except PathError as exc:
            if exc.missing:
                return b""
            raise PersistError(f"{self.path(name)}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise PersistError(f"{self.path(name)} cannot be read: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc

    def _write(self, name: str, data: bytes) -> None:
        try:
            replace_private_file(self.directory, name, data)
        except PathError as exc:
            raise PersistError(f"{self.path(name)}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise PersistError(f"{self.path(name)} cannot be written: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc


def parse_record(text: str) -> Record:
    """A record from its file. Raises PersistError."""
    try:
        values = parse_json(text)
        if values.pop("format") != FORMAT or int(values.pop("version")) != VERSION:
            raise ValueError("of another version")
        told = values.pop("liveness")
        record = Record(**values, liveness=None if told is None else Liveness(**told))
        check_deployment(record.deployment)
        if not all(isinstance(entry, str) for entry in (record.launch_id, record.container, record.name, record.address, record.head, *record.peers)):
            raise ValueError("no text where one has to be")
        for number in (record.rank, record.control_port, record.probe_port, record.tries, record.stop_seconds, record.floor):
            if not isinstance(number, int) or number < 0:
                raise ValueError("no number where one has to be")
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise PersistError(f"what is kept of the rank is not understood ({exc}); the next deployment writes it anew") from exc
    return record


def unit_name(deployment: str) -> str:
    """The unit of a deployment's rank on its node."""
    return f"unimem-rank-{deployment}.service"


def is_kept(deployment: str, directory: str = DIRECTORY, unit_directory: str = UNIT_DIRECTORY) -> bool:
    """Whether anything is there that would start a deployment's rank again. Raises PersistError for a name that is none."""
    if PersistStore(deployment, directory).exists():
        return True
    return any(os.path.lexists(path) for path in unit_paths(unit_directory, unit_name(deployment)))
