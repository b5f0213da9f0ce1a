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
  source:
    description:
      - An address of this node from which O(peers) are tried.
    type: str
  peers:
    description:
      - Addresses to reach over TCP. A refused connection counts as reached, since it proves the way there and back.
    type: list
    elements: str
    default: []
  probe_port:
    description:
      - The port to try. One that a firewall does not drop, such as that of the SSH server.
    type: int
    default: 22
  probe_timeout:
    description:
      - Seconds for each of O(peers).
    type: float
    default: 5
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
reachable:
  description: For each of O(peers) V(null) where it was reached, else why not.
  returned: when O(peers) was given
  type: dict
  sample:
    192.168.100.11:
    192.168.100.12: no answer within 5 s
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fabric import FabricError, probe_peers, read_interfaces
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld


def main() -> None:
    """Read, try the peers, return."""
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "float", "default": 10},
            "source": {"type": "str"},
            "peers": {"type": "list", "elements": "str", "default": []},
            "probe_port": {"type": "int", "default": 22},
            "probe_timeout": {"type": "float", "default": 5},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not 1 <= params["probe_port"] <= 65535:
        module.fail_json(msg=f"probe_port is {params['probe_port']}; a port is a number from 1 to 65535")
    result = {}
    try:
        result["fabric"] = read_interfaces(LiveWorld(), os.environ.get("SSH_CONNECTION", ""), params["timeout"])
        if params["peers"]:
            result["reachable"] = probe_peers(params["source"] or "", params["peers"], params["probe_port"], params["probe_timeout"])
    except FabricError as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(msg=f"source is '{params['source']}', from which nothing can be sent on this node: {exc.strerror}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
