# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils._containers import Container
from ansible_collections.unimem.dgx_spark.plugins.module_utils._owners import (
    OwnerReader,
    Place,
    cgroup_base,
    locate,
    owner_of,
    parse_cgroup,
    parse_systemctl_show,
    runs_container,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._process import read_process
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, Response, RunResult

ID = "0123456789abcdef" * 4
OTHER_ID = "fedcba9876543210" * 4
POD = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
POD_UNDERSCORES = POD.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        # Docker: systemd and cgroupfs drivers, v2 and v1, and below a unit's cgroup
        (f"0::/system.slice/docker-{ID}.scope", Place(container=ID, runtime="docker")),
        (f"0::/docker/{ID}", Place(container=ID, runtime="docker")),
        (f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service", Place(container=ID, runtime="docker")),
        (f"5:memory:/system.slice/docker-{ID}.scope\n1:name=systemd:/system.slice/docker-{ID}.scope", Place(container=ID, runtime="docker")),
        (f"0::/docker/{ID}/docker/{OTHER_ID}", Place(container=ID, runtime="docker")),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope", Place(container=ID, runtime="docker", uid=1000)),
        # Podman: root, rootless, its inner cgroup, and a unit made by Quadlet
        (f"0::/machine.slice/libpod-{ID}.scope/container", Place(container=ID, runtime="podman")),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", Place(container=ID, runtime="podman", uid=1000)),
        (f"0::/system.slice/web.service/libpod-payload-{ID}", Place(container=ID, runtime="podman", unit="web.service")),
        (f"9:cpu:/libpod_parent/libpod-{ID}", Place(container=ID, runtime="podman")),
        # containerd, CRI-O and Kubernetes
        (f"0::/default/{ID}", Place(container=ID, runtime="containerd")),
        (f"0::/system.slice/nerdctl-{ID}.scope", Place(container=ID, runtime="containerd")),
        (f"0::/machine.slice/crio-{ID}.scope", Place(container=ID, runtime="crio")),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_UNDERSCORES}.slice/cri-containerd-{ID}.scope",
            Place(container=ID, runtime="kubernetes", pod=POD),
        ),
        (f"0::/kubepods/besteffort/pod{POD}/{ID}", Place(container=ID, runtime="kubernetes", pod=POD)),
        (f"0::/kubepods.slice/kubepods-pod{POD_UNDERSCORES}.slice/crio-{ID}.scope", Place(container=ID, runtime="kubernetes", pod=POD)),
        # other machines in this machine
        ("0::/machine.slice/machine-lab.scope/payload/system.slice/x.service", Place(container="lab", runtime="nspawn")),
        ("0::/lxc.payload.web/system.slice/x.service", Place(container="web", runtime="lxc")),
        # units, scopes and users
        ("0::/system.slice/ollama.service", Place(unit="ollama.service")),
        ("0::/system.slice/snap.ollama.listener.service", Place(unit="snap.ollama.listener.service")),
        ("0::/system.slice/system-getty.slice/getty@tty1.service", Place(unit="getty@tty1.service")),
        ("0::/system.slice/foo.service/workers/1", Place(unit="foo.service")),
        ("4:memory:/a/b\n1:name=systemd:/system.slice/vllm-embeddings.service", Place(unit="vllm-embeddings.service")),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/comfy.service", Place(unit="comfy.service", uid=1000)),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope", Place(scope="init.scope", uid=1000)),
        ("0::/user.slice/user-1000.slice/session-3.scope", Place(scope="session-3.scope")),
        ("0::/init.scope", Place(scope="init.scope")),
        ("0::/", Place()),
        ("", Place()),
        ("nonsense\n1:2\nx:y:z", Place()),
        # What looks like a container and is none: a short id, Podman's monitor, a job of a batch system
        ("0::/system.slice/docker-0123456789ab.scope", Place(scope="docker-0123456789ab.scope")),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", Place(scope=f"libpod-conmon-{ID}.scope")),
        ("0::/slurm/uid_1000/job_7/step_0", Place()),
    ],
)
def test_shapes_of_control_groups(cgroup: str, place: Place) -> None:
    assert locate(cgroup) == place


def test_a_machine_that_is_a_container_itself_does_not_see_its_outside_as_owner() -> None:
    outside = "/machine.slice/machine-spark.scope/payload"
    pid_one = f"4:memory:/spark-01\n1:name=systemd:{outside}/init.scope"
    base = cgroup_base(pid_one)
    assert base == {"memory": "/spark-01", "name=systemd": outside}
    assert locate(f"4:memory:/spark-01\n1:name=systemd:{outside}/system.slice/x.service", base) == Place(unit="x.service")
    assert locate(f"4:memory:/spark-01/docker/{ID}\n1:name=systemd:{outside}/docker/{ID}", base) == Place(container=ID, runtime="docker")
    # A directory that only begins alike is another one.
    assert locate("1:name=systemd:/machine.slice/machine-spark.scope/payload2/system.slice/x.service", base).runtime == "nspawn"


