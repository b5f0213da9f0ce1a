#!/usr/bin/python

# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_process_reclaim
short_description: Make room in GPU memory by stopping listed services, prove it, and put them back
version_added: 0.1.0
author:
  - the unimem.dgx_spark authors (@unimem)
description:
  - Stops systemd units, containers and processes that hold GPU memory, in the order in which they are listed and no more than
    O(need) asks for, waits until the memory is measured to be back, looks again, and says what came of it in RV(verdict).
  - What restarts a thing is found and stopped first. A unit that runs a container comes before the container, sockets, timers and
    paths before the service that they start, and the restart policy of a container is set to V(no) before the container is stopped.
    Containers are stopped and never removed.
  - What was running is written to a journal on the node, and synced, before the first stop. O(state=restored) puts units,
    containers, restart policies and enablement back as they were, and nothing that was not running.
  - A unit that is enabled is disabled for as long as it is evicted. Otherwise it would start at the next boot and fill the memory
    before the model does.
  - What nobody listed is never touched. Neither are, whatever is listed, pid 1, kernel threads, the ssh server, container and init
    daemons, display servers and desktops, NVIDIA's persistence, MPS and monitoring daemons, Kubernetes pods, and this run itself.
  - In doubt nothing is stopped, and the reason is returned.
options:
  state:
    description:
      - V(report) touches nothing. It tells what O(state=freed) would do, and who holds GPU memory.
      - V(freed) makes room.
      - V(restored) puts back what the journal says was running before.
    type: str
    choices: [report, freed, restored]
    default: report
  stop:
    description:
      - What may be stopped, in this order. With O(state=restored), the entries of the journal to put back; all when empty.
      - Each is a kind and a name, in which shell globs are allowed. V(unit:vllm-embeddings.service), V(container:vllm_embeddings),
        V(process:llama-server*) or V(user:alice).
      - V(process:) matches the name of a process or the basename of its first argument or executable. V(process:) and V(user:) match
        only processes that the driver lists. They act on the service unit or container that owns the process, if all of its GPU
        processes match, and else on a process that belongs to neither. Children of such a process that hold GPU memory must match too,
        since they would be taken along or left behind.
      - V(user:) does not match processes that only draw (viewers, browsers). They are stopped when V(process:) names them.
      - What nothing matches, and what is not evicted already, is said in RV(notes), since it may be misspelt.
      - A pattern that matches everything is refused when O(need=0). Else it means only what holds GPU memory.
    type: list
    elements: str
    default: []
  protect:
    description:
      - What must not be stopped, as in O(stop). It wins over O(stop), and protects all that would have to be stopped together.
      - What nothing matches is said in RV(notes), since it may be misspelt.
    type: list
    elements: str
    default: []
  need:
    description:
      - Memory that a new CUDA process must be able to get, in bytes or as text with a unit such as V(95.8 GiB). As soon as that much is
        there, nothing more is stopped. If all that matches would not reach it, nothing is stopped at all.
      - With V(0) all that matches is stopped.
    type: raw
    default: 0
  always:
    description:
      - What is to be stopped even if O(need) does not ask for it, as in O(stop). It need not be repeated there; what is not comes after
        what is.
      - If any of it may not be stopped, nothing is.
    type: list
    elements: str
    default: []
  kill_leftovers:
    description:
      - Send SIGKILL to what has not ended O(grace) seconds after it was asked to, if it matched O(stop) or belonged to a unit or
        container that did. Nothing else is ever sent SIGKILL.
      - Without it, what does not end by itself stays, and the verdict is V(still_held). What systemd does at the end of a unit's own
        stop timeout is the unit's own matter.
    type: bool
    default: false
  drop_page_cache:
    description:
      - Evict the page cache too, where that helps. On a unified-memory machine it counts as used for a CUDA process. The files in
        O(cache_paths) come first. The whole cache is dropped only where that was not enough, and only by root.
    type: bool
    default: false
  cache_paths:
    description:
      - Files, and directories of files, whose page cache is evicted first with O(drop_page_cache=true), such as the directory of a
        model that was just copied. This needs no root.
    type: list
    elements: path
    default: []
  grace:
    description: Seconds from asking a process or container to end to SIGKILL, or to giving up.
    type: int
    default: 30
  timeout:
    description: Seconds for the whole.
    type: int
    default: 300
  rounds:
    description: How often to look again for what matches, since some of it shows up only after something else was stopped.
    type: int
    default: 3
  restore:
    description:
      - When what a selector of O(stop) matches is put back. A dictionary from selectors to V(on_failure) (whenever it is asked for), V(on_undeploy)
        (not with O(reason=failure)) or V(never). It is kept in the journal; a value given with O(state=restored) wins over it,
        and there a name over a pattern.
      - With O(state=restored), V(never) gives up what it names. It leaves the journal and stays as it is now, stopped, and a unit that was disabled
        stays disabled.
      - V(never) says that it may be lost. Without it, transient units, units that could not be started again (masked, their file gone,
        C(RefuseManualStart=yes)) and containers started with C(--rm) that nothing makes anew are not stopped.
      - A process that belongs to no unit and no container cannot be restored, which who lists it has to know. It is stopped where its selector has
        V(never) or nothing here, and not where it has another value.
      - The default for each other thing is V(on_failure).
    type: dict
    default: {}
  reason:
    description: Why things are restored, see O(restore). V(any) restores all but V(never).
    type: str
    choices: [any, failure, undeploy]
    default: any
  journal:
    description:
      - Path of the journal on the node. Use one for each deployment. It is added to, never overwritten. Its directory belongs to the
        user that runs the module, with mode C(0700), and is made if it is missing.
    type: path
    default: /var/lib/unimem/default.json
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
attributes:
  check_mode:
    support: full
    details:
      - Returns the plan for all that is visible when it is made, in RV(actions). What shows up later carries a later round.
  diff_mode:
    support: full
  idempotent:
    support: full
