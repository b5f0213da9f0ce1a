# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the lab is sound: names that fit, addresses that match, one cable between the two."""

from __future__ import annotations

from pathlib import Path

import pytest
from lib import cgroups, keys, mounts, network, nspawn, plan
from lib.errors import LabError
from lib.paths import Paths


def test_every_link_has_its_other_end() -> None:
    by_name = {host.name: host for host in plan.HOSTS}
    for host in plan.HOSTS:
        for link in host.links:
            if link.peer:
                other = {candidate.name: candidate for candidate in by_name[link.peer[0]].links}[link.peer[1]]
                assert other.peer == (host.name, link.name)


def test_each_cable_is_made_once() -> None:
    ends = [end for first, link, second, other in plan.cables() for end in ((first.name, link.name), (second.name, other.name))]
    assert len(ends) == len(set(ends)) == 8


def test_the_fabric_is_one_network_and_management_another() -> None:
    fabric = [link.address for host in plan.HOSTS for link in host.links if link.address and link.peer]
    assert len({address.network for address in fabric}) == 1 and len({address.ip for address in fabric}) == 2
    management = [link for host in plan.HOSTS for link in host.links if link.peer is None]
    assert [link.name for link in management] == ["enP7s7"]
    assert management[0].address is not None and management[0].address.network == plan.MACHINE_ADDRESS.network


def test_three_hosts_are_joined_by_a_switch() -> None:
    hosts = plan.hosts_of({"LAB_HOSTS": "3"})
    assert [host.name for host in hosts] == ["spark-01", "spark-02", "spark-03"]
    ports = plan.ports(hosts)
    assert len({port for _host, _link, port in ports}) == 6 and all(len(port) <= 15 for _host, _link, port in ports)
    fabric = [link.address for _host, link, _port in ports if link.address]
    assert len({address.network for address in fabric}) == 1 and len({address.ip for address in fabric}) == 3
    # A host's two ports without a cable face each other; nothing else goes past the switch.
    assert all(first is second and not link.up for first, link, second, _other in plan.cables(hosts))
    assert plan.ports(plan.hosts_of({})) == []


def test_a_number_of_hosts_that_there_cannot_be_is_refused() -> None:
    with pytest.raises(SystemExit, match="LAB_HOSTS is '4'; there can be 2 hosts or 3"):
        plan.hosts_of({"LAB_HOSTS": "4"})


def test_names_are_short_enough_for_the_kernel() -> None:
    names = [plan.MACHINE_LINK, *(link.name for host in plan.EVERY for link in host.links)]
    assert all(len(name) <= 15 for name in names)


def test_the_second_host_is_reached_through_the_first_and_nothing_is_trusted_unseen(tmp_path: Path) -> None:
    text = keys.ssh_config(tmp_path / "a dir" / "id", tmp_path / "known")
    assert "Host spark-02 192.168.200.13\n  HostName 192.168.200.13\n  ProxyJump spark-01\n" in text
    assert "StrictHostKeyChecking yes" in text and f'IdentityFile "{tmp_path}/a dir/id"' in text


def test_known_hosts_pins_names_and_addresses() -> None:
    text = keys.known_hosts({"spark-01": "ssh-ed25519 AAA one", "spark-02": "ssh-ed25519 BBB two"})
    assert text == "spark-01,10.1.230.180,192.168.200.12 ssh-ed25519 AAA\nspark-02,192.168.200.13 ssh-ed25519 BBB\n"


def test_directories_come_from_the_environment(tmp_path: Path) -> None:
    paths = Paths.from_environment({"LAB_DIR": str(tmp_path / "state"), "LAB_CACHE": str(tmp_path / "cache")})
    assert (paths.state, paths.cache) == (tmp_path / "state", tmp_path / "cache")
    assert Paths.from_environment({"LAB_DIR": ""}).state.name == ".lab"


def test_a_host_runs_in_its_own_namespace_with_dockers_directory_bound() -> None:
    argv = nspawn.argv(plan.SPARK_02, Path("/d/docker"))
    assert f"--network-namespace-path={network.NETNS}/unimem-spark-02" in argv
    assert "--bind=/d/docker:/var/lib/docker" in argv and argv[-1] == nspawn.INIT


V1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n" + "".join(
    f"cgroup /sys/fs/cgroup/{name} cgroup rw,relatime,{name} 0 0\n" for name in ("cpuset", "cpu,cpuacct", "blkio", "memory", "devices", "freezer", "pids")
)


def test_control_groups_of_the_hybrid_layout() -> None:
    groups = cgroups.find(V1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n")
    assert groups.version == 1
    assert groups.memory_directory("spark-01") == Path("/sys/fs/cgroup/memory/unimem-lab/spark-01")
    directories = groups.directories("spark-01")
    assert len(directories) == len(set(directories)) == 9  # cpu and cpuacct are one; systemd's and the unified one are ours too
    assert Path("/sys/fs/cgroup/unified/unimem-lab/spark-01") in directories


def test_a_missing_controller_is_named() -> None:
    with pytest.raises(LabError, match="pids"):
        cgroups.find(V1.replace("pids", "hugetlb"))


def test_control_groups_of_the_unified_layout_and_of_none() -> None:
    assert cgroups.find("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n").version == 2
    with pytest.raises(LabError, match="No cgroup file system"):
        cgroups.find("proc /proc proc rw 0 0\n")


def test_a_group_of_the_unified_layout_is_given_its_controllers_and_its_limit(tmp_path: Path) -> None:
    (tmp_path / "unimem-lab").mkdir()
    for directory in (tmp_path, tmp_path / "unimem-lab"):
        (directory / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    groups = cgroups.GroupsV2(tmp_path)
    groups.create("spark-01", memory=plan.POOL)
    for directory in (tmp_path, tmp_path / "unimem-lab"):
        assert (directory / "cgroup.subtree_control").read_text() == "+memory +cpu +cpuset +io +pids"
    assert (groups.memory_directory("spark-01") / "memory.max").read_text() == str(plan.POOL)
    assert (groups.memory_directory("spark-01") / "memory.swap.max").read_text() == "0"


def test_what_the_unified_layout_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    groups = cgroups.GroupsV2(tmp_path)
    assert groups.lacking() == ["the controller io", "memory.reclaim (Linux 5.19)"]
    groups.memory_directory(cgroups.BUILDS).mkdir(parents=True)
    (groups.memory_directory(cgroups.BUILDS) / "memory.reclaim").write_text("")
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert groups.lacking() == []


def test_mount_points_are_unescaped() -> None:
    text = "22 1 0:20 / /run/a\\040b rw shared:1 - overlay overlay rw\n23 1 0:21 / /run/c rw - tmpfs t rw\n"
    assert mounts.parse_mountinfo(text) == [Path("/run/a b"), Path("/run/c")]


def test_a_path_that_an_overlay_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="overlay mount cannot take"):
        mounts.overlay([tmp_path / "a:b"], tmp_path / "u", tmp_path / "w", tmp_path / "t")
