# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._scene import (
    Member,
    find_wraps,
    makes_containers,
    names_started,
    read_listeners,
    read_members,
    read_scene,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import PROPERTIES, Systemd
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, RunResult
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.simulated_node import SimulatedEngine, SimulatedNode, container, unit

ID = "677b51790c22be0044d0d17da968fc0c47d568307269f3b8e77fe7877e2a6522"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("/usr/bin/docker run --rm --name vllm_embeddings -p 8001:8000 image serve", {"vllm_embeddings"}),
        ("/usr/bin/docker run --name=vllm_embeddings image", {"vllm_embeddings"}),
        ("/usr/bin/docker start --attach vllm_embeddings", {"vllm_embeddings"}),
        ("/usr/bin/env docker start -a a", {"a"}),
        ("podman start --attach a b", {"a", "b"}),
        ("docker container start a", {"a"}),
        ("docker stop a", set()),
        ("docker rm -f a", set()),
        ("docker run image start a", set()),
        ("/bin/sleep 900", set()),
        ("python3 run.py --name a", set()),
        ("", set()),
    ],
)
def test_names_that_a_command_starts(command: str, names: set[str]) -> None:
    assert names_started(command.split())[0] == names


@pytest.mark.parametrize(
    ("command", "makes"),
    [
        ("/usr/bin/docker run --rm --name c image", True),
        ("/usr/bin/env docker compose -p rag up", True),
        ("docker start --attach c", False),
        ("docker start --attach run", False),
        ("docker rm c", False),
        ("python3 run.py", False),
    ],
)
def test_commands_that_make_what_they_start(command: str, makes: bool) -> None:
    assert makes_containers(command.split()) is makes


def wraps(units: list[t.Any], containers: list[Container], members: t.Iterable[Member] = ()) -> dict[str, list[str]]:
    names = {each.key: each.name for each in containers}
    return {key: [names[each] for each in inner] for key, inner in find_wraps(units, containers, members).items()}


def test_unit_whose_command_starts_a_container() -> None:
    runs = unit("a.service", commands=(("/usr/local/sbin/make",), ("/usr/bin/docker", "start", "--attach", "c")))
    ends = unit("b.service", commands=(("/usr/bin/docker", "stop", "c"),))
    assert wraps([runs, ends], [container("c", 1), container("d", 2)]) == {"unit:a.service": ["c"]}


def test_unit_whose_client_runs_a_container() -> None:
    """A script starts it, so only the client in the control group tells."""
    scripted = unit("a.service", commands=(("/opt/run.sh",),))
    client = Member(7, 1, 1, "S", "docker", ("/usr/bin/docker", "run", "--name", "c", "x"), None, 0, "root", 0, "unit:a.service", None, None, None, None)
    assert wraps([scripted], [container("c", 1)], [client]) == {"unit:a.service": ["c"]}


def test_compose_project_by_its_name_file_or_directory() -> None:
    labels = {
        "com.docker.compose.project": "rag",
        "com.docker.compose.project.config_files": "/opt/rag/compose.yml",
        "com.docker.compose.project.working_dir": "/opt/rag",
    }
    made = [container("rag-db-1", 1, labels=labels), container("other", 2)]
    up = ("/usr/bin/docker", "compose")
    for commands, directory in (
        ((*up, "-p", "rag", "up"), ""),
        ((*up, "-f", "/opt/rag/compose.yml", "up"), ""),
        ((*up, "-f", "compose.yml", "up"), "/opt/rag"),
        ((*up, "--project-directory", "/opt/rag/", "up"), ""),
        ((*up, "up"), "/opt/rag"),
    ):
        assert wraps([unit("rag.service", commands=(commands,), working_directory=directory)], made) == {"unit:rag.service": ["rag-db-1"]}
    for commands, directory in (((*up, "-p", "x", "up"), "/opt/rag"), ((*up, "up"), "/opt"), ((*up, "down"), "/opt/rag"), ((*up, "up"), "")):
        assert wraps([unit("rag.service", commands=(commands,), working_directory=directory)], made) == {}


