#!/usr/bin/python
# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_push
short_description: Send files of a model from this node to another one
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - The part of the role P(unimem.dgx_spark.model_sync#role) that copies. It runs on the node that has the model and sends a list of files with rsync
    over ssh, straight to another node's address.
  - The other node's host key is given, so that nothing is trusted on first use. A password is never asked for.
  - What is sent to is a folder that nothing reads from; M(unimem.dgx_spark.model_tree) puts the files into place there.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._peer
attributes:
  check_mode:
    support: full
    details:
      - The connection to the other node is tried in check mode as well. Nothing is sent.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - Files that lie unchanged in the folder are not sent again, but the module reports a change whenever O(files) is not empty.
options:
  root:
    description:
      - The directory on this node that O(files) are relative to.
    type: path
    required: true
  files:
    description:
      - Paths of files and links, relative to O(root). Their folders are made on the other node.
    type: list
    elements: str
    required: true
  staging:
    description:
      - The folder on the other node that the files are sent to. It must exist.
    type: path
    required: true
  timeout:
    description:
      - Seconds without a byte sent or received after which a try is given up.
    type: int
    default: 120
  tries:
    description:
      - How often a broken connection is tried. Each try goes on where the last one was.
    type: int
    default: 3
seealso:
  - module: unimem.dgx_spark.model_tree
"""

EXAMPLES = r"""
---
- name: Send what the other node lacks
  unimem.dgx_spark.model_push:
    root: "{{ model.tree.root }}"
    files: "{{ lacking.missing | list }}"
    staging: "{{ lacking.staging }}"
    peer:
      address: 192.168.100.11
      host_key: "{{ lookup('ansible.builtin.file', 'keys/spark-02.pub') }}"
"""

RETURN = r"""
sent_files:
  description: How many files and links were to be sent.
  returned: success
  type: int
  sample: 3
tries:
  description: How many tries it took.
  returned: when something was sent
  type: int
  sample: 1
seconds:
  description: How long sending took.
  returned: when something was sent
  type: float
  sample: 184.2
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import TreeError, check_relative
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rsync import PushError, push
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import PEER_OPTION, PeerError, peer_from, refusal, ssh_argv


def main() -> None:
    """Check what is to be sent and that the peer lets us in, then send."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "str", "required": True},
            "staging": {"type": "path", "required": True},
            "peer": PEER_OPTION,
            "timeout": {"type": "int", "default": 120},
            "tries": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C.UTF-8"}
    for program in ("rsync", "ssh"):
        module.get_bin_path(program, required=True)
    files = module.params["files"]

    def run(argv: list[str], data: bytes | None = None) -> tuple[int, str, str]:
        status, stdout, stderr = module.run_command(argv, data=data, binary_data=True)
        return status, stdout, stderr

    try:
        peer = peer_from(module.params["peer"])
        for name in files:
            check_relative(name)
        if not files:
            module.exit_json(changed=False, sent_files=0)
        status, _stdout, stderr = run([*ssh_argv(peer), peer.login, "true"])
        if status != 0:
            module.fail_json(msg=refusal(peer, stderr))
        if module.check_mode:
            module.exit_json(changed=True, sent_files=len(files))
        start = time.monotonic()
        tries = push(run, peer, module.params["root"], module.params["staging"], files, module.params["timeout"], module.params["tries"])
    except (PeerError, TreeError, PushError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=True, sent_files=len(files), tries=tries, seconds=round(time.monotonic() - start, 3))


if __name__ == "__main__":
    main()
