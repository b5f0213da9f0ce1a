# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
import typing as t
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineApi, EngineError, find_engines, parse_inspect, system_engine
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld

ID = "677b51790c22be0044d0d17da968fc0c47d568307269f3b8e77fe7877e2a6522"


def told(**changes: t.Any) -> dict[str, t.Any]:
    """What Docker 20.10 says of a container, as far as it matters."""
    document: dict[str, t.Any] = {
        "Id": ID,
        "Name": "/vllm_embeddings",
        "State": {"Status": "running", "Running": True, "Paused": False, "Restarting": False, "Pid": 4711, "StartedAt": "2026-11-30T04:33:00Z"},
        "HostConfig": {
            "NetworkMode": "default",
            "PidMode": "",
            "IpcMode": "private",
            "AutoRemove": False,
            "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
        },
        "Config": {"Image": "image:1", "Labels": {"com.docker.compose.project": "rag"}, "StopSignal": "SIGINT", "StopTimeout": 20},
        "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8001"}], "53/udp": [{"HostPort": "53"}], "9000/tcp": None}},
    }
    for name, value in changes.items():
        document[name] = {**document.get(name, {}), **value} if isinstance(value, dict) else value
    return document


class Daemon:
    """A real HTTP server behind a real socket, which answers what it is told to and keeps what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.asked: list[tuple[str, str, t.Any]] = []
        self.answers: dict[tuple[str, str], tuple[int, t.Any]] = {("GET", "/_ping"): (200, "OK")}
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.split("?")[0]
                daemon.asked.append((self.command, self.path, json.loads(body) if body else None))
                status, content = daemon.answers.get((self.command, path), (404, {"message": "No such container"}))
                if status == 0:
                    daemon.gate.wait(10)
                    return
                if isinstance(content, list) and "follow=true" in self.path:
                    self.stream(content)
                    return
                data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, parts: list[str | None]) -> None:
                """A log that is followed, as Docker sends it: a part after the other, None being a time in which nothing comes."""
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for part in parts:
                    if part is None:
                        daemon.gate.wait(10)
                    else:
                        self.wfile.write(f"{len(part):x}\r\n{part}\r\n".encode())
                        self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = answer
            protocol_version = "HTTP/1.1"  # as the real ones

            def log_message(self, *arguments: object) -> None:
                pass

            def address_string(self) -> str:
                return "socket"

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self.gate = threading.Event()
        self.server = Server(self.path, Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def daemon(tmp_path: Path) -> t.Iterator[Daemon]:
    made = Daemon(tmp_path / "s")
    yield made
    made.close()


def test_described_container() -> None:
    made = parse_inspect(told(), "/run/docker.sock")
    assert made is not None
    assert (made.name, made.policy, made.project) == ("vllm_embeddings", "unless-stopped", "rag")
    assert (made.stop_signal, made.stop_seconds, made.running) == ("SIGINT", 20, True)
    assert made.ports == (8001,) and made.key == f"container:{ID}" and made.shares == () and made.health is None


def test_shared_namespaces_health_and_orchestrators() -> None:
    made = parse_inspect(told(HostConfig={"NetworkMode": f"container:{ID}"}, State={"Health": {"Status": "healthy"}}), "s")
    assert made is not None and made.shares == (ID,) and made.health == "healthy"
    for label, name in (("io.kubernetes.pod.name", "Kubernetes"), ("com.docker.swarm.service.id", "Docker Swarm"), ("com.hashicorp.nomad.alloc_id", "Nomad")):
        made = parse_inspect(told(Config={"Labels": {label: "x"}}), "s")
        assert made is not None and made.orchestrator == name


@pytest.mark.parametrize("document", [None, [], {}, {"Id": "short"}, {"Id": ID.upper()}, "text"])
def test_what_is_no_container(document: t.Any) -> None:
    assert parse_inspect(document, "s") is None


def test_answers_of_other_types_than_expected_count_as_absent() -> None:
    made = parse_inspect({"Id": ID, "State": [], "HostConfig": "x", "Config": None, "NetworkSettings": {"Ports": [1]}}, "s")
    assert made is not None and not made.running and made.policy == "no" and made.labels == {}


def test_running_containers_are_listed_and_described(daemon: Daemon) -> None:
    daemon.answers["GET", "/containers/json"] = (200, [{"Id": ID}, {"Id": "0" * 64}, {"Id": "../../images"}])
    daemon.answers["GET", f"/containers/{ID}/json"] = (200, told())
    engine = EngineApi(daemon.path)
    assert [each.name for each in engine.list_running()] == ["vllm_embeddings"]
    assert not any("images" in path for _method, path, _body in daemon.asked), "an id is checked before it becomes part of a path"


def test_policy_signal_and_start(daemon: Daemon) -> None:
    for verb in ("update", "kill", "start"):
        daemon.answers["POST", f"/containers/{ID}/{verb}"] = (200, {})
    engine = EngineApi(daemon.path)
    engine.set_policy(ID, "no", 0)
    engine.set_policy(ID, "on-failure", 3)
    engine.set_policy(ID, "always", 3)
    engine.signal(ID, "SIGTERM")
    daemon.answers["POST", f"/containers/{ID}/start"] = (304, "")
    engine.start(ID)
    bodies = [body for _method, path, body in daemon.asked if path.endswith("/update")]
    assert bodies == [
        {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
        {"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}},
        {"RestartPolicy": {"Name": "always", "MaximumRetryCount": 0}},
    ]
    assert ("POST", f"/containers/{ID}/kill?signal=SIGTERM", None) in daemon.asked
    assert not any("remove" in path or method == "DELETE" for method, path, _body in daemon.asked)


@pytest.mark.parametrize(("status", "code"), [(404, "missing"), (409, "conflict"), (403, "denied"), (500, "failed")])
def test_refusals_are_told_apart(daemon: Daemon, status: int, code: str) -> None:
    daemon.answers["POST", f"/containers/{ID}/start"] = (status, {"message": "because\nof this"})
    with pytest.raises(EngineError, match="because of this") as caught:
        EngineApi(daemon.path).start(ID)
    assert caught.value.code == code


def test_inspect_of_what_is_gone(daemon: Daemon) -> None:
    engine = EngineApi(daemon.path)
    assert engine.inspect(ID) is None and engine.inspect("not an id") is None and engine.find("a/../b") is None
    assert daemon.asked[-1][1] == "/containers/a%2F..%2Fb/json"


def test_daemon_that_hangs(daemon: Daemon) -> None:
    daemon.answers["POST", f"/containers/{ID}/start"] = (0, None)
    with pytest.raises(EngineError, match="has not answered") as caught:
        EngineApi(daemon.path, timeout=0.2).start(ID)
    assert caught.value.code == "hung"


def test_waiting_for_the_end(daemon: Daemon) -> None:
    engine = EngineApi(daemon.path, timeout=0.2)
    daemon.answers["POST", f"/containers/{ID}/wait"] = (200, {"StatusCode": 0})
    engine.wait(ID, 30)
    assert ("POST", f"/containers/{ID}/wait?condition=not-running", None) in daemon.asked
    daemon.answers["POST", f"/containers/{ID}/wait"] = (0, None)  # it does not end
    begin = time.monotonic()
    engine.wait(ID, 0.4)
    assert 0.3 < time.monotonic() - begin < 5, "not the timeout of other calls, and not for ever"
    daemon.answers["POST", f"/containers/{ID}/wait"] = (404, {"message": "No such container"})
    engine.wait(ID, 30)
    daemon.answers["POST", f"/containers/{ID}/wait"] = (500, {"message": "broken"})
    with pytest.raises(EngineError, match="broken"):
        engine.wait(ID, 30)
    asked = len(daemon.asked)
    engine.wait(ID, 0)
    assert len(daemon.asked) == asked


def test_daemon_that_is_not_there(tmp_path: Path) -> None:
    engine = EngineApi(str(tmp_path / "none"))
    assert engine.ping() is False
    with pytest.raises(EngineError) as caught:
        engine.list_running()
    assert caught.value.code == "unreachable"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else needs root")
def test_socket_that_may_not_be_used(daemon: Daemon) -> None:
    os.chmod(daemon.path, 0o600)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setuid(65534)
            EngineApi(daemon.path).ping()
        except EngineError as exc:
            status = 0 if exc.code == "denied" and "become root" in str(exc) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_engines_are_found_once_and_podman_is_not_woken() -> None:
    world = FakeWorld(
        files={name: "" for name in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/user/1000/docker.sock")},
        links={"/var/run": "/run"},
    )
    tried: list[str] = []

    class Fake(EngineApi):
        def ping(self) -> bool:
            tried.append(self.socket_path)
            if self.socket_path.startswith("/run/user"):
                raise EngineError("denied", "not permitted")
            return True

    import ansible_collections.unimem.dgx_spark.plugins.module_utils._docker as docker

    original, docker.EngineApi = docker.EngineApi, Fake  # type: ignore[misc]
    try:
        engines, problems = find_engines(world)
        assert [engine.socket_path for engine in engines] == ["/run/docker.sock"] and problems == ["not permitted"]
        assert tried == ["/run/docker.sock", "/run/user/1000/docker.sock"]
        engines, _problems = find_engines(world, {None})
        assert "/run/podman/podman.sock" in [engine.socket_path for engine in engines]
    finally:
        docker.EngineApi = original  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sockets", "answering", "found", "why"),
    [
        (["/run/docker.sock", "/run/user/1000/docker.sock"], ["/run/docker.sock", "/run/user/1000/docker.sock"], "/run/docker.sock", ""),
        (["/run/docker.sock", "/run/user/1000/docker.sock"], ["/run/user/1000/docker.sock"], None, "no container engine answers at /run/docker.sock"),
        (["/run/user/1000/docker.sock"], ["/run/user/1000/docker.sock"], "/run/user/1000/docker.sock", ""),
        (["/run/docker.sock"], [], None, "no container engine answers at /run/docker.sock"),
        ([], [], None, ""),
    ],
)
def test_another_engine_does_not_speak_for_the_systems(
    sockets: list[str], answering: list[str], found: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Docker is restarted a rootless one would say that no rank is there."""
    monkeypatch.setattr(EngineApi, "ping", lambda self: self.socket_path in answering)
    engine, problem = system_engine(FakeWorld(files={name: "" for name in sockets}, links={"/var/run": "/run"}))
    assert (engine.socket_path if engine else None, problem) == (found, why)


