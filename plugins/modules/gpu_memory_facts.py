#!/usr/bin/python

# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_facts
short_description: Facts about GPU memory, who holds it, and what a new GPU process can get
version_added: 0.1.0
author:
  - the unimem.dgx_spark authors (@unimem)
description:
  - Reports the memory that GPU processes draw on, by its right name. On a unified-memory machine such as a DGX Spark (GB10) GPU
    processes, other processes and the page cache share one pool, NVML answers C(Not Supported) when asked for the memory of the GPU,
    and three different numbers are called free.
  - Lists the processes that the GPU driver knows, with their memory, and finds the owner of each (systemd unit, container, desktop),
    what would start it again, and whether it is protected from being stopped by M(unimem.dgx_spark.gpu_process_reclaim).
  - Works with C(pynvml) (distribution C(nvidia-ml-py)) where the Python that runs this module can import it, else with
    C(nvidia-smi), else with C(/proc) alone, and says which of them it was in RV(ansible_facts.gpu_memory.sources.gpu).
  - It never fails for a reading that a machine does not have. That field is V(null), and
    RV(ansible_facts.gpu_memory.sources.reasons) says why. Unknown is not none.
options:
  timeout:
    description:
      - Seconds that the GPU driver may take to answer. A driver that hangs is left behind in a process of its own, and the class of
        the machine is V(unresponsive).
    type: float
    default: 10
  raw:
    description:
      - Also return every text that was read, as RV(ansible_facts.gpu_memory.raw). Secrets in command lines are masked, and of a
        container's description only what is used here is kept. The playbook C(unimem.dgx_spark.record) saves it.
    type: bool
    default: false
  replay:
    description:
      - A directory with a recorded node (a file C(node.json)) on the machine where this module runs. The facts are computed from it,
        and nothing is read of the machine itself.
    type: path
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.facts
  - unimem.dgx_spark._attributes.facts_module
  - unimem.dgx_spark._attributes.actiongroup_gpu
notes:
  - C(pynvml) saves the starting of C(nvidia-smi). It is used where the Python that runs modules on the node has it, for example that of
    a virtual environment that C(ansible_python_interpreter) names.
  - Nothing has to be installed on the node, and root is not needed. What an unprivileged user cannot see, such as the names of
    containers, is said in RV(ansible_facts.gpu_memory.sources.reasons).
  - Run it on the machine and not inside of a container. Without the PID namespace of the machine the driver lists no processes.
  - In C(ansible_facts_modules) beside other modules it runs in the background, where ansible-core ends every module after five seconds unless
    the play says C(gather_timeout). Give it a few seconds more than O(timeout), or set C(ansible_facts_parallel) to V(false). Otherwise a
    driver that hangs, or a slow node, fails the gathering of facts.
  - Cached facts are old facts. A play that decides about memory should call this module itself, right before it decides.
seealso:
  - module: unimem.dgx_spark.unified_mem_budget
  - module: unimem.dgx_spark.gpu_process_reclaim
"""

EXAMPLES = r"""
---
- name: Read the GPU memory facts
  unimem.dgx_spark.gpu_memory_facts:

- name: Say what a new CUDA process can get after the page cache was evicted
  ansible.builtin.debug:
    msg: "{{ (ansible_facts['gpu_memory']['memory']['allocatable'] / 1024 ** 3) | round(1) }} GiB"

- name: Say who holds GPU memory
  ansible.builtin.debug:
    msg: "{{ item.owner.kind }} {{ item.owner.name }} holds {{ ((item.memory or 0) / 1024 ** 3) | round(1) }} GiB"
  loop: "{{ ansible_facts['gpu_memory']['processes'] }}"
  loop_control:
    label: "{{ item.pid }}"

- name: Give a driver that may hang only three seconds
  unimem.dgx_spark.gpu_memory_facts:
    timeout: 3

- name: Compute the facts of a node that was recorded with unimem.dgx_spark.record
  unimem.dgx_spark.gpu_memory_facts:
    replay: "{{ playbook_dir }}/recorded/spark-01"
  delegate_to: localhost

