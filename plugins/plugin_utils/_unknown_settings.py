# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that are named like settings and are none: nobody reads them, so that a default counts without a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

PREFIXES = ("deploy_", "image_build_", "model_sync_", "plan_", "service_eviction_", "tp_launch_")
#: People have variables of their own with these.
_COMMON = ("deploy_", "plan_")
#: Above it a name may well be another one, misspelt.
_ALIKE = 0.6
#: The right word with another prefix is meant less often than nearly the right word with this one.
_OTHER_PREFIX = 0.9


def _split(name: str) -> tuple[str, str]:
    """A name's prefix and the rest of it; the prefix is empty where it is none of ours."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return prefix, name[len(prefix) :]


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The setting that is most like a name. The prefixes do not count: they would make all names alike."""
    prefix, rest = _split(name)
    best, found = _ALIKE, None
    for candidate in sorted(known):
        other, its_rest = _split(candidate)
        score = difflib.SequenceMatcher(None, rest, its_rest, autojunk=False).ratio() * (1.0 if other == prefix else _OTHER_PREFIX)
        if score > best:
            best, found = score, candidate
    return found


def _where(hosts: list[str], all_hosts: list[str]) -> str:
    """On whose account a name was found."""
    named = [host for host in hosts if host]
    if not named:
        return "the playbook"
    return "all hosts" if len(named) > 1 and len(named) == len(all_hosts) else ", ".join(named)


def unknown_settings(variables: Mapping[Any, Iterable[Any]], known: Iterable[Any], others: Any = ()) -> list[str]:
    """A line for each name that begins like a setting and is none.

    *variables*: for each host the names of its variables; under an empty name those of the play. *known*: the settings. *others*: names that
    begin like settings by chance, as a list or, since that is what a command line makes of a list, as a text with commas.
    """
    settings = {str(name) for name in known}
    fine = settings | {str(name).strip() for name in (others.split(",") if isinstance(others, str) else others)}
    hosts = [str(host) for host in variables if host]
    found: dict[str, list[str]] = {}
    for host, names in variables.items():
        for name in sorted({str(name) for name in names} - fine):
            if _split(name)[0]:
                found.setdefault(name, []).append(str(host))
    lines = []
    for name in sorted(found):
        nearest = _nearest(name, settings)
        if nearest is None and name.startswith(_COMMON):
            continue
        lines.append(f"{name} ({_where(found[name], hosts)})" + (f": did you mean {nearest}?" if nearest else ""))
    return lines
