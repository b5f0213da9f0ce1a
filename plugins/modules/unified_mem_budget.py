#!/usr/bin/python

# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: unified_mem_budget
short_description: Predict whether one rank of a large language model fits a unified-memory node
version_added: 0.1.0
author:
  - the unimem.dgx_spark authors (@unimem)
description:
  - Adds up what one rank of a model takes on one node (weights, KV cache, recurrent state, activations, graphs, CUDA context,
    communication, host processes and a reserve for the system) and compares it with the memory of that node.
  - On a unified-memory machine such as NVIDIA DGX Spark every process and the page cache draw on the same pool, so the answer
    says also what must be evicted or stopped first, and what the engine's own start-up check would say.
  - Needs no GPU, no network and no root, starts nothing, stops nothing and changes nothing.
  - It is a gate. Unless O(fail=false), the task fails, with the whole result, when the verdict is not a fit. V(fits),
    V(fits_after_cache_eviction) and V(fits_after_stopping) are fits. The last one is, because only owners that O(stoppable)
    names are ever in RV(budget.stop); without O(stoppable) it cannot come up.
  - Runs on the node, where it reads O(model), or on the controller with O(config) and O(weight_bytes).
options:
  model:
    description:
      - Directory with C(config.json) and the safetensors files or their index.
      - Only the headers of the files are read.
      - Either this or O(config) is required. With both, O(config) replaces the file C(config.json).
    type: path
  config:
    description:
      - The content of the model's C(config.json).
    type: dict
  weight_bytes:
    description:
      - Size of the whole checkpoint. Replaces what the files of O(model) say.
      - A number of bytes, or text with a unit such as V(118.4 GiB).
    type: raw
  gpu_memory:
    description:
      - The C(gpu_memory) dictionary of M(unimem.dgx_spark.gpu_memory_facts). Parts of it are enough.
      - Where you write it yourself, sizes may be text with a unit such as V(119.7 GiB).
      - If not set, it is read now, on the machine where the module runs.
    type: dict
  peers:
    description:
      - The same dictionaries of the other nodes, for checks over ranks.
    type: list
    elements: dict
    default: []
  tensor_parallel:
    description: Number of tensor-parallel ranks.
    type: int
    default: 1
  pipeline_parallel:
    description: Number of pipeline stages. The largest stage is computed.
    type: int
    default: 1
  expert_parallel:
    description: Whether experts are spread over the tensor-parallel ranks whole.
    type: bool
    default: false
  engine:
    description:
      - The engine that will run. V(vllm) is the same as V(vllm_mp).
    type: str
    choices: [vllm_ray, vllm_mp, vllm, sglang]
    default: vllm_ray
  engine_version:
    description:
      - Its version, such as V(0.32.0). Decides which start-up checks and log lines are simulated.
      - Where it is not given, or no release (a container's date such as V(26.04)), the rules of the newest known release are taken.
      - A local version of V(+cpu) (V(0.32.0+cpu)) means the CPU build of vLLM, which has no CUDA context and other block sizes.
    type: str
  node_role:
    description: Whether this rank's node is the head, which also runs the API server.
    type: str
    choices: [head, worker]
    default: head
  context_length:
    description:
      - Tokens of the longest request (C(--max-model-len), C(--context-length)).
      - If not set, the positions of the model's config.
    type: int
  concurrency:
    description: Requests of O(context_length) that must fit at once.
    type: int
    default: 1
  kv_cache_dtype:
    description:
      - Type of the KV cache. V(auto) is the model's own, or the checkpoint's where the engine follows that.
    type: str
    choices: [auto, bf16, bfloat16, fp16, float16, fp8, fp8_e4m3, fp8_e5m2]
    default: auto
  mamba_ssm_cache_dtype:
    description:
      - Type of the recurrent state of linear-attention and Mamba layers (C(--mamba-ssm-cache-dtype)).
      - V(auto) is what the model's config says, or its dtype.
    type: str
    choices: [auto, float32, bfloat16, float16]
    default: auto
  gpu_memory_utilization:
    description:
      - Share of the whole memory that vLLM claims. If not set, one is recommended and simulated.
      - vLLM fills its share with KV cache, so the need is then this share and what is taken beside it.
      - Not for O(engine=sglang), which has O(mem_fraction_static).
    type: float
  mem_fraction_static:
    description:
      - Share of the free memory that SGLang uses for weights and pools. If not set, one is recommended and simulated.
      - For O(engine=sglang) only; vLLM has O(gpu_memory_utilization).
    type: float
  kv_cache_memory:
    description:
      - Size of one rank's KV cache (C(--kv-cache-memory-bytes)), in place of what a utilization leaves.
      - vLLM's check of free memory still goes by its utilization.
    type: raw
  max_num_seqs:
    description: The most sequences that run at once.
    type: int
  max_num_batched_tokens:
    description:
      - Tokens of one step (C(--max-num-batched-tokens), C(--chunked-prefill-size)).
      - If not set, the engine's default.
    type: int
  speculative_tokens:
    description: Draft tokens a step of multi-token prediction. 0 does not load the model's own drafter.
    type: int
    default: 0
  prefix_caching:
    description:
      - Whether prefix caching is on, which costs models with recurrent state one more block for each group of layers.
      - Say what the engine will be started with. Recent vLLM turns it on by itself.
    type: bool
    default: false
  language_model_only:
    description: Whether vision and audio parts are left out (C(--language-model-only)).
    type: bool
    default: false
  eager:
    description: Whether CUDA graphs are off (C(--enforce-eager), C(--disable-cuda-graph)).
    type: bool
    default: false
  reserve:
    description:
      - Memory left for the system.
      - Not a part of the need where O(gpu_memory_utilization) alone sizes the KV cache, as that decides what is left.
        A problem (C(little_left_for_system)) says when it leaves less than this.
    type: raw
    default: 8 GiB
  floor:
    description:
      - Memory that has to remain available beside the rank where O(gpu_memory_utilization) alone decides what remains, such as the O(floor) below which
        M(unimem.dgx_spark.node_lease) kills the ranks. It is not added to the need.
      - Where less remains, also after all stopping that O(stoppable) allows, the verdict is no fit, and a problem (C(below_memory_floor)) says what
        remains and which utilization would do. V(0) asks for nothing.
    type: raw
    default: 0
  shm_size:
    description:
      - The size of C(/dev/shm) in the rank's container, which is a part of the same pool. It is a limit and nothing is added for it, since what the engines put
        there is counted already; RV(budget.assumptions) says what.
      - A problem (C(object_store_beyond_shm)) says when O(ray_object_store_memory) is more than this.
    type: raw
  ray_object_store_memory:
    description:
      - What Ray's object store may take. What is more than the 1 GiB that the constant V(ray) was measured with is added to C(host_process), unless
        O(overheads) has V(ray). For O(engine=vllm_ray).
    type: raw
    default: 1 GiB
  overheads:
    description:
      - Figures measured on your own nodes, by term. Each replaces the built-in constant of that term.
      - Terms are V(activations), V(graphs), V(cuda_context), V(communication), V(host_process) and V(ray).
        V(ray) is added to V(host_process) when O(engine=vllm_ray).
    type: dict
    default: {}
  stoppable:
    description:
      - Selectors of what may be stopped to make room, as in M(unimem.dgx_spark.gpu_process_reclaim).
      - An owner is in RV(budget.stop) only when all of its GPU processes match and none is protected.
    type: list
    elements: str
    default: []
  fail:
    description: Whether to fail, with the whole result, unless the verdict is a fit.
    type: bool
    default: true
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.info_module
  - unimem.dgx_spark._attributes.actiongroup_gpu
notes:
  - Weights come from bytes on disk, not from a parameter count. What does not shard is counted whole on each rank.
  - An architecture or dtype that the module does not know is said in RV(budget.problems), and the larger figure is used.
  - Model configurations and safetensors files are treated as untrusted. A bad one gives a problem with a code.
seealso:
  - module: unimem.dgx_spark.gpu_memory_facts
  - module: unimem.dgx_spark.gpu_process_reclaim
"""

EXAMPLES = r"""
- name: Refuse to go on unless the shard fits
  unimem.dgx_spark.unified_mem_budget:
    model: /models/Qwen3.5-122B-A10B-FP8
    tensor_parallel: 2
    engine: vllm_ray
    context_length: 131072
    gpu_memory_utilization: 0.8
    gpu_memory: "{{ ansible_facts['gpu_memory'] }}"
    stoppable:
      - unit:vllm-embeddings.service
  register: budget

- name: Plan on the controller, from a config and the size of the checkpoint
  unimem.dgx_spark.unified_mem_budget:
    config: "{{ lookup('ansible.builtin.file', 'config.json') | from_json }}"
    weight_bytes: 118.4 GiB
    tensor_parallel: 2
    context_length: 262144
    gpu_memory:
      class: unified
      memory:
        total: 119.7 GiB
        free: 102 GiB
        available: 112 GiB
    fail: false
  delegate_to: localhost
  register: plan
"""

RETURN = r"""
budget:
  description: The decision. All sizes are bytes of one rank on one node.
  returned: always
  type: dict
  contains:
    verdict:
      description:
        - V(fits) means that the need is free now.
        - V(fits_after_cache_eviction) means that the page cache has to give way first.
        - V(fits_after_stopping) means that RV(budget.stop) has to be stopped too.
        - V(does_not_fit) means that nothing of that suffices, or that the engine would refuse (see RV(budget.problems)).
        - V(unknown) means that the weights or the pool cannot be known.
      type: str
      returned: always
    fits:
      description: Whether the verdict lets a launch go on, that is whether it is one of the first three.
      type: bool
      returned: always
    need:
      description: Sum of RV(budget.terms).
      type: int
      returned: always
    have:
      description: What a new CUDA process can get on this node now, after eviction of the page cache.
      type: int
      returned: always
    shortfall:
      description: What is missing; 0 where nothing is.
      type: int
      returned: always
    terms:
      description:
        - What the need is made of, namely C(weights), C(kv_cache), C(recurrent_state), C(activations), C(graphs), C(cuda_context),
          C(communication), C(host_process) and C(reserve).
        - The KV cache is the one for O(context_length) and O(concurrency), O(kv_cache_memory) where that is given,
          or what O(gpu_memory_utilization) leaves for it.
      type: dict
      returned: always
      sample: {"weights": 62347000000, "kv_cache": 3245000000, "recurrent_state": 77266944}
    kv_bytes_per_token:
      description: KV cache of one token on one rank.
      type: int
      returned: always
    recurrent_state_bytes_per_sequence:
      description: State of one sequence on one rank, before the engine pads it.
      type: int
      returned: always
    kv_tokens:
      description: RV(budget.max_concurrency) times the context length, as vLLM since 0.20.1 prints it.
      type: int
      returned: always
    max_concurrency:
      description: Requests of the context length that the engine's pool will hold at once.
      type: float
      returned: always
    stop:
      description: The cheapest set of owners to stop, each with C(kind), C(name), C(unit), C(memory), C(pids) and the C(selector) that allows it.
      type: list
      elements: dict
      returned: always
    engine_check:
      description:
        - The engine's own start-up check. C(asked), C(seen) and C(rule) are those of its check of free memory.
        - C(passes_now) tells whether all of C(checks) pass on the node as it is.
      type: dict
      returned: always
    recommend:
      description:
        - Settings that fit, C(gpu_memory_utilization), C(kv_cache_memory_bytes), C(mem_fraction_static), C(max_model_len) and C(max_num_seqs).
        - V(null) for a setting that the engine does not have, or where nothing fits.
      type: dict
      returned: always
    will_take:
      description:
        - What the rank will really take of the node's memory, without the reserve.
        - With O(mem_fraction_static) SGLang fills its share with KV cache, which may be more than the need.
      type: int
      returned: always
    floor:
      description: What has to remain available beside the need, by O(floor). Zero where O(gpu_memory_utilization) does not decide what remains.
      type: int
      returned: always
    room:
      description:
        - The least that a new CUDA process must be able to get on this node for the verdict to be a fit. That is the need, what RV(budget.floor) adds, and what
          the engine's own checks ask beside (such as a share of the whole pool, or as much as on the other nodes). Make so much room, not RV(budget.need).
        - V(null) where no room would do, or nothing is known.
      type: int
      returned: always
    uncertainty:
      description: The need with the lowest and the highest figures seen for the overheads, C(need_low) and C(need_high).
      type: dict
      returned: always
    kv_layout:
      description:
        - The numbers of the allocator of vLLM, to compare with its log, among them C(block_size), C(num_blocks), C(blocks_per_request)
          and C(kv_tokens_logged).
      type: dict
      returned: always
    remedies:
      description:
        - What would help, cheapest first, each with C(action), C(frees) (bytes), C(settings) (this module's options to change) and C(message).
        - Each was tried. With C(settings) the budget fits and nothing has to be stopped, but for C(stop_owner), which names the members of
          RV(budget.stop), and C(permit_stop), of which all together have to be in O(stoppable).
      type: list
      elements: dict
      returned: always
    context_length:
      description: The context length that was used.
      type: int
      returned: always
    concurrency:
      description: The concurrency that was used.
      type: int
      returned: always
    weights_source:
      description: Where the weights' size comes from.
      type: str
      returned: always
    assumptions:
      description: What was assumed.
      type: list
      elements: str
      returned: always
    problems:
      description:
        - What is wrong or doubtful, each with C(code), C(message) and C(severity) (V(error) or V(warning)).
        - Among the warnings are C(memory_fragmented), where the free memory is in pieces that the GPU driver may not be able to use, and
          C(watchdog_above_floor), where earlyoom, systemd-oomd or nohang would kill before the pool is as full as planned.
      type: list
      elements: dict
      returned: always
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._budget_module import run

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "model": {"type": "path"},
    "config": {"type": "dict"},
    "weight_bytes": {"type": "raw"},
    "gpu_memory": {"type": "dict"},
    "peers": {"type": "list", "elements": "dict", "default": []},
    "tensor_parallel": {"type": "int", "default": 1},
    "pipeline_parallel": {"type": "int", "default": 1},
    "expert_parallel": {"type": "bool", "default": False},
    "engine": {"type": "str", "choices": ["vllm_ray", "vllm_mp", "vllm", "sglang"], "default": "vllm_ray"},
    "engine_version": {"type": "str"},
    "node_role": {"type": "str", "choices": ["head", "worker"], "default": "head"},
    "context_length": {"type": "int"},
    "concurrency": {"type": "int", "default": 1},
    "kv_cache_dtype": {"type": "str", "choices": ["auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"], "default": "auto"},
    "mamba_ssm_cache_dtype": {"type": "str", "choices": ["auto", "float32", "bfloat16", "float16"], "default": "auto"},
    "gpu_memory_utilization": {"type": "float"},
    "mem_fraction_static": {"type": "float"},
    "kv_cache_memory": {"type": "raw"},
    "max_num_seqs": {"type": "int"},
    "max_num_batched_tokens": {"type": "int", "no_log": False},
    "speculative_tokens": {"type": "int", "default": 0, "no_log": False},
    "prefix_caching": {"type": "bool", "default": False},
    "language_model_only": {"type": "bool", "default": False},
    "eager": {"type": "bool", "default": False},
    "reserve": {"type": "raw", "default": "8 GiB"},
    "floor": {"type": "raw", "default": 0},
    "shm_size": {"type": "raw"},
    "ray_object_store_memory": {"type": "raw", "default": "1 GiB"},
    "overheads": {"type": "dict", "default": {}},
    "stoppable": {"type": "list", "elements": "str", "default": []},
    "fail": {"type": "bool", "default": True},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_one_of=[("model", "config")],
        supports_check_mode=True,
    )
    run(module)


if __name__ == "__main__":
    main()
