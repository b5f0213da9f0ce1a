# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Selectors: the one way in which a user names what may be stopped, and what may not.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

A selector is ``KIND:PATTERN`` with a shell glob as its pattern:

* ``unit:vllm-embeddings.service``  a systemd service unit (``.service`` may be left out);
* ``container:vllm_embeddings``     a container, by name or by at least 12 digits of its id;
* ``process:llama-server*``         a process the driver lists, by name or by the basename of argv[0] or of its executable;
* ``user:alice``                    the processes the driver lists of one user, by name or number.
"""

from __future__ import annotations

import re
import typing as t
from fnmatch import fnmatchcase

KINDS = ("unit", "container", "process", "user")

#: What the kernel keeps of a process name (TASK_COMM_LEN 16 with its zero byte): ``VLLM::EngineCore`` reads ``VLLM::EngineCor``.
COMM_LENGTH = 15

_MAX_PATTERN = 256
_BRACKETS = re.compile(r"\[!?\]?[^\]]{0,256}\]")
_UNIT_SUFFIXES = (".socket", ".timer", ".path", ".target", ".mount", ".automount", ".swap", ".device", ".slice", ".scope")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12,64}")


class SelectorError(ValueError):
    """A selector cannot be understood, or says more than anybody can have meant."""


class Selector:
    """One parsed selector: ``text`` as the user wrote it, ``kind`` and ``pattern``."""

    __slots__ = ("text", "kind", "pattern")

    def __init__(self, text: str, kind: str, pattern: str) -> None:
        self.text = text
        self.kind = kind
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and (self.kind, self.pattern) == (other.kind, other.pattern)

    def __hash__(self) -> int:
        return hash((self.kind, self.pattern))

    @property
    def is_wide(self) -> bool:
        """Whether the pattern names nothing in particular (``*``, ``*.service``, ``[!x]*``)."""
        rest = _BRACKETS.sub("", self.pattern)
        if self.kind == "unit" and rest.endswith(".service"):
            rest = rest[: -len(".service")]
        return not any(char.isalnum() for char in rest)

    @property
    def is_glob(self) -> bool:
        """Whether the pattern can match more than one name."""
        return any(char in self.pattern for char in "*?[")

    def matches_name(self, name: object) -> bool:
        """Whether one plain name (of a unit, a container, a process, a user) matches the pattern."""
        return isinstance(name, str) and name != "" and fnmatchcase(name, self.pattern)

    def matches_unit(self, name: object) -> bool:
        """Whether this is a ``unit:`` selector for the service unit of that name."""
        return self.kind == "unit" and isinstance(name, str) and name.endswith(".service") and self.matches_name(name)

    def matches_container(self, name: object, container_id: object) -> bool:
        """Whether this is a ``container:`` selector for the container of that name or full id."""
        if self.kind != "container":
            return False
        names = [name.lstrip("/")] if isinstance(name, str) else []
        if any(self.matches_name(each) for each in names):
            return True
        return isinstance(container_id, str) and _CONTAINER_ID.fullmatch(self.pattern) is not None and container_id.startswith(self.pattern)

    def matches_process_name(self, name: object, others: t.Iterable[object] = ()) -> bool:
        """Whether this is a ``process:`` selector for a process called ``name``, or by one of the paths or titles in ``others``.

        The kernel cuts names at 15 characters. A name of just that length is compared with the cut pattern too, but only
        where no other name shows how the full one goes on: a cut name alone must not stop ``llama-server-preview`` for
        ``process:llama-server-prod``.
        """
        if self.kind != "process":
            return False
        full = [basename(text) for text in others if isinstance(text, str) and text]
        if self.matches_name(name) or any(self.matches_name(each) for each in full):
            return True
        if not isinstance(name, str) or len(name) != COMM_LENGTH or any(each.startswith(name) for each in full):
            return False
        literal = re.split(r"[*?\[]", self.pattern, maxsplit=1)[0]
        return len(literal) > COMM_LENGTH and literal[:COMM_LENGTH] == name

    def matches(self, process: t.Mapping[str, t.Any]) -> bool:
        """Whether a process entry of gpu_memory_facts is selected.

        ``unit:`` and ``container:`` go by the owner; a container that a unit started and would start again is matched by both.
        """
        owner = process.get("owner") or {}
        if self.kind == "unit":
            return any(self.matches_unit(name) for name in _unit_names(owner))
        if self.kind == "container":
            return owner.get("kind") == "container" and self.matches_container(owner.get("name"), owner.get("id"))
        if self.kind == "user":
            return self.matches_user(process.get("user"), process.get("uid"))
        return self.matches_process_name(process.get("name"), (first_word(process.get("command")), process.get("exe")))

    def matches_entry(self, entry: t.Mapping[str, t.Any]) -> bool:
        """Whether an entry of a journal is selected: it was evicted by this very selector, or is named by it."""
        if self.text == entry.get("selector"):
            return True
        if entry["kind"] == "unit":
            return self.matches_unit(entry.get("name"))
        if entry["kind"] == "container":
            return self.matches_container(entry.get("name"), entry.get("before", {}).get("id"))
        return self.matches_process_name(entry.get("name"))

    def matches_user(self, user: object, uid: object = None) -> bool:
        """Whether this is a ``user:`` selector for that user name or number."""
        return self.kind == "user" and (self.matches_name(user) or (isinstance(uid, int) and self.matches_name(str(uid))))


def basename(path: str) -> str:
    """The last part of a path; a title without slashes stays whole. The kernel's `` (deleted)`` is cut off."""
    text = path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path
    return text.rstrip("/").rsplit("/", 1)[-1]


