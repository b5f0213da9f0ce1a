# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_picture
short_description: A plan as one HTML page with the nodes' pools drawn as bars
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Draws the memory pool of each node as two stacked bars, as it is now and as it would be with the model, and puts the same figures into a table.
  - The page needs no other file, loads nothing and follows the reader's light or dark setting.
  - The drawing is made with matplotlib. Where that is not installed on the controller the page has the figures without the drawing, and says so.
requirements:
  - matplotlib on the controller, for the drawing
positional: _input
options:
  _input:
    description:
      - The plan that C(plan.yml) makes, with C(model), C(engine), C(tensor_parallel), C(pipeline_parallel), C(verdict), C(worst_node) and C(nodes).
        For each node's name C(nodes) has the C(budget) of M(unimem.dgx_spark.unified_mem_budget), and C(memory) and C(processes)
        of M(unimem.dgx_spark.gpu_memory_facts).
    type: dict
    required: true
"""

EXAMPLES = r"""
---
- name: Draw the plan
  ansible.builtin.copy:
    content: "{{ (plan | unimem.dgx_spark.plan_picture).html }}"
    dest: plan.html
    mode: '0640'
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description:
    - C(html) (the page) and C(message) (why it has no drawing; empty where it has one).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _plan_picture


def plan_picture(plan: Any) -> dict[str, str]:
    """Draw the plan; see DOCUMENTATION."""
    if not isinstance(plan, Mapping) or not isinstance(plan.get("nodes"), Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.plan_picture needs a plan: a dictionary with nodes")
    return _plan_picture.page(plan)._asdict()


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"plan_picture": plan_picture}
