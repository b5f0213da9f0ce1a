#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_wait
short_description: Wait until a rank is ready or has ended and say how far it is
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Waits, with M(unimem.dgx_spark.rank_info), until the whole group is ready, this node's rank of a launch has ended, or the time is over. Each is noticed
    at once. Meanwhile it prints, whenever that changes, how far the rank is and how much memory the node has left.
  - That a rank has ended is no failure of this module; RV(ready) says how it went.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.flow
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._attributes.info_module
attributes:
  action:
    support: full
  async:
    support: none
options:
  deployment:
    description:
      - The name of the deployment.
    type: str
    required: true
  launch_id:
    description:
      - The launch that is waited for; ranks of others are not looked at.
    type: str
    required: true
  engine:
    description:
      - The engine, whose words say how far it is.
    type: str
    required: true
  timeout:
    description:
      - Seconds to wait.
    type: float
    default: 1800
  interval:
    description:
      - Seconds between two looks at how far the rank is.
    type: float
    default: 5
  lease:
    description:
      - The lease that the play holds on the node with M(unimem.dgx_spark.node_lease), namely its C(owner) and C(ttl) (seconds). It is renewed
        whenever a fifth of that has passed. Empty where there is none. That it is lost is a failure.
    type: dict
    default: {}
  patience:
    description:
      - Seconds during which the node may be out of reach. A rank does not end with the connection of who waits for it.
    type: float
    default: 60
notes:
  - A node that is cut off is noticed by its connection. With ssh that takes C(ServerAliveInterval) and C(ServerAliveCountMax), in C(ssh_args) or the user's
    ssh configuration; without them it can take as long as the kernel's TCP timeout.
seealso:
  - module: unimem.dgx_spark.rank_info
  - module: unimem.dgx_spark.node_lease
"""

EXAMPLES = r"""
---
- name: Wait for the rank that was started
  unimem.dgx_spark.rank_wait:
    deployment: default
    launch_id: 20260101T120000Z-a1b2c3
    engine: vllm_ray
    timeout: 900
  register: waited
  failed_when: not waited.ready
"""

RETURN = r"""
ready:
  description: Whether the whole group is ready.
  returned: success
  type: bool
ended:
  description: Whether the rank has ended, or is not there.
  returned: success
  type: bool
status:
  description: What the container engine says of the rank's container, and how it ended.
  returned: success
  type: str
  sample: "exited, status 70: rank 1 (worker spark-02): engine was killed by signal 9"
progress:
  description: How far it was at the end, in words.
  returned: success
  type: str
  sample: loads the weights, 43 %
transports:
  description:
    - Which transports NCCL has said that it uses between the nodes, each once, namely its C(name) (C(IB) is RDMA, C(Socket) is TCP) and the C(address)
      of the node whose process said so, empty for this one. Empty where NCCL says nothing, as it does without C(NCCL_DEBUG=INFO).
  returned: success
  type: list
  elements: dict
  sample:
    - name: IB
      address: ''
seconds:
  description: How long it was waited for.
  returned: success
  type: float
"""
