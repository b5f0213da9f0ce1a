#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_persist
short_description: Have a node start its rank of a deployment again after a boot
version_added: 0.1.0
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Keeps the rank that runs on this node, with a systemd unit C(unimem-rank-DEPLOYMENT.service), which is started now and by every boot. In this boot it
    follows the container that runs. In the next one it starts that same container, and makes no other.
  - Before it starts the container it waits for Docker, the GPU's driver, and the node's address on the fabric. Rank 0 then waits for the other nodes, and
    the others for rank 0. It starts nothing unless a new CUDA process can get what the container's label C(io.unimem.need) says in bytes, and at least
    O(floor). Page cache that is in the way is dropped, and memory that comes back late is waited for.
  - When the rank ends with an error, systemd tries again after 30 seconds. A rank that has failed O(tries) times within a day is left as it is. That is
    counted on the disk, so that a model that takes its node down does not do so again with each boot.
  - It does nothing while the node is leased (M(unimem.dgx_spark.node_lease)), or when the container is gone or of another launch.
  - Stopping the unit stops the rank, with the time that O(stop_timeout) gives it. Nothing makes systemd reload its configuration, since that can take the
    GPU away from running containers. So a unit that was removed may be listed, as inactive, until the next boot.
options:
  state:
    description:
      - V(present) keeps the rank. There has to be one that runs.
      - V(absent) removes the unit and its files. A rank that runs goes on.
    type: str
    choices: [present, absent]
    default: present
  deployment:
    description: The name of the deployment, in the labels of its containers.
    type: str
    default: default
  address:
    description: This node's address on the fabric. Required with O(state=present).
    type: str
  addresses:
    description: The addresses of all nodes of the group on the fabric, in the order of their ranks. Required with O(state=present).
    type: list
    elements: str
  control_port:
    description: The port of rank 0 by which the ranks end together. That it is open shows that rank 0 was started.
    type: int
    default: 29400
  probe_port:
    description: The port by which rank 0's node sees that the other nodes are up. A refused connection shows it, too.
    type: int
    default: 22
  tries:
    description:
      - How often the rank may fail within 24 hours and still be started again. One that fails twice in a row in the same way is not started again either,
        be it by the same known cause in its log, by the same exceptions, or by taking the node's last memory while it loads.
      - That it ends because another rank has ended is no failure of its own.
    type: int
    default: 3
  stop_timeout:
    description: Seconds that the container has to stop before it is killed.
    type: int
    default: 75
  floor:
    description:
      - The rank is killed when C(MemAvailable) stays below this for 5 seconds while the model loads, in bytes or as text with a unit such as V(2 GiB).
        Below, the node can no longer be reached before its kernel runs out of memory.
      - V(0) guards nothing.
    type: raw
    default: 2 GiB
  liveness:
    description:
      - How rank 0's node asks the endpoint for one token again and again while the group is ready. Other nodes ignore it. Without it nobody asks.
      - An answer that refuses the question (an HTTP status below 500) counts as a sign of life, and so does an engine whose counter of generated tokens has
        grown meanwhile.
      - After C(failures) questions in a row without a token the group is stopped and started again, which counts among O(tries). When those are used up, it is
        left as it is.
    type: dict
    suboptions:
      url:
        description: The endpoint as its own node reaches it, without a path.
        type: str
        required: true
      model:
        description: What the model is called in the API.
        type: str
        required: true
      prompt:
        description: What is asked.
        type: str
        default: The capital of France is
      interval:
        description: Seconds between two questions.
        type: int
        default: 60
      timeout:
        description: Seconds for an answer.
        type: int
        default: 120
      failures:
        description: How many questions in a row go without a token before something is done.
        type: int
        default: 3
      key_variable:
        description: The variable of the container's environment that has the API key. The key itself is written nowhere.
        type: str
        default: ''
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
attributes:
  check_mode:
    support: full
    details:
      - Where no rank runs yet, it is assumed that one would have been started before.
  diff_mode:
    support: full
  idempotent:
    support: full
notes:
  - It needs root, systemd 240 or newer, and Python 3.9 or newer on the node.
  - C(journalctl -u unimem-rank-DEPLOYMENT) tells what was waited for, refused or started, and why.
seealso:
  - module: unimem.dgx_spark.node_lease
  - module: unimem.dgx_spark.rank_info
"""

EXAMPLES = r"""
---
- name: Keep the rank across boots
  unimem.dgx_spark.rank_persist:
    deployment: qwen
    address: 192.168.200.13
    addresses:
      - 192.168.200.12
      - 192.168.200.13
  become: true

- name: Keep it no longer
  unimem.dgx_spark.rank_persist:
    deployment: qwen
    state: absent
  become: true
"""

RETURN = r"""
unit:
  description: The unit's name.
  returned: always
  type: str
  sample: unimem-rank-qwen.service
diff:
  description: What lies on the node before and after, namely what the unit's program reads, and the unit. No secret is in it.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist_run import run_module


def main() -> None:
    """Check the parameters, act, and return what there is."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "deployment": {"type": "str", "default": "default"},
            "address": {"type": "str"},
            "addresses": {"type": "list", "elements": "str"},
            "control_port": {"type": "int", "default": 29400},
            "probe_port": {"type": "int", "default": 22},
            "tries": {"type": "int", "default": 3},
            "stop_timeout": {"type": "int", "default": 75},
            "floor": {"type": "raw", "default": "2 GiB"},
            "liveness": {
                "type": "dict",
                "options": {
                    "url": {"type": "str", "required": True},
                    "model": {"type": "str", "required": True},
                    "prompt": {"type": "str", "default": "The capital of France is"},
                    "interval": {"type": "int", "default": 60},
                    "timeout": {"type": "int", "default": 120},
                    "failures": {"type": "int", "default": 3},
                    # The name of a variable, not what is in it.
                    "key_variable": {"type": "str", "default": "", "no_log": False},
                },
            },
        },
        required_if=[("state", "present", ("address", "addresses"))],
        supports_check_mode=True,
    )
    result, failure = run_module(module.params, module.check_mode)
    if failure:
        module.fail_json(msg=failure, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
