# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mirror is read from the machine's own sources, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from lib import aptsources
from lib.aptsources import Source

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBGPL0BUBEADmW5NdOOHwPIJlgPu6JDcKw/NZJPR8lsD3K87ZM18gzyQZJD+w
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


def test_deb822_stanzas() -> None:
    assert aptsources.parse_deb822(DEB822) == [
        Source("http://mirror.example/debian", ("bookworm", "bookworm-updates"), ("main", "contrib")),
        Source("http://mirror.example/debian-security", ("bookworm-security",), ("main",)),
    ]


@pytest.mark.parametrize("line", ["Enabled: no", "enabled: false", "Enabled: 0"])
def test_a_disabled_stanza_does_not_count(line: str) -> None:
    assert aptsources.parse_deb822(f"Types: deb\nURIs: http://a/debian\nSuites: s\nComponents: main\n{line}\n") == []


def test_sources_only_stanzas_do_not_count() -> None:
    assert aptsources.parse_deb822("Types: deb-src\nURIs: http://a/debian\nSuites: s\nComponents: main\n") == []


def test_one_line_format() -> None:
    lines = [
        "# deb http://old/debian x main",
        "deb [arch=amd64 signed-by=/k.gpg] https://a/debian/ trixie main non-free # here",
        "deb-src http://a/debian trixie main",
        "deb",
    ]
    assert aptsources.parse_list("\n".join(lines)) == [Source("https://a/debian/", ("trixie",), ("main", "non-free"))]


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ([Source("http://a/debian/", ("bookworm",), ("main",))], "http://a/debian"),
        ([Source("http://s/debian", ("bookworm-security",), ("main",)), Source("http://a/debian", ("bookworm",), ("main",))], "http://a/debian"),
        ([Source("http://archive/ubuntu", ("noble",), ("main",))], None),
        ([Source("cdrom:[x]/debian", ("bookworm",), ("main",))], None),
        ([Source("http://a/debian", ("bookworm",), ("contrib",))], None),
        ([], None),
    ],
)
def test_the_debian_mirror(sources: list[Source], mirror: str | None) -> None:
    assert aptsources.debian_mirror(sources) == mirror


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://one/debian s main\n")
    (tmp_path / "sources.list.d" / "b.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "a.list.disabled").write_text("deb http://never/debian s main\n")
    assert [source.uri for source in aptsources.read_sources(tmp_path)] == [
        "http://one/debian",
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    ]