def test_an_ordinary_machine_has_no_base() -> None:
    assert cgroup_base("0::/init.scope\n") == {}
    assert cgroup_base("") == {}


def world(
    *processes: tuple[int, str, str, tuple[str, ...]],
    policy: str = "always",
    labels: dict[str, str] | None = None,
    response: Response | None = None,
    commands: dict[tuple[str, ...], RunResult] | None = None,
    uid: int = 0,
    **more: str,
) -> FakeWorld:
    """A machine with these processes (pid, comm, cgroup, argv) and one Docker container named embeddings."""
    files = {"/proc/1/cgroup": "0::/init.scope\n", "/proc/sys/kernel/random/boot_id": "boot\n", **more}
    for pid, comm, cgroup, argv in processes:
        files[f"/proc/{pid}/stat"] = f"{pid} ({comm}) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {pid * 10} 9 9"
        files[f"/proc/{pid}/comm"] = comm + "\n"
        files[f"/proc/{pid}/cgroup"] = cgroup + "\n"
        files[f"/proc/{pid}/cmdline"] = "".join(word + "\0" for word in argv)
    body = {"Id": ID, "Name": "/embeddings", "HostConfig": {"RestartPolicy": {"Name": policy}}, "Config": {"Labels": labels or {}}}
    return FakeWorld(
        files,
        commands or {},
        responses={("/run/docker.sock", f"/containers/{ID}/json"): response or Response(200, json.dumps(body))},
        users={0: "root", 1000: "alice"},
        uid=uid,
    )


def show(*units: tuple[str, str, str], user: str | None = None) -> dict[tuple[str, ...], RunResult]:
    scope = () if user is None else ("--user", f"--machine={user}@.host")
    argv = ("systemctl", *scope, "show", "--property=Id,InvocationID,Restart", "--", *(unit for unit, _invocation, _restart in units))
    text = "\n".join(f"Restart={restart}\nId={unit}\nInvocationID={invocation}\n" for unit, invocation, restart in units)
    return {argv: RunResult(0, text)}


def owners(machine: FakeWorld, *pids: int) -> tuple[list[dict[str, t.Any]], dict[int, str]]:
    reader = OwnerReader(machine)
    found = reader.owners(process for process in (read_process(machine, pid) for pid in pids) if process)
    return [found[pid] for pid in pids], reader.reasons


def test_a_container_that_a_unit_runs() -> None:
    machine = world(
        (50, "VLLM::EngineCor", f"0::/system.slice/docker-{ID}.scope", ("VLLM::EngineCore",)),
        (40, "docker", "0::/system.slice/vllm-embeddings.service", ("/usr/bin/docker", "run", "--name", "embeddings", "image")),
        commands=show(("vllm-embeddings.service", "aa11", "always")),
    )
    (owner,), reasons = owners(machine, 50)
    assert owner == {
        "kind": "container",
        "name": "embeddings",
        "id": ID,
        "unit": "vllm-embeddings.service",
        "restarted_by": "systemd (vllm-embeddings.service, Restart=always); docker (restart policy always)",
        "runtime": "docker",
        "project": None,
        "pod": None,
        "user": None,
    }
    assert reasons == {}


def test_a_container_of_a_compose_project() -> None:
    machine = world((50, "x", f"0::/docker/{ID}", ("x",)), policy="no", labels={"com.docker.compose.project": "llm"})
    (owner,), _reasons = owners(machine, 50)
    assert (owner["project"], owner["restarted_by"], owner["unit"]) == ("llm", None, None)


def test_a_docker_socket_that_may_not_be_asked_leaves_the_id() -> None:
    machine = world((50, "x", f"0::/docker/{ID}", ("x",)), response=Response(error="permission denied"), uid=1000)
    (owner,), reasons = owners(machine, 50)
    assert (owner["kind"], owner["name"], owner["id"], owner["restarted_by"]) == ("container", ID[:12], ID, None)
    assert reasons == {50: "/run/docker.sock: permission denied"}


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"Id": 5, "Name": "/x"}', '{"Id": "a", "Name": "/x", "HostConfig": [], "Config": "y"}', "\x00"])
def test_an_answer_of_docker_that_makes_no_sense_is_no_answer(body: str) -> None:
    machine = world((50, "x", f"0::/docker/{ID}", ("x",)), response=Response(200, body))
    (owner,), _reasons = owners(machine, 50)
    assert owner["kind"] == "container"
    assert owner["restarted_by"] is None


