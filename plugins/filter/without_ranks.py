# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: without_ranks
short_description: The memory facts as they would be without a deployment's own ranks
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Takes the ranks of a deployment out of the facts and gives back to the pool what the driver says that they hold, so that a deployment that
    runs already is not counted as somebody else who is in the way.
  - What the ranks' processes hold beside that is not known to the facts and is not given back.
positional: _input, deployment
options:
  _input:
    description:
      - The C(gpu_memory) dictionary of M(unimem.dgx_spark.gpu_memory_facts).
    type: dict
    required: true
  deployment:
    description:
      - The deployment's name.
    type: str
    default: default
  at_best:
    description:
      - Take all of the pool for free but for what the driver lists for others. What does not fit then does not fit either when the ranks are gone.
    type: bool
    default: false
seealso:
  - module: unimem.dgx_spark.gpu_memory_facts
"""

EXAMPLES = r"""
---
- name: Show what a new group could get in place of the one that runs
  ansible.builtin.debug:
    msg: "{{ (ansible_facts['gpu_memory'] | unimem.dgx_spark.without_ranks('default')).memory.allocatable }}"
"""

RETURN = r"""
_value:
  description:
    - The facts, changed in C(processes) and in C(free), C(available), C(cuda_free) and C(allocatable) of C(memory).
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils import _report


def without_ranks(facts: Any, deployment: Any = "default", at_best: bool = False) -> dict[str, Any]:
    """Take a deployment's own ranks out; see DOCUMENTATION."""
    if not isinstance(facts, Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.without_ranks needs the gpu_memory facts, a dictionary")
    return _report.without_ranks(facts, str(deployment), bool(at_best))


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"without_ranks": without_ranks}
