# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of an eviction: what was running, written and synced before anything is stopped.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

One JSON file a deployment. It is replaced as a whole (written beside, synced, renamed, directory synced), so a run that
dies at any point leaves the old file or the new one. Entries are added and marked, never taken out: an entry that is still
open keeps the state found by the run that wrote it, whatever later runs find.
"""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._private_dir import PathError, read_private_file, replace_private_file

VERSION = 1
FORMAT = "unimem.dgx_spark eviction journal"
DEFAULT_PATH = "/var/lib/unimem/default.json"

#: States of an entry. ``planned`` and ``stopped`` are open; the others are settled.
PLANNED, STOPPED, RESTORED, SETTLED = "planned", "stopped", "restored", "settled"
OPEN_STATES = (PLANNED, STOPPED)

#: What an entry may describe.
KINDS = ("unit", "container", "process")

_MAX_BYTES = 16 * 1024 * 1024
#: Settled entries kept for the reader; open ones are all kept.
_MAX_SETTLED = 200


class JournalError(Exception):
    """The journal cannot be used. ``denied`` tells a lack of permission from anything else."""

    def __init__(self, message: str, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class Journal:
    """The journal at one path. Nothing is written before ``record`` or ``mark``."""

    def __init__(self, path: str) -> None:
        if not os.path.isabs(path) or path.endswith("/"):
            raise JournalError(f"journal: {path!r} is not the absolute path of a file")
        self.path = os.path.normpath(path)
        self.entries: list[dict[str, t.Any]] = []
        self._directory, self._name = os.path.split(self.path)

    def load(self) -> Journal:
        """Read the file, if there is one. Raises JournalError when it is not ours, damaged, or newer than this code."""
        if os.path.isdir(self.path):
            raise JournalError(f"journal {self.path} is a directory; it has to be a file")
        try:
            text = read_private_file(self._directory, self._name, _MAX_BYTES)
        except PathError as exc:
            if exc.missing:
                return self
            raise JournalError(f"journal {self.path}: {exc}", denied=exc.denied) from exc
        self.entries = _parse(self.path, text)
        return self

    @property
    def open_entries(self) -> list[dict[str, t.Any]]:
        """What is evicted, or may be: the entries that a restore has to look at, oldest first."""
        return [entry for entry in self.entries if entry["state"] in OPEN_STATES]

    def find_open(self, key: str) -> dict[str, t.Any] | None:
        """The open entry of that key."""
        return next((entry for entry in self.open_entries if entry["key"] == key), None)

    def record(self, entries: t.Iterable[dict[str, t.Any]]) -> None:
        """Add entries as planned and sync them to disk. One that is open already stays as it is: it knows the first state."""
        fresh: list[dict[str, t.Any]] = []
        for entry in entries:
            if entry.get("kind") not in KINDS or not entry.get("key"):
                raise JournalError(f"journal {self.path}: an entry needs a kind and a key")
            known = self.find_open(entry["key"])
            if known is None and entry["key"] not in {each["key"] for each in fresh}:
                fresh.append({**entry, "state": PLANNED})
        if fresh:
            self.entries.extend(fresh)
            self.write()

    def mark(self, keys: t.Iterable[str], state: str, **details: t.Any) -> None:
        """Move open entries of these keys to a state, with details, and sync."""
        wanted = set(keys)
        changed = False
        for entry in self.open_entries:
            if entry["key"] in wanted:
                entry["state"] = state
                entry.update(details)
                changed = True
        if changed:
            self.write()

    def write(self) -> None:
        """Replace the file: written beside it, synced, renamed, and the directory synced. Raises JournalError."""
        settled = [entry for entry in self.entries if entry["state"] not in OPEN_STATES]
        dropped = {id(entry) for entry in settled[:-_MAX_SETTLED]}
        self.entries = [entry for entry in self.entries if id(entry) not in dropped]
        document = {"format": FORMAT, "version": VERSION, "entries": self.entries}
        data = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
        try:
            replace_private_file(self._directory, self._name, data)
        except PathError as exc:
            raise JournalError(f"journal {self.path}: {exc}", denied=exc.denied) from exc
        except OSError as exc:
            raise JournalError(f"journal {self.path} cannot be written: {exc.strerror}", denied=isinstance(exc, PermissionError)) from exc


def _parse(path: str, text: bytes) -> list[dict[str, t.Any]]:
    remedy = "read it, restore by hand what it names, and move it away"
    try:
        document = parse_json(text)
    except ValueError as exc:
        raise JournalError(f"journal {path} is damaged ({exc}); {remedy}") from exc
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise JournalError(f"{path} is not a journal of this collection; choose another path")
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise JournalError(f"journal {path} has version {version!r}, this collection writes {VERSION}; use the collection that wrote it")
    entries = document.get("entries")
    if not isinstance(entries, list):
        raise JournalError(f"journal {path} has no entries; {remedy}")
    for entry in entries:
        fine = (
            isinstance(entry, dict)
            and entry.get("kind") in KINDS
            and isinstance(entry.get("key"), str)
            and entry.get("state") in (PLANNED, STOPPED, RESTORED, SETTLED)
            and isinstance(entry.get("before", {}), dict)
        )
        if not fine:
            raise JournalError(f"journal {path} has an entry that is not understood; {remedy}")
    return t.cast("list[dict[str, t.Any]]", entries)
