# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_rows
short_description: The budgets of all nodes in a form in which they can be compared
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Gives each node a number by which the node that decides can be picked, for example with P(community.general.json_query#filter).
    The worse verdict counts first, then the larger shortfall or the smaller rest.
positional: _input
options:
  _input:
    description:
      - For each node's name a dictionary with its C(budget), of M(unimem.dgx_spark.unified_mem_budget).
    type: dict
    required: true
"""

EXAMPLES = r"""
---
- name: Name the node that decides
  ansible.builtin.debug:
    msg: "{{ (nodes | unimem.dgx_spark.plan_rows | community.general.json_query('max_by(@, &badness)')).name }}"
  vars:
    nodes:
      spark-01:
        budget: "{{ hostvars['spark-01'].budgeted.budget }}"
      spark-02:
        budget: "{{ hostvars['spark-02'].budgeted.budget }}"
"""

RETURN = r"""
_value:
  description:
    - For each node its C(name), C(verdict), C(need), C(have) and C(badness). The node with the largest C(badness) decides.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _plan_table


def plan_rows(nodes: Any) -> list[dict[str, Any]]:
    """Make the nodes comparable; see DOCUMENTATION."""
    if not isinstance(nodes, Mapping) or not all(isinstance(node, Mapping) for node in nodes.values()):
        raise AnsibleFilterError("unimem.dgx_spark.plan_rows needs a dictionary of nodes, each with its budget")
    return _plan_table.rows(nodes)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"plan_rows": plan_rows}
