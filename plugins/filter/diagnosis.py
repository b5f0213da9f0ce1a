# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: diagnosis
short_description: Name the earliest cause of a failure over all nodes
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Puts what all ranks, kernels, watchdogs and container engines of a deployment said on one time line, by one clock, leaves out what only follows from
    another rank's end, and names the earliest cause, its class, the node and what to do.
  - A message that tells of a failure of its own, such as one about memory, goes before one that can as well be what another rank's failure looks like
    from here, such as one about a connection.
positional: _input, unreachable
options:
  _input:
    description:
      - For each host's name what M(unimem.dgx_spark.rank_info) returned, or what P(unimem.dgx_spark.node_report#filter) made of it.
    type: dict
    required: true
  unreachable:
    description:
      - The hosts that could not be asked.
    type: list
    elements: str
    default: []
seealso:
  - module: unimem.dgx_spark.rank_info
  - plugin: unimem.dgx_spark.deploy_report
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Read what the ranks say
  unimem.dgx_spark.rank_info:
  register: ranks

- name: Say why the group ended
  ansible.builtin.debug:
    msg: "{{ (readings | unimem.dgx_spark.diagnosis).page }}"
  vars:
    readings: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'ranks'))) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(class) (memory, network, image, model, port, driver, timeout, disk, docker, settings, killed, engine, controller or unknown; null where nothing has
      failed), C(node), C(rank), C(time) (seconds since 1970 by the head's clock), C(line), C(remedy), C(cause) (the name of the known message) and
      C(sentence); C(timeline), C(ends) (how each rank ended) and C(clocks); and C(page), the lines that a person reads first.
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _diagnosis


def diagnosis(nodes: Any, unreachable: Any = ()) -> dict[str, Any]:
    """Name the earliest cause of a failure; see DOCUMENTATION."""
    if not isinstance(nodes, Mapping) or not all(isinstance(node, Mapping) for node in nodes.values()):
        raise AnsibleFilterError("unimem.dgx_spark.diagnosis needs a dictionary with what rank_info returned for each host")
    if isinstance(unreachable, str) or not isinstance(unreachable, (list, tuple)):
        raise AnsibleFilterError("unimem.dgx_spark.diagnosis needs a list of the hosts that could not be asked")
    found = _diagnosis.diagnose(nodes, [str(name) for name in unreachable])
    return {**found, "page": _diagnosis.page(found, nodes)}


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"diagnosis": diagnosis}
