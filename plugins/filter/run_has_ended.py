# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: run_has_ended
short_description: Tell whether the run that holds a lease is known to be dead
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - True when the run was one of this controller, since the same boot and in the same PID namespace, and its process is no more.
  - False in all other cases. A run of another controller, or of a container that is gone, may live or not, and nobody here can tell.
options:
  _input:
    description:
      - The owner of a lease, as RV(unimem.dgx_spark.node_lease_info#module:lease.owner) has it.
    type: dict
    required: true
seealso:
  - module: unimem.dgx_spark.node_lease
  - module: unimem.dgx_spark.node_lease_info
  - plugin: unimem.dgx_spark.run_owner
    plugin_type: lookup
"""

EXAMPLES = r"""
---
- name: Look whose lease there is
  unimem.dgx_spark.node_lease_info:
  become: true
  register: report

- name: Undo what a run of this controller left when it was killed
  unimem.dgx_spark.node_lease:
    state: settled
    owner: "{{ lookup('unimem.dgx_spark.run_owner') }}"
    take_over: "{{ report.lease.owner.id }}"
  become: true
  when:
    - report.state == 'foreign'
    - report.lease.owner | unimem.dgx_spark.run_has_ended
"""

RETURN = r"""
_value:
  description:
    - Whether it has ended for sure.
  type: bool
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._run_owner import has_ended


def run_has_ended(owner: Any) -> bool:
    """Tell whether a run is known to be dead; see DOCUMENTATION."""
    if not isinstance(owner, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.run_has_ended needs the owner of a lease, a dictionary")
    return has_ended(owner)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"run_has_ended": run_has_ended}
