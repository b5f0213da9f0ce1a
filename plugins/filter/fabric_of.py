# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_of
short_description: Choose the fabric interface and address of each node of a group
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Chooses, for all nodes at once, the subnet that carries the traffic between them, and says for each node its interface, address and RDMA devices there.
  - Interface names differ between nodes, so nothing is taken over from one node to another.
  - A subnet qualifies when every node has an address in it on a link that is up and is no loopback, Wi-Fi, bridge, bridge port, tunnel or container link,
    and when it is not merely the network over which the controller reaches a node. A node reached through another node of the group
    (a jump host) is reached over the fabric, which does not disqualify it.
  - Among several, subnets with active RDMA devices on all nodes come first, then the faster link, then the one without a default route.
  - A veth pair between two machines looks like a container's link by its driver, so links are judged by name, bridge membership and Docker's prefixes.
positional: _input, subnet, management, min_speed
options:
  _input:
    description:
      - For each node's name what M(unimem.dgx_spark.fabric_info) returned on it, or the list (or JSON text) that C(ip -j -d address) prints.
    type: dict
    required: true
  subnet:
    description:
      - The fabric's subnet, like V(192.168.100.0/24), when it is to be said rather than found.
    type: str
  management:
    description:
      - Addresses or subnets of the management network, never taken unless O(subnet) names them.
    type: list
    elements: str
    default: []
  min_speed:
    description:
      - What a link of the fabric has to run at, in Gb/s. A slower one is a problem. V(0) is anything.
      - Where it is not given (or empty), the 200 Gb/s of a DGX Spark's port are expected, and a slower link is only a warning.
      - Links whose speed is not known, and virtual ones, are not judged.
    type: float
seealso:
  - module: unimem.dgx_spark.fabric_info
"""

EXAMPLES = r"""
---
- name: Read the interfaces
  unimem.dgx_spark.fabric_info:
  register: links

- name: Keep what was chosen for this node
  ansible.builtin.set_fact:
    fabric: "{{ (links_of_all | unimem.dgx_spark.fabric_of)[inventory_hostname] }}"
  vars:
    links_of_all: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'links'))) }}"
"""

RETURN = r"""
_value:
  description:
    - For each node a dictionary with its C(name), C(interface), C(address), C(prefix), C(network), C(mtu), C(speed_mbps), C(rdma_devices) (the active ones, on
      both twins of a cable), C(rdma_inactive), C(rdma_character_devices), C(default_route), C(also) (further interfaces on the nodes'
      common subnets), C(problems) (texts about what has to be mended) and C(warnings) (texts about what is doubtful).
  type: dict
  sample:
    spark-01:
      name: spark-01
      interface: enp1s0f0np0
      address: 192.168.100.10
      prefix: 24
      network: 192.168.100.0/24
      mtu: 9000
      speed_mbps: 200000
      rdma_devices: [rocep1s0f0]
      rdma_inactive: []
      rdma_character_devices: [rdma_cm, uverbs0]
      default_route: false
      also: []
      problems: []
      warnings: []
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fabric import FabricError, choose_fabric


def fabric_of(nodes: Any, subnet: str | None = None, management: list[str] | None = None, min_speed: Any = None) -> dict[str, dict[str, Any]]:
    """Choose the fabric of a group of nodes; see DOCUMENTATION."""
    if not isinstance(nodes, Mapping):
        raise AnsibleFilterError(f"unimem.dgx_spark.fabric_of needs a dictionary of nodes, not {type(nodes).__name__}")
    try:
        wanted = None if min_speed is None or str(min_speed).strip() == "" else float(min_speed)
    except (TypeError, ValueError):
        wanted = -1.0
    if wanted is not None and not 0 <= wanted < 1e6:
        raise AnsibleFilterError(f"unimem.dgx_spark.fabric_of: min_speed is '{min_speed}', not a number of Gb/s like 200 (0: any)")
    try:
        return choose_fabric(nodes, subnet=subnet or None, management=management or [], min_speed=wanted)
    except FabricError as exc:
        raise AnsibleFilterError(f"unimem.dgx_spark.fabric_of: {exc}") from exc


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fabric_of": fabric_of}
