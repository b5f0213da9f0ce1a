# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: run_owner
short_description: Tell which run of Ansible this is
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Returns who runs this playbook, on which controller, and as which process, as M(unimem.dgx_spark.node_lease) takes its
    O(unimem.dgx_spark.node_lease#module:owner).
  - It is the same on all hosts and in all tasks of a run, and that of no other run.
options:
  _terms:
    description:
      - None are needed.
    type: list
    elements: str
seealso:
  - module: unimem.dgx_spark.node_lease
  - plugin: unimem.dgx_spark.run_has_ended
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Hold the node for this run
  unimem.dgx_spark.node_lease:
    state: held
    owner: "{{ lookup('unimem.dgx_spark.run_owner') }}"
  become: true
"""

RETURN = r"""
_raw:
  description:
    - One dictionary. C(id) tells the run from all others; C(user), C(controller), C(pid) and C(started) are for people; C(host) (the machine's boot
      and PID namespace) and C(start_time) say whether the process still lives. The last two are empty on a controller that is no Linux.
  type: list
  elements: dict
"""

from typing import Any

from ansible.plugins.lookup import LookupBase

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._run_owner import run_owner


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Tell which run this is."""
        self.set_options(var_options=variables, direct=kwargs)
        return [run_owner()]
