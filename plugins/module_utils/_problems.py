# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems found on the way: each has a code for programs and a sentence for people.

Texts may quote a model's configuration, which is untrusted: values are shortened, and the list is bounded.
"""

from __future__ import annotations

import typing as t

#: The engine would refuse, or the numbers cannot be trusted: the verdict cannot be a fit.
ERROR: t.Final = "error"
#: Worth a person's attention; the verdict stands.
WARNING: t.Final = "warning"

#: One entry a code and subject is enough; a hostile config must not produce a million sentences.
MAX_PROBLEMS: t.Final = 50
MAX_MESSAGE: t.Final = 600


class Problem(t.NamedTuple):
    """One thing that is wrong, or was assumed on doubtful ground."""

    code: str
    message: str
    severity: str

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "severity": self.severity}


class Problems:
    """A bounded, ordered collection of problems without duplicates."""

    def __init__(self) -> None:
        self._entries: list[Problem] = []
        self._dropped = 0

    def add(self, code: str, message: str, severity: str = WARNING) -> None:
        """Remember a problem; *message* is cut to a readable length."""
        text = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."
        entry = Problem(code, text, severity)
        if entry in self._entries:
            return
        if len(self._entries) >= MAX_PROBLEMS and severity != ERROR:
            self._dropped += 1
            return
        if len(self._entries) >= 2 * MAX_PROBLEMS:
            self._dropped += 1
            return
        self._entries.append(entry)

    def error(self, code: str, message: str) -> None:
        """Remember a problem that rules out a fit."""
        self.add(code, message, ERROR)

    def has(self, *codes: str) -> bool:
        """Whether one of *codes* was found."""
        return any(entry.code in codes for entry in self._entries)

    def errors(self) -> list[Problem]:
        """The problems that rule out a fit."""
        return [entry for entry in self._entries if entry.severity == ERROR]

    def as_list(self) -> list[dict[str, str]]:
        """All problems, errors first, as plain dicts."""
        ordered = sorted(self._entries, key=lambda entry: entry.severity != ERROR)
        found = [entry.as_dict() for entry in ordered]
        if self._dropped:
            found.append({"code": "more_problems", "message": f"{self._dropped} more problems are not listed.", "severity": WARNING})
        return found


def shown(value: object, limit: int = 60) -> str:
    """A short, safe rendering of an untrusted value for a message."""
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} entries"
    if isinstance(value, dict):
        return f"a dictionary of {len(value)} entries"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    text = repr(value[: limit * 2] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
