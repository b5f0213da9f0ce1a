# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import random
import socket

#: Below what Linux gives away by itself (net.ipv4.ip_local_port_range).
PORTS = range(20000, 32768)


def free_port() -> int:
    """A port for a program that a test is about to start: tests that run beside it, and clients, are not given it meanwhile."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
