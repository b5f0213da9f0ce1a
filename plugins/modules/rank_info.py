#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_info
short_description: Read what the ranks of a deployment say and why they ended
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Reads the containers that the role P(unimem.dgx_spark.tp_launch#role) has started for a deployment on this node, running or not. That is how they
    ended, their command lines and environment, and their logs with the messages in them that are known to be the cause of a failure. Beside that
    what the kernel, the watchdogs, the container engine and the file systems of the node say of the same time.
  - Whatever is returned is bounded and has its secrets masked. What cannot be read is left empty, and a reason says why; the module fails only for nonsense in
    its options. Nothing is changed.
  - P(unimem.dgx_spark.diagnosis#filter) makes one diagnosis of what all nodes returned.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._attributes.info_module
options:
  deployment:
    description:
      - The name of the deployment, as in C(tp_launch_deployment).
    type: str
    default: default
  log_lines:
    description:
      - How many lines of each log are returned, a quarter of them from its beginning and the others from its end. The whole log is looked through for known
        messages.
    type: int
    default: 400
  ports:
    description:
      - TCP ports of which to say whether a server could listen on them, and who has them. Each is tried by binding to it for a moment.
    type: list
    elements: int
    default: []
  paths:
    description:
      - Directories of whose file systems to say how full they are, beside that of the system and of the container engine.
    type: list
    elements: path
    default: []
  around:
    description:
      - Whether to read also what the kernel, the watchdogs, the container engine's unit, the links and the file systems say of the same time.
    type: bool
    default: true
  timeout:
    description:
      - Seconds for the logs of all ranks; what has not come by then is left out.
    type: float
    default: 60
  wait:
    description:
      - Seconds to wait before reading. The module comes back sooner, as soon as the deployment's rank on this node is ready or has ended. That it is ready
        is noticed at once only where the container's log can be read.
    type: float
    default: 0
notes:
  - To read the logs, the user must be root or a member of the container engine's group. To read the kernel's messages, root or a member of C(adm) or
    C(systemd-journal).
seealso:
  - plugin: unimem.dgx_spark.diagnosis
    plugin_type: filter
  - module: unimem.dgx_spark.gpu_memory_facts
"""

EXAMPLES = r"""
---
- name: Read what the ranks say
  unimem.dgx_spark.rank_info:
  register: ranks

- name: Show how each rank of this node ended
  ansible.builtin.debug:
    msg: "rank {{ item.rank }}: {{ item.status }}, {{ item.log.end.reason | default('it still runs') }}"
  loop: "{{ ranks.ranks }}"
  loop_control:
    label: "{{ item.container }}"
"""

RETURN = r"""
ranks:
  description:
    - One entry for each rank's container on this node. Times are seconds since 1970 by the node's own clock.
  returned: always
  type: list
  elements: dict
  contains:
    rank:
      description: Its number, or -1 where its label makes no sense.
      type: int
      sample: 1
    role:
      description: C(head) or C(worker).
      type: str
      sample: worker
    launch_id:
      description: The launch that it belongs to.
      type: str
      sample: 20260101T120000Z-a1b2c3
    container:
      description: The container's name.
      type: str
      sample: unimem-default-rank1
    status:
      description: What the container engine says of it.
      type: str
      sample: exited
    running:
      description: Whether it runs.
      type: bool
    ready:
      description: Whether it runs and has said that the whole group is ready, or the container engine's own check of it has.
      type: bool
    exit_status:
      description: With what it ended; null while it runs.
      type: int
      sample: 70
    oom_killed:
      description: Whether a limit of the container ended it. CUDA's memory is not in such a limit.
      type: bool
    started:
      description: When it was started.
      type: float
    finished:
      description: When it ended; null while it runs.
      type: float
    steps:
      description: The rank's processes in order, each with C(name), C(argv) and C(environment).
      type: list
      elements: dict
    environment:
      description: The container's environment.
      type: dict
    log:
      description:
        - C(head) and C(tail), the first and last lines, and C(left_out), how many are between them. C(found), known messages with C(time), C(process),
          C(cause), C(fields) and C(line); C(exceptions), other exceptions; C(end) with C(time), C(status) and C(reason); C(clock_offset), how far
          rank 0's clock is ahead; C(ready), when the whole group was ready, or null; C(transports), what NCCL says that it uses between the nodes, each
          with C(name) and, where another node's process said it, its C(address); C(memory), readings of the pool with time, available, free and cached
          bytes; C(reason), why the log could not be read.
      type: dict
engine:
  description: Why the container engine could not be asked, or null.
  returned: always
  type: str
journal:
  description: What the kernel and watchdogs said, with C(found) and C(lines), and C(reason) where it could not be read.
  returned: when O(around=true)
  type: dict
docker:
  description: The container engine's unit, with its C(state) and C(since) when.
  returned: when O(around=true)
  type: dict
links:
  description: The links that the ranks were told to use, each with C(name), C(up) (it is not set down) and C(carrier).
  returned: when O(around=true)
  type: list
  elements: dict
disks:
  description: File systems, each with C(path), C(total) and C(free) in bytes.
  returned: when O(around=true)
  type: list
  elements: dict
ports:
  description:
    - For each of O(ports) C(why) a server could not listen on it (or null), its C(users), and whether they are processes of this deployment's own
      running ranks (C(own)).
  returned: always
  type: dict
  sample:
    "8000":
      why: Address already in use
      users:
        - "LISTEN on 0.0.0.0:8000: python3 (4711)"
      own: false
kept:
  description: Whether this node would start a rank of the deployment again after a boot, see M(unimem.dgx_spark.rank_persist).
  returned: always
  type: bool
clock:
  description: The node's time when this was read, in seconds since 1970.
  returned: always
  type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import system_engine
from ansible_collections.unimem.dgx_spark.plugins.module_utils._persist import is_kept
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_info import read_node
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_news import wait_for_news
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import refuse_deployment
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld


def main() -> None:
    """Read, return."""
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "default": "default"},
            "log_lines": {"type": "int", "default": 400},
            "ports": {"type": "list", "elements": "int", "default": []},
            "paths": {"type": "list", "elements": "path", "default": []},
            "around": {"type": "bool", "default": True},
            "timeout": {"type": "float", "default": 60},
            "wait": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    params = module.params
    refusal = refuse_deployment(params["deployment"])
    if refusal:
        module.fail_json(msg=refusal)
    if not 4 <= params["log_lines"] <= 20000:
        module.fail_json(msg=f"log_lines is {params['log_lines']}, not a number from 4 to 20000")
    if not 0 < params["timeout"] <= 3600:
        module.fail_json(msg=f"timeout is {params['timeout']}, not a number of seconds from above 0 to 3600")
    if not 0 <= params["wait"] <= 3600:
        module.fail_json(msg=f"wait is {params['wait']}, not a number of seconds from 0 to 3600")
    wrong = [port for port in params["ports"] if not 0 < port < 65536]
    if wrong:
        module.fail_json(msg=f"ports has {', '.join(map(str, wrong))}, which is no TCP port")
    world = LiveWorld()
    engine, problem = system_engine(world)
    if engine is not None and params["wait"] > 0:
        wait_for_news(engine, params["deployment"], params["wait"])
    result = read_node(world, engine, params["deployment"], params["log_lines"], params["timeout"], params["ports"], params["paths"], params["around"])
    if engine is None and problem:
        result["engine"] = problem
    module.exit_json(changed=False, kept=is_kept(params["deployment"]), **result)


if __name__ == "__main__":
    main()
