# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The situations in which users' engines picked the wrong interface, one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._fabric import (
    FabricError,
    choose_fabric,
    parse_interfaces,
    read_interfaces,
    reject_reason,
)

DEGRADED = "a degraded link; reseat or replace the cable, and see what 'ethtool {}' says"


def link(name: str, *addresses: str, **extra: Any) -> dict[str, Any]:
    """An interface as fabric_info returns it; an RDMA device is given by its name and active unless it ends in '!'."""
    rdma = [
        {"device": device.rstrip("!"), "state": "DOWN" if device.endswith("!") else "ACTIVE", "rate_gbps": 100.0} for device in extra.pop("rdma", [])
    ]
    entry: dict[str, Any] = {
        "name": name,
        "kind": None,
        "state": "UP",
        "carrier": True,
        "loopback": name == "lo",
        "master": None,
        "mtu": 1500,
        "speed_mbps": None,
        "wireless": name.startswith("wl"),
        "default_route": False,
        "rdma": rdma,
        "addresses": [{"address": text.split("/")[0], "prefix": int(text.split("/")[1])} for text in addresses],
    }
    entry.update(extra)
    return entry


def node(*links: dict[str, Any], reached_from: str | None = None) -> dict[str, Any]:
    return {"interfaces": [link("lo", "127.0.0.1/8", "::1/128"), *links], "reached_from": reached_from}


def test_different_port_on_each_node() -> None:
    """L4: the head's cable is in port 0 and the worker's in port 1, so the names differ."""
    chosen = choose_fabric(
        {
            "spark-01": node(
                link("enP7s7", "192.168.1.5/24", default_route=True, speed_mbps=10000),
                link("enp1s0f0np0", "192.168.100.10/24", speed_mbps=200000, rdma=["rocep1s0f0"]),
                reached_from="192.168.1.2",
            ),
            "spark-02": node(
                link("enP7s7", "192.168.1.6/24", default_route=True, speed_mbps=10000),
                link("enp1s0f1np1", "192.168.100.11/24", speed_mbps=200000, rdma=["rocep1s0f1"]),
                reached_from="192.168.1.2",
            ),
        }
    )
    assert chosen["spark-01"]["interface"] == "enp1s0f0np0"
    assert chosen["spark-02"]["interface"] == "enp1s0f1np1"
    assert chosen["spark-01"]["address"] == "192.168.100.10"
    assert chosen["spark-02"]["rdma_devices"] == ["rocep1s0f1"]
    assert chosen["spark-01"]["problems"] == []
    assert chosen["spark-02"]["problems"] == []


def test_wifi_with_the_default_route_is_never_taken() -> None:
    """L3: everything looked fine until the Wi-Fi dropped."""
    chosen = choose_fabric(
        {
            name: node(
                link("wlP9s9", f"10.0.0.{last}/24", default_route=True, speed_mbps=1200),
                link("enp1s0f0np0", f"169.254.7.{last}/16"),
            )
            for name, last in (("a", 5), ("b", 6))
        }
    )
    assert {item["interface"] for item in chosen.values()} == {"enp1s0f0np0"}
    assert chosen["b"]["network"] == "169.254.0.0/16"


def test_only_wifi_in_common_is_refused_with_the_reason() -> None:
    with pytest.raises(FabricError) as error:
        choose_fabric({name: node(link("wlP9s9", f"10.0.0.{last}/24"), link("enp1s0f0np0", state="DOWN")) for name, last in (("a", 5), ("b", 6))})
    assert "a has wlP9s9 10.0.0.5/24 (Wi-Fi)" in str(error.value)
    assert "one subnet" in str(error.value)


def test_no_default_route_needs_none() -> None:
    """L5: a node without a default route must not lead to an invented eth0."""
    chosen = choose_fabric({name: node(link("enP2p1s0f1np1", f"192.168.101.{last}/24")) for name, last in (("a", 1), ("b", 2))})
    assert [item["interface"] for item in chosen.values()] == ["enP2p1s0f1np1", "enP2p1s0f1np1"]


