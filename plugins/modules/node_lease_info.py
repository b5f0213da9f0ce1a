#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lease_info
short_description: Tell who holds a node, and what a run that died has left on it
version_added: 0.1.0
author:
  - the unimem.dgx_spark authors (@unimem)
description:
  - Tells whose lease there is on a node (see M(unimem.dgx_spark.node_lease)), what the node did by itself for it or for the last one, which containers of
    a deployment there are, and what is evicted for it.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._attributes.info_module
  - unimem.dgx_spark._lease
notes:
  - It needs root, as what it reads is for root only.
seealso:
  - module: unimem.dgx_spark.node_lease
  - plugin: unimem.dgx_spark.run_has_ended
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Look who holds the nodes
  unimem.dgx_spark.node_lease_info:
  become: true
  register: held

- name: Say it
  ansible.builtin.debug:
    msg: "{{ held.message }}"
"""

RETURN = r"""
state:
  description: V(none), V(own) (of O(owner)), V(foreign), or V(expired) (whosever it was, and not settled yet).
  returned: always
  type: str
  sample: own
message:
  description: The same in a sentence, or what went wrong.
  returned: always
  type: str
lease:
  description: The lease that is there now, or null.
  returned: always
  type: dict
  contains:
    owner:
      description: Whose it is, as O(owner).
      type: dict
      contains:
        id:
          description: What tells that run from all others.
          type: str
        user:
          description: Who has started it.
          type: str
        controller:
          description: The machine that it runs on.
          type: str
        pid:
          description: Its process there.
          type: int
        started:
          description: When it was started.
          type: str
        host:
          description: The machine's boot and PID namespace.
          type: str
        start_time:
          description: When the process was started, in clock ticks after the boot.
          type: int
    deployment:
      description: As O(deployment).
      type: str
    launch_id:
      description: The launch that is under way, if it was told.
      type: str
    start:
      description: When it was taken.
      type: str
    expiry:
      description: When it runs out, by the clock on the wall.
      type: str
    remaining:
      description: Seconds until then. V(0) when it has run out.
      type: float
    journal:
      description: The journal that is restored from.
      type: str
    reason:
      description: What the node puts back, as O(unimem.dgx_spark.gpu_process_reclaim#module:reason) has it.
      type: str
    ttl:
      description: Seconds for which it was last renewed.
      type: float
    floor:
      description: Bytes below which the node kills the ranks.
      type: int
    floor_seconds:
      description: For how many seconds that is allowed.
      type: float
    attempts:
      description: How often the node has tried in vain to settle it.
      type: int
  sample:
    owner: {id: 0ddba11-4711-99, user: alice, controller: desk, pid: 4711, started: '2026-11-30T10:15:00+0000', host: '', start_time: 99}
    deployment: default
    launch_id: 20261130T101500Z-k3v9x2
    start: '2026-11-30T10:15:20+0000'
    expiry: '2026-11-30T10:20:20+0000'
    remaining: 243.1
    journal: /var/lib/unimem/default.json
    reason: failure
    ttl: 300.0
    floor: 2147483648
    floor_seconds: 5.0
    attempts: 0
fired:
  description:
    - What the node did by itself for the lease that is there, or for the last one. Null when it did nothing.
  returned: always
  type: dict
  contains:
    reason:
      description: V(expired), V(memory_floor) or V(reboot). The first one, if there were several.
      type: str
    at:
      description: When.
      type: str
    detail:
      description: What happened, in a sentence.
      type: str
    owner:
      description: Whose lease it was.
      type: dict
    deployment:
      description: Whose ranks were stopped.
      type: str
    launch_id:
      description: Which launch that was, if it was told.
      type: str
    began_at:
      description: When the lease was taken.
      type: str
    verdict:
      description: V(settled), V(untouched) or V(not_settled). Not with the reason V(memory_floor).
      type: str
    stopped:
      description: The ranks that were stopped.
      type: list
      elements: str
    removed:
      description: The containers that were removed.
      type: list
      elements: str
    restored:
      description: C(verdict), C(message), C(actions) and C(notes) of the restoring.
      type: dict
    floor:
      description: Bytes below which the memory stayed, with the reason V(memory_floor).
      type: int
    lowest:
      description: Bytes that it came down to, with the reason V(memory_floor).
      type: int
    later:
      description: What the node did after that for the same lease.
      type: list
      elements: dict
  sample:
    reason: memory_floor
    at: '2026-11-30T10:17:31+0000'
    detail: MemAvailable stayed below 2.0 GiB for 5 s (down to 1.2 GiB); the node killed unimem-default-rank1 to stay alive
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
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease import LeaseError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._lease_look import OWNER_OPTION, LiveLookNode, look_by
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import LiveWorld


def main() -> None:
    """Look, and return what there is."""
    module = AnsibleModule(
        argument_spec={
            "owner": OWNER_OPTION,
            "deployment": {"type": "str", "default": "default"},
            "journal": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        seen = look_by(LiveLookNode(LiveWorld()), module.params)
    except (LeaseError, ValueError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, **vars(seen))


if __name__ == "__main__":
    main()
