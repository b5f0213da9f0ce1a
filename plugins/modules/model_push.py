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
  - The part of the role P(unimem.dgx_spark.model_sync#role) that copies. It runs on the node that has the model and sends a list of files with
    several rsyncs at once, over ssh or to a daemon, straight to another node's address.
  - The other node's host key is given, so that nothing is trusted on first use. A password is never asked for.
  - The copy runs on the node by itself. The controller looks after it, and shows bytes, rate, time left and the slowest node, every 5 seconds on a
    terminal and every tenth of the way in a log. Where the controller goes away, what was begun is ended, and the next run finds it.
  - What is sent to is a folder that nothing reads from; M(unimem.dgx_spark.model_tree) puts the files into place there.
extends_documentation_fragment:
  - unimem.dgx_spark._attributes
  - unimem.dgx_spark._attributes.actiongroup_gpu
  - unimem.dgx_spark._attributes.flow
  - unimem.dgx_spark._peer
attributes:
  check_mode:
    support: full
    details:
      - The connection to the other node is tried in check mode as well. Nothing is sent.
  diff_mode:
    support: none
  action:
    support: full
  async:
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
  daemon:
    description:
      - The rsync daemon to send to in place of ssh, as M(unimem.dgx_spark.model_door) returned it. Of O(peer), only the address counts then.
      - What is sent is not encrypted.
    type: dict
    suboptions:
      port:
        description:
          - Where it listens.
        type: int
        required: true
      user:
        description:
          - The user that it lets in.
        type: str
        required: true
      module:
        description:
          - The name that it has for the folder.
        type: str
        required: true
      password:
        description:
          - The secret that it was started with.
        type: str
        required: true
  streams:
    description:
      - How many rsyncs send at once. V(0) means half of this node's cores, and no more than 8. There are never more than files of 64 MiB and above.
    type: int
    default: 0
  timeout:
    description:
      - Seconds without a byte sent or received after which a try is given up.
    type: int
    default: 120
  tries:
    description:
      - How often a broken connection is tried, by each stream. Each try goes on where the last one was.
    type: int
    default: 3
  progress:
    description:
      - A file on this node to write the progress to, for the action plugin, which sets it.
    type: path
seealso:
  - module: unimem.dgx_spark.model_door
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
sent_bytes:
  description: Bytes of these files.
  returned: when something was sent
  type: int
  sample: 127131426816
streams:
  description: How many rsyncs sent at once.
  returned: when something was sent
  type: int
  sample: 8
tries:
  description: How many tries the stream with the most took.
  returned: when something was sent
  type: int
  sample: 1
seconds:
  description: How long sending took.
  returned: when something was sent
  type: float
  sample: 184.2
"""

import os
import stat
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_tree import TreeError, check_relative
from ansible_collections.unimem.dgx_spark.plugins.module_utils._progress import ProgressFile
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rsync import OverSsh, Route, daemon_from
from ansible_collections.unimem.dgx_spark.plugins.module_utils._ssh import PEER_OPTION, Peer, PeerError, peer_from, refusal, ssh_argv
from ansible_collections.unimem.dgx_spark.plugins.module_utils._streams import Copy, PushError, Stream, alone, balance, push, stream_count

#: How long a copy that an earlier run has started is waited for, in seconds.
PATIENCE = 3600.0


def main() -> None:
    """Check what is to be sent and that the peer lets us in, then send."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "files": {"type": "list", "elements": "str", "required": True},
            "staging": {"type": "path", "required": True},
            "peer": PEER_OPTION,
            "daemon": {
                "type": "dict",
                "options": {
                    "port": {"type": "int", "required": True},
                    "user": {"type": "str", "required": True},
                    "module": {"type": "str", "required": True},
                    "password": {"type": "str", "required": True, "no_log": True},
                },
            },
            "streams": {"type": "int", "default": 0},
            "timeout": {"type": "int", "default": 120},
            "tries": {"type": "int", "default": 3},
            "progress": {"type": "path"},
        },
        supports_check_mode=True,
    )
    for program in ("rsync", "ssh"):
        module.get_bin_path(program, required=True)
    root, files = module.params["root"], module.params["files"]
    try:
        peer = peer_from(module.params["peer"])
        route: Route = daemon_from(module.params["daemon"], peer.address) if module.params["daemon"] else OverSsh(peer)
        sizes = {check_relative(name): size_of(root, name) for name in files}
        if not files:
            module.exit_json(changed=False, sent_files=0)
        if isinstance(route, OverSsh):
            knock(module, peer)
        if module.check_mode:
            module.exit_json(changed=True, sent_files=len(files))
        streams = balance(sizes, stream_count(sizes.values(), module.params["streams"], len(os.sched_getaffinity(0))))
        reporter = Reporter(module.params["progress"], streams)
        copy = Copy(route, root, module.params["staging"], module.params["timeout"], module.params["tries"])
        try:
            with alone(f"{peer.address} {copy.staging}", PATIENCE, reporter.waiting):
                start = time.monotonic()
                push(copy, streams, reporter.report)
                seconds = time.monotonic() - start
        finally:
            reporter.end()
    except (PeerError, TreeError, PushError, OSError) as exc:
        module.fail_json(msg=str(exc))
    told = {"tries": max(stream.tries for stream in streams), "streams": len(streams), "sent_bytes": sum(sizes.values())}
    module.exit_json(changed=True, sent_files=len(files), seconds=round(seconds, 3), **told)


def knock(module: AnsibleModule, peer: Peer) -> None:
    """Fail with the remedy where the peer does not let us in."""
    status, _stdout, stderr = module.run_command([*ssh_argv(peer), peer.login, "true"], environ_update={"LC_ALL": "C.UTF-8"})
    if status != 0:
        module.fail_json(msg=refusal(peer, stderr))


def size_of(root: str, name: str) -> int:
    """Bytes of a file; 0 for a link. Raises PushError where there is no such file."""
    try:
        status = os.lstat(os.path.join(root, name))
    except OSError as exc:
        raise PushError(f"{os.path.join(root, name)} cannot be sent: {exc.strerror}; run again, so that the model is listed anew") from exc
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


class Reporter:
    """Tells how far the streams are."""

    def __init__(self, path: str | None, streams: list[Stream]) -> None:
        self._file = ProgressFile(path)
        self.streams = streams

    def report(self) -> None:
        """Once a second."""
        self._file.write(sum(stream.sent for stream in self.streams), sum(stream.size for stream in self.streams))

    def waiting(self) -> None:
        """While another copy is at work."""
        self._file.write(0, sum(stream.size for stream in self.streams), waiting=True)

    def end(self) -> None:
        """The copy has ended."""
        self._file.end()


if __name__ == "__main__":
    main()
