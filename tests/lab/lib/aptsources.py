# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the Debian mirror that the machine itself uses, in either format of apt's sources."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

USABLE = ("http://", "https://", "file:/")
DIRECTORY = Path("/etc/apt")


@dataclass(frozen=True)
class Source:
    """One archive: where, and which suites and components of it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def parse_list(text: str) -> list[Source]:
    """The one-line format: ``deb [options] uri suite component...``."""
    sources = []
    for line in text.splitlines():
        words = re.sub(r"\[[^\]]*\]", " ", line.split("#", 1)[0]).split()
        if len(words) >= 3 and words[0] == "deb":
            sources.append(Source(words[1], (words[2],), tuple(words[3:])))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """The stanza format: Types, URIs, Suites, Components, Enabled; a line that starts with a blank goes on the one before."""
    sources = []
    for stanza in re.split(r"\n[ \t]*(?:\n[ \t]*)+", text):
        fields: dict[str, str] = {}
        last = ""
        for line in stanza.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t":
                if last:
                    fields[last] += " " + line.strip()
                continue
            name, _, value = line.partition(":")
            last = name.strip().lower()
            fields[last] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0", "off"):
            continue
        sources += [
            Source(uri, tuple(fields.get("suites", "").split()), tuple(fields.get("components", "").split()))
            for uri in fields.get("uris", "").split()
        ]
    return sources


def read_sources(directory: Path = DIRECTORY) -> list[Source]:
    """All sources of the machine, in apt's order."""
    sources: list[Source] = []
    files = [directory / "sources.list", *sorted((directory / "sources.list.d").glob("*"))]
    for file in files:
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.suffix == ".list":
            sources += parse_list(text)
        elif file.suffix == ".sources":
            sources += parse_deb822(text)
    return sources


def debian_mirror(sources: Iterable[Source]) -> str | None:
    """The first archive that has Debian's main suites (not the security one, not another distribution); None if there is none."""
    for source in sources:
        uri = source.uri.rstrip("/")
        if not uri.startswith(USABLE) or "main" not in source.components:
            continue
        if uri.endswith("/debian") and not all("security" in suite for suite in source.suites):
            return uri
    return None
