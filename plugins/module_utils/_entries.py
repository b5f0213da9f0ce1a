# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the journal keeps of a plan: all that is needed to put things back as they were, read before anything is stopped.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.
"""

from __future__ import annotations

import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import Node
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ollama import NAME as OLLAMA
from ansible_collections.unimem.dgx_spark.plugins.module_utils._plan import Plan
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import Member, Scene
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import Unit
from ansible_collections.unimem.dgx_spark.plugins.module_utils._tenants import Tenant, process_key


def journal_entries(node: Node, plan: Plan, scene: Scene) -> list[dict[str, t.Any]]:
    """The entries of all tenants of a plan, companions of a service before it."""
    entries = []
    for tenant in plan.tenants:
        common = {"selector": tenant.selector.text, "restore": tenant.policy, "boot_id": scene.boot_id, "at": node.now()}
        for role, units in (("companion", tenant.companions), ("service", tenant.units)):
            entries += [{**common, **_unit_entry(node, unit, role, scene)} for unit in units]
        entries += [{**common, **_container_entry(node, container, tenant, scene)} for container in tenant.containers]
        entries += [
            {
                **common,
                "key": process_key(process),
                "kind": "process",
                "name": str(process.get("name")),
                "before": {"command": process.get("command"), "user": process.get("user"), "pid": process["pid"], "start_time": process.get("start_time")},
            }
            for process in tenant.processes
        ]
    return entries


def _unit_entry(node: Node, unit: Unit, role: str, scene: Scene) -> dict[str, t.Any]:
    members = scene.of_unit(unit.key)
    ports = sorted(node.listening([member.pid for member in members])) if members else []
    return {
        "key": unit.key,
        "kind": "unit",
        "name": unit.name,
        "uid": unit.uid,
        "role": role,
        "before": {
            "active_state": unit.active_state,
            "file_state": unit.file_state,
            "disabled": unit.starts_at_boot,
            "invocation": unit.invocation,
            "links": node.systemd.links(unit.name, unit.uid) if unit.starts_at_boot else {},
            "ports": ports,
            "loaded": _loaded(node, members, ports),
        },
    }


def _container_entry(node: Node, container: Container, tenant: Tenant, scene: Scene) -> dict[str, t.Any]:
    members = scene.of_container(container.key)
    published = set(container.ports) & node.listening()
    ports = sorted(published | (node.listening([member.pid for member in members]) if members else set()))
    return {
        "key": container.key,
        "kind": "container",
        "name": container.name,
        "engine": container.engine,
        "unit": next((unit.key for unit in tenant.units if container.key in scene.wraps.get(unit.key, [])), None),
        "before": {
            "id": container.id,
            "image": container.image,
            "policy": container.policy,
            "policy_retries": container.policy_retries,
            "auto_remove": container.auto_remove,
            "health": container.health,
            "shares": list(container.shares),
            "project": container.project,
            "service": container.labels.get("com.docker.compose.service"),
            "depends_on": container.labels.get("com.docker.compose.depends_on"),
            "ports": ports,
            # A published port is listened on by the engine's proxy at once; these by the service itself.
            "inside": sorted(node.listening_inside(container.pid)) if container.pid else [],
            "loaded": _loaded(node, members, ports),
        },
    }


def _loaded(node: Node, members: list[Member], ports: list[int]) -> list[dict[str, str]]:
    """What an Ollama among these processes has loaded: it ends with them, and nothing else tells of it."""
    return node.loaded(ports) if any(member.name == OLLAMA for member in members) else []
