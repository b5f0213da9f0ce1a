# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Whether the memory of a deployment's ranks is back: stopped is not freed, a driver can hold a dead process's memory for minutes.

What a dead process's memory becomes meanwhile is in nobody's account: the driver lists it for a process that is gone, or for none,
and then it is part of what the facts call unattributed. That it grew is told apart from what always comes and goes by a share of the pool.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import is_rank_of
from ansible_collections.unimem.dgx_spark.plugins.module_utils._recovery import hidden
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size

#: By how much what nobody accounts for may have grown, as a share of the pool: the kernel's own comes and goes.
SLACK_SHARE: t.Final = 0.02


def why_not_back(after: Mapping[str, t.Any], before: Mapping[str, t.Any], deployment: str) -> str:
    """Why the memory is not (known to be) back, as a sentence; "" where it is.

    `after` are the memory facts of now, `before` those from before the ranks were stopped, or from before they were started; empty where
    there are none, and then only what the driver still lists counts.
    """
    if after.get("class") == "unresponsive":
        return "the driver does not answer, so that nobody can say whether the memory is back; a reboot ends that"
    if (after.get("sources") or {}).get("gpu") == "none" and (before.get("sources") or {}).get("gpu", "none") != "none":
        return "the driver can no longer be asked, so that nobody can say whether the memory is back"
    listed = [process for process in after.get("processes") or [] if is_rank_of(process, deployment)]
    if listed:
        names = sorted({str((process.get("owner") or {}).get("name")) for process in listed})
        held = sum(int(process.get("memory") or 0) for process in listed)
        return f"the driver still lists {', '.join(names)} with {format_size(held)}"
    then, now = hidden(before), hidden(after)
    total = (after.get("memory") or {}).get("total")
    if then is None or now is None or not isinstance(total, int) or now - then <= SLACK_SHARE * total:
        return ""
    return f"the driver holds {format_size(now - then)} that belong to no process any more; it gives them back within minutes, or at a reboot"
