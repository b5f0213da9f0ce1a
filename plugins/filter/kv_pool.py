# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: kv_pool
short_description: Read an engine's KV pool out of what it tells about itself
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Reads the C(vllm:cache_config_info) metric of vLLM, or the C(/get_server_info) of SGLang. What an engine's version does not tell is V(null).
positional: _input, engine, context_length
options:
  _input:
    description:
      - The text that the engine returned from the C(pool_path) that P(unimem.dgx_spark.engine_plan#filter) names.
    type: str
    required: true
  engine:
    description:
      - The engine's name.
    type: str
    required: true
  context_length:
    description:
      - Tokens of the longest request, with which C(tokens) is completed where only the concurrency is told.
    type: int
"""

EXAMPLES = r"""
---
- name: Show how many tokens the pool holds
  ansible.builtin.debug:
    msg: "{{ (metrics.content | unimem.dgx_spark.kv_pool('vllm_ray')).tokens }}"
"""

RETURN = r"""
_value:
  description:
    - C(tokens), C(max_concurrency), C(blocks) and C(block_size).
  type: dict
  sample:
    tokens: 519920
    max_concurrency: 1.98
    blocks: 1250
    block_size: 2096
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import PlanError
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import kv_pool as pool_of


def kv_pool(text: Any, engine: Any, context_length: Any = None) -> dict[str, Any]:
    """Read the KV pool; see DOCUMENTATION."""
    try:
        return pool_of(str(text), str(engine), context_length)
    except PlanError as exc:
        raise AnsibleFilterError(f"unimem.dgx_spark.kv_pool: {exc}") from exc


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"kv_pool": kv_pool}
