# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what people reported is whole: each entry has handling and a test, and all that it names is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "tests" / "FIELD_REPORTS.md"
ENTRIES = [*(f"P{number}" for number in range(1, 21)), "N6", "N7", "N8"]
#: Numbers that the compilation does not have.
NONE = ("P9", "P13")


@functools.cache
def table() -> dict[str, list[str]]:
    """The cells of each row by its entry, without that."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [PN]\d", line)]
    assert len({row[0] for row in rows}) == len(rows), "an entry is there twice"
    return {row[0]: row[1:] for row in rows}


@functools.cache
def functions(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef))


def test_every_entry_is_in_the_table_in_its_order() -> None:
    assert list(table()) == ENTRIES


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_handles_it_and_what_tests_it_is_there(entry: str) -> None:
    what, handled, tests = table()[entry]
    assert what
    if entry in NONE:
        assert (handled, tests) == ("", "")
        return
    folder = ROOT
    named = re.findall(r"`([\w./]+\.(?:py|yml))`", handled)
    assert named, "no file"
    for name in named:
        # A name without a folder is in that of the one before it.
        path = ROOT / name if "/" in name else folder / name
        assert path.is_file(), name
        folder = path.parent
    found: dict[Path, list[str]] = {}
    path = ROOT
    for word in re.findall(r"`([^`]*)`", tests):
        if word.endswith(".py"):
            path = ROOT / "tests" / word
            assert path.is_file(), word
            found[path] = []
        else:
            assert word in functions(path), f"{path.relative_to(ROOT)} has no {word}"
            found[path].append(word)
    assert found and all(found.values()), "a file without a test of it"
    assert any("unit" in path.relative_to(ROOT / "tests").parts for path in found), "no test that runs without the lab"
