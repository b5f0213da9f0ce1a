#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lease
short_description: Hold a node for one run, so that the node undoes by itself what a dead run has begun
version_added: 0.1.0
author:
  - the unimem.dgx_spark authors (@unimem)
description:
  - A playbook that dies, or that cannot reach a node any more, runs neither C(rescue) nor C(always) there. A node with a lease does without.
    When the lease runs out, the node by itself stops and removes the containers of the deployment's ranks, waits for their memory, and
    restores what its journal says was evicted. That is the code of M(unimem.dgx_spark.gpu_process_reclaim) with
    O(unimem.dgx_spark.gpu_process_reclaim#module:state=restored), and it needs nobody, no controller, no network and no ssh.
  - There is one lease a node. A second run is refused, with the first one's owner, start and expiry. A lease that has run out and was
    not settled, since the node was switched off for example, is settled by whoever holds the node next.
  - While a node is leased it can guard its memory, too. When the memory that is available stays below O(floor), the node kills the deployment's
    ranks, before the kernel has no room left to work in.
  - The node keeps a systemd timer that looks every 10 seconds, the guard, and a unit for the next boot. They run the code of this collection from an
    archive in C(/var/lib/unimem/lease), which only root can read. All of it goes with the lease. What the node did by itself is kept in
    C(/var/lib/unimem/lease/fired.json), until the node is leased again.
options:
  state:
    description:
      - V(held) takes the lease for O(owner). A lease that has run out is settled first, which can take as long as O(timeout). One that lives is refused.
        One that is held by O(owner) already is left as it is, and is not made longer.
      - V(renewed) makes it end O(ttl) seconds from now. It fails when the lease is lost, which means that the node has acted or that somebody else holds
        it, and also when the node has killed the ranks to save its memory. Then nothing must be started there.
      - V(settled) settles a lease that has run out, or that O(take_over) names, and holds none.
      - V(released) ends the lease of O(owner). What was done on the node stays as it is.
    type: str
    choices: [held, renewed, settled, released]
    required: true
  owner:
    required: true
  launch_id:
    description: The launch that is under way, for whoever reads the lease.
    type: str
  ttl:
    description:
      - Seconds from now until the lease runs out.
      - Renew it before each step, with more than that step can take. A long wait is better made of short looks that renew the lease each time, as
        in the examples.
      - It is counted by a clock that goes on while the machine is suspended, and that nobody sets. A boot ends every lease.
    type: int
    default: 300
  reason:
    description: Which of the evicted things the node puts back, as O(unimem.dgx_spark.gpu_process_reclaim#module:reason) has it.
    type: str
    choices: [failure, undeploy]
    default: failure
  take_over:
    description:
      - The RV(unimem.dgx_spark.node_lease_info#module:lease.owner.id) of a lease that may be taken over before it runs out, because its run is known to be
        dead.
      - It names one run, so that nobody who came in between is taken for it.
    type: str
  settle:
    description:
      - With O(state=held), whether a lease that has run out, or that O(take_over) names, is settled first. V(false) takes the node over as it is, for a
        run that is about to undo all of it by itself.
    type: bool
    default: true
  floor:
    description:
      - The node kills the deployment's ranks when C(MemAvailable) stays below this, in bytes or as text with a unit such as V(2 GiB).
      - The tightest setups that people report to work leave 2 to 4.5 GiB of 120. Below, the kernel is busy with looking for memory, and
        the node can no longer be reached before it runs out.
      - V(0), the default, guards nothing.
    type: raw
    default: 0
  floor_seconds:
    description: For so many seconds. A short dip while an engine starts is none.
    type: int
    default: 5
  grace:
    description: Seconds that each process of a rank has to end before it is killed, when the lease has run out.
    type: int
    default: 30
  timeout:
    description: Seconds for settling, and to wait for a settlement that is under way.
    type: int
    default: 300
  launch_directory:
    description:
      - A directory with what the ranks read, removed with them when the lease has run out. It has to be below the directory of O(journal).
    type: path
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._lease
attributes:
  check_mode:
    support: full
    details:
      - No lease is taken, renewed, settled or released in check mode. A lease of somebody else is refused as it would be.
  diff_mode:
    support: full
  idempotent:
    support: partial
    details:
      - O(state=renewed) moves the end of the lease every time, and reports that.
notes:
  - It needs root, and systemd on the node. The node's Python has to be 3.9 or newer.
  - Settling is tried again after 10, 30, 60, 120 and 300 seconds when something could not be undone, and after that by the next boot or the next run.
  - A group of ranks that ran when the lease began is left alone, as long as nothing was evicted and none of them was stopped since.
seealso:
  - module: unimem.dgx_spark.node_lease_info
  - module: unimem.dgx_spark.gpu_process_reclaim
  - plugin: unimem.dgx_spark.run_owner
    plugin_type: lookup
  - plugin: unimem.dgx_spark.run_has_ended
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Hold the node before anything is stopped
  unimem.dgx_spark.node_lease:
    state: held
    owner: "{{ lookup('unimem.dgx_spark.run_owner') }}"
    deployment: qwen
    ttl: 600
    floor: 2 GiB
  become: true

- name: Make room
  unimem.dgx_spark.gpu_process_reclaim:
    state: freed
    need: 95.8 GiB
    stop:
      - unit:vllm-embeddings.service
    timeout: 300
    journal: /var/lib/unimem/qwen.json
  become: true

# Start the ranks here. The role unimem.dgx_spark.tp_launch does that, and waits for them as below.

- name: Wait for the ranks, and renew the lease meanwhile
  unimem.dgx_spark.rank_wait:
    deployment: qwen
    launch_id: "{{ launch_id }}"
    engine: vllm_ray
    lease:
      owner: "{{ lookup('unimem.dgx_spark.run_owner') }}"
      ttl: 300
  become: true

- name: Let the node go
  unimem.dgx_spark.node_lease:
    state: released
    owner: "{{ lookup('unimem.dgx_spark.run_owner') }}"
    deployment: qwen
  become: true
"""

RETURN = r"""
state:
  description: V(none), V(own) (of O(owner)), V(foreign), or V(expired) (whosever it was, and not settled yet), after what was done.
  returned: always
  type: str
  sample: own
message:
  description: The same in a sentence, or what went wrong.
  returned: always
  type: str
lease:
  description: The lease that is there now, as RV(unimem.dgx_spark.node_lease_info#module:lease). Null where there is none.
  returned: always
  type: dict
fired:
  description: What the node did by itself, as RV(unimem.dgx_spark.node_lease_info#module:fired). Null when it did nothing.
  returned: always
  type: dict
settled:
  description: What was done to settle another lease, by this call. Null when there was none to settle.
  returned: always
  type: dict
ranks:
  description: The containers of the deployment's ranks on this node, as P(unimem.dgx_spark.rank_list#filter) returns them, without the host.
  returned: always
  type: list
  elements: dict
evicted:
  description: What the journal says is evicted now.
  returned: always
  type: list
  elements: dict
kept:
  description: Whether the node would start a rank of the deployment again after a boot, see M(unimem.dgx_spark.rank_persist).
  returned: always
  type: bool
diff:
  description: The lease before and after, in a sentence each.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_look import OWNER_OPTION
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_run import run_module


def main() -> None:
    """Check the parameters, act, and return what there is."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "renewed", "settled", "released"], "required": True},
            "owner": {**OWNER_OPTION, "required": True},
            "deployment": {"type": "str", "default": "default"},
            "launch_id": {"type": "str"},
            "journal": {"type": "path"},
            "ttl": {"type": "int", "default": 300},
            "reason": {"type": "str", "choices": ["failure", "undeploy"], "default": "failure"},
            "take_over": {"type": "str"},
            "settle": {"type": "bool", "default": True},
            "floor": {"type": "raw", "default": 0},
            "floor_seconds": {"type": "int", "default": 5},
            "grace": {"type": "int", "default": 30},
            "timeout": {"type": "int", "default": 300},
            "launch_directory": {"type": "path"},
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
