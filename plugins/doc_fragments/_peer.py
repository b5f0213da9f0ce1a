# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This doc fragment is PRIVATE to the collection. It can change in any way at any time.

from __future__ import annotations


class ModuleDocFragment:

    # For modules that send to another node: module_utils/_ssh.py, PEER_OPTION.
    DOCUMENTATION = r"""
options:
  peer:
    description:
      - The other node.
    type: dict
    required: true
    suboptions:
      address:
        description:
          - Its address on the fabric.
        type: str
        required: true
      host_key:
        description:
          - Its public host keys, as they stand in the C(.pub) files there. The best one counts.
        type: str
        required: true
      user:
        description:
          - The user to log in as. Without it, the name of the user that the module runs as.
        type: str
      port:
        description:
          - The port of its sshd.
        type: int
        default: 22
      identity:
        description:
          - A private key on this node. Without it, those that ssh tries by itself.
        type: path
"""
