# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Read-only look at containers: their names, what restarts them, the project they belong to. Nothing here starts or changes anything.

Docker is asked over its socket. Podman has no daemon, and its socket would start a service when touched: its command is asked,
and its list of containers on disk is read. Everything a daemon answers is untrusted: other types than expected count as absent.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping
from types import MappingProxyType

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import Deadline, World

#: Seconds one daemon or command may take.
ANSWER_TIMEOUT = 2.0

DOCKER_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/snap.docker/docker.sock")
PODMAN_STORAGE = "/var/lib/containers/storage"
COMPOSE_PROJECT = "com.docker.compose.project"
COMPOSE_DIRECTORY = "com.docker.compose.project.working_dir"

#: Names longer than this are cut.
_NAME_LENGTH = 255


class Container(t.NamedTuple):
    """A container as its runtime describes it."""

    id: str
    name: str
    restart_policy: str | None = None
    labels: Mapping[str, str] = MappingProxyType({})
    source: str = ""

    @property
    def project(self) -> str | None:
        """The compose project it belongs to."""
        return self.labels.get(COMPOSE_PROJECT) or self.labels.get("io.podman.compose.project")


def _section(document: t.Any, name: str) -> dict[str, t.Any]:
    section = document.get(name) if isinstance(document, dict) else None
    return section if isinstance(section, dict) else {}


def parse_inspect(document: t.Any, source: str) -> Container | None:
    """A container from what inspect says (Docker's API and Podman's command agree on these parts); None when it makes no sense."""
    if not isinstance(document, dict) or not isinstance(document.get("Id"), str) or not isinstance(document.get("Name"), str):
        return None
    policy = _section(_section(document, "HostConfig"), "RestartPolicy").get("Name")
    labels = _section(_section(document, "Config"), "Labels")
    return Container(
        id=_text(document["Id"]),
        name=_text(document["Name"].lstrip("/")),
        restart_policy=_text(policy) if isinstance(policy, str) else None,
        labels={_text(name): _text(value) for name, value in labels.items()},
        source=source,
    )


def _text(value: t.Any) -> str:
    return str(value)[:_NAME_LENGTH]


class ContainerReader:
    """Looks containers up, each once. ``reasons`` tells per container id why nothing, or not all, is known of it."""

    def __init__(self, world: World, deadline: Deadline | None = None) -> None:
        self._world = world
        self._deadline = deadline or Deadline(world, 3 * ANSWER_TIMEOUT)
        self._known: dict[str, Container | None] = {}
        self._dead_sockets: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def find(self, runtime: str, container_id: str, uid: int | None) -> Container | None:
        """The container with this full id, or None. ``uid``: of the user whose rootless runtime it is; None for the system's."""
        if container_id not in self._known:
            finder = {"docker": self._docker, "podman": self._podman, "containerd": self._containerd, "kubernetes": self._kubernetes, "crio": self._kubernetes}
            find = finder.get(runtime)
            self._known[container_id] = find(container_id, uid) if find else None
        return self._known[container_id]

    def _docker(self, container_id: str, uid: int | None) -> Container | None:
        sockets = DOCKER_SOCKETS if uid is None else (f"/run/user/{uid}/docker.sock",)
        problems: list[str] = []
        for path in sockets:
            if path in self._dead_sockets:
                problems.append(self._dead_sockets[path])
                continue
            response = self._world.request(path, f"/containers/{container_id}/json", self._deadline.left(ANSWER_TIMEOUT))
            if response.status is None:
                self._dead_sockets[path] = f"{path}: {response.error}"
                if response.error != "no such file":
                    problems.append(self._dead_sockets[path])
                continue
            if response.status == 200:
                container = parse_inspect(_json(response.body), path)
                if container:
                    return container
                problems.append(f"{path}: what it answers describes no container")
                continue
            problems.append(f"{path}: no such container" if response.status == 404 else f"{path}: HTTP status {response.status}")
        self.reasons[container_id] = "; ".join(dict.fromkeys(problems)) or f"no Docker socket at {' or '.join(sockets)}"
        return None

    def _podman(self, container_id: str, uid: int | None) -> Container | None:
        mine = self._world.effective_uid() == (uid or 0)
        if mine:
            run = self._world.run(["podman", "container", "inspect", container_id], self._deadline.left(ANSWER_TIMEOUT))
            documents = _json(run.stdout) if run.rc == 0 else None
            container = parse_inspect(documents[0], "podman") if isinstance(documents, list) and documents else None
            if container:
                return container
        # The list on disk has the name, but not the restart policy.
        storage = PODMAN_STORAGE if uid is None else f"{self._home(uid)}/.local/share/containers/storage"
        path = f"{storage}/overlay-containers/containers.json"
        self.reasons[container_id] = f"podman could not be asked as {'root' if uid is None else f'uid {uid}'}; its restart policy is unknown"
        entries = _json(self._world.read_text_of(uid or 0, path, self._deadline.left(ANSWER_TIMEOUT)) or "")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("id") == container_id and isinstance(entry.get("names"), list) and entry["names"]:
                return Container(id=container_id, name=_text(entry["names"][0]), source=path)
        return None

    def _home(self, uid: int) -> str:
        name = self._world.user_name(uid)
        for line in (self._world.read_text("/etc/passwd") or "").split("\n"):
            fields = line.split(":")
            if len(fields) >= 6 and (fields[2] == str(uid) or fields[0] == name):
                return fields[5]
        return f"/home/{name or uid}"

    def _containerd(self, container_id: str, uid: int | None) -> Container | None:
        # nerdctl keeps one file a name, and the file holds the id.
        for store in self._world.list_dir("/var/lib/nerdctl"):
            for namespace in self._world.list_dir(f"/var/lib/nerdctl/{store}/names"):
                for name in self._world.list_dir(f"/var/lib/nerdctl/{store}/names/{namespace}"):
                    path = f"/var/lib/nerdctl/{store}/names/{namespace}/{name}"
                    if (self._world.read_text(path) or "").strip() == container_id:
                        return Container(id=container_id, name=name, source=path)
        self.reasons[container_id] = "containerd keeps no name of it that can be read here"
        return None

    def _kubernetes(self, container_id: str, uid: int | None) -> Container | None:
        # The kubelet links each container's log as POD_NAMESPACE_CONTAINER-ID.log.
        suffix = f"-{container_id}.log"
        for name in self._world.list_dir("/var/log/containers"):
            if name.endswith(suffix):
                return Container(id=container_id, name=name[: -len(suffix)], source="/var/log/containers")
        self.reasons[container_id] = "the kubelet's log links do not name it"
        return None


def _json(text: str) -> t.Any:
    try:
        return parse_json(text)
    except ValueError:
        return None
