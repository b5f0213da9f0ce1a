# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Whether NCCL uses the RDMA devices that the nodes have, by what the ranks' logs say.

Where RDMA cannot be used in a container (no /dev/infiniband, memory that may not be locked, no libibverbs in the image), NCCL takes TCP
sockets without a word at its usual level, and the group works, several times slower.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

#: NCCL's transports between nodes that are TCP, by the names that it prints.
SOCKETS: t.Final = ("Socket", "FastSocket")

_REMEDY: t.Final = (
    "In the container NCCL needs /dev/infiniband (added where the node has it), memlock:-1:-1 (tp_launch_ulimits), IPC_LOCK (tp_launch_capabilities) "
    "and the image's libibverbs; 'docker logs {container} 2>&1 | grep NET/' on {node} says what it found."
)


def rdma_doubts(plan: Mapping[str, t.Any], told: Mapping[str, Sequence[Mapping[str, t.Any]]]) -> dict[str, t.Any]:
    """``fallback``: for each node whose NCCL chose sockets a sentence; ``unknown``: a sentence where no rank's NCCL said anything, else empty.

    ``plan`` is engine_plan's, ``told`` for each node the ``transports`` of its rank's log. With Ray the head's log has what the other nodes'
    processes say too, each with its node's address. Both are empty where the plan does not expect RDMA.
    """
    ranks: Mapping[str, Mapping[str, t.Any]] = plan.get("ranks") or {}
    if not plan.get("rdma"):
        return {"fallback": {}, "unknown": ""}
    nodes = {str(rank.get("address")): name for name, rank in ranks.items()}
    chosen: dict[str, list[str]] = {}
    for reader, transports in told.items():
        for entry in transports or []:
            chosen.setdefault(nodes.get(str(entry.get("address") or ""), reader), []).append(str(entry.get("name")))
    if not chosen:
        return {"fallback": {}, "unknown": "No rank's NCCL has said whether it uses RDMA or sockets between the nodes."}
    fallback = {}
    for name, rank in ranks.items():
        used = [transport for transport in chosen.get(name, []) if transport in SOCKETS]
        if used:
            devices = str((rank.get("environment") or {}).get("NCCL_IB_HCA") or "")
            remedy = _REMEDY.format(container=rank.get("container"), node=name)
            fallback[name] = f"NCCL on {name} uses sockets (NET/{used[0]}), although its RDMA devices {devices} are active: far slower. {remedy}"
    return {"fallback": fallback, "unknown": ""}
