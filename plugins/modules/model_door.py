#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_door
short_description: Let one node send a model to this one for a while, with an rsync daemon
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The part of the role P(unimem.dgx_spark.model_sync#role) that receives with C(model_sync_transport=daemon). It starts an rsync daemon on this
    node, for one copy, as a transient unit of systemd.
  - The daemon listens on one address, lets one other address in, with a secret that is made for this copy, and can only write to one folder.
  - It is gone when O(state=closed) is called, when O(seconds) have passed, when it dies, and after a boot, with all that it needed.
  - What is sent to it is not encrypted. It is for a cable between two machines, or a network that nobody else is on.
requirements:
  - root, systemd 240 or newer, rsync 3.1 or newer
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - O(state=closed) is idempotent. O(state=open) fails where a door of that name is open, since its secret is not known.
options:
  state:
    description:
      - V(open) starts the daemon, and returns when it accepts connections. V(closed) ends it.
    type: str
    choices:
      - open
      - closed
    default: open
  name:
    description:
      - What the door is called, 8 to 32 hexadecimal digits. The unit is called C(unimem-model-sync-NAME.service).
    type: str
    required: true
  address:
    description:
      - This node's address to listen on.
      - Required with O(state=open).
    type: str
  allow:
    description:
      - The only address that is let in.
      - Required with O(state=open).
    type: str
  folder:
    description:
      - The folder that can be written to. It must exist.
      - Required with O(state=open).
    type: path
  password:
    description:
      - The secret, 16 to 128 letters, digits, C(-) and C(_).
      - Required with O(state=open).
    type: str
  seconds:
    description:
      - Seconds after which systemd ends it, whatever has happened.
    type: int
    default: 3600
  port:
    description:
      - The port to listen on. V(0) means one that is free.
    type: int
    default: 0
seealso:
  - module: unimem.dgx_spark.model_push
"""

EXAMPLES = r"""
---
- name: Let the node with the model in
  unimem.dgx_spark.model_door:
    name: "{{ door }}"
    address: 192.168.100.11
    allow: 192.168.100.10
    folder: /models/.unimem-model-sync/52c1f0a9be21d3f4
    password: "{{ secret }}"
  no_log: true

- name: Close it again
  unimem.dgx_spark.model_door:
    name: "{{ door }}"
    state: closed
"""

RETURN = r"""
port:
  description: Where it listens.
  returned: with O(state=open)
  type: int
  sample: 40873
user:
  description: The user that it lets in.
  returned: with O(state=open)
  type: str
  sample: copy-52c1f0a9be21d3f4
module:
  description: The name that rsync has for the folder.
  returned: with O(state=open)
  type: str
  sample: model
unit:
  description: The unit of systemd.
  returned: always
  type: str
  sample: unimem-model-sync-52c1f0a9be21d3f4.service
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._door import (
    MODULE,
    Door,
    DoorError,
    check_secret,
    door_from,
    free_port,
    listens,
    remove_files,
    start_argv,
    write_files,
)

#: Seconds that a daemon may take until it accepts connections.
START_SECONDS = 15.0


def main() -> None:
    """Open or close."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["open", "closed"], "default": "open"},
            "name": {"type": "str", "required": True},
            "address": {"type": "str"},
            "allow": {"type": "str"},
            "folder": {"type": "path"},
            "password": {"type": "str", "no_log": True},
            "seconds": {"type": "int", "default": 3600},
            "port": {"type": "int", "default": 0},
        },
        required_if=[("state", "open", ["address", "allow", "folder", "password"])],
        supports_check_mode=True,
    )
    try:
        door = door_from(module.params)
        if module.params["state"] == "closed":
            close(module, door)
        else:
            open_door(module, door)
    except (DoorError, OSError) as exc:
        module.fail_json(msg=str(exc))


def is_loaded(module: AnsibleModule, door: Door) -> bool:
    """Whether systemd knows the unit: it forgets a transient one that has ended."""
    systemctl = module.get_bin_path("systemctl", required=True)
    _status, stdout, _stderr = module.run_command([systemctl, "show", "--property=LoadState", "--value", door.unit])
    return stdout.strip() not in ("not-found", "")


def close(module: AnsibleModule, door: Door) -> None:
    """Stop the unit, and see that nothing of it is left."""
    loaded = is_loaded(module, door)
    changed = loaded or os.path.lexists(door.directory)
    if changed and not module.check_mode:
        systemctl = module.get_bin_path("systemctl", required=True)
        if loaded:
            status, _stdout, stderr = module.run_command([systemctl, "stop", door.unit])
            if status != 0 and is_loaded(module, door):
                module.fail_json(msg=f"{door.unit} does not stop: {stderr.strip()}; it ends by itself when its time is up")
            module.run_command([systemctl, "reset-failed", door.unit])
        remove_files(door)
    module.exit_json(changed=changed, unit=door.unit)


def open_door(module: AnsibleModule, door: Door) -> None:
    """Start the daemon and wait until it answers; whatever fails on the way leaves nothing behind."""
    if os.geteuid() != 0:
        module.fail_json(msg="an rsync daemon for a copy needs root (become: true); or use model_sync_transport=ssh")
    secret = check_secret(module.params["password"])
    rsync, remove = module.get_bin_path("rsync", required=True), module.get_bin_path("rm", required=True)
    module.get_bin_path("systemd-run", required=True)
    if not module.check_mode and not os.path.isdir(door.folder):
        module.fail_json(msg=f"there is no folder {door.folder}")
    if is_loaded(module, door):
        module.fail_json(msg=f"{door.unit} is there already: close it first")
    port = module.params["port"] or free_port(door.address)
    if module.check_mode:
        module.exit_json(changed=True, port=port, user=door.user, module=MODULE, unit=door.unit)
    write_files(door, secret)
    try:
        status, _stdout, stderr = module.run_command(start_argv(door, port, rsync, remove))
        if status != 0:
            raise DoorError(f"systemd did not start the rsync daemon: {stderr.strip()}")
        end = time.monotonic() + START_SECONDS
        while not listens(door.address, port):
            if time.monotonic() > end or not is_loaded(module, door):
                raise DoorError(f"the rsync daemon does not answer at {door.address} port {port}; `journalctl -u {door.unit}` has its words")
            time.sleep(0.1)
    except BaseException:
        module.run_command([module.get_bin_path("systemctl", required=True), "stop", door.unit])
        remove_files(door)
        raise
    module.exit_json(changed=True, port=port, user=door.user, module=MODULE, unit=door.unit)


if __name__ == "__main__":
    main()