def test_loopback_and_docker_are_never_common() -> None:
    """L6 and the classic: docker0 has 172.17.0.1/16 on every machine, and 127.0.0.0/8 is everywhere too."""
    with pytest.raises(FabricError, match=r"docker0 172\.17\.0\.1/16 \(a container network\)"):
        choose_fabric({name: node(link("docker0", "172.17.0.1/16", kind="bridge")) for name in ("a", "b")})


def test_twins_in_two_subnets_give_one_interface_and_both_rdma_devices() -> None:
    chosen = choose_fabric(
        {
            name: node(
                link("enP2p1s0f0np0", f"192.168.101.{last}/24", speed_mbps=100000, rdma=["roceP2p1s0f0"]),
                link("enp1s0f0np0", f"192.168.100.{last}/24", speed_mbps=100000, rdma=["rocep1s0f0"]),
            )
            for name, last in (("a", 1), ("b", 2))
        }
    )
    assert chosen["a"]["interface"] == "enp1s0f0np0"
    assert chosen["a"]["rdma_devices"] == ["rocep1s0f0", "roceP2p1s0f0"]
    assert chosen["a"]["also"] == ["enP2p1s0f0np0"]


def test_twins_in_one_subnet() -> None:
    """L23: NVIDIA's own addressing puts both twins of a cable into one subnet."""
    chosen = choose_fabric(
        {
            name: node(
                link("enp1s0f1np1", f"192.168.177.{first}/24", rdma=["rocep1s0f1"]),
                link("enP2p1s0f1np1", f"192.168.177.{first + 1}/24", rdma=["roceP2p1s0f1!"]),
            )
            for name, first in (("a", 11), ("b", 21))
        }
    )
    assert chosen["a"]["interface"] == "enp1s0f1np1"
    assert chosen["a"]["rdma_devices"] == ["rocep1s0f1"]
    assert chosen["a"]["rdma_inactive"] == ["roceP2p1s0f1"]
    assert chosen["b"]["also"] == ["enP2p1s0f1np1"]


def test_faster_link_wins_without_rdma() -> None:
    chosen = choose_fabric(
        {
            name: node(link("enP7s7", f"10.1.0.{last}/16", speed_mbps=10000), link("enp1s0f0np0", f"10.2.0.{last}/16", speed_mbps=200000))
            for name, last in (("a", 1), ("b", 2))
        }
    )
    assert chosen["a"]["network"] == "10.2.0.0/16"


def test_management_is_the_network_of_the_controller() -> None:
    """Both nodes on the office network only: that is no fabric unless somebody says so."""
    nodes = {name: node(link("enP7s7", f"192.168.1.{last}/24"), reached_from="192.168.1.99") for name, last in (("a", 5), ("b", 6))}
    with pytest.raises(FabricError, match="the controller reaches [ab] over it"):
        choose_fabric(nodes)
    assert choose_fabric(nodes, subnet="192.168.1.0/24")["b"]["address"] == "192.168.1.6"


def test_second_node_behind_the_first() -> None:
    """The seed's layout and the lab's: the worker has nothing but the cable, and even its default route goes there."""
    chosen = choose_fabric(
        {
            "spark-01": node(
                link("enP7s7", "10.1.230.180/24", kind="veth", default_route=True),
                link("enp1s0f0np0", "192.168.200.12/24", kind="veth", speed_mbps=10000),
                reached_from="10.1.230.1",
            ),
            "spark-02": node(link("enp1s0f1np1", "192.168.200.13/24", kind="veth", speed_mbps=10000, default_route=True), reached_from="192.168.200.12"),
        }
    )
    assert chosen["spark-01"] | {"also": []} == {
        "name": "spark-01",
        "interface": "enp1s0f0np0",
        "address": "192.168.200.12",
        "prefix": 24,
        "network": "192.168.200.0/24",
        "mtu": 1500,
        "speed_mbps": 10000,
        "rdma_devices": [],
        "rdma_inactive": [],
        "rdma_character_devices": [],
        "default_route": False,
        "also": [],
        "problems": [],
        "warnings": [],  # a veth's speed is made up
    }
    assert chosen["spark-02"]["interface"] == "enp1s0f1np1"


