# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

from ansible_collections.unimem.dgx_spark.plugins.module_utils._node import LiveNode


def test_this_machines_processes() -> None:
    """What is watched for is compared with what was there before: both readings name a process in the same way."""
    node = LiveNode()
    found, me = node.processes(), os.getpid()
    assert found[me].parent == os.getppid() and found[me].start_time == node.scene({}).members[me].start_time
    process = node.process(me)
    assert process is not None and (process.start_time, process.uid) == (found[me].start_time, os.geteuid())
    assert node.process(2**22 + 1) is None