def test_units_are_asked_in_one_call() -> None:
    machine = world(
        (50, "a", "0::/system.slice/a.service", ("a",)),
        (51, "b", "0::/system.slice/b.service", ("b",)),
        commands=show(("a.service", "11", "no"), ("b.service", "22", "on-failure")),
    )
    (first, second), reasons = owners(machine, 50, 51)
    assert (first["kind"], first["id"], first["restarted_by"]) == ("unit", "11", None)
    assert (second["kind"], second["id"], second["restarted_by"]) == ("unit", "22", "systemd (Restart=on-failure)")
    assert reasons == {}


def test_without_systemctl_the_invocation_still_comes_from_the_link() -> None:
    machine = world((50, "a", "0::/system.slice/a.service", ("a",)))
    machine.links = {"/run/systemd/units/invocation:a.service": "abcd"}
    (owner,), reasons = owners(machine, 50)
    assert (owner["id"], owner["restarted_by"]) == ("abcd", None)
    assert reasons == {50: "there is no systemctl on this machine"}


def test_a_systemctl_that_hangs_is_said() -> None:
    argv = ("systemctl", "show", "--property=Id,InvocationID,Restart", "--", "a.service")
    machine = world((50, "a", "0::/system.slice/a.service", ("a",)), commands={argv: RunResult(-9, timed_out=True)})
    _owners, reasons = owners(machine, 50)
    assert reasons == {50: "systemctl did not answer in time"}


USER_UNIT = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/comfy.service"


def test_a_unit_of_a_user_is_asked_of_that_users_manager() -> None:
    machine = world((50, "python3", USER_UNIT, ("python3",)), commands=show(("comfy.service", "33", "always"), user="alice"))
    (owner,), _reasons = owners(machine, 50)
    assert (owner["kind"], owner["name"], owner["user"], owner["restarted_by"]) == ("user_unit", "comfy.service", "alice", "systemd (Restart=always)")


def test_another_user_may_not_ask_it() -> None:
    machine = world((50, "python3", USER_UNIT, ("python3",)), uid=1001)
    (owner,), reasons = owners(machine, 50)
    assert owner["kind"] == "user_unit"
    assert "root only" in reasons[50]


