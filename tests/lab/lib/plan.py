# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab consists of: names, addresses and sizes. Everything that it makes on the machine bears one of these names."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

NAME = "unimem-lab"
RUN = Path("/run/unimem-lab")
LOCK = Path("/run/unimem-lab.lock")

GIB = 1 << 30
#: 1:20 of the 119.7 GiB of a Spark.
POOL = 6 * GIB
#: MemFree of a Spark with a full page cache, as a share of the pool: 3.3 of 119.7 GiB.
FREE_WHEN_FULL = 0.0275

MACHINE_LINK = "unimem-mgmt"
#: A host's end of it: the 10GbE port of a Spark.
MANAGEMENT = "enP7s7"
MACHINE_ADDRESS = ipaddress.IPv4Interface("10.1.230.1/24")


#: Two hosts are joined by a cable. Three need a switch: a bridge in a network namespace of its own.
SWITCH = "unimem-switch"
BRIDGE = "fabric"


@dataclass(frozen=True)
class Link:
    """A network interface of a host. ``peer``: (host or SWITCH, interface) at the other end, or None for the machine's own."""

    name: str
    peer: tuple[str, str] | None
    address: ipaddress.IPv4Interface | None = None
    up: bool = True


@dataclass(frozen=True)
class Host:
    """One simulated Spark."""

    name: str
    links: tuple[Link, ...]
    ssh_address: str
    jump: str | None = None

    @property
    def netns(self) -> str:
        return f"unimem-{self.name}"

    @property
    def machine(self) -> str:
        return f"unimem-{self.name}"

    @property
    def root(self) -> Path:
        return RUN / self.name / "root"

    @property
    def pool(self) -> Path:
        return RUN / self.name / "pool"

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(str(link.address.ip) for link in self.links if link.address)


# As on a Spark: enP7s7 is the 10GbE management port, and each of the two QSFP ports has two interfaces (twins). The
# cable goes from port 0 of the first to port 1 of the second; what has no cable is there and down.
SPARK_01 = Host(
    name="spark-01",
    links=(
        Link(MANAGEMENT, None, ipaddress.IPv4Interface("10.1.230.180/24")),
        Link("enp1s0f0np0", ("spark-02", "enp1s0f1np1"), ipaddress.IPv4Interface("192.168.200.12/24")),
        Link("enP2p1s0f0np0", ("spark-02", "enP2p1s0f1np1")),
        Link("enp1s0f1np1", ("spark-01", "enP2p1s0f1np1"), up=False),
        Link("enP2p1s0f1np1", ("spark-01", "enp1s0f1np1"), up=False),
    ),
    ssh_address="10.1.230.180",
)
SPARK_02 = Host(
    name="spark-02",
    links=(
        Link("enp1s0f1np1", ("spark-01", "enp1s0f0np0"), ipaddress.IPv4Interface("192.168.200.13/24")),
        Link("enP2p1s0f1np1", ("spark-01", "enP2p1s0f0np0")),
        Link("enp1s0f0np0", ("spark-02", "enP2p1s0f0np0"), up=False),
        Link("enP2p1s0f0np0", ("spark-02", "enp1s0f0np0"), up=False),
    ),
    ssh_address="192.168.200.13",
    jump="spark-01",
)
#: Joins the others only where there is a switch.
SPARK_03 = Host(
    name="spark-03",
    links=(
        Link("enp1s0f0np0", None, ipaddress.IPv4Interface("192.168.200.14/24")),
        Link("enP2p1s0f0np0", None),
        Link("enp1s0f1np1", ("spark-03", "enP2p1s0f1np1"), up=False),
        Link("enP2p1s0f1np1", ("spark-03", "enp1s0f1np1"), up=False),
    ),
    ssh_address="192.168.200.14",
    jump="spark-01",
)
#: Every host that there may be, whichever lab it was that was started.
EVERY: tuple[Host, ...] = (SPARK_01, SPARK_02, SPARK_03)


def _plugged(host: Host) -> Host:
    """The host with all that is up of its QSFP ports in the switch."""
    links = (
        replace(link, peer=(SWITCH, f"{host.name[-2:]}-{number}")) if link.up and link.name != MANAGEMENT else link for number, link in enumerate(host.links)
    )
    return replace(host, links=tuple(links))


def hosts_of(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """Two hosts, or with LAB_HOSTS=3 three."""
    wanted = environment.get("LAB_HOSTS") or "2"
    if wanted == "2":
        return (SPARK_01, SPARK_02)
    if wanted == "3":
        return tuple(_plugged(host) for host in EVERY)
    raise SystemExit(f"lab: LAB_HOSTS is {wanted!r}; there can be 2 hosts or 3")


HOSTS = hosts_of(os.environ)
#: The host whose page cache is full and on which the embeddings service runs (the worker of the seed).
SEED_HOST = SPARK_02


def host(name: str) -> Host:
    """The host of that name; KeyError if there is none."""
    for candidate in HOSTS:
        if candidate.name == name:
            return candidate
    raise KeyError(name)


def cables(hosts: tuple[Host, ...] = HOSTS) -> Iterator[tuple[Host, Link, Host, Link]]:
    """Each veth pair between hosts once."""
    by_name = {h.name: h for h in hosts}
    seen: set[frozenset[tuple[str, str]]] = set()
    for first in hosts:
        for link in first.links:
            if link.peer is None or link.peer[0] == SWITCH:
                continue
            second = by_name[link.peer[0]]
            other = next(candidate for candidate in second.links if candidate.name == link.peer[1])
            pair = frozenset({(first.name, link.name), (second.name, other.name)})
            if pair not in seen:
                seen.add(pair)
                yield first, link, second, other


def ports(hosts: tuple[Host, ...] = HOSTS) -> list[tuple[Host, Link, str]]:
    """What is plugged into the switch: host, its interface, and the switch's port."""
    return [(host, link, link.peer[1]) for host in hosts for link in host.links if link.peer is not None and link.peer[0] == SWITCH]
