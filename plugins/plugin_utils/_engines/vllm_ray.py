# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""vLLM over Ray: a Ray node in each container, and the engine beside the head's (it must be in the same container)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _vllm
from ._base import PROGRAMS, Node, Settings, gate, open_port, service, url_host

NAMES = ("vllm_ray",)
API_KEY = _vllm.API_KEY
#: Ray's servers listen on every address of a node, and whoever they serve may run code there. Since 2.52 they can ask for a token.
GROUP_SECRETS = ("RAY_AUTH_TOKEN",)
STRUCTURAL = _vllm.STRUCTURAL
STAGES = _vllm.STAGES
check = _vllm.check
ready_url = _vllm.ready_url
pool_path = _vllm.pool_path
pool = _vllm.pool


def steps(settings: Settings, nodes: Sequence[Node], node: Node) -> list[dict[str, Any]]:
    """Ray first; on the head then the engine, once the cluster is exactly this launch's nodes."""
    head = nodes[0]
    cluster = f"{url_host(head.address)}:{settings.ray_port}"
    shared = [
        f"--node-ip-address={node.address}",
        f"--num-gpus={settings.gpus_per_node}",
        # Ray's default reserves 30 % of the RAM, which on these machines is the GPU's memory.
        f"--object-store-memory={settings.ray_object_store_memory}",
        "--disable-usage-stats",
    ]
    if node.rank > 0:
        return [
            # Started too early, a worker binds to the store of an older head and exits each time.
            open_port("ray-head", head.address, settings.ray_port, settings.join_timeout),
            service("ray", ["ray", "start", "--block", f"--address={cluster}", *shared]),
        ]
    return [
        service("ray", ["ray", "start", "--block", "--head", f"--port={settings.ray_port}", "--include-dashboard=false", *shared]),
        open_port("ray-head", head.address, settings.ray_port, settings.join_timeout),
        gate(
            "ray-nodes",
            ["python3", f"{PROGRAMS}/ray_gate.py", cluster, str(settings.gpus_per_node), *(peer.address for peer in nodes)],
            settings.join_timeout,
        ),
        service(
            "engine",
            [*_vllm.arguments(settings), *_vllm.server_arguments(settings), "--distributed-executor-backend", "ray"],
            {"RAY_ADDRESS": cluster},  # without it vLLM may start a cluster of its own
        ),
    ]


def environment(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """Ray's monitor kills a rank at 95 % of the node's memory, which is the steady state here; it must be off on every node."""
    own = {"RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    return {**_vllm.environment(settings, nodes, node), **own}


def ports(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[int, str]:
    """What the head needs free; workers listen on ports of the kernel's choice."""
    if node.rank > 0:
        return {}
    return {settings.port: "the endpoint", settings.ray_port: "Ray", settings.control_port: "the group's control"}
