# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Which interface and address of each node carries the traffic between the nodes: found, never configured.

On a DGX Spark every node has a 10 GbE port, Wi-Fi, up to four ConnectX-7 netdevs (two "twins" a cable), Docker's
bridges and a loopback name, and engines guess wrong among them. Reading (:func:`read_interfaces`) runs on the node;
choosing (:func:`choose_fabric`) is pure and sees all nodes at once, because the right interface is the one whose
subnet all nodes share and that is not merely the way the controller comes in.

A veth pair between two machines (a lab, a nested container) looks like a container's link by its driver, so a link
is judged by its name, its bridge membership and Docker's prefixes, not by its driver.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json

__all__ = ["FabricError", "choose_fabric", "parse_interfaces", "probe_peers", "read_interfaces", "reject_reason"]

_SYS_NET = "/sys/class/net"
_SYS_IB = "/sys/class/infiniband"

# Names that kernels, container engines, hypervisors and VPNs give to links which never leave the machine
# or never are the cable between two Sparks.
_VIRTUAL_NAMES: tuple[tuple[str, str], ...] = (
    (r"lo\d*", "loopback"),
    (r"docker.*|br-[0-9a-f]{12}|veth.*|podman\d+|cni.*|flannel.*|cali.*|cilium.*|kube-.*|nodelocaldns|lxc.*|lxd.*", "a container network"),
    (r"virbr.*|vnet\d+|vmnet\d+|vboxnet\d+", "a virtual machine network"),
    (r"tun\d*|tap\d*|tailscale\d*|wg\d*|zt.*|ppp\d*|ipsec\d*|utun\d*", "a tunnel"),
    (r"dummy\d*|ifb\d*|sit\d+|gre\d+|gretap\d+|ip6tnl\d+|erspan\d+|nlmon\d*|teql\d*", "a pseudo device"),
    (r"wl.*|wifi\d*|ath\d+|ra\d+", "Wi-Fi"),
    (r"ww.*", "a mobile network"),
    (r"usb\d+|enx.*|rndis\d*", "a USB network"),
)
_REJECTED_KINDS = {
    "bridge": "a bridge",
    "dummy": "a pseudo device",
    "ifb": "a pseudo device",
    "wireguard": "a tunnel",
    "tun": "a tunnel",
    "vxlan": "a tunnel",
    "gre": "a tunnel",
    "gretap": "a tunnel",
    "ipip": "a tunnel",
    "sit": "a tunnel",
}
#: Gb/s that a healthy port of a DGX Spark runs at: both halves of a port say 200 (Ethernet and RoCE), though each is fed by a PCIe Gen5 x4
#: that carries about 100 (92.57 and 97.28 measured with ib_write_bw over one cable).
SPARK_SPEED = 200.0
#: Kinds of links that have a real speed, beside those without a kind: a vlan has its parent's, a bond its ports'. A veth's is made up.
_REAL_KINDS = ("", "vlan", "bond")
_UP_STATES = ("UP", "UNKNOWN")  # a point-to-point or virtual link that carries traffic may say UNKNOWN


class FabricError(ValueError):
    """No fabric can be chosen; the text names the nodes, what each has, and the remedy."""


class _RunResult(Protocol):
    rc: int
    stdout: str
    stderr: str


class _World(Protocol):
    def read_text(self, path: str) -> str | None: ...

    def list_dir(self, path: str) -> list[str]: ...

    def run(self, argv: Sequence[str], timeout: float) -> Any: ...


def _integer(text: str | None) -> int | None:
    try:
        value = int((text or "").strip())
    except ValueError:
        return None
    return value if value > 0 else None


def _rdma_devices(world: _World, interface: str) -> list[dict[str, Any]]:
    """The RDMA devices of one netdev: name, state of port 1 (``ACTIVE``, ``DOWN`` ...) and its rate in Gb/s."""
    devices = []
    for name in sorted(world.list_dir(f"{_SYS_NET}/{interface}/device/infiniband")):
        state = world.read_text(f"{_SYS_IB}/{name}/ports/1/state") or ""
        rate = re.match(r"\s*([0-9.]+)\s*Gb/sec", world.read_text(f"{_SYS_IB}/{name}/ports/1/rate") or "")
        devices.append(
            {
                "device": name,
                "state": state.split(":")[-1].strip() or None,  # the file holds "4: ACTIVE"
                "rate_gbps": float(rate.group(1)) if rate else None,
            }
        )
    return devices


