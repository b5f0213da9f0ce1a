# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rdma_doubts
short_description: Tell where the ranks of a group do not use RDMA though they could
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - NCCL falls back to TCP sockets without a word where it cannot use the RDMA devices of a node. This compares what the ranks' logs say with the devices
    that the plan found active on all nodes.
  - Nothing is said of a group for which RDMA is not expected, because a node has no active device, or because C(NCCL_IB_DISABLE) or C(NCCL_NET) was set.
positional: _input, transports
options:
  _input:
    description:
      - The plan of the group, as P(unimem.dgx_spark.engine_plan#filter) made it.
    type: dict
    required: true
  transports:
    description:
      - For each node's name what M(unimem.dgx_spark.rank_wait) returned as RV(unimem.dgx_spark.rank_wait#module:transports).
    type: dict
    required: true
seealso:
  - plugin: unimem.dgx_spark.engine_plan
    plugin_type: filter
  - module: unimem.dgx_spark.rank_wait
"""

EXAMPLES = r"""
---
- name: Say who fell back to sockets
  ansible.builtin.debug:
    msg: "{{ (tp_launch_plan | unimem.dgx_spark.rdma_doubts({'spark-01': waited.transports})).fallback }}"
"""

RETURN = r"""
_value:
  description:
    - C(fallback) has a sentence with a remedy for each node whose NCCL chose sockets. C(unknown) is a sentence where no rank's NCCL said anything, and else
      empty.
  type: dict
  sample:
    fallback: {}
    unknown: ''
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._transport import rdma_doubts as doubts_of


def rdma_doubts(plan: Any, transports: Any) -> dict[str, Any]:
    """Tell where RDMA is not used; see DOCUMENTATION."""
    if not isinstance(plan, Mapping) or not isinstance(transports, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.rdma_doubts needs a plan and a dictionary of the nodes' transports")
    return doubts_of(plan, transports)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"rdma_doubts": rdma_doubts}