# Gathering facts includes these facts where a play has these two. Without gather_timeout ansible-core ends each of several
# facts modules after five seconds.
# gather_timeout: 30
# vars:
#   ansible_facts_modules:
#     - ansible.builtin.setup
#     - unimem.dgx_spark.gpu_memory_facts
"""

RETURN = r"""
ansible_facts:
  description: The facts. All sizes are bytes.
  returned: always
  type: dict
  contains:
    gpu_memory:
      description: Everything about the memory of this machine's GPUs.
      returned: always
      type: dict
      contains:
        class:
          description:
            - V(unified) when the GPU has no memory of its own and uses the system's (GB10, Jetson).
            - V(coherent) when it has its own, which the system can address coherently (GH200).
            - V(discrete) when it has its own.
            - V(none) when there is no GPU, or no driver that can be asked and no sign of unified memory.
            - V(unresponsive) when the driver did not answer in time.
          type: str
          sample: unified
        class_evidence:
          description: What speaks for this class.
          type: list
          elements: str
          sample:
            - 'GPU 0 is unified: the driver reports no memory: Not Supported'
            - 'GPU 0 is unified: name NVIDIA GB10'
        product:
          description: What the machine calls itself, or V(null).
          type: str
          sample: NVIDIA DGX Spark
        memory:
          description: The system's memory, from C(/proc/meminfo).
          type: dict
          contains:
            total:
              description: MemTotal.
              type: int
              sample: 128526049280
            free:
              description: MemFree. The page cache counts as used.
              type: int
              sample: 3543348019
            available:
              description: MemAvailable.
              type: int
              sample: 108447924224
            page_cache:
              description: Cached and Buffers. Includes what cannot be evicted, such as shared memory.
              type: int
              sample: 106300440576
            shared:
              description: Shmem.
              type: int
              sample: 37748736
            locked:
              description: Mlocked.
              type: int
              sample: 20971520
            huge_free:
              description: Free memory in reserved huge pages.
              type: int
              sample: 0
            swap_total:
              description: SwapTotal.
              type: int
              sample: 17179865088
            swap_free:
              description: SwapFree. It is never part of what a GPU process can get.
              type: int
              sample: 17179865088
            reclaimable:
              description:
                - Page cache that eviction can really return, that is Active(file) and Inactive(file) without Dirty and Writeback.
              type: int
              sample: 105226698752
            cuda_free:
              description: What C(cudaMemGetInfo) would answer now. On a unified machine this is MemFree, on others it is V(null).
              type: int
              sample: 3543348019
            allocatable:
              description:
                - What a new CUDA process can get after the page cache was evicted.
                - The free huge pages where some are reserved, else MemAvailable.
                - Where the GPU has memory of its own, the free memory of the GPU that has most of it.
              type: int
              sample: 108447924224
        gpus:
          description: The GPUs.
          type: list
          elements: dict
          contains:
            index:
              description: Its number at the driver.
              type: int
              sample: 0
            uuid:
              description: Its UUID.
              type: str
              sample: GPU-5e1f2f5c-4d7c-4b5e-9a0e-1f2a3b4c5d6e
            name:
              description: Its name.
              type: str
              sample: NVIDIA GB10
            compute_capability:
              description: Its compute capability.
              type: str
              sample: "12.1"
            driver_version:
              description: The version of the driver.
              type: str
              sample: 580.142
            memory_total:
              description: Its own memory, V(null) on a unified machine.
              type: int
              sample: null
            memory_used:
              description: What of it is used.
              type: int
              sample: null
            memory_free:
              description: What of it is free.
              type: int
              sample: null
            addressing_mode:
              description: V(ATS), V(HMM) or V(none).
              type: str
              sample: ATS
            mig:
              description: Whether it is divided into instances, V(null) where that is not supported.
              type: bool
              sample: null
        processes:
          description:
            - The processes that the driver lists, compute and graphics.
            - A process that the driver lists and C(/proc) does not have stays here, with a reason.
          type: list
          elements: dict
          contains:
            pid:
              description: Its process id.
              type: int
              sample: 6330
            start_time:
              description: When it started, in clock ticks since boot. With the pid and the boot id it identifies the process.
              type: int
              sample: 184233
            kinds:
              description: V(compute), V(graphics) or both.
              type: list
              elements: str
              sample:
                - compute
            memory:
              description: The GPU memory that it holds, or V(null) when the driver does not say.
              type: int
              sample: 12562989056
            name:
              description: Its name.
              type: str
              sample: VLLM::EngineCore
            command:
              description: Its command line, secrets masked.
              type: str
              sample: VLLM::EngineCore
            executable:
              description: Its program.
              type: str
              sample: /usr/bin/python3.12
            user:
              description: Its user.
              type: str
              sample: root
            state:
              description: Its state as C(ps) shows it. V(D) is asleep in the kernel, where no signal arrives.
              type: str
              sample: S
            gpus:
              description: The numbers of the GPUs that it uses.
              type: list
              elements: int
              sample:
                - 0
            owner:
              description: What it belongs to.
              type: dict
              contains:
                kind:
                  description: V(unit), V(user_unit), V(container), V(desktop) or V(process).
                  type: str
                  sample: container
                name:
                  description: Name of the unit, the container or the process.
                  type: str
                  sample: vllm_embeddings
                id:
                  description: The invocation id of a unit, the full id of a container, or boot id, pid and start time of a process.
                  type: str
                  sample: 3f4e8d0c5b6a79881726354453627180f1e2d3c4b5a697887766554433221100
                unit:
                  description: The systemd unit. For a container, the unit that runs it.
                  type: str
                  sample: vllm-embeddings.service
                restarted_by:
                  description: What would start it again, or V(null).
                  type: str
                  sample: systemd (vllm-embeddings.service, Restart=always); docker (restart policy always)
                runtime:
                  description: V(docker), V(podman), V(containerd), V(crio), V(kubernetes), V(lxc) or V(nspawn) for containers.
                  type: str
                  sample: docker
                project:
                  description: The compose project of a container.
                  type: str
                  sample: null
                pod:
                  description: The UID of the Kubernetes pod of a container.
                  type: str
                  sample: null
                user:
                  description: The user whose service manager or rootless runtime it belongs to.
                  type: str
                  sample: null
            protected:
              description: Why it is never stopped, or V(null).
              type: str
              sample: null
        process_memory:
          description: The sum of the known memory of all processes, or V(null) when the processes are unknown.
          type: int
          sample: 12562989056
        unattributed:
          description:
            - Memory that no bucket of the kernel and no listed process accounts for, such as the pools that drivers from 590 on
              keep freed pages in.
          type: int
          sample: 314572800
        fragmentation:
          description: Free memory by the size of its blocks, from C(/proc/buddyinfo).
          type: dict
          contains:
            page_size:
              description: Size of a page.
              type: int
              sample: 4096
            free_blocks:
              description: Size of a block to the number of free ones.
              type: dict
              sample:
                "4096": 1021
                "4194304": 781
            largest_block:
              description: Size of the largest free block.
              type: int
              sample: 4194304
            huge_free:
              description: Free memory in blocks of at least 2 MiB.
              type: int
              sample: 3397386240
            large_free:
              description: Free memory in blocks of at least 4 MiB.
              type: int
              sample: 3275751424
            index:
              description: The share of the free memory that is in smaller blocks than 2 MiB, from 0 to 1.
              type: float
              sample: 0.04
            compact_stall:
              description: How often a process had to wait for compaction since boot.
              type: int
              sample: 0
            compact_fail:
              description: How often compaction failed since boot.
              type: int
              sample: 0
            compact_success:
              description: How often compaction succeeded since boot.
              type: int
              sample: 0
            driver_no_memory:
              description:
                - How many messages in the kernel's log say that the GPU driver found no memory (C(NV_ERR_NO_MEMORY)). Where there are
                  some, memory in large blocks has run out since boot, whatever is free now.
                - The log is a ring, which may have lost older messages. V(null) where the user may not read it.
              type: int
              sample: 0
            min_free:
              description: What the kernel keeps free (C(vm.min_free_kbytes)).
              type: int
              sample: 67108864
        guards:
          description: Watchdogs that run and kill processes when memory runs low (earlyoom, systemd-oomd, nohang).
          type: list
          elements: dict
          contains:
            name:
              description: Which one.
              type: str
              sample: earlyoom
            pid:
              description: Its process id.
              type: int
              sample: 1201
            thresholds:
              description: From when on it kills, in its own words.
              type: dict
              sample:
                mem_percent: "2"
                swap_percent: "80"
            command:
              description: Its command line.
              type: str
              sample: /usr/bin/earlyoom -m 2 -s 80
        versions:
          description: Versions, each V(null) where it is unknown.
          type: dict
          contains:
            driver:
              description: GPU driver.
              type: str
              sample: 580.142
            kernel_module:
              description: Loaded kernel module of the driver.
              type: str
              sample: 580.142
            cuda:
              description: CUDA that the driver supports.
              type: str
              sample: "13.0"
            kernel:
              description: Kernel.
              type: str
              sample: 6.11.0-1016-nvidia
            os:
              description: Operating system.
              type: str
              sample: Ubuntu 24.04.3 LTS
            dgx_release:
              description: Release of DGX OS.
              type: str
              sample: 7.3.1
            driver_pools:
              description: Whether the driver keeps freed pages in pools of its own.
              type: bool
              sample: false
        boot_id:
          description: Identity of this boot.
          type: str
          sample: 7a73eb63-a12a-4933-8610-cdb3a615de34
        sources:
          description: Where the facts come from.
          type: dict
          contains:
            gpu:
              description: V(pynvml), V(nvidia-smi) or V(none).
              type: str
              sample: pynvml
            reasons:
              description: Field to the reason why it is V(null), incomplete, or not what its name says at first.
              type: dict
              sample:
                gpus.0.memory_total: Not Supported (NVML error 3)
        raw:
          description: Every text that was read, for O(replay).
          returned: when O(raw) is true
          type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._facts import gather
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld, World


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "float", "default": 10.0},
            "raw": {"type": "bool", "default": False},
            "replay": {"type": "path"},
        },
        supports_check_mode=True,
    )
    timeout = module.params["timeout"]
    if not 0 < timeout <= 3600:
        module.fail_json(msg=f"timeout is {timeout:g}, and must be more than 0 and at most 3600 seconds.")
    world: World = LiveWorld()
    if module.params["replay"] is not None:
        # Not imported where it is not needed: a node compiles all that is imported, each time.
        from ansible_collections.unimem.dgx_spark.plugins.module_utils._recording import ReplayWorld, WorldError

        try:
            world = ReplayWorld(module.params["replay"])
        except WorldError as error:
            module.fail_json(msg=str(error))
    module.exit_json(changed=False, ansible_facts={"gpu_memory": gather(world, timeout, module.params["raw"])})


if __name__ == "__main__":
    main()
