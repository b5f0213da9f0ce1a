# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: refused_extras
short_description: Tell what an engine may not be given by its user
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Says of the arguments and environment variables that a user adds to an engine which of them a launch refuses, since the role
    P(unimem.dgx_spark.tp_launch#role) sets them itself or since they are none.
  - With O(hosts), says so of all settings, a KV cache in bytes for an engine that has no option for it, say, or a port that is given twice.
  - P(unimem.dgx_spark.engine_plan#filter) refuses the same. It needs the nodes' fabric for its plan; this filter does not.
positional: _input, hosts
options:
  _input:
    description:
      - The settings, named as the variables of the role without their prefix. Without O(hosts), C(engine), C(extra_args) and C(env) are looked at.
    type: dict
    required: true
  hosts:
    description:
      - The names of the hosts of the group.
    type: list
    elements: str
seealso:
  - plugin: unimem.dgx_spark.engine_plan
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Check what is added to the engine before anything is copied
  ansible.builtin.assert:
    that: "{{ settings | unimem.dgx_spark.refused_extras | length == 0 }}"
  vars:
    settings:
      engine: vllm_ray
      extra_args: ['--seed', '7']
      env:
        VLLM_LOGGING_LEVEL: DEBUG
"""

RETURN = r"""
_value:
  description:
    - What is refused, each a sentence. Empty when nothing is. Values of C(extra_args) and C(env) are not repeated.
  type: list
  elements: str
  sample:
    - extra_args has --headless, which the role sets itself; use the variable for it
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _launch_plan


def refused_extras(settings: Any, hosts: Sequence[str] | None = None) -> list[str]:
    """Tell what is refused; see DOCUMENTATION."""
    if not isinstance(settings, Mapping):
        raise AnsibleFilterError(f"unimem.dgx_spark.refused_extras needs a dictionary of settings, not {type(settings).__name__}")
    return _launch_plan.refused_extras(settings, hosts or ())


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"refused_extras": refused_extras}