def first_word(command: object) -> str | None:
    """argv[0] of a command line given as text; None where there is none."""
    words = command.split(None, 1) if isinstance(command, str) else []
    return words[0] if words else None


def _unit_names(owner: t.Mapping[str, t.Any]) -> list[object]:
    names: list[object] = [owner.get("unit")]
    if owner.get("kind") in ("unit", "user_unit"):
        names.append(owner.get("name"))
    return names


def parse_selector(text: object) -> Selector:
    """Parse one selector. Raises SelectorError with a sentence that says what to write instead."""
    if not isinstance(text, str):
        raise SelectorError(f"a selector must be text such as 'unit:ollama.service', not {type(text).__name__}")
    kind, colon, pattern = text.strip().partition(":")
    kind, pattern = kind.strip(), pattern.strip()
    if not colon or kind not in KINDS:
        raise SelectorError(
            f"selector {_shown(text)} does not begin with a known kind: write one of "
            "'unit:NAME.service', 'container:NAME', 'process:NAME' or 'user:NAME' (globs are allowed in NAME)"
        )
    if not pattern:
        raise SelectorError(f"selector {_shown(text)} names nothing after '{kind}:'")
    if len(pattern) > _MAX_PATTERN:
        raise SelectorError(f"the pattern of a '{kind}:' selector is longer than {_MAX_PATTERN} characters")
    if not pattern.isprintable():
        raise SelectorError(f"selector {_shown(text)} contains characters that cannot be printed")
    if "/" in pattern:
        raise SelectorError(f"selector {_shown(text)} contains a '/': names are matched, not paths; write the last part of the path")
    if kind == "unit":
        pattern = _unit_pattern(text, pattern)
    return Selector(text.strip(), kind, pattern)


def _unit_pattern(text: str, pattern: str) -> str:
    if pattern.endswith(_UNIT_SUFFIXES):
        raise SelectorError(f"selector {_shown(text)} is not a service unit; only '.service' units are stopped, never a scope, slice, session or target")
    if pattern.endswith((".service", "*")):
        return pattern
    return pattern + ".service"


def parse_selectors(texts: t.Iterable[object]) -> list[Selector]:
    """Parse a list of selectors, in order, without duplicates. Raises SelectorError."""
    found: list[Selector] = []
    for text in texts:
        selector = parse_selector(text)
        if selector not in found:
            found.append(selector)
    return found


def refuse_wide(selectors: t.Iterable[Selector], need: int) -> None:
    """Refuse a pattern that matches everything when no amount (``need``, bytes) says where to stop. Raises SelectorError."""
    for selector in selectors:
        if need <= 0 and selector.is_wide:
            raise SelectorError(
                f"selector {_shown(selector.text)} matches everything, and without 'need' everything that matches is stopped: name what to stop, or give 'need'"
            )


def _shown(text: str) -> str:
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return repr(printable if len(printable) <= 80 else printable[:77] + "...")
