# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._containers import ContainerReader, parse_inspect
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, Response

ID = "0123456789abcdef" * 4


def body(name: str) -> str:
    return json.dumps({"Id": ID, "Name": f"/{name}", "HostConfig": {"RestartPolicy": {"Name": "no"}}, "Config": {"Labels": None}})


def test_the_second_daemon_has_it() -> None:
    responses = {
        ("/run/docker.sock", f"/containers/{ID}/json"): Response(404, "{}"),
        ("/run/snap.docker/docker.sock", f"/containers/{ID}/json"): Response(200, body("snapped")),
    }
    container = ContainerReader(FakeWorld(responses=responses)).find("docker", ID, None)
    assert container is not None
    assert (container.name, container.source) == ("snapped", "/run/snap.docker/docker.sock")


def test_a_rootless_daemon_is_asked_at_its_users_socket() -> None:
    responses = {("/run/user/1000/docker.sock", f"/containers/{ID}/json"): Response(200, body("mine"))}
    reader = ContainerReader(FakeWorld(responses=responses))
    container = reader.find("docker", ID, 1000)
    assert container is not None
    assert container.name == "mine"
    assert ContainerReader(FakeWorld(responses=responses)).find("docker", ID, None) is None


def test_a_daemon_that_hangs_is_asked_once() -> None:
    asked: list[str] = []

    class Slow(FakeWorld):
        def request(self, socket_path: str, url_path: str, timeout: float) -> Response:
            asked.append(socket_path)
            return Response(error="no answer within 2.0 s")

    reader = ContainerReader(Slow())
    assert reader.find("docker", ID, None) is None
    first = len(asked)
    assert reader.find("docker", ID[::-1], None) is None
    assert len(asked) == first
    assert "no answer" in reader.reasons[ID[::-1]]


def test_nerdctl_names() -> None:
    world = FakeWorld({"/var/lib/nerdctl/1935db59/names/default/llm": ID, "/var/lib/nerdctl/1935db59/names/default/other": "x"})
    container = ContainerReader(world).find("containerd", ID, None)
    assert container is not None
    assert container.name == "llm"


@pytest.mark.parametrize("document", [None, 7, [], {}, {"Id": ID}, {"Id": None, "Name": "/x"}])
def test_what_makes_no_sense_is_no_container(document: object) -> None:
    assert parse_inspect(document, "here") is None


def test_unknown_runtimes_have_no_names() -> None:
    assert ContainerReader(FakeWorld()).find("nspawn", "lab", None) is None