def test_labelled_containers_are_described_whole_and_one_that_went_meanwhile_is_left_out(daemon: Daemon) -> None:
    gone = "0" * 64
    daemon.answers[("GET", "/containers/json")] = (200, [{"Id": ID}, {"Id": gone}, {"Id": "../x"}, None])
    daemon.answers[("GET", f"/containers/{ID}/json")] = (200, told())
    found = EngineApi(daemon.path).describe_labelled("io.unimem.deployment=a b")
    assert [entry["Name"] for entry in found] == ["/vllm_embeddings"]
    assert "%22io.unimem.deployment%3Da%20b%22" in daemon.asked[0][1] and "all=true" in daemon.asked[0][1]


def test_a_log_is_streamed_and_its_refusal_is_an_error(daemon: Daemon) -> None:
    daemon.answers[("GET", f"/containers/{ID}/logs")] = (200, "x" * 100_000)
    api = EngineApi(daemon.path)
    assert b"".join(api.read_log(ID, 5.0)) == b"x" * 100_000
    assert "timestamps=true" in daemon.asked[0][1] and "since=0" in daemon.asked[0][1]
    assert list(api.read_log(ID, 5.0, 1767225600)) and "since=1767225600" in daemon.asked[1][1]
    daemon.answers[("GET", f"/containers/{ID}/logs")] = (501, {"message": "configured logging driver does not support reading"})
    with pytest.raises(EngineError, match="does not support reading"):
        list(api.read_log(ID, 5.0))


def test_a_log_that_never_comes_is_bounded(daemon: Daemon) -> None:
    daemon.answers[("GET", f"/containers/{ID}/logs")] = (0, "")
    with pytest.raises(EngineError) as caught:
        list(EngineApi(daemon.path, timeout=0.3).read_log(ID, 5.0))
    assert caught.value.code == "hung"


def test_a_log_that_is_followed_ends_with_its_container_or_with_the_time(daemon: Daemon) -> None:
    api = EngineApi(daemon.path)
    daemon.answers[("GET", f"/containers/{ID}/logs")] = (200, ["first", "second"])
    assert b"".join(api.read_log(ID, 5.0, follow=7)) == b"firstsecond"
    assert "since=0&follow=true&tail=7" in daemon.asked[0][1]
    daemon.answers[("GET", f"/containers/{ID}/logs")] = (200, ["first", None])
    begin = time.monotonic()
    assert b"".join(api.read_log(ID, 0.5, follow=0)) == b"first"
    assert 0.4 < time.monotonic() - begin < 5
    daemon.answers[("GET", f"/containers/{ID}/logs")] = (409, {"message": "can not get logs from container which is dead"})
    with pytest.raises(EngineError, match="which is dead"):
        list(api.read_log(ID, 0.5, follow=0))
