# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_table
short_description: The budgets of all nodes in one table
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - One line a node with the figures that decide. The worst node is marked.
positional: _input, worst
options:
  _input:
    description:
      - For each node's name its C(budget) (of M(unimem.dgx_spark.unified_mem_budget)) and C(memory) (of M(unimem.dgx_spark.gpu_memory_facts)).
    type: dict
    required: true
  worst:
    description:
      - The name of the node that decides.
    type: str
    default: ''
"""

EXAMPLES = r"""
---
- name: Show the plan
  ansible.builtin.debug:
    msg: "{{ {'spark-01': {'budget': budgeted.budget, 'memory': ansible_facts['gpu_memory'].memory}} | unimem.dgx_spark.plan_table }}"
"""

RETURN = r"""
_value:
  description:
    - The lines of the table.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _report


def plan_table(nodes: Any, worst: Any = "") -> list[str]:
    """Put the budgets into a table; see DOCUMENTATION."""
    if not isinstance(nodes, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.plan_table needs a dictionary of nodes")
    return _report.plan_table(nodes, str(worst))


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"plan_table": plan_table}