def test_a_users_container_cannot_pass_for_one_of_a_system_unit() -> None:
    system = unit("important.service", commands=(("/usr/bin/docker", "start", "-a", "c"),))
    theirs = container("c", 1, engine="/run/user/1000/docker.sock", labels={"PODMAN_SYSTEMD_UNIT": "important.service"})
    assert wraps([system], [theirs]) == {}
    own = unit("own.service", uid=1000, commands=(("/usr/bin/docker", "start", "-a", "c"),))
    assert wraps([own], [theirs]) == {"unit:own.service@uid:1000": ["c"]}
    label = container("d", 2, labels={"PODMAN_SYSTEMD_UNIT": "important.service"})
    assert wraps([system], [label]) == {}


def proc(
    pid: int, name: str, cgroup: str, *, parent: int = 1, state: str = "S", start: int = 100, uid: int = 0, flags: int = 0, argv: str = ""
) -> dict[str, str]:
    rest = f"{parent} {pid} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0"
    return {
        f"/proc/{pid}/stat": f"{pid} ({name}) {state} {rest}",
        f"/proc/{pid}/comm": name,
        f"/proc/{pid}/cmdline": (argv or name).replace(" ", "\0") + "\0",
        f"/proc/{pid}/status": f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nRssAnon:\t    2048 kB\n",
        f"/proc/{pid}/cgroup": cgroup,
    }


