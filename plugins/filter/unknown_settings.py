# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: unknown_settings
short_description: Find variables that are named like settings and are none
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Ansible does not mind a variable that nobody reads, so that a misspelt setting keeps its default without a word. This filter names all variables that
    begin like the settings of the playbooks and roles of this collection and are not among them, each with the setting that is most like it.
  - V(deploy_) and V(plan_) are everybody's words, so that what begins with them is named only where a setting is like it.
  - Variables that begin with C(__) are internal, and other ones somebody else's. Values are not looked at.
positional: _input, known, others
options:
  _input:
    description:
      - For each host's name the names of its variables. Under an empty name, those that the play or its import brings.
    type: dict
    required: true
  known:
    description:
      - The names that there are.
    type: list
    elements: str
    required: true
  others:
    description:
      - Names that begin like settings by chance; also one text with commas between them.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
---
- name: Name what is misspelt
  ansible.builtin.debug:
    msg: "{{ {inventory_hostname: hostvars[inventory_hostname] | list} | unimem.dgx_spark.unknown_settings(['deploy_name', 'tp_launch_port']) }}"
"""

RETURN = r"""
_value:
  description:
    - For each name a line with where it was found and what may have been meant, in the order of the names. Empty when all are known.
  type: list
  elements: str
  sample:
    - "tp_launch_contxt_length (all hosts): did you mean tp_launch_context_length?"
    - "tp_launch_xyz (spark-02)"
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _unknown_settings


def unknown_settings(variables: Any, known: Any, others: Any = ()) -> list[str]:
    """Name what is misspelt; see DOCUMENTATION."""
    if not isinstance(variables, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.unknown_settings needs a dictionary with the names of each host's variables")
    if isinstance(known, str) or not isinstance(known, Iterable):
        raise AnsibleFilterError("unimem.dgx_spark.unknown_settings needs a list of the names that there are")
    if not isinstance(others, Iterable):
        raise AnsibleFilterError("unimem.dgx_spark.unknown_settings needs a list of the other names")
    return _unknown_settings.unknown_settings(variables, known, others)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"unknown_settings": unknown_settings}
