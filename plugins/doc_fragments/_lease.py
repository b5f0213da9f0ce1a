# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This doc fragment is PRIVATE to the collection. It can change in any way at any time.

from __future__ import annotations


class ModuleDocFragment:

    # For modules that read a lease: module_utils/_lease_look.py, OWNER_OPTION.
    DOCUMENTATION = r"""
options:
  owner:
    description:
      - The run that asks, as P(unimem.dgx_spark.run_owner#lookup) returns it. A lease of its own is told from other ones by it.
    type: dict
    suboptions:
      id:
        description: What tells this run from all others.
        type: str
        required: true
      user:
        description: Who has started it.
        type: str
        default: ''
      controller:
        description: The name of the machine that it runs on.
        type: str
        default: ''
      pid:
        description: Its process there.
        type: int
        default: 0
      started:
        description: When it was started.
        type: str
        default: ''
      host:
        description: The machine, its boot and its PID namespace, for finding out whether the process still lives.
        type: str
        default: ''
      start_time:
        description: When the process was started, in clock ticks after the boot.
        type: int
        default: 0
  deployment:
    description:
      - The name of the deployment whose ranks are meant. A rank is a container with the labels of P(unimem.dgx_spark.tp_launch#role).
    type: str
    default: default
  journal:
    description:
      - The journal of what was evicted, as it is given to M(unimem.dgx_spark.gpu_process_reclaim).
      - The default is C(/var/lib/unimem/DEPLOYMENT.json).
    type: path
"""
