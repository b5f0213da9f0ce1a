# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: engine_plan
short_description: Work out what each rank of a tensor-parallel group runs
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - From a launch's settings and the nodes' fabric to each rank's processes, environment and ports, for the engines V(vllm_ray), V(vllm_mp) (alias V(vllm))
    and V(sglang). The same input gives the same output, and nothing is read or changed.
  - All that is wrong with the settings is said in one error.
positional: _input, nodes, container
options:
  _input:
    description:
      - The settings, named as the variables of the role P(unimem.dgx_spark.tp_launch#role) without their prefix.
    type: dict
    required: true
  nodes:
    description:
      - The nodes, the head first. For each what P(unimem.dgx_spark.fabric_of#filter) returned for it, and its C(name).
    type: list
    elements: dict
    required: true
  container:
    description:
      - What else makes the containers what they are (image, limits, programs). It goes into C(spec) only.
    type: dict
    default: {}
seealso:
  - plugin: unimem.dgx_spark.fabric_of
    plugin_type: filter
  - plugin: unimem.dgx_spark.rank_group
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show the command of every process of every rank
  ansible.builtin.debug:
    msg: "{{ plan.ranks | dict2items | map(attribute='value.file.steps') | flatten | selectattr('argv', 'defined') | map(attribute='argv') }}"
  vars:
    plan: "{{ settings | unimem.dgx_spark.engine_plan(nodes) }}"
    settings:
      engine: vllm_mp
      model_path: /models/Qwen3-30B-A3B
      tensor_parallel: 2
    nodes:
      - name: spark-01
        interface: enp1s0f0np0
        address: 192.168.100.10
      - name: spark-02
        interface: enp1s0f1np1
        address: 192.168.100.11
"""

RETURN = r"""
_value:
  description:
    - C(engine), C(deployment), C(world), C(spec) (a hash of all that makes the group what it is, timeouts excepted), C(served_model_name), C(model_path),
      C(model_mount) (the directory to mount so that the model's links resolve), C(endpoint), C(local_url) (the endpoint as the head itself reaches it),
      C(api_key_variable), C(group_secret_variables) (which get the secret that the ranks share), C(pool_path), C(rdma) (whether NCCL is
      expected to use it between the nodes), C(cache_mount) (where the host's directory for compiled kernels is mounted, or null), C(stop_timeout),
      C(shm_bytes), and C(ranks).
    - C(ranks) has for each node's name C(rank), C(role), C(container), C(address), C(environment), C(devices), C(ports) (each with what it is for), C(file)
      (the processes in their order, as the role's rank_supervisor.py reads them) and C(fabric) (the node as it was given). The API key is in none of them.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import PlanError
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._launch_plan import engine_plan as plan_of


def engine_plan(settings: Any, nodes: Any, container: Any = None) -> dict[str, Any]:
    """Work out what each rank runs; see DOCUMENTATION."""
    if not isinstance(settings, Mapping):
        raise AnsibleFilterError(f"unimem.dgx_spark.engine_plan needs a dictionary of settings, not {type(settings).__name__}")
    if not isinstance(nodes, Sequence) or isinstance(nodes, (str, bytes)) or not all(isinstance(node, Mapping) for node in nodes):
        raise AnsibleFilterError("unimem.dgx_spark.engine_plan needs a list of nodes, each a dictionary with name, interface and address")
    try:
        return plan_of(settings, nodes, container)
    except PlanError as exc:
        raise AnsibleFilterError(f"unimem.dgx_spark.engine_plan: {exc}") from exc


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"engine_plan": engine_plan}
