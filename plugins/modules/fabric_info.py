#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_info
short_description: Read what decides which link joins the nodes
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Reads a node's network interfaces with their addresses, state, MTU, link speed and RDMA devices, so that the filter
    P(unimem.dgx_spark.fabric_of#filter) can choose the fabric for a whole group of nodes.
  - Needs C(ip) of iproute2 on the node. Needs no root, and changes nothing.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._attributes.info_module
options:
  timeout:
    description:
      - Seconds after which a call of C(ip) is given up.
    type: float
    default: 10
seealso:
  - plugin: unimem.dgx_spark.fabric_of
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Read the interfaces
  unimem.dgx_spark.fabric_info:
  register: links

- name: Show the fabric of all nodes of the play
  ansible.builtin.debug:
    msg: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'links'))) | unimem.dgx_spark.fabric_of }}"
  run_once: true
"""

RETURN = r"""
fabric:
  description: What was read.
  returned: always
  type: dict
  contains:
    interfaces:
      description:
        - One entry for each interface of the node, with C(name), C(kind) (as iproute2 names it), C(state), C(carrier), C(loopback), C(master), C(mtu),
          C(speed_mbps), C(wireless), C(default_route), C(rdma) (each with C(device), C(state) and C(rate_gbps)) and C(addresses).
      type: list
      elements: dict
      sample:
        - name: enp1s0f0np0
          kind: null
          state: UP
          carrier: true
          loopback: false
          master: null
          mtu: 9000
          speed_mbps: 200000
          wireless: false
          default_route: false
          rdma:
            - device: rocep1s0f0
              state: ACTIVE
              rate_gbps: 100.0
          addresses:
            - address: 192.168.100.10
              prefix: 24
    rdma_character_devices:
      description: The names below C(/dev/infiniband).
      type: list
      elements: str
      sample: [rdma_cm, uverbs0]
    reached_from:
      description: The address from which the SSH connection came, or null where there is none to be seen.
      type: str
      sample: 192.168.1.20
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fabric import FabricError, read_interfaces
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld


def main() -> None:
    """Read, return."""
    module = AnsibleModule(
        argument_spec={"timeout": {"type": "float", "default": 10}},
        supports_check_mode=True,
    )
    try:
        fabric = read_interfaces(LiveWorld(), os.environ.get("SSH_CONNECTION", ""), module.params["timeout"])
    except FabricError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, fabric=fabric)


if __name__ == "__main__":
    main()