notes:
  - Stopping units needs root, using a container engine needs root or the engine's group, and signalling processes of another user
    needs root. O(state=report) needs none of them, and says what it could not see.
  - One run at a time on a node, of root or of one user. A second one fails and says who holds the lock. Looking is never refused.
  - systemd is not made to reload its configuration, since that can take the GPU away from other containers on the node.
  - Processes are signalled through a pidfd after their start time was compared, which needs Linux 5.3 and Python 3.9.
seealso:
  - module: unimem.dgx_spark.gpu_memory_facts
  - module: unimem.dgx_spark.unified_mem_budget
"""

EXAMPLES = r"""
---
- name: Say who holds GPU memory, and what would be stopped
  unimem.dgx_spark.gpu_process_reclaim:
    stop:
      - unit:vllm-embeddings.service
  register: report

- name: Make room for a model shard, stopping no more than that needs
  unimem.dgx_spark.gpu_process_reclaim:
    state: freed
    need: 95.8 GiB
    stop:
      - unit:vllm-embeddings.service
      - process:llama-server*
    protect:
      - user:alice
    restore:
      process:llama-server*: never
    kill_leftovers: true
    journal: /var/lib/unimem/qwen.json
  become: true
  register: evicted

- name: Put back what was running
  unimem.dgx_spark.gpu_process_reclaim:
    state: restored
    journal: /var/lib/unimem/qwen.json
  become: true

- name: Stop Ollama for as long as something else is tried
  unimem.dgx_spark.gpu_process_reclaim:
    state: freed
    stop:
      - unit:ollama.service
    journal: /var/lib/unimem/trial.json
  become: true
  register: trial

- name: Check that Ollama's memory came back
  ansible.builtin.assert:
    that:
      - trial.verdict in ['freed', 'nothing_to_do']

- name: Stop ComfyUI, which Docker would start again, and a compose project as a whole
  unimem.dgx_spark.gpu_process_reclaim:
    state: freed
    stop:
      - container:comfyui
      - container:rag-*
    journal: /var/lib/unimem/trial.json
  become: true

- name: Stop a container that 'systemd-run --unit trial docker run --rm ...' has started, and a process that somebody started by hand
  unimem.dgx_spark.gpu_process_reclaim:
    state: freed
    stop:
      - unit:trial.service
      - process:llama-server
    restore:
      # Both are gone once they are stopped. The first has to be said; of a process it is plain.
      unit:trial.service: never
      process:llama-server: never
    kill_leftovers: true
    journal: /var/lib/unimem/trial.json
  become: true

- name: Put back all but a service that was removed for good meanwhile
  unimem.dgx_spark.gpu_process_reclaim:
    state: restored
    restore:
      unit:old-embeddings.service: never
    journal: /var/lib/unimem/qwen.json
  become: true
"""

RETURN = r"""
verdict:
  description:
    - V(reported), V(nothing_to_do), V(freed) and V(restored) are successes. With the others the task fails, and the whole result is
      returned.
    - V(not_enough) says that all that matches would not reach O(need), so nothing was stopped. V(not_permitted) says that something
      may not be stopped, or that rights, the journal or the lock are missing.
    - V(still_held) says that something did not end, or is not listed. V(respawning) says that something starts it again. A process that
      belongs to no unit and no container is watched for up to three seconds after its end, while a parent lives that could start it again.
      V(held_by_driver) says that all that held the memory is gone and the memory is not back. V(unkillable_reboot) says that a
      process is stuck in the kernel. V(unresponsive_driver) says that the GPU driver does not answer.
    - V(not_restored) says that something is not as it was. It stays in the journal.
  returned: always
  type: str
  sample: freed
would:
  description: With O(state=report), the verdict that O(state=freed) would come to now, as far as that can be seen.
  returned: always
  type: str
  sample: not_enough
message:
  description: The verdict in a sentence, with its reason.
  returned: always
  type: str
  sample: 101.2 GiB can be had, 95.8 GiB were wanted