def test_named_management_network() -> None:
    nodes = {name: node(link("eno1", f"192.168.1.{last}/24"), link("eno2", f"192.168.2.{last}/24")) for name, last in (("a", 5), ("b", 6))}
    assert choose_fabric(nodes, management=["192.168.1.5"])["a"]["interface"] == "eno2"
    assert choose_fabric(nodes, management=["192.168.2.0/24"])["a"]["interface"] == "eno1"


def test_problems_are_said_with_numbers() -> None:
    chosen = choose_fabric(
        {
            "a": node(link("x0", "10.9.0.1/24", mtu=9000, speed_mbps=200000, rdma=["rocep1s0f0"])),
            "b": node(link("x1", "10.9.0.2/24", mtu=1500, speed_mbps=40000, rdma=["rocep1s0f1!"])),
        }
    )
    assert any("x0 on a 9000, x1 on b 1500" in text for text in chosen["a"]["problems"])
    assert any("40000 Mb/s and a peer at 200000 Mb/s" in text for text in chosen["b"]["problems"])
    assert any("rocep1s0f1 not active" in text for text in chosen["b"]["problems"])


def cable(speed: int | None, rate: float | None, **more: Any) -> dict[str, dict[str, Any]]:
    """Two Sparks on one cable, whose ends always agree on a speed."""
    made = {}
    for last, name in enumerate(("a", "b"), start=1):
        entry = link("enp1s0f0np0", f"10.9.0.{last}/24", speed_mbps=speed, rdma=["rocep1s0f0"] if rate else [], **more)
        for device in entry["rdma"]:
            device["rate_gbps"] = rate
        made[name] = node(entry)
    return made


@pytest.mark.parametrize(
    ("speed", "rate", "said"),
    [
        (200000, 200.0, None),
        (100000, 100.0, "on a enp1s0f0np0 at 100 and rocep1s0f0 at 100 Gb/s is slower than 200"),
        (None, 40.0, "on a rocep1s0f0 at 40 Gb/s is slower than 200"),
        (200000, 100.0, "on a rocep1s0f0 at 100 Gb/s is slower than 200"),
        (None, None, None),
    ],
)
def test_a_cable_that_is_slow_at_both_ends_is_said(speed: int | None, rate: float | None, said: str | None) -> None:
    chosen = choose_fabric(cable(speed, rate))["a"]
    assert chosen["problems"] == []
    assert chosen["warnings"] == ([] if said is None else [f"{said}: {DEGRADED.format('enp1s0f0np0')}"])


def test_a_speed_that_was_asked_for_is_a_condition() -> None:
    chosen = choose_fabric(cable(100000, 100.0), min_speed=200)["b"]
    assert len(chosen["problems"]) == 1 and "is slower than 200" in chosen["problems"][0] and chosen["warnings"] == []
    for enough in (100, 0):
        chosen = choose_fabric(cable(100000, 100.0), min_speed=enough)["b"]
        assert chosen["problems"] == chosen["warnings"] == []


def test_the_slow_half_of_a_port_is_said_too() -> None:
    nodes = {}
    for last, name in enumerate(("a", "b"), start=1):
        first = link("enp1s0f0np0", f"10.9.0.{last}/24", speed_mbps=200000, rdma=["rocep1s0f0"])
        second = link("enP2p1s0f0np0", f"10.9.1.{last}/24", speed_mbps=50000, rdma=["roceP2p1s0f0"])
        first["rdma"][0]["rate_gbps"] = 200.0
        lan = link("enP7s7", f"10.9.2.{last}/24", speed_mbps=10000)
        nodes[name] = node(first, second, lan)
    (said,) = choose_fabric(nodes)["a"]["warnings"]
    assert said.startswith("on a enP2p1s0f0np0 at 50 and roceP2p1s0f0 at 100 Gb/s"), "and nothing of a network without RDMA, which carries nothing"


