# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: memory_back
short_description: Why the memory of a deployment's ranks is not back yet
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Stopped is not freed. A driver can hold the memory of a process that has ended for minutes, listed for a process that is gone or for none.
  - Compares the memory facts of now with those from before the ranks were stopped, or from before they were started.
positional: _input, before, deployment
options:
  _input:
    description:
      - The C(gpu_memory) dictionary of M(unimem.dgx_spark.gpu_memory_facts) of now.
    type: dict
    required: true
  before:
    description:
      - The same from before. Empty, only what the driver still lists counts.
    type: dict
    default: {}
  deployment:
    description:
      - The deployment's name.
    type: str
    default: default
seealso:
  - module: unimem.dgx_spark.gpu_memory_facts
"""

EXAMPLES = r"""
---
- name: Wait until the memory is back
  unimem.dgx_spark.gpu_memory_facts:
  register: readings
  until: readings.ansible_facts.gpu_memory | unimem.dgx_spark.memory_back(facts_before) | length == 0
  retries: 60
  delay: 2
"""

RETURN = r"""
_value:
  description:
    - A sentence with the figures. Empty where the memory is back.
  type: str
  sample: the driver still lists unimem-default-rank0 with 3.8 GiB
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._memory_back import why_not_back


def memory_back(after: Any, before: Any = None, deployment: Any = "default") -> str:
    """Say why the memory is not back; see DOCUMENTATION."""
    before = {} if before is None else before
    if not isinstance(after, Mapping) or not isinstance(before, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.memory_back needs the gpu_memory facts of now and from before, dictionaries")
    return why_not_back(after, before, str(deployment))


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"memory_back": memory_back}
