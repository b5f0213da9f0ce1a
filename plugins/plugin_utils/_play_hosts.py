# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which hosts a play is for, and what to say where it is for none: Ansible itself warns, does nothing and calls that a success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager

#: How many names of an inventory are shown.
_SHOWN = 8


def why_none(pattern: Any, variables: Mapping[str, Any], loader: Any, variable: str) -> str:
    """Why no host matches ``pattern``, with what to do; empty where one does. ``variables`` are those of a play, ``variable`` gives the pattern."""
    groups: Mapping[str, Sequence[str]] = variables["groups"]
    manager = InventoryManager(loader, parse=False)
    for group, hosts in groups.items():
        manager.add_group(group)
        for host in hosts:
            manager.add_host(host, group=group)
    shown = pattern if isinstance(pattern, str) else ",".join(str(entry) for entry in pattern)
    limit = variables.get("ansible_limit")
    try:
        matching = [host.name for host in manager.get_hosts(pattern)]
        manager.subset(limit)
        left = manager.get_hosts(pattern)
    except AnsibleError as exc:
        return f"'{shown}' is no pattern of hosts: {exc}. It is what {variable} is."
    if left:
        return ""
    if matching:
        return f"--limit {limit} leaves none of the hosts that match '{shown}' ({_names(matching)}). Leave it out, or name some of these."
    named = [name for name, hosts in groups.items() if hosts and name not in ("all", "ungrouped")]
    there = f"has {_names(groups['all'])}" + (f" (in groups: {_names(named)})" if named else "") if groups.get("all") else "has no hosts"
    return (
        f"no host matches '{shown}' in the inventory ({', '.join(variables.get('ansible_inventory_sources') or ['there is none'])}), which {there}. "
        f"Give the inventory of your nodes with -i, or say which of its hosts are meant with -e {variable}=PATTERN."
    )


def _names(names: Sequence[str]) -> str:
    """Some names for a sentence."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
