# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers: what runs in every engine of the node, and how one is stopped and put back.

PRIVATE to the collection: this file can change at any time, do not import it from elsewhere.

The engines are asked over their API sockets, with the standard library. The Docker command line would do less well: its
output has to be parsed, it may be missing (Podman, snap, rootless), it picks one daemon by context and environment, while
a node can run several at once, and it gives a hanging daemon no deadline. Podman serves the same API.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
import typing as t
import urllib.parse

from ansible_collections.unimem.dgx_spark.plugins.module_utils._containers import DOCKER_SOCKETS
from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

_FULL_ID = re.compile(r"[0-9a-f]{64}")
_MAX_ANSWER = 32 * 1024 * 1024


class EngineError(Exception):
    """An engine refused, or did not answer. ``code``: unreachable, denied, missing, conflict, hung or failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Container(t.NamedTuple):
    """One container as its engine describes it."""

    id: str
    name: str
    engine: str  # the engine's socket: two engines may each have a container of one name
    image: str
    running: bool
    status: str
    pid: int
    started_at: str
    policy: str
    policy_retries: int
    auto_remove: bool
    stop_signal: str
    stop_seconds: int | None
    health: str | None
    labels: dict[str, str]
    shares: tuple[str, ...]  # full ids of the containers whose namespaces or volumes it uses
    ports: tuple[int, ...]  # TCP ports it publishes on this node

    @property
    def key(self) -> str:
        """Its key in the journal and in plans: the full id, which is never used again."""
        return f"container:{self.id}"

    @property
    def project(self) -> str | None:
        """The compose project, if it belongs to one."""
        return self.labels.get("com.docker.compose.project")

    @property
    def orchestrator(self) -> str | None:
        """Who else rules over this container and would bring it back: Kubernetes, Swarm, Nomad."""
        for label, name in (
            ("io.kubernetes.pod.name", "Kubernetes"),
            ("io.kubernetes.pod.uid", "Kubernetes"),
            ("com.docker.swarm.service.id", "Docker Swarm"),
            ("com.docker.swarm.task.id", "Docker Swarm"),
            ("com.hashicorp.nomad.alloc_id", "Nomad"),
        ):
            if label in self.labels:
                return name
        return None

    @property
    def quadlet(self) -> str | None:
        """The unit that Podman says runs this container."""
        return self.labels.get("PODMAN_SYSTEMD_UNIT")


class Engine(t.Protocol):
    """What is asked of a container engine."""

    socket_path: str

    def list_running(self) -> list[Container]: ...

    def inspect(self, container_id: str) -> Container | None: ...

    def set_policy(self, container_id: str, policy: str, retries: int) -> None: ...

    def signal(self, container_id: str, name: str) -> None: ...

    def start(self, container_id: str) -> None: ...

    def wait(self, container_id: str, seconds: float) -> None: ...

    def find(self, name: str) -> Container | None: ...


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EngineApi:
    """One engine behind a UNIX socket. Each call has a deadline: a daemon that hangs must not hang us."""

    def __init__(self, socket_path: str, timeout: float = 15.0) -> None:
        self.socket_path = socket_path
        self._timeout = timeout

    def ping(self) -> bool:
        """Whether an engine answers there. Raises EngineError ``denied`` when we may not ask."""
        try:
            self._call("GET", "/_ping")
        except EngineError as exc:
            if exc.code == "denied":
                raise
            return False
        return True

    def list_running(self) -> list[Container]:
        """All containers that run, or are being restarted or paused. Raises EngineError."""
        filters = urllib.parse.quote(json.dumps({"status": ["running", "restarting", "paused"]}))
        listed = self._call("GET", f"/containers/json?filters={filters}")
        found = []
        for row in listed if isinstance(listed, list) else []:
            one = self.inspect(str(row.get("Id", "")))
            if one is not None:
                found.append(one)
        return found

    def inspect(self, container_id: str) -> Container | None:
        """One container by its full id; None when there is none. Raises EngineError."""
        if not _FULL_ID.fullmatch(container_id):
            return None
        return self._inspect(container_id)

    def find(self, name: str) -> Container | None:
        """One container by its name; None when there is none. Raises EngineError."""
        return self._inspect(urllib.parse.quote(name, safe=""))

    def _inspect(self, which: str) -> Container | None:
        try:
            return parse_inspect(self._call("GET", f"/containers/{which}/json"), self.socket_path)
        except EngineError as exc:
            if exc.code == "missing":
                return None
            raise

    def set_policy(self, container_id: str, policy: str, retries: int) -> None:
        """Set the restart policy, and nothing else. Raises EngineError."""
        wanted = {"Name": policy or "no", "MaximumRetryCount": retries if policy == "on-failure" else 0}
        self._call("POST", f"/containers/{container_id}/update", {"RestartPolicy": wanted})

    def signal(self, container_id: str, name: str) -> None:
        """Send a signal to the container's first process, the way the engine does. Raises EngineError."""
        self._call("POST", f"/containers/{container_id}/kill?signal={urllib.parse.quote(name, safe='')}")

    def list_labelled(self, labels: t.Sequence[str]) -> list[dict[str, t.Any]]:
        """The engine's own rows of all containers, stopped ones too, that have these labels (``name`` or ``name=value``). Raises EngineError."""
        filters = urllib.parse.quote(json.dumps({"label": list(labels)}))
        listed = self._call("GET", f"/containers/json?all=1&filters={filters}")
        return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []

    def stop(self, container_id: str, seconds: int) -> None:
        """Ask a container to end, kill it after so many seconds, and wait for that. Raises EngineError."""
        self._call("POST", f"/containers/{container_id}/stop?t={seconds}", patience=seconds)

    def remove(self, container_id: str) -> None:
        """Remove a stopped container with its anonymous volumes; one that is gone is fine. Raises EngineError."""
        try:
            self._call("DELETE", f"/containers/{container_id}?v=1")
        except EngineError as exc:
            if exc.code != "missing":
                raise

    def start(self, container_id: str) -> None:
        """Start a stopped container; one that runs already is fine. Raises EngineError."""
        self._call("POST", f"/containers/{container_id}/start")

    def describe_labelled(self, label: str) -> list[dict[str, t.Any]]:
        """All that the engine says of each container with a label (``name=value``), stopped ones too. Raises EngineError."""
        filters = urllib.parse.quote(json.dumps({"label": [label]}))
        listed = self._call("GET", f"/containers/json?all=true&filters={filters}")
        described = [self.describe(str(_mapping(row).get("Id", ""))) for row in (listed if isinstance(listed, list) else [])]
        return [told for told in described if told is not None]

    def describe(self, container_id: str) -> dict[str, t.Any] | None:
        """All that the engine says of a container, by its full id; None when there is none. Raises EngineError."""
        if not _FULL_ID.fullmatch(container_id):
            return None
        try:
            return _mapping(self._call("GET", f"/containers/{container_id}/json"))
        except EngineError as exc:
            if exc.code == "missing":
                return None
            raise

    def read_log(self, container_id: str, seconds: float, since: int = 0, follow: int | None = None) -> t.Iterator[bytes]:
        """A container's log, each line with its time stamp, as the engine streams it: what comes within the time. Raises EngineError.

        ``since``: seconds since 1970; 0: from its beginning, before any other start of the same container. ``follow``: only so many of the lines
        that are there, and what is written from now on, until the container ends or the time is over.
        """
        end = time.monotonic() + seconds
        connection = _UnixConnection(self.socket_path, min(self._timeout, seconds))
        which = urllib.parse.urlencode({"stdout": "true", "stderr": "true", "timestamps": "true", "since": since})
        which += f"&follow=true&tail={follow}" if follow is not None else ""
        try:
            connection.request("GET", f"/containers/{urllib.parse.quote(container_id, safe='')}/logs?{which}")
            answer = connection.getresponse()
            if answer.status >= 400:
                _answer(answer.status, answer.read(65536))
            while time.monotonic() < end:
                if follow is not None and connection.sock is not None:
                    connection.sock.settimeout(max(0.01, end - time.monotonic()))
                chunk = answer.read1(65536)
                if not chunk:
                    return
                yield chunk
        except socket.timeout as exc:
            if follow is not None:
                return  # nothing was written meanwhile
            raise EngineError("hung", f"the container engine at {self.socket_path} stopped sending a log") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise EngineError("failed", f"the container engine at {self.socket_path} failed: {exc}") from exc
        finally:
            connection.close()

    def wait(self, container_id: str, seconds: float) -> None:
        """Wait until a container no longer runs, or is gone, at most that long. Which of it, ``inspect`` tells. Raises EngineError."""
        if seconds <= 0:
            return
        try:
            self._call("POST", f"/containers/{container_id}/wait?condition=not-running", timeout=seconds)
        except EngineError as exc:
            if exc.code not in ("hung", "missing"):
                raise

    def _call(self, method: str, path: str, body: t.Any = None, patience: float = 0.0, timeout: float | None = None) -> t.Any:
        timeout = (self._timeout if timeout is None else timeout) + patience
        connection = _UnixConnection(self.socket_path, timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            answer = connection.getresponse()
            data = answer.read(_MAX_ANSWER)
            status = answer.status
        except (FileNotFoundError, ConnectionRefusedError) as exc:
            raise EngineError("unreachable", f"no container engine answers at {self.socket_path}") from exc
        except PermissionError as exc:
            raise EngineError("denied", f"using {self.socket_path} is not permitted: become root, or a member of the engine's group") from exc
        except socket.timeout as exc:
            # Not a TimeoutError before Python 3.10.
            raise EngineError("hung", f"the container engine at {self.socket_path} has not answered within {timeout:.0f} s") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise EngineError("failed", f"the container engine at {self.socket_path} failed: {exc}") from exc
        finally:
            connection.close()
        return _answer(status, data)


def _answer(status: int, data: bytes) -> t.Any:
    if status == 304:
        return None  # as asked already
    text = data.decode("utf-8", "replace")
    if status >= 400:
        try:
            message = parse_json(text).get("message", text)
        except (ValueError, AttributeError):
            message = text
        code = {404: "missing", 409: "conflict", 403: "denied", 401: "denied"}.get(status, "failed")
        raise EngineError(code, " ".join(str(message).split())[:500] or f"HTTP status {status}")
    if not text.strip():
        return None
    try:
        return parse_json(text)
    except ValueError:
        return text


def parse_inspect(told: t.Any, socket_path: str) -> Container | None:
    """Turn an engine's description of a container into ours; None when it is not one. Labels are anybody's text."""
    if not isinstance(told, dict) or not _FULL_ID.fullmatch(str(told.get("Id", ""))):
        return None
    state, host, config = (_mapping(told.get(name)) for name in ("State", "HostConfig", "Config"))
    policy = _mapping(host.get("RestartPolicy"))
    health = _mapping(state.get("Health"))
    labels = {str(name): str(value) for name, value in _mapping(config.get("Labels")).items()}
    seconds = config.get("StopTimeout")
    return Container(
        id=told["Id"],
        name=str(told.get("Name", "")).lstrip("/"),
        engine=socket_path,
        image=str(config.get("Image", "")),
        running=bool(state.get("Running")) or bool(state.get("Restarting")),
        status=str(state.get("Status", "")),
        pid=_number(state.get("Pid")),
        started_at=str(state.get("StartedAt", "")),
        policy=str(policy.get("Name") or "no"),
        policy_retries=_number(policy.get("MaximumRetryCount")),
        auto_remove=bool(host.get("AutoRemove")),
        stop_signal=str(config.get("StopSignal") or "SIGTERM"),
        stop_seconds=seconds if isinstance(seconds, int) else None,
        health=str(health["Status"]) if health.get("Status") not in (None, "", "none") else None,
        labels=labels,
        shares=_shares(host),
        ports=_ports(_mapping(_mapping(told.get("NetworkSettings")).get("Ports"))),
    )


def _mapping(value: t.Any) -> dict[str, t.Any]:
    return value if isinstance(value, dict) else {}


def _number(value: t.Any) -> int:
    return value if isinstance(value, int) else 0


def _shares(host: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    found = set()
    for field in ("NetworkMode", "PidMode", "IpcMode"):
        mode = host.get(field)
        if isinstance(mode, str) and mode.startswith("container:"):
            found.add(mode[len("container:") :])
    return tuple(sorted(found))


def _ports(told: t.Mapping[str, t.Any]) -> tuple[int, ...]:
    found = set()
    for inner, bindings in told.items():
        if str(inner).endswith("/tcp") and isinstance(bindings, list):
            for binding in bindings:
                port = str(_mapping(binding).get("HostPort", ""))
                if port.isdigit() and 0 < int(port) < 65536:
                    found.add(int(port))
    return tuple(sorted(found))


def find_engines(world: World, podman_users: t.Collection[int | None] = (), timeout: float = 15.0) -> tuple[list[EngineApi], list[str]]:
    """All engines of the node that answer, and a sentence for each that is there and may not be used.

    Podman's socket starts a service when it is touched, so it is asked only where a container of Podman runs: for the users
    in ``podman_users`` (None: the system's). Two paths can be one socket (/var/run is a link to /run); it is taken once.
    """
    paths = [path for path in DOCKER_SOCKETS if not (path.startswith("/var/run/") and world.read_link("/var/run") is not None)]
    paths += [f"/run/user/{user}/docker.sock" for user in world.list_dir("/run/user")]
    paths += ["/run/podman/podman.sock" if uid is None else f"/run/user/{uid}/podman/podman.sock" for uid in podman_users]
    engines: list[EngineApi] = []
    problems: list[str] = []
    for path in paths:
        directory, name = path.rsplit("/", 1)
        if name not in world.list_dir(directory):
            continue
        engine = EngineApi(path, timeout)
        try:
            if engine.ping():
                engines.append(engine)
        except EngineError as exc:
            problems.append(str(exc))
    return engines, problems


def system_engine(world: World, timeout: float = 15.0) -> tuple[EngineApi | None, str]:
    """The engine that the roles start containers with, the system's own; another one only where that is not installed. Else why there is none.

    What another engine does not have would be taken for gone, while the system's is only being restarted.
    """
    engines, problems = find_engines(world, timeout=timeout)
    paths = [path for path in DOCKER_SOCKETS if not path.startswith("/run/snap")]
    own = [engine for engine in engines if engine.socket_path in paths]
    installed = [path for path in paths if path.rsplit("/", 1)[1] in world.list_dir(path.rsplit("/", 1)[0])]
    if own or (engines and not installed):
        return (own or engines)[0], ""
    return None, "; ".join(problems) or (f"no container engine answers at {installed[0]}" if installed else "")