@pytest.mark.parametrize("kind", ["veth", "macvlan"])
def test_a_virtual_link_has_no_speed_to_judge(kind: str) -> None:
    assert choose_fabric(cable(10000, None, kind=kind))["a"]["warnings"] == []
    assert choose_fabric(cable(10000, None, kind=kind), min_speed=200)["a"]["problems"] == []


def test_same_address_twice() -> None:
    chosen = choose_fabric({name: node(link("x0", "10.9.0.1/24")) for name in ("a", "b")})
    assert "the same fabric address 10.9.0.1" in chosen["b"]["problems"][0]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (link("lo"), "loopback"),
        (link("docker0"), "a container network"),
        (link("br-0123456789ab"), "a container network"),
        (link("veth12ab34c"), "a container network"),
        (link("virbr0"), "a virtual machine network"),
        (link("tailscale0"), "a tunnel"),
        (link("wlP9s9", wireless=False), "Wi-Fi"),
        (link("enx00e04c680001"), "a USB network"),
        (link("mybridge", kind="bridge"), "a bridge"),
        (link("eno1", master="mybridge"), "a port of mybridge"),
        (link("enp1s0f0np0", state="DOWN"), "link is down"),
        (link("enp1s0f0np0", carrier=False), "no carrier (cable out?)"),
        (link("enp1s0f0np0", kind="veth"), None),
        (link("bond0", kind="bond"), None),
        (link("enp1s0f0np0.100", kind="vlan"), None),
    ],
)
def test_reject_reason(entry: dict[str, Any], reason: str | None) -> None:
    assert reject_reason(entry) == reason


IP_ADDRESS = json.dumps(
    [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "mtu": 65536, "operstate": "UNKNOWN", "addr_info": []},
        {},
        {
            "ifname": "enp1s0f0np0",
            "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
            "mtu": 9000,
            "operstate": "UP",
            "linkinfo": {"info_kind": "veth"},
            "addr_info": [
                {"family": "inet", "local": "192.168.100.10", "prefixlen": 24, "scope": "global"},
                {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
                {"family": "inet6", "local": "fd00::1", "prefixlen": 64, "tentative": True},
            ],
        },
    ]
)


class Ran(NamedTuple):
    rc: int
    stdout: str
    stderr: str


class Machine:
    """A world of texts."""

    def __init__(self, address: Ran, routes: str = "[]") -> None:
        self.address = address
        self.routes = routes
        self.files = {
            "/sys/class/net/enp1s0f0np0/speed": "200000\n",
            "/sys/class/net/lo/speed": "-1\n",
            "/sys/class/infiniband/rocep1s0f0/ports/1/state": "4: ACTIVE\n",
            "/sys/class/infiniband/rocep1s0f0/ports/1/rate": "100 Gb/sec (2X HDR)\n",
        }

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def list_dir(self, path: str) -> list[str]:
        return {
            "/sys/class/net/enp1s0f0np0/device/infiniband": ["rocep1s0f0"],
            "/dev/infiniband": ["uverbs0", "rdma_cm"],
        }.get(path, [])

    def run(self, argv: Sequence[str], timeout: float) -> Ran:
        return self.address if "address" in argv else Ran(0, self.routes if "-4" in argv else "", "")


def test_reading_a_node() -> None:
    reading = read_interfaces(
        Machine(Ran(0, IP_ADDRESS, ""), '[{"dst": "default", "gateway": "192.168.100.1", "dev": "enp1s0f0np0"}]'),
        "192.168.100.99 50022 192.168.100.10 22",
    )
    assert reading["reached_from"] == "192.168.100.99"
    assert reading["rdma_character_devices"] == ["rdma_cm", "uverbs0"]
    assert [entry["name"] for entry in reading["interfaces"]] == ["lo", "enp1s0f0np0"]
    assert reading["interfaces"][0]["loopback"] is True
    assert reading["interfaces"][0]["speed_mbps"] is None
    found = reading["interfaces"][1]
    assert found["kind"] == "veth"
    assert found["speed_mbps"] == 200000
    assert found["default_route"] is True
    assert found["rdma"] == [{"device": "rocep1s0f0", "state": "ACTIVE", "rate_gbps": 100.0}]
    assert found["addresses"] == [{"address": "192.168.100.10", "prefix": 24}, {"address": "fe80::1", "prefix": 64}]