@pytest.mark.parametrize(
    ("comm", "cgroup", "kind"),
    [
        ("Xorg", "0::/system.slice/x.service", "desktop"),
        ("gnome-shell", "0::/user.slice/user-1000.slice/user@1000.service/session.slice/org.gnome.Shell@x11.service", "desktop"),
        ("gdm-x-session", "0::/user.slice/user-120.slice/session-c1.scope", "desktop"),
        ("firefox", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-77.scope", "desktop"),
        ("helper", "0::/system.slice/gdm.service", "desktop"),
        ("llama-server", "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1.scope", "process"),
        ("llama-server", "0::/user.slice/user-1000.slice/session-3.scope", "process"),
        ("llama-server", "0::/", "process"),
    ],
)
def test_desktops_and_plain_processes(comm: str, cgroup: str, kind: str) -> None:
    machine = world((50, comm, cgroup, (comm,)))
    (owner,), _reasons = owners(machine, 50)
    assert owner["kind"] == kind
    if kind == "process":
        assert owner["id"] == "boot:50:500"


def test_a_supervisor_is_named() -> None:
    machine = world((50, "python3", "0::/", ("python3",)), (30, "supervisord", "0::/", ("supervisord",)))
    files = dict(machine.files)
    files["/proc/50/stat"] = files["/proc/50/stat"].replace(" S 1 ", " S 30 ")
    machine.files = files
    assert owner_of(machine, 50)["restarted_by"] == "supervisord (pid 30)"


def test_a_pod_is_started_again_by_kubernetes_and_named_by_its_log() -> None:
    machine = world(
        (50, "x", f"0::/kubepods/pod{POD}/{ID}", ("x",)),
        **{f"/var/log/containers/triton-0_serving_triton-{ID}.log": ""},  # type: ignore[arg-type]
    )
    (owner,), _reasons = owners(machine, 50)
    assert (owner["name"], owner["pod"], owner["restarted_by"]) == ("triton-0_serving_triton", POD, f"kubernetes (pod {POD})")


def test_podman_is_asked_by_its_command() -> None:
    inspected = [{"Id": ID, "Name": "llm", "HostConfig": {"RestartPolicy": {"Name": "on-failure"}}, "Config": {"Labels": {"a": "b"}}}]
    commands = {("podman", "container", "inspect", ID): RunResult(0, json.dumps(inspected)), **show(("llm.service", "44", "always"))}
    machine = world(
        (50, "x", f"0::/machine.slice/libpod-{ID}.scope", ("x",)),
        (40, "conmon", "0::/system.slice/llm.service", ("conmon", "-c", ID)),
        commands=commands,
    )
    (owner,), _reasons = owners(machine, 50)
    assert (owner["name"], owner["unit"]) == ("llm", "llm.service")
    assert owner["restarted_by"] == "systemd (llm.service, Restart=always); podman (restart policy on-failure)"


def test_a_label_of_an_image_names_no_unit() -> None:
    """An image can carry any label; a unit that it names would be stopped for it."""
    (owner,), _reasons = owners(world((50, "x", f"0::/docker/{ID}", ("x",)), labels={"PODMAN_SYSTEMD_UNIT": "sshd.service"}), 50)
    assert owner["unit"] is None


def test_a_rootless_podman_of_another_user_is_named_by_its_list() -> None:
    files = {
        "/etc/passwd": "alice:x:1000:1000::/home/alice:/bin/bash\n",
        "/home/alice/.local/share/containers/storage/overlay-containers/containers.json": json.dumps([{"id": OTHER_ID}, {"id": ID, "names": ["comfy"]}]),
    }
    cgroup = f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"
    (owner,), reasons = owners(world((50, "x", cgroup, ("x",)), **files), 50)
    assert (owner["kind"], owner["name"], owner["user"]) == ("container", "comfy", "alice")
    assert "restart policy is unknown" in reasons[50]


@pytest.mark.parametrize(
    ("argv", "runs"),
    [
        (("docker", "run", "--rm", "--name", "embeddings", "image"), True),
        (("/usr/bin/docker", "run", "--name=embeddings", "image"), True),
        (("docker", "start", "-a", "embeddings"), True),
        (("docker", "container", "attach", ID[:12]), True),
        (("docker", "wait", ID), True),
        (("conmon", "--api-version", "1", "-c", ID, "-u", ID), True),
        (("docker-compose", "-p", "llm", "up"), True),
        (("docker", "compose", "--project-name=llm", "up"), True),
        (("docker", "logs", "-f", "embeddings"), False),
        (("docker", "run", "--name", "other", "embeddings"), False),
        (("docker", "start", "-a", "embeddings2"), False),
        (("docker", "compose", "-p", "other", "up"), False),
        (("python3", "docker", "run", "--name", "embeddings"), False),
        ((), False),
    ],
)
def test_clients_that_run_a_container(argv: tuple[str, ...], runs: bool) -> None:
    container = Container(id=ID, name="embeddings", labels={"com.docker.compose.project": "llm"})
    assert runs_container(argv, container) is runs


def test_a_compose_unit_is_found_by_its_directory() -> None:
    labels = {"com.docker.compose.project": "llm", "com.docker.compose.project.working_dir": "/srv/llm"}
    machine = world(
        (50, "x", f"0::/docker/{ID}", ("x",)),
        (40, "docker-compose", "0::/system.slice/llm.service", ("docker-compose", "up")),
        labels=labels,
        commands=show(("llm.service", "55", "always")),
    )
    machine.links = {"/proc/40/cwd": "/srv/llm"}
    (owner,), _reasons = owners(machine, 50)
    assert owner["unit"] == "llm.service"


def test_a_process_that_has_ended_owns_itself() -> None:
    owner = owner_of(FakeWorld(), 4711)
    assert (owner["kind"], owner["id"], owner["name"]) == ("process", None, None)


def test_blocks_of_systemctl() -> None:
    text = "Restart=always\nId=a.service\nExecStart={ path=/x ; argv[]=/x a=b }\n\nRestart=no\nId=b.service\n\nLoadState=not-found\n"
    shown = parse_systemctl_show(text)
    assert shown["a.service"]["Restart"] == "always"
    assert shown["b.service"]["Restart"] == "no"
    assert len(shown) == 2


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["0", "1", "x", "::", "/", "docker", f"docker-{ID}.scope", ID, "kubepods", f"pod{POD}", "user@7.service", "a.service", "\n", ":"]),
        max_size=14,
    )
)
def test_any_control_group_is_some_place(parts: list[str]) -> None:
    place = locate("".join(parts))
    assert place.container is None or place.runtime is not None


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_a_user_cannot_write_a_line_of_his_own_into_a_control_group(end: str) -> None:
    """The kernel refuses a line feed in the name of a control group, and nothing else; users name those below their own manager."""
    forged = f"0::/user.slice/user-1000.slice/user@1000.service/x{end}0::/system.slice/victim.service"
    place = locate(f"{forged}\n")
    assert (place.unit, place.uid) == ("victim.service", 1000), "a unit of that name of the user's own, not the system's"
    assert parse_cgroup(f"{forged}\n") == {"": forged[len("0::") :]}
