# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rank_group
short_description: Tell whether a group of ranks runs as wanted
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Answers for the whole group, never from the head alone. A group is current when every rank runs, all are of one launch, and each was started with exactly
    the wanted settings. A group of which anything is missing or different is stale.
positional: _input, containers
options:
  _input:
    description:
      - What P(unimem.dgx_spark.engine_plan#filter) returned.
    type: dict
    required: true
  containers:
    description:
      - For each node's name its containers, stopped ones too, as RV(community.docker.docker_host_info#module:containers) gives them with
        O(community.docker.docker_host_info#module:verbose_output=true).
    type: dict
    required: true
seealso:
  - plugin: unimem.dgx_spark.engine_plan
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Say what is there
  ansible.builtin.debug:
    msg: "{{ plan | unimem.dgx_spark.rank_group({'spark-01': listed_01.containers, 'spark-02': listed_02.containers}) }}"
"""

RETURN = r"""
_value:
  description:
    - C(state) (V(absent), V(current) or V(stale)), C(why) (sentences), C(launch_id) (of a current group), C(containers) (for each node the names found) and
      C(foreign) (sentences about containers that have a rank's name and are none of ours).
  type: dict
  sample:
    state: stale
    why:
      - rank 1 is not there on spark-02
    launch_id: null
    containers:
      spark-01: [unimem-default-rank0]
      spark-02: []
    foreign: []
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.module_utils._ranks import group_state


def rank_group(plan: Any, containers: Any) -> dict[str, Any]:
    """Tell whether the group runs as wanted; see DOCUMENTATION."""
    if not isinstance(plan, Mapping) or not isinstance(containers, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.rank_group needs the result of engine_plan and a dictionary of the nodes' containers")
    if not {"ranks", "deployment", "spec"} <= set(plan):
        raise AnsibleFilterError("unimem.dgx_spark.rank_group needs the whole result of engine_plan, with its ranks, deployment and spec")
    return group_state(plan, containers)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"rank_group": rank_group}