def world() -> FakeWorld:
    files: dict[str, str] = {"/proc/sys/kernel/random/boot_id": "boot\n"}
    files |= proc(1, "systemd", "0::/init.scope\n", parent=0)
    files |= proc(50, "python3", "0::/system.slice/a.service\n", uid=1000)
    files |= proc(51, "python3", f"0::/system.slice/docker-{ID}.scope\n")
    files |= proc(52, "docker-init", f"0::/system.slice/docker-{ID}.scope\n")
    files |= proc(53, "systemd", f"0::/system.slice/docker-{ID}.scope\n")
    files |= proc(54, "sshd", "0::/system.slice/a.service\n")
    files |= proc(55, "gone", "0::/system.slice/a.service\n", state="Z")
    files |= proc(56, "kworker/0:1", "0::/\n", flags=0x00200000)
    files |= proc(57, "llama-server", "0::/user.slice/user-1000.slice/session-2.scope\n", uid=1000)
    files |= proc(58, "comfy", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/comfy.service\n", uid=1000)
    files |= proc(90, "sshd", "0::/user.slice/user-0.slice/session-1.scope\n")
    files |= proc(91, "python3", "0::/user.slice/user-0.slice/session-1.scope\n", parent=90)
    return FakeWorld(files=files, links={"/proc/self": "91"}, users={0: "root", 1000: "alice"})


def test_the_runtime_on_its_way_into_a_container_ends_with_it() -> None:
    """A container in a restart loop is this most of the time."""
    files = dict(world().files)
    for pid, cgroup in ((60, f"0::/system.slice/docker-{ID}.scope\n"), (61, "0::/user.slice/user-1000.slice/session-2.scope\n")):
        files |= proc(pid, "runc:[2:INIT]", cgroup, argv="runc init")
    found = read_members(FakeWorld(files=files, links={"/proc/self": "91"}, users={0: "root", 1000: "alice"}))
    assert found[60].protected is None and found[61].protected == "container runtime (runc)"


def test_members_and_where_they_are() -> None:
    found = read_members(world())
    assert set(found) == {1, 50, 51, 52, 53, 54, 56, 57, 58, 90, 91}
    assert found[50].unit == "unit:a.service" and found[50].user == "alice" and found[50].rss == 2048 * 1024
    assert found[51].container == f"container:{ID}" and found[51].runtime == "docker" and found[51].unit is None
    assert found[57].unit is None and found[57].scope == "session-2.scope"
    assert found[58].unit == "unit:comfy.service@uid:1000"


def test_who_is_protected() -> None:
    protected = {pid for pid, member in read_members(world()).items() if member.protected}
    # Not the container's own init (52, 53): it ends with its container. The run itself (91) and its ancestors are.
    assert protected == {1, 54, 56, 90, 91}


def test_scene_finds_what_starts_a_service_again() -> None:
    def shown(name: str, **changes: str) -> str:
        fields = {"Id": name, "Names": name, "LoadState": "loaded", "ActiveState": "active", **changes}
        return "".join(f"{field}={value}\n" for field, value in fields.items())

    made = world()
    show = ("systemctl", "show", "--no-pager", "--all", f"--property={','.join(PROPERTIES)}")
    made.commands = {
        (*show, "*.service"): RunResult(0, shown("a.service", TriggeredBy="a.socket", RequiredBy="graphical.target")),
        (*show, "--", "a.socket", "graphical.target"): RunResult(
            0, shown("a.socket", Triggers="a.service", RequiredBy="b.service") + "\n" + shown("graphical.target")
        ),
        (*show, "--", "b.service"): RunResult(0, shown("b.service", ActiveState="inactive")),
    }
    scene = read_scene(made, Systemd(made), [], {"processes": []}, ["one engine may not be asked"])
    assert set(scene.units) == {"unit:a.service"}
    assert set(scene.others) == {"unit:a.socket", "unit:graphical.target", "unit:b.service"}
    assert scene.problems == ["one engine may not be asked"] and scene.boot_id == "boot"
    assert [member.pid for member in scene.of_unit("unit:a.service")] == [50, 54]


def test_a_users_engine_cannot_speak_for_a_container_of_the_system() -> None:
    """It may claim any id, and would be asked to stop it, and believed that it has ended."""
    node = SimulatedNode()
    node.add_container(container("model", 1))
    theirs = SimulatedNode()
    theirs.add_container(container("model", 1, engine="/run/user/1000/docker.sock", policy="no"))
    theirs.add_container(container("other", 2, engine="/run/user/1000/docker.sock"))
    engines = [SimulatedEngine(node, "/run/docker.sock"), SimulatedEngine(theirs, "/run/user/1000/docker.sock")]
    made = world()
    scene = read_scene(made, Systemd(made), engines, {"processes": []})
    assert {each.name: each.engine for each in scene.containers.values()} == {"model": "/run/docker.sock", "other": "/run/user/1000/docker.sock"}


def test_identity_needs_the_same_start_time() -> None:
    made = world()
    scene = read_scene(made, Systemd(made), [], {"processes": [{"pid": 57, "start_time": 100}]})
    identity = scene.identity({"pid": 57, "start_time": 100})
    assert identity is not None and identity.start_time == 100
    assert scene.identity({"pid": 57, "start_time": 101}) is None
    assert scene.identity({"pid": 55, "start_time": 100}) is None
    assert scene.identity({"pid": 999, "start_time": 100}) is None


def test_ports_that_are_listened_on() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    made = FakeWorld(
        files={
            "/proc/net/tcp": head
            + "   0: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0\n"
            + "   1: 0100007F:0016 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0\n",
            "/proc/net/tcp6": head + "   0: 00000000000000000000000000000000:0050 0:0000 0A 0:0 0:0 0 0 0 4244 1 0 100 0 0 10 0\n   bad line\n",
        },
        links={"/proc/7/fd/3": "socket:[4242]", "/proc/7/fd/4": "socket:[9]", "/proc/7/fd/5": "/dev/null", "/proc/8/fd/3": "socket:[4243]"},
    )
    assert read_listeners(made, [7, 8]) == {8001: [7], 80: []}
    assert read_listeners(made, [7], "/proc/9/net") == {}
    made.files["/proc/9/net/tcp"] = made.files["/proc/net/tcp"]
    assert read_listeners(made, (), "/proc/9/net") == {8001: []}
