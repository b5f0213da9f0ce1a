# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Texts for people from what nodes say: names are untrusted, figures may be missing."""

from __future__ import annotations

import typing as t
from collections.abc import Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size


def printable(text: object, limit: int = 200) -> str:
    """An untrusted name as one short line: what does not print (controls, direction marks) becomes a question mark."""
    line = "".join(sign if sign.isprintable() else "?" for sign in str(text)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def size(value: t.Any) -> str:
    """Bytes as a person writes them, or V(unknown)."""
    return format_size(int(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else "unknown"


def table(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Columns as wide as what is in them, those of *left* to the left and the others (figures) to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) if column in left else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