def parse_interfaces(links: Iterable[Mapping[str, Any]], default_devices: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Turn the list that ``ip -j -d address`` prints into our entries, without what only sysfs knows."""
    defaults = set(default_devices)
    result = []
    for link in links:
        name = str(link.get("ifname", ""))
        flags = [str(flag) for flag in link.get("flags") or []]
        info = link.get("linkinfo") or {}
        addresses = []
        for address in link.get("addr_info") or []:
            if address.get("family") in ("inet", "inet6") and address.get("local") and not address.get("tentative"):
                addresses.append({"address": str(address["local"]), "prefix": int(address.get("prefixlen", 32))})
        result.append(
            {
                "name": name,
                "kind": info.get("info_kind") if isinstance(info, Mapping) else None,
                "state": str(link.get("operstate", "UNKNOWN")),
                "carrier": "NO-CARRIER" not in flags,
                "loopback": "LOOPBACK" in flags,
                "master": link.get("master"),
                "mtu": int(link.get("mtu", 0)) or None,
                "speed_mbps": None,
                "wireless": False,
                "default_route": name in defaults,
                "rdma": [],
                "addresses": addresses,
            }
        )
    return result


def read_interfaces(world: _World, ssh_connection: str = "", timeout: float = 10.0) -> dict[str, Any]:
    """Read the node's interfaces: needs iproute2, no root, and changes nothing.

    ``ssh_connection`` is the value of the environment variable of that name: its first field is where the
    connection came from. Raises :class:`FabricError` when ``ip`` is missing or answers nonsense.
    """
    listed = world.run(["ip", "-j", "-d", "address", "show"], timeout)
    try:
        links = parse_json(listed.stdout) if listed.rc == 0 else None
    except ValueError:
        links = None
    if not isinstance(links, list):
        raise FabricError(
            f"'ip -j -d address show' gave no list of interfaces (exit code {listed.rc}: {listed.stderr.strip() or 'no message'}); "
            "install iproute2 4.18 or newer on the node"
        )
    defaults: set[str] = set()
    for family in ("-4", "-6"):
        routes = world.run(["ip", "-j", family, "route", "show", "default"], timeout)
        try:
            entries = parse_json(routes.stdout) if routes.rc == 0 and routes.stdout.strip() else []
        except ValueError:
            entries = []
        defaults.update(str(entry["dev"]) for entry in (entries if isinstance(entries, list) else []) if isinstance(entry, dict) and "dev" in entry)
    interfaces = parse_interfaces([link for link in links if isinstance(link, dict) and link.get("ifname")], defaults)
    for entry in interfaces:
        base = f"{_SYS_NET}/{entry['name']}"
        entry["speed_mbps"] = _integer(world.read_text(f"{base}/speed"))
        entry["wireless"] = bool(world.list_dir(f"{base}/wireless") or world.list_dir(f"{base}/phy80211"))
        entry["rdma"] = _rdma_devices(world, entry["name"])
    fields = ssh_connection.split()
    return {
        "interfaces": interfaces,
        "rdma_character_devices": sorted(world.list_dir("/dev/infiniband")),
        "reached_from": fields[0] if len(fields) == 4 else None,
    }


def probe_peers(source: str, peers: Iterable[str], port: int, timeout: float) -> dict[str, str | None]:
    """From an address of this node, reach each peer's: None where that works, else why it does not.

    A refused connection proves the way there and back as well as an accepted one. OSError when ``source`` is not this node's.
    """
    result: dict[str, str | None] = {}
    for peer in peers:
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout)
            probe.bind((source, 0))
            try:
                probe.connect((peer, port))
                result[peer] = None
            except socket.timeout:
                result[peer] = f"no answer within {timeout:g} s"
            except OSError as exc:
                result[peer] = None if exc.errno == errno.ECONNREFUSED else (exc.strerror or str(exc))
    return result


def reject_reason(entry: Mapping[str, Any]) -> str | None:
    """Why an interface can never carry the fabric, or None when it may."""
    name = str(entry.get("name", ""))
    if entry.get("loopback"):
        return "loopback"
    if entry.get("wireless"):
        return "Wi-Fi"
    for pattern, what in _VIRTUAL_NAMES:
        if re.fullmatch(pattern, name):
            return what
    kind = entry.get("kind")
    if kind in _REJECTED_KINDS:
        return _REJECTED_KINDS[str(kind)]
    master = entry.get("master")
    if master:
        return f"a port of {master}"
    if str(entry.get("state", "UNKNOWN")).upper() not in _UP_STATES:
        return f"link is {str(entry.get('state')).lower()}"
    if not entry.get("carrier", True):
        return "no carrier (cable out?)"
    return None


def _node_interfaces(node: str, reading: Any) -> tuple[list[dict[str, Any]], str | None, list[str]]:
    """Accept what :func:`read_interfaces` returns, the list of ``ip -j -d address``, or its text."""
    if isinstance(reading, (str, bytes)):
        try:
            reading = parse_json(reading)
        except ValueError as exc:
            raise FabricError(f"{node}: the list of interfaces is not JSON: {exc}") from exc
    if isinstance(reading, Mapping):
        nested = reading.get("fabric", reading)
        if isinstance(nested, Mapping) and isinstance(nested.get("interfaces"), (list, tuple)):
            return [dict(entry) for entry in nested["interfaces"]], nested.get("reached_from"), list(nested.get("rdma_character_devices") or [])
    elif isinstance(reading, Sequence):
        return parse_interfaces(entry for entry in reading if isinstance(entry, Mapping) and entry.get("ifname")), None, []
    raise FabricError(f"{node}: no list of interfaces was given; read it with the module unimem.dgx_spark.fabric_info")


def _candidates(interfaces: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Usable (interface, address) pairs by subnet, the one to use first: active RDMA, then speed, then the name."""

    def rank(entry: Mapping[str, Any]) -> tuple[bool, int, str]:
        return (not _is_active(entry), -(entry.get("speed_mbps") or 0), str(entry.get("name", "")).lower())

    found: dict[str, list[dict[str, Any]]] = {}
    for entry in sorted(interfaces, key=rank):
        if reject_reason(entry) is not None:
            continue
        for item in entry.get("addresses") or []:
            try:
                address = ipaddress.ip_interface(f"{item['address']}/{item['prefix']}")
            except (KeyError, ValueError):
                continue
            # An IPv6 link-local address means nothing without its interface; IPv4's is what NVIDIA's older netplan used.
            if address.is_loopback or address.is_unspecified or address.is_multicast or (address.version == 6 and address.is_link_local):
                continue
            if address.network.prefixlen == address.max_prefixlen:
                continue  # a /32 or /128 shares its subnet with nobody
            found.setdefault(str(address.network), []).append({"entry": entry, "address": str(address.ip), "prefix": address.network.prefixlen})
    return found


def _describe(node: str, interfaces: Iterable[Mapping[str, Any]]) -> str:
    """One node's interfaces for an error text: who has which address, and why it was not taken."""
    parts = []
    for entry in interfaces:
        addresses = ", ".join(f"{item.get('address')}/{item.get('prefix')}" for item in entry.get("addresses") or [])
        reason = reject_reason(entry)
        if addresses and reason != "loopback":
            parts.append(f"{entry.get('name')} {addresses}" + (f" ({reason})" if reason else ""))
    return f"{node} has " + ("; ".join(parts) if parts else "no address at all")


def netplan_advice(nodes: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """For each node the netplan file that makes a fabric of its cable; "" where a node has no cable that could be one.

    The interface is the one with an active RDMA device, else the fastest, among those that are up, are no other network's and have no
    address but a link-local one. The subnet is that of NVIDIA's guide for two Sparks, or a neighbour of it that no node uses.
    """
    used = [
        network
        for interfaces in nodes.values()
        for entry in interfaces
        for network in [_network_of(item) for item in entry.get("addresses") or []]
        if network is not None and network.version == 4
    ]
    subnet = next(net for net in (ipaddress.ip_network(f"192.168.{third}.0/24") for third in range(100, 255)) if not any(net.overlaps(other) for other in used))
    advice = ""
    for number, (node, interfaces) in enumerate(nodes.items()):
        free = [entry for entry in interfaces if reject_reason(entry) is None and not entry.get("default_route") and not _has_address(entry)]
        if not free:
            return ""
        best = min(free, key=lambda entry: (not _is_active(entry), -(entry.get("speed_mbps") or 0)))
        advice += (
            f"\n\nOn {node}, as root: write this to /etc/netplan/40-spark-fabric.yaml, `chmod 600` it, and run `netplan apply`:\n"
            f"network:\n  version: 2\n  ethernets:\n    {best['name']}:\n      dhcp4: false\n      mtu: 9000\n      addresses: [{subnet[10 + number]}/24]"
        )
    return advice


def _network_of(item: Mapping[str, Any]) -> Any:
    try:
        return ipaddress.ip_interface(f"{item['address']}/{item['prefix']}").network
    except (KeyError, ValueError):
        return None


def _has_address(entry: Mapping[str, Any]) -> bool:
    """Whether an interface has an address that somebody gave it."""
    networks = [_network_of(item) for item in entry.get("addresses") or []]
    return any(network is not None and not network.is_link_local for network in networks)


def choose_fabric(
    nodes: Mapping[str, Any],
    subnet: str | None = None,
    management: Iterable[str] = (),
    min_speed: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Choose the fabric of a group of nodes.

    ``nodes`` maps each node's name to its reading. ``subnet`` names the fabric when it cannot be told apart.
    ``management`` holds addresses or subnets that are the management network, whatever else speaks for them.
    ``min_speed`` is what a link has to run at, in Gb/s (0: anything); None: what a Spark's runs at, of which only a warning comes.

    Returns for each node: its ``name``, ``interface``, ``address``, ``prefix``, ``network``, ``mtu``, ``speed_mbps``,
    ``rdma_devices`` (active ones, over all fabric subnets, so that both twins of a cable are used),
    ``rdma_inactive``, ``rdma_character_devices`` (below /dev/infiniband), ``default_route``, ``also`` (other usable
    interfaces of the nodes' common subnets), ``problems`` (texts that a preflight turns into a failure) and ``warnings`` (texts that it only says).
    Raises :class:`FabricError` when no subnet qualifies.
    """
    if not nodes:
        raise FabricError("no node was given")
    readings = {node: _node_interfaces(node, reading) for node, reading in nodes.items()}
    candidates = {node: _candidates(interfaces) for node, (interfaces, _origin, _devices) in readings.items()}
    own = {item["address"] for per_subnet in candidates.values() for pairs in per_subnet.values() for item in pairs}
    common = set.intersection(*(set(per_subnet) for per_subnet in candidates.values()))

    managed: dict[str, str] = {}
    for network in common:
        net = ipaddress.ip_network(network)
        for node, (_interfaces, origin, _devices) in readings.items():
            try:
                # Reached from another node of the group (a jump host): that is the fabric doing double duty, not management.
                if origin and origin not in own and ipaddress.ip_address(origin) in net:
                    managed[network] = f"the controller reaches {node} over it"
            except ValueError:
                continue
        for text in management:
            try:
                if ipaddress.ip_network(text, strict=False).subnet_of(net):  # type: ignore[arg-type]
                    managed[network] = "it was named as the management network"
            except (TypeError, ValueError):
                continue

    if subnet is not None and str(subnet):
        try:
            wanted = str(ipaddress.ip_network(subnet, strict=False))
        except ValueError as exc:
            raise FabricError(f"'{subnet}' is no subnet: {exc}; write it like 192.168.100.0/24") from exc
        if wanted not in common:
            lacking = [node for node, per_subnet in candidates.items() if wanted not in per_subnet]
            raise FabricError(
                f"no usable interface in {wanted} on {', '.join(lacking)}: " + ". ".join(_describe(node, readings[node][0]) for node in lacking)
            )
        usable = [wanted]
    else:
        usable = [network for network in common if network not in managed]
    if not usable:
        why = ""
        if managed:
            why = "; ".join(f"{network} is not taken because {reason}" for network, reason in sorted(managed.items()))
            why = f" ({why}; name it as the fabric subnet if that is wanted)"
        raise FabricError(
            f"no subnet is shared by all nodes over a usable link{why}. "
            + ". ".join(_describe(node, interfaces) for node, (interfaces, _origin, _devices) in readings.items())
            + ". Give the interfaces of the cable between the nodes addresses in one subnet, and bring the links up"
            + netplan_advice({node: interfaces for node, (interfaces, _origin, _devices) in readings.items()})
        )

    def rank(network: str) -> tuple[Any, ...]:
        chosen = [candidates[node][network][0]["entry"] for node in nodes]
        active = all(_is_active(entry) for entry in chosen)
        speed = min(entry.get("speed_mbps") or 0 for entry in chosen)
        outward = any(entry.get("default_route") for entry in chosen)
        net = ipaddress.ip_network(network)
        return (not active, -speed, outward, net.version, net.is_link_local, int(net.network_address))

    order = sorted(usable, key=rank)
    best = order[0]
    result: dict[str, dict[str, Any]] = {}
    for node in nodes:
        pairs = candidates[node][best]
        entry = pairs[0]["entry"]
        active_devices: list[str] = []
        inactive: list[str] = []
        also: list[str] = []
        for network in order:
            for pair in candidates[node][network]:
                other = pair["entry"]
                if other["name"] != entry["name"] and other["name"] not in also:
                    also.append(other["name"])
                for device in other.get("rdma") or []:
                    target = active_devices if device.get("state") == "ACTIVE" else inactive
                    if device["device"] not in target:
                        target.append(device["device"])
        result[node] = {
            "name": node,
            "interface": entry["name"],
            "address": pairs[0]["address"],
            "prefix": pairs[0]["prefix"],
            "network": best,
            "mtu": entry.get("mtu"),
            "speed_mbps": entry.get("speed_mbps"),
            "rdma_devices": active_devices,
            "rdma_inactive": inactive,
            "rdma_character_devices": readings[node][2],
            "default_route": bool(entry.get("default_route")),
            "also": also,
            "problems": [],
            "warnings": [],
        }
        carrying = [entry, *(pair["entry"] for network in order for pair in candidates[node][network] if _is_active(pair["entry"]))]
        slow = _slow_links(node, carrying, SPARK_SPEED if min_speed is None else min_speed)
        result[node]["warnings" if min_speed is None else "problems"].extend(slow)
    _compare(result)
    return result


def _is_active(entry: Mapping[str, Any]) -> bool:
    return any(device.get("state") == "ACTIVE" for device in entry.get("rdma") or [])


def _slow_links(node: str, links: Iterable[Mapping[str, Any]], wanted: float) -> list[str]:
    """The links that run slower than wanted. The two ends of one cable agree on a speed, so no comparison of nodes finds that."""
    found: list[str] = []
    for entry in links:
        if str(entry.get("kind") or "") not in _REAL_KINDS:
            continue
        figures = {str(entry["name"]): (entry.get("speed_mbps") or 0) / 1000}
        figures.update({str(device["device"]): device.get("rate_gbps") or 0 for device in entry.get("rdma") or [] if device.get("state") == "ACTIVE"})
        slow = " and ".join(f"{name} at {speed:g}" for name, speed in figures.items() if 0 < speed < wanted)
        text = f"on {node} {slow} Gb/s is slower than {wanted:g}: a degraded link; reseat or replace the cable, and see what 'ethtool {entry['name']}' says"
        if slow and text not in found:
            found.append(text)
    return found


def _compare(chosen: Mapping[str, dict[str, Any]]) -> None:
    """Write into each node's ``problems`` what differs between the nodes and would hurt later."""
    mtus = {node: item["mtu"] for node, item in chosen.items()}
    if len(set(mtus.values())) > 1:
        table = ", ".join(f"{chosen[node]['interface']} on {node} {mtu}" for node, mtu in mtus.items())
        for item in chosen.values():
            item["problems"].append(f"the MTU differs over the fabric: {table}; large messages would be lost, set one MTU on all")
    speeds = {node: item["speed_mbps"] for node, item in chosen.items() if item["speed_mbps"]}
    fastest = max(speeds.values(), default=0)
    for node, speed in speeds.items():
        if speed < fastest:
            chosen[node]["problems"].append(
                f"{chosen[node]['interface']} on {node} runs at {speed} Mb/s and a peer at {fastest} Mb/s: a degraded link; reseat or replace the cable"
            )
    with_rdma = [node for node, item in chosen.items() if item["rdma_devices"]]
    for node, item in chosen.items():
        if with_rdma and node not in with_rdma:
            down = f" ({', '.join(item['rdma_inactive'])} not active)" if item["rdma_inactive"] else ""
            item["problems"].append(f"{node} has no active RDMA device on the fabric{down}, but {', '.join(with_rdma)} has")
    addresses: dict[str, str] = {}
    for node, item in chosen.items():
        if item["address"] in addresses:
            item["problems"].append(f"{node} and {addresses[item['address']]} have the same fabric address {item['address']}")
        addresses.setdefault(item["address"], node)