@pytest.mark.parametrize("answer", [Ran(127, "", "not found"), Ran(0, "no json", ""), Ran(0, '{"a": 1}', "")])
def test_reading_without_a_usable_ip(answer: Ran) -> None:
    with pytest.raises(FabricError, match="install iproute2"):
        read_interfaces(Machine(answer))


def test_input_may_be_the_text_of_ip() -> None:
    text_b = IP_ADDRESS.replace("192.168.100.10", "192.168.100.11").replace("enp1s0f0np0", "enp1s0f1np1")
    chosen = choose_fabric({"a": json.loads(IP_ADDRESS), "b": text_b})
    assert chosen["b"]["interface"] == "enp1s0f1np1"
    assert chosen["a"]["mtu"] == 9000


@pytest.mark.parametrize("reading", [None, 7, "{", {"fabric": {}}, {"interfaces": "x"}])
def test_input_that_is_no_reading(reading: Any) -> None:
    with pytest.raises(FabricError, match="^a: "):
        choose_fabric({"a": reading})


def test_a_subnet_that_is_none_and_one_that_nobody_has() -> None:
    nodes = {"a": node(link("x0", "10.9.0.1/24"))}
    with pytest.raises(FabricError, match="is no subnet"):
        choose_fabric(nodes, subnet="fast-net")
    with pytest.raises(FabricError, match=r"no usable interface in 10\.8\.0\.0/24 on a"):
        choose_fabric(nodes, subnet="10.8.0.0/24")
    with pytest.raises(FabricError, match="no node"):
        choose_fabric({})


def test_garbage_addresses_are_passed_over() -> None:
    entries = parse_interfaces([{"ifname": "x0", "operstate": "UP", "addr_info": [{"family": "inet", "local": "not-an-address", "prefixlen": 24}]}])
    with pytest.raises(FabricError, match="no subnet is shared"):
        choose_fabric({"a": {"interfaces": entries}})


def test_a_cable_without_addresses_is_refused_with_the_lines_to_write() -> None:
    """Two Sparks out of the box: the cable is in, its links are up, and nobody gave them addresses."""
    with pytest.raises(FabricError) as error:
        choose_fabric(
            {
                name: node(
                    link("enP7s7", f"192.168.100.{last}/24", default_route=True, speed_mbps=10000),
                    link("enP2p1s0f0np0", "fe80::1/64", speed_mbps=200000),
                    link(port, "fe80::2/64", speed_mbps=200000, rdma=["rocep1s0f0"]),
                    reached_from="192.168.100.2",
                )
                for name, last, port in (("a", 5, "enp1s0f0np0"), ("b", 6, "enp1s0f1np1"))
            }
        )
    said = str(error.value)
    assert "On a, as root: write this to /etc/netplan/40-spark-fabric.yaml" in said
    assert "    enp1s0f0np0:\n      dhcp4: false\n      mtu: 9000\n      addresses: [192.168.101.10/24]" in said
    assert "    enp1s0f1np1:\n      dhcp4: false\n      mtu: 9000\n      addresses: [192.168.101.11/24]" in said


def test_without_a_cable_there_is_nothing_to_write() -> None:
    with pytest.raises(FabricError) as error:
        choose_fabric({name: node(link("enP7s7", f"10.0.0.{last}/24", default_route=True), reached_from="10.0.0.9") for name, last in (("a", 5), ("b", 6))})
    assert "netplan" not in str(error.value)
