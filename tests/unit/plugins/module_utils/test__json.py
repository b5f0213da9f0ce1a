# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _containers, _docker, _journal, _recording
from ansible_collections.unimem.dgx_spark.plugins.module_utils._fabric import FabricError, read_interfaces
from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._recording import ReplayWorld, WorldError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._restore import _dependencies
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, Response, RunResult
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._engines import sglang

DEEP = "[" * 200_000
DEEP_OBJECT = '{"a":' * 200_000


@pytest.mark.parametrize("text", ["", "{", "nul", DEEP, DEEP_OBJECT, b"\xff\xfe\xfa", b'{"a": "\xff"}', "9" * 5000 + "x"], ids=lambda text: repr(text[:8]))
def test_whatever_is_wrong_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="."):
        parse_json(text)


def test_half_a_character_can_be_written_again() -> None:
    assert parse_json('{"a\\ud800": ["\\uDC00b", "\\ud83d\\ude00"]}') == {"a?": ["?b", "\U0001f600"]}
    assert parse_json('["\\\\ud800"]') == ["\\ud800"]
    assert parse_json(b'{"\xc3\xa9": 1}') == {"\u00e9": 1}


def test_nobody_s_json_can_end_a_run() -> None:
    """Each place that reads JSON from outside, given what nests without end."""
    world = FakeWorld(responses={("/run/docker.sock", f"/containers/{'a' * 64}/json"): Response(200, DEEP)})
    reader = _containers.ContainerReader(world)
    assert reader.find("docker", "a" * 64, None) is None
    assert "/run/docker.sock: what it answers describes no container" in reader.reasons["a" * 64]
    assert _docker._answer(200, DEEP.encode()) == DEEP
    with pytest.raises(_docker.EngineError, match=r"\[\[\["):
        _docker._answer(500, DEEP.encode())
    with pytest.raises(_journal.JournalError, match="damaged"):
        _journal._parse("/x", DEEP.encode())
    assert _dependencies(DEEP_OBJECT) == []
    assert sglang.pool(DEEP)["tokens"] is None
    with pytest.raises(FabricError, match="no list of interfaces"):
        read_interfaces(FakeWorld(commands={("ip", "-j", "-d", "address", "show"): RunResult(0, DEEP)}))
    assert _recording._without_secrets(DEEP) is None and _recording._inspected_without_secrets(DEEP) == ""


def test_a_recording_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(DEEP)
    with pytest.raises(WorldError, match="is not JSON"):
        ReplayWorld(str(tmp_path))


def test_a_name_of_a_container_is_text() -> None:
    container = _docker.parse_inspect(parse_json(json.dumps({"Id": "a" * 64, "Name": "/x\ud800"})), "/run/docker.sock")
    assert container is not None and container.name == "x?"
