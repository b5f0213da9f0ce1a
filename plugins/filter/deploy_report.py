# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: deploy_report
short_description: Say what a deployment found, did and measured
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - From what P(unimem.dgx_spark.node_report#filter) returned for each host to a text that a person reads and a dictionary for machines. For each node the pool
    before, at the launch and after, who held what, what was stopped and why, and the prediction against the measurement; then the endpoint and its tokens.
  - Of a failure it gives the same diagnosis as P(unimem.dgx_spark.diagnosis#filter).
positional: _input, common
options:
  _input:
    description:
      - For each host's name its report.
    type: dict
    required: true
  common:
    description:
      - What holds for all of them, namely C(model), C(engine), C(check), C(failed), C(unreachable), C(group), C(result), C(steps) (each with C(name) and C(at))
        and C(at), when it ended. Times are seconds since 1970.
    type: dict
    required: true
seealso:
  - plugin: unimem.dgx_spark.node_report
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show the report
  ansible.builtin.debug:
    msg: "{{ (reports | unimem.dgx_spark.deploy_report({'model': 'Qwen3.5-122B-A10B-FP8', 'engine': 'vllm_ray', 'result': tp_launch_result})).lines }}"
  vars:
    reports: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars) | map('unimem.dgx_spark.node_report'))) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(lines) (the text), C(data) (the same for machines), C(cause) (of a failure, in a sentence) and C(html) (a page for a browser with the same, its
      steps and each node's memory over time) and C(files) (a dictionary from a file's relative path to its text, namely all that is to be kept of it).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _report


def deploy_report(nodes: Any, common: Any) -> dict[str, Any]:
    """Say what a deployment found, did and measured; see DOCUMENTATION."""
    if not isinstance(nodes, Mapping) or not isinstance(common, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.deploy_report needs a dictionary of node reports, and one of what they have in common")
    return _report.deploy_report(nodes, common)


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"deploy_report": deploy_report}
