# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""vLLM's own way over several nodes, without Ray (vLLM 0.11.2 or newer)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _vllm
from ._base import Node, Settings, service

NAMES = ("vllm_mp", "vllm")
API_KEY = _vllm.API_KEY
GROUP_SECRETS: tuple[str, ...] = ()
STRUCTURAL = _vllm.STRUCTURAL
STAGES = _vllm.STAGES
check = _vllm.check
ready_url = _vllm.ready_url
pool_path = _vllm.pool_path
pool = _vllm.pool


def steps(settings: Settings, nodes: Sequence[Node], node: Node) -> list[dict[str, Any]]:
    """One process a node; they wait for one another at the rendezvous."""
    argv = _vllm.arguments(settings)
    if len(nodes) > 1:
        argv += ["--distributed-executor-backend", "mp", "--nnodes", str(len(nodes)), "--node-rank", str(node.rank)]
        argv += ["--master-addr", nodes[0].address, "--master-port", str(settings.rendezvous_port)]
    return [service("engine", argv + (_vllm.server_arguments(settings) if node.rank == 0 else ["--headless"]))]


def environment(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[str, str]:
    """Nothing beyond vLLM's."""
    return _vllm.environment(settings, nodes, node)


def ports(settings: Settings, nodes: Sequence[Node], node: Node) -> dict[int, str]:
    """What the head needs free."""
    if node.rank > 0:
        return {}
    return {settings.port: "the endpoint", settings.rendezvous_port: "the rendezvous", settings.control_port: "the group's control"}
