# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_table
short_description: A plan as a table that a person reads in ten seconds
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The verdict in one line, then a line a node with the figures that decide, then what would help, the cheapest first, and what is doubtful.
    The node that decides is marked.
positional: _input
options:
  _input:
    description:
      - The plan that C(plan.yml) makes, with C(model), C(engine), C(tensor_parallel), C(pipeline_parallel), C(verdict), C(worst_node) and C(nodes).
        For each node's name C(nodes) has the C(budget) of M(unimem.dgx_spark.unified_mem_budget) and the C(memory) of M(unimem.dgx_spark.gpu_memory_facts).
    type: dict
    required: true
seealso:
  - plugin: unimem.dgx_spark.plan_rows
    plugin_type: filter
  - plugin: unimem.dgx_spark.plan_picture
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show the plan
  ansible.builtin.debug:
    msg: "{{ plan | unimem.dgx_spark.plan_table }}"
  vars:
    plan:
      model: Qwen3.5-122B-A10B-FP8
      engine: vllm_ray
      tensor_parallel: 2
      pipeline_parallel: 1
      verdict: "{{ budgeted.budget.verdict }}"
      worst_node: spark-01
      nodes:
        spark-01:
          budget: "{{ budgeted.budget }}"
          memory: "{{ ansible_facts['gpu_memory'].memory }}"
"""

RETURN = r"""
_value:
  description:
    - The lines of the text.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _plan_table


def plan_table(plan: Any) -> list[str]:
    """Put the plan into a table; see DOCUMENTATION."""
    if not isinstance(plan, Mapping) or not isinstance(plan.get("nodes"), Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.plan_table needs a plan: a dictionary with nodes")
    return _plan_table.lines(plan)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"plan_table": plan_table}
