# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's network: one namespace a host, a cable between two or a switch among three, and a management link from the machine to the first.

Addresses are set from here, in the namespace, before a host boots. On the machine itself there is one new interface
with one address; no route but the one that comes with it, no forwarding, no rule of a firewall.
"""

from __future__ import annotations

from pathlib import Path

from . import plan
from .command import run

NETNS = Path("/run/netns")


def namespaces() -> list[str]:
    """The lab's network namespaces that exist."""
    return [name for name in (*(host.netns for host in plan.EVERY), plan.SWITCH) if (NETNS / name).exists()]


def machine_link_exists() -> bool:
    return Path("/sys/class/net", plan.MACHINE_LINK).exists()


def create() -> None:
    """Make namespaces, links and addresses; the names must be free."""
    for host in plan.HOSTS:
        run(["ip", "netns", "add", host.netns])
        run(["ip", "-n", host.netns, "link", "set", "lo", "up"])
    for first, link, second, other in plan.cables():
        run(["ip", "link", "add", link.name, "netns", first.netns, "type", "veth", "peer", "name", other.name, "netns", second.netns])
    _switch(plan.ports())
    for host in plan.HOSTS:
        for link in host.links:
            if link.peer is None:
                run(["ip", "link", "add", plan.MACHINE_LINK, "type", "veth", "peer", "name", link.name, "netns", host.netns])
            if link.address:
                run(["ip", "-n", host.netns, "address", "add", str(link.address), "dev", link.name])
            if link.up:
                run(["ip", "-n", host.netns, "link", "set", link.name, "up"])
    run(["ip", "address", "add", str(plan.MACHINE_ADDRESS), "dev", plan.MACHINE_LINK])
    run(["ip", "link", "set", plan.MACHINE_LINK, "up"])


def _switch(ports: list[tuple[plan.Host, plan.Link, str]]) -> None:
    """A bridge in a namespace of its own, so that the machine itself has none."""
    if not ports:
        return
    run(["ip", "netns", "add", plan.SWITCH])
    run(["ip", "-n", plan.SWITCH, "link", "add", plan.BRIDGE, "type", "bridge"])
    run(["ip", "-n", plan.SWITCH, "link", "set", plan.BRIDGE, "up"])
    for host, link, port in ports:
        run(["ip", "link", "add", link.name, "netns", host.netns, "type", "veth", "peer", "name", port, "netns", plan.SWITCH])
        run(["ip", "-n", plan.SWITCH, "link", "set", port, "master", plan.BRIDGE, "up"])


def remove() -> None:
    """Remove what exists of it. A namespace takes its links along."""
    if machine_link_exists():
        run(["ip", "link", "delete", plan.MACHINE_LINK])
    for name in namespaces():
        run(["ip", "netns", "delete", name])
