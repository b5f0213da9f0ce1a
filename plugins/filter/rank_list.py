# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rank_list
short_description: List the ranks of a deployment on all nodes
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Picks a deployment's ranks out of the lists of containers of all nodes, in the order of their ranks.
positional: _input, deployment
options:
  _input:
    description:
      - For each node's name its containers, as RV(community.docker.docker_host_info#module:containers) gives them with
        O(community.docker.docker_host_info#module:verbose_output=true).
    type: dict
    required: true
  deployment:
    description:
      - The deployment's name.
    type: str
    default: default
seealso:
  - plugin: unimem.dgx_spark.rank_group
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Say how each rank is
  ansible.builtin.debug:
    msg: "{{ {'spark-01': listed.containers} | unimem.dgx_spark.rank_list | map(attribute='status') }}"
"""

RETURN = r"""
_value:
  description:
    - For each rank its C(host), C(rank), C(role), C(container), C(id), C(launch_id), C(running), C(ready), C(status) and C(created) (seconds of the epoch).
  type: list
  elements: dict
  sample:
    - host: spark-01
      rank: 0
      role: head
      container: unimem-default-rank0
      id: 5f0c1d0c5b3f
      launch_id: 20261130T101500Z-k3v9x2
      running: true
      ready: true
      status: Up 2 minutes (healthy)
      created: 1796033700
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import rank_list as ranks_of


def rank_list(containers: Any, deployment: Any = "default") -> list[dict[str, Any]]:
    """List the ranks; see DOCUMENTATION."""
    if not isinstance(containers, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.rank_list needs a dictionary of the nodes' containers")
    return ranks_of(containers, str(deployment))


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"rank_list": rank_list}
