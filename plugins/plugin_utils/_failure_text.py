# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a failed task says, out of its result: its message, what a command said beside it, and for a loop what its items say."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

#: A loop over a tree must not bury what its first items say.
MOST_ITEMS: t.Final = 5


def failure_text(result: Mapping[str, t.Any]) -> str:
    """The texts of a failed result, one a line; "" where it has none. A loop's own message only says that it had items."""
    items = result.get("results")
    failed = [item for item in items if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable"))] if isinstance(items, list) else []
    if failed:
        said = [text for item in failed[:MOST_ITEMS] for text in failure_text(item).splitlines()]
        said += [f"{len(failed) - MOST_ITEMS} more items failed"] if len(failed) > MOST_ITEMS else []
        return "\n".join(dict.fromkeys(said))
    # What no_log has hidden says so itself.
    words = [str(result.get(name) or "").strip() for name in ("msg", "stderr", "module_stderr")]
    return "\n".join(dict.fromkeys(word for word in words if word)) or str(result.get("censored") or "")
