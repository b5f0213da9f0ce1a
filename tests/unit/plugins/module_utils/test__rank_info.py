# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node tells of its ranks: from Docker's own descriptions, a simulated journal and real sockets; with secrets masked and holes allowed."""

from __future__ import annotations

import json
import socket
import typing as t
from collections.abc import Iterator

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _rank_info
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, RunResult
from ansible_collections.unimem.dgx_spark.tests.unit.ports import free_port

ID = "ab" * 32
TOKEN = "hf_" + "q" * 30


def told(number: int = 1, **state: t.Any) -> dict[str, t.Any]:
    """A container as Docker 20.10 and newer describe it, shortened."""
    return {
        "Id": ID,
        "Name": f"/unimem-default-rank{number}",
        "Created": "2026-11-30T09:11:58.1Z",
        "Path": "python3",
        "Args": ["/opt/unimem/rank_supervisor.py", "/opt/unimem/rank.json"],
        "Image": "sha256:11",
        "State": {
            "Status": "exited",
            "Running": False,
            "ExitCode": 70,
            "OOMKilled": False,
            "Error": "",
            "StartedAt": "2026-11-30T09:12:00.5Z",
            "FinishedAt": "2026-11-30T09:12:30Z",
            **state,
        },
        "Config": {
            "Image": "unimem/x:1",
            "Tty": False,
            "Env": [f"HF_TOKEN={TOKEN}", "NCCL_SOCKET_IFNAME=enp1s0f0np0", "GLOO_SOCKET_IFNAME=../x", "UNIMEM_GROUP_TOKEN=abc", "VLLM_API_KEY=s3cret"],
            "Labels": {"io.unimem.deployment": "default", "io.unimem.rank": str(number), "io.unimem.role": "worker", "io.unimem.launch-id": "L1"},
        },
        "HostConfig": {"IpcMode": "private", "ShmSize": 1024, "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}], "CapAdd": None, "Devices": None},
        "Mounts": [{"Type": "bind", "Source": "/var/lib/unimem/launch/default", "Destination": "/opt/unimem"}],
    }


RANK_FILE = json.dumps(
    {"steps": [{"name": "engine", "argv": ["vllm", "serve", "/m", "--api-key", "s3cret"], "env": {"RAY_ADDRESS": "1:2", "X_TOKEN": "s3cret"}}]}
)


def frames(*lines: str) -> list[bytes]:
    return [b"\x01\0\0\0" + len(line.encode()).to_bytes(4, "big") + line.encode() for line in lines]


class FakeEngine:
    """A container engine with some containers; ``broken`` is raised instead of an answer."""

    def __init__(
        self, *containers: dict[str, t.Any], log: list[bytes] | None = None, broken: EngineError | None = None, no_log: EngineError | None = None
    ) -> None:
        self.containers, self.log, self.broken, self.no_log = containers, log or [], broken, no_log
        self.asked: list[str] = []

    def describe_labelled(self, label: str) -> list[dict[str, t.Any]]:
        self.asked.append(label)
        if self.broken:
            raise self.broken
        return list(self.containers)

    def read_log(self, container_id: str, seconds: float) -> Iterator[bytes]:
        if self.no_log:
            raise self.no_log
        yield from self.log


def journal_argv(since: int) -> tuple[str, ...]:
    argv = ["journalctl", "--no-pager", "--quiet", "--output=short-unix", f"--since=@{since}", "_TRANSPORT=kernel"]
    for unit in _rank_info.WATCHED_UNITS:
        argv += ["+", f"_SYSTEMD_UNIT={unit}"]
    return tuple(argv)


DF = ("df", "--block-size=1", "--output=target,size,avail", "--", "/", "/tmp", "/var/lib/docker", "/dev/shm", "/data")
DOCKER = ("systemctl", "show", "docker.service", "--timestamp=unix", "--property=ActiveState,ActiveEnterTimestamp")


def world(**commands: RunResult) -> FakeWorld:
    return FakeWorld(
        files={
            "/var/lib/unimem/launch/default/rank.json": RANK_FILE,
            "/sys/class/net/enp1s0f0np0/flags": "0x1002\n",
            "/sys/class/net/enp1s0f0np0/carrier": "0\n",
        },
        commands={
            journal_argv(1796029860): RunResult(
                0,
                "1796029930.5 spark-02 kernel: Out of memory: Killed process 7 (VLLM::Worker_TP) total-vm:1kB, anon-rss:2kB\n1796029931.0 spark-02 kernel:"
                " fine\n",
            ),
            DOCKER: RunResult(0, "ActiveState=active\nActiveEnterTimestamp=@1796020000\n"),
            DF: RunResult(1, "Mounted on      1B-blocks  Avail\n/          1000 10\n/          1000 10\n/data dir  5000 500\n", "df: /x: No such file"),
        },
        clock=lambda: 0.0,
    )


def test_a_rank_is_described_whole_with_its_secrets_masked() -> None:
    engine = FakeEngine(told(), log=frames("2026-11-30T09:12:01Z [engine] RuntimeError: CUDA error: out of memory\n"))
    node = _rank_info.read_node(world(), engine, "default", 40, 10.0, paths=["/data"], now=lambda: 1796030000.0)
    assert engine.asked == ["io.unimem.deployment=default"]
    (rank,) = node["ranks"]
    assert (rank["rank"], rank["role"], rank["status"], rank["exit_status"], rank["launch_id"]) == (1, "worker", "exited", 70, "L1")
    assert rank["steps"][0]["argv"] == ["vllm", "serve", "/m", "--api-key", "********"]
    assert rank["steps"][0]["environment"] == {"RAY_ADDRESS": "1:2", "X_TOKEN": "********"}
    assert rank["environment"]["VLLM_API_KEY"] == rank["environment"]["UNIMEM_GROUP_TOKEN"] == "********"
    assert rank["environment"]["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert rank["log"]["found"][0]["cause"] == "cuda_context"
    assert rank["finished"] - rank["started"] == pytest.approx(29.5)
    assert "s3cret" not in str(node) and TOKEN not in str(node)
    assert node["engine"] is None and node["clock"] == 1796030000.0


READY = "2026-11-30T09:12:29Z [rank] 2026-11-30T09:12:29Z the group is ready\n"


@pytest.mark.parametrize(
    ("state", "line", "ready"),
    [
        ({"Status": "running", "Running": True, "Health": {"Status": "starting"}}, READY, True),
        ({"Status": "running", "Running": True, "Health": {"Status": "starting"}}, "2026-11-30T09:12:29Z [engine] loads\n", False),
        ({"Status": "running", "Running": True, "Health": {"Status": "healthy"}}, "", True),
        ({"Status": "exited", "Running": False, "Health": {"Status": "healthy"}}, READY, False),
    ],
    ids=["by the supervisor's word", "not yet", "by the engine's check, where the log cannot be read", "before its end"],
)
def test_whether_a_rank_is_ready(state: dict[str, t.Any], line: str, ready: bool) -> None:
    (rank,) = _rank_info.read_ranks(world(), FakeEngine(told(**state), log=frames(line)), "default", 40, 10.0)
    assert rank["ready"] is ready


@pytest.mark.parametrize("oom_killed", [False, True])
@pytest.mark.parametrize("line", ["CUDA out of memory. Tried to allocate 2.00 GiB", "Loading weights"])
@pytest.mark.parametrize("kernel", ["Out of memory: Killed process 7 (VLLM::Worker_TP) total-vm:1kB, anon-rss:2kB", "fine"])
def test_status_137_is_told_apart_from_what_the_allocator_the_engine_and_the_kernel_say(oom_killed: bool, line: str, kernel: str) -> None:
    """Anybody's SIGKILL is 137; none of the four follows from another."""
    around = world()
    around.commands = {**around.commands, journal_argv(1796029860): RunResult(0, f"1796029930.5 spark-02 kernel: {kernel}\n")}
    engine = FakeEngine(told(ExitCode=137, OOMKilled=oom_killed), log=frames(f"2026-11-30T09:12:01Z [engine] {line}\n"))
    node = _rank_info.read_node(around, engine, "default", 40, 10.0, paths=["/data"])
    (rank,) = node["ranks"]
    assert (rank["exit_status"], rank["oom_killed"]) == (137, oom_killed)
    assert [entry["cause"] for entry in rank["log"]["found"]] == (["cuda_allocation"] if line.startswith("CUDA") else [])
    assert [entry["cause"] for entry in node["journal"]["found"]] == (["kernel_oom"] if kernel != "fine" else [])


def test_what_the_node_says_of_the_same_time() -> None:
    node = _rank_info.read_node(world(), FakeEngine(told()), "default", 40, 10.0, paths=["/data"])
    assert [entry["cause"] for entry in node["journal"]["found"]] == ["kernel_oom"]
    assert node["journal"]["found"][0]["time"] == 1796029930.5 and len(node["journal"]["lines"]) == 2
    assert node["docker"] == {"state": "active", "since": 1796020000.0}
    assert node["disks"] == [{"path": "/", "total": 1000, "free": 10}, {"path": "/data dir", "total": 5000, "free": 500}]
    assert node["links"] == [{"name": "enp1s0f0np0", "up": False, "carrier": False}]


def test_without_what_is_around_only_the_ranks_are_read() -> None:
    node = _rank_info.read_node(world(), FakeEngine(told()), "default", 40, 10.0, around=False)
    assert set(node) == {"ranks", "engine", "ports", "clock"}


def test_without_an_engine_the_rest_is_still_told() -> None:
    broken = EngineError("hung", "it has not answered")
    for engine, reason in ((None, "no container engine answers"), (FakeEngine(broken=broken), "it has not answered")):
        node = _rank_info.read_node(world(), engine, "default", 40, 10.0, paths=["/data"])
        assert node["ranks"] == [] and node["engine"] == reason
        assert node["disks"] and node["docker"]["state"] == "active"


def test_a_log_that_cannot_be_read_has_a_reason() -> None:
    (rank,) = _rank_info.read_node(world(), FakeEngine(told(), no_log=EngineError("failed", "the log driver has none")), "default", 40, 10.0)["ranks"]
    assert rank["log"]["reason"] == "the log driver has none" and rank["log"]["lines"] == 0


def test_a_terminals_log_has_no_frames() -> None:
    container = told()
    container["Config"]["Tty"] = True
    (rank,) = _rank_info.read_node(world(), FakeEngine(container, log=[b"2026-11-30T09:12:01Z on", b"e\r\n2026-11-30T09:12:02Z two\n"]), "default", 40, 10.0)[
        "ranks"
    ]
    assert [line.split(" ")[1] for line in rank["log"]["head"]] == ["one", "two"]


@pytest.mark.parametrize(
    "container",
    [
        {},
        {"Id": ID, "State": None, "Config": {"Labels": {"io.unimem.rank": "1; rm"}, "Env": ["x"]}, "HostConfig": {"Ulimits": [1]}, "Mounts": [None]},
        {"Id": ID, "Config": {"Env": None, "Labels": []}, "Args": "x", "Mounts": [{"Destination": "/opt/unimem", "Source": "relative"}]},
    ],
)
def test_a_strange_description_hinders_nothing(container: dict[str, t.Any]) -> None:
    (rank,) = _rank_info.read_node(world(), FakeEngine(container), "default", 40, 10.0)["ranks"]
    assert rank["rank"] == -1


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"steps": 5}', '{"steps": [1, {"argv": "x"}]}'])
def test_a_strange_rank_file_is_empty(text: str | None) -> None:
    assert _rank_info._steps(text) == []


def test_a_journal_that_may_not_be_read_has_a_reason() -> None:
    bare = FakeWorld(commands={journal_argv(0): RunResult(1, "", "No journal files were opened due to insufficient permissions.")})
    assert "insufficient permissions" in str(_rank_info.read_journal(bare, 0.0, 1.0)["reason"])
    assert _rank_info.read_journal(FakeWorld(), 0.0, 1.0)["reason"] == "there is no journalctl"
    slow = FakeWorld(commands={journal_argv(0): RunResult(-9, "", "", timed_out=True)})
    assert "in time" in str(_rank_info.read_journal(slow, 0.0, 1.0)["reason"])


def test_a_port_is_taken_whoever_has_it_and_however() -> None:
    port = free_port()
    assert _rank_info.try_port(port) is None
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert _rank_info.try_port(port) == "Address already in use", "a listener on another address"
        with socket.create_connection(("127.0.0.1", port)) as client, listener.accept()[0] as server:
            server.close()
            listener.close()
            client.recv(1)
    assert _rank_info.try_port(port) is None, "a connection in TIME-WAIT hinders no server"
    port = free_port()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", port))
        assert _rank_info.try_port(port) == "Address already in use", "bound, and not listened on: no list of listeners has it"


def test_who_has_a_port() -> None:
    text = (
        'LISTEN 0 128 0.0.0.0:8000 0.0.0.0:* users:(("python3",pid=4711,fd=7),("python3",pid=4712,fd=7))\n'
        "TIME-WAIT 0 0 10.0.0.1:8000 10.0.0.2:5\n"
        "CLOSE-WAIT 1 0 [::1]:6379 [::1]:5\n"
        "odd\n"
    )
    fake = FakeWorld(commands={("ss", "--no-header", "--all", "--tcp", "--numeric", "--processes"): RunResult(0, text)})
    found = _rank_info.read_ports(fake, [8000, 6379, 1], 1.0, free=lambda port: "Address already in use" if port == 8000 else None)
    assert found["8000"] == {"why": "Address already in use", "users": ["LISTEN on 0.0.0.0:8000: python3 (4711)"], "own": False}
    assert found["6379"] == {"why": None, "users": ["CLOSE-WAIT on [::1]:6379: a process that this user may not see"], "own": False}
    assert found["1"] == {"why": None, "users": [], "own": False}
    assert _rank_info.read_ports(fake, [], 1.0) == {}


def test_whether_a_port_is_that_of_ranks_that_run() -> None:
    text = 'LISTEN 0 1 *:8000 *:* users:(("vllm",pid=7,fd=7))\nLISTEN 0 1 *:9000 *:* users:(("nginx",pid=8,fd=7))\nLISTEN 0 1 *:9001 *:*\n'
    ss = ("ss", "--no-header", "--all", "--tcp", "--numeric", "--processes")
    files = {"/proc/7/cgroup": f"0::/system.slice/docker-{'a' * 64}.scope\n", "/proc/8/cgroup": "0::/system.slice/nginx.service\n"}
    fake = FakeWorld(commands={ss: RunResult(0, text)}, files=files)

    def own(*containers: str) -> list[bool]:
        found = _rank_info.read_ports(fake, [8000, 9000, 9001, 9002], 1.0, free=lambda port: "in use", containers=containers)
        return [told["own"] for told in found.values()]

    # The third is of a process that this user may not see, the last is bound by somebody who does not listen, whom no list names.
    assert own("a" * 64) == [True, False, True, True]
    assert own("b" * 64) == [False, False, True, True]
    assert own() == [False, False, False, False]
