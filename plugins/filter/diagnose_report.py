# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: diagnose_report
short_description: Say how a deployment is found and what is wrong with it
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - From what P(unimem.dgx_spark.node_report#filter) returned for each host to a text that a person reads and a dictionary for machines, for a deployment
    that runs, starts, is broken, or is not there at all.
positional: _input, common
options:
  _input:
    description:
      - For each host's name its report.
    type: dict
    required: true
  common:
    description:
      - What holds for all of them, namely C(name) of the deployment, C(engine), C(unreachable) (the hosts that could not be asked), and C(answer) with C(text)
        (what the endpoint returned for a prompt) or C(why) (why it returned nothing).
    type: dict
    required: true
seealso:
  - plugin: unimem.dgx_spark.diagnosis
    plugin_type: filter
  - module: unimem.dgx_spark.rank_info
"""

EXAMPLES = r"""
---
- name: Show how the deployment is
  ansible.builtin.debug:
    msg: "{{ (reports | unimem.dgx_spark.diagnose_report({'name': 'default', 'engine': 'vllm_ray'})).lines }}"
  vars:
    reports: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars) | map('unimem.dgx_spark.node_report'))) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(state) (answers, starting, silent, incomplete, absent or unknown), C(lines) (the text), C(cause) (a sentence, empty where nothing is
      wrong), C(data) (the same for machines) and C(files) (a dictionary from a file's relative path to its text).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _report


def diagnose_report(nodes: Any, common: Any) -> dict[str, Any]:
    """Say how a deployment is found; see DOCUMENTATION."""
    if not isinstance(nodes, Mapping) or not isinstance(common, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.diagnose_report needs a dictionary of node reports, and one of what they have in common")
    return _report.diagnose_report(nodes, common)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"diagnose_report": diagnose_report}
