# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""JSON from outside: answers of daemons, labels, files that others write."""

from __future__ import annotations

import json
import typing as t


def parse_json(text: str | bytes) -> t.Any:
    """The document. Raises ValueError for whatever is wrong with it, nesting without end included.

    JSON can hold halves of characters (a lone ``\\ud800``), which cannot be written again; they become question marks.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        document = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            document = json.loads(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return document