actions:
  description: What was done, or in check mode would be, in order.
  returned: always
  type: list
  elements: dict
  contains:
    target:
      description: Name of the unit or container, name and pid of the process, or C(page cache).
      type: str
    layer:
      description: V(unit), V(container), V(process) or V(cache).
      type: str
    action:
      description: V(disable), V(mask), V(stop), V(set_restart_policy_no), V(terminate) or V(drop); when restoring the reverse of them.
      type: str
    result:
      description: V(planned) in check mode, else what came of it, such as V(stopped) or V(killed).
      type: str
    freed:
      description: Bytes that ended with it, as far as the driver and the kernel say.
      type: int
    round:
      description: The round in which it was planned, from 1.
      type: int
    reason:
      description: Why it is done.
      type: str
    key:
      description: What it is for good. A container by its full id, a process by its pid and start time.
      type: str
  sample:
    - {target: vllm-embeddings.service, layer: unit, action: stop, result: stopped, freed: 0, round: 1}
refused:
  description: What matched and is not stopped, why, what is missing for it, and the inventory line that would permit it, where there is one.
  returned: always
  type: list
  elements: dict
  contains:
    target:
      description: What it is.
      type: str
    code:
      description: V(protected), V(takes_along), V(revived), V(lost), V(rights), V(unknown) or V(refuses).
      type: str
    reason:
      description: The reason in a sentence.
      type: str
    selector:
      description: The selector that matched.
      type: str
    missing:
      description: What would have to be so for it to be stopped, such as root, or that nothing would permit it.
      type: str
    permit:
      description: The selector that would have to be listed, where that is what is missing. It may be listed already, with another restore policy.
      type: str
    inventory:
      description: That as a line for C(service_eviction_services), with the restore policy that it needs.
      type: str
spared:
  description: What matched and was not needed, in the order of O(stop).
  returned: always
  type: list
  elements: dict
  sample:
    - {target: ollama.service, selector: 'unit:ollama.service', memory: 4294967296}
before:
  description: The C(memory) dictionary of M(unimem.dgx_spark.gpu_memory_facts) before anything was done.
  returned: always
  type: dict
after:
  description: The same when the module ended.
  returned: always
  type: dict
freed:
  description: Bytes that a new CUDA process can get more than before.
  returned: always
  type: int
  sample: 12562989056
held_by:
  description:
    - The processes that the driver lists at the end, as M(unimem.dgx_spark.gpu_memory_facts) returns them. What O(protect) names is
      protected here, too.
    - Each has also C(listed), whether it may be stopped, and else C(missing), why it may not. C(permit) and C(inventory) are the selector and
      the lines for C(service_eviction_services) that would permit it, and null where no line would do.
  returned: always
  type: list
  elements: dict
trajectory:
  description: Seconds since the start, and the bytes that a new CUDA process could get then.
  returned: always
  type: list
  elements: list
  sample: [[0.0, 95413862400], [3.1, 107976851456]]
notes:
  description: What else should be known, such as engines that could not be asked.
  returned: always
  type: list
  elements: str
protection:
  description: The selectors of O(protect), by whether anything on this node matches them now. Those that nothing matches may be misspelt.
  returned: always
  type: dict
  contains:
    matched:
      description: Selectors that something matches.
      type: list
      elements: str
    unmatched:
      description: Selectors that nothing matches.
      type: list
      elements: str
  sample: {matched: ['unit:ollama.service'], unmatched: ['unit:vllm-embedings.service']}
evicted:
  description:
    - The open entries of the journal, that is what is evicted now.
    - C(loaded) has the models that an Ollama among them had loaded, with C(model) and C(until), the end of its keep-alive. They are not loaded again by
      O(state=restored), which says so in RV(notes). The next request loads them.
  returned: always
  type: list
  elements: dict
journal:
  description: Path of the journal.
  returned: always
  type: str
  sample: /var/lib/unimem/default.json
diff:
  description: State of the units, containers and processes before and after, for diff mode.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._reclaim_run import run_module


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["report", "freed", "restored"], "default": "report"},
            "stop": {"type": "list", "elements": "str", "default": []},
            "protect": {"type": "list", "elements": "str", "default": []},
            "need": {"type": "raw", "default": 0},
            "always": {"type": "list", "elements": "str", "default": []},
            "kill_leftovers": {"type": "bool", "default": False},
            "drop_page_cache": {"type": "bool", "default": False},
            "cache_paths": {"type": "list", "elements": "path", "default": []},
            "grace": {"type": "int", "default": 30},
            "timeout": {"type": "int", "default": 300},
            "rounds": {"type": "int", "default": 3},
            "restore": {"type": "dict", "default": {}},
            "reason": {"type": "str", "choices": ["any", "failure", "undeploy"], "default": "any"},
            "journal": {"type": "path", "default": "/var/lib/unimem/default.json"},
        },
        supports_check_mode=True,
    )
    try:
        result, failure = run_module(module.params, module.check_mode)
    except ValueError as exc:
        module.fail_json(msg=str(exc))
    if failure:
        module.fail_json(msg=failure, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
