# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: node_report
short_description: What a host's variables say of a deployment
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Picks memory, budget, evictions, failure and what M(unimem.dgx_spark.rank_info) read out of a host's variables, as
    P(unimem.dgx_spark.deploy_report#filter) takes them. Nothing else is taken over.
options:
  _input:
    description:
      - The host's C(hostvars).
    type: dict
    required: true
seealso:
  - plugin: unimem.dgx_spark.deploy_report
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show what this run did on this host
  ansible.builtin.debug:
    msg: "{{ (hostvars[inventory_hostname] | unimem.dgx_spark.node_report).actions }}"
"""

RETURN = r"""
_value:
  description:
    - C(moments) (C(before), C(at_launch) and C(after), each with C(memory), C(holders) and C(class)), C(budget), C(actions), C(eviction), C(failure),
      C(trouble), C(facts) (the same moments, whole), and what M(unimem.dgx_spark.rank_info) returned where it was run.
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _report


def node_report(host: Any) -> dict[str, Any]:
    """Pick a deployment's findings out of a host's variables; see DOCUMENTATION."""
    if not isinstance(host, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.node_report needs the variables of a host")
    return _report.node_report(host)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"node_report": node_report}
