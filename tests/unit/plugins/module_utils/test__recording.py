# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.unimem.dgx_spark.plugins.module_utils._facts import gather
from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import new_device, new_reading
from ansible_collections.unimem.dgx_spark.plugins.module_utils._recording import RecordingWorld, ReplayWorld, WorldError, is_reading
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, ProbeResult, Response, RunResult

READING: dict[str, t.Any] = {
    **new_reading(),
    "entries": [{"gpu": 0, "pid": 7, "kind": "compute", "memory": 5, "name": "llama --api-key hunter2secret", "instance": None}],
}

MACHINE = FakeWorld(
    files={
        "/proc/meminfo": "MemTotal: 1 kB\n",
        "/proc/7/comm": "python3\n",
        "/proc/7/cmdline": "python3\0--api-key\0hunter2secret\0",
        "/proc/7/environ": "HF_TOKEN=hunter2secret",
    },
    links={"/proc/7/exe": "/usr/bin/python3"},
    commands={
        ("nvidia-smi",): RunResult(3, "out --password hunter2secret\nline\n", "err\n"),
        ("podman", "container", "inspect", "b"): RunResult(
            0, json.dumps([{"Id": "b", "Name": "y", "Config": {"Cmd": ["--api-key", "hunter2secret"], "Env": ["A=hunter2secret"]}}], indent=1)
        ),
    },
    probes={"pynvml": ProbeResult(READING)},
    responses={
        ("/run/docker.sock", "/containers/a/json"): Response(
            200,
            json.dumps(
                {
                    "Id": "a",
                    "Name": "/x",
                    "Config": {
                        "Env": ["HF_TOKEN=hunter2secret"],
                        "Cmd": ["--api-key", "hunter2secret"],
                        "Labels": {"com.docker.compose.project": "p", "secret": "hunter2secret"},
                    },
                    "HostConfig": {"RestartPolicy": {"Name": "always"}, "Binds": ["/hunter2secret"]},
                }
            ),
        )
    },
    users={1000: "alice"},
    uid=1000,
    kernel_messages={"NV_ERR_NO_MEMORY": 2},
)


def record() -> dict[str, t.Any]:
    world = RecordingWorld(MACHINE)
    world.read_text("/proc/meminfo")
    world.read_text("/proc/7/cmdline")
    world.read_text("/absent")
    world.list_dir("/proc")
    world.read_link("/proc/7/exe")
    world.process_table()
    world.user_name(1000)
    world.run(["nvidia-smi"], 5)
    world.run(["podman", "container", "inspect", "b"], 5)
    world.start_probe("pynvml", dict, 5).finish()
    world.request("/run/docker.sock", "/containers/a/json", 5)
    world.count_kernel_messages("NV_ERR_NO_MEMORY")
    return world.recording()


def test_a_recording_keeps_what_was_read_and_no_secret() -> None:
    recording = record()
    text = json.dumps(recording)
    assert "hunter2secret" not in text
    assert recording["files"]["/proc/meminfo"] == ["MemTotal: 1 kB", ""]
    assert "/proc/7/environ" not in recording["files"]
    assert recording["failures"] == {"/absent": "no such file"}
    assert recording["responses"][0]["body"]["HostConfig"] == {"RestartPolicy": {"Name": "always"}}


def test_a_recording_replays(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps(record()))
    world = ReplayWorld(str(tmp_path))
    assert world.read_text("/proc/meminfo") == "MemTotal: 1 kB\n"
    assert world.read_text("/proc/7/cmdline") == "python3\0--api-key\0********\0"
    assert world.read_text("/absent") is None
    assert world.reasons["/absent"] == "no such file"
    assert world.list_dir("/proc") == MACHINE.list_dir("/proc")
    assert world.read_link("/proc/7/exe") == "/usr/bin/python3"
    assert world.process_table() == {7: "python3"}
    assert (world.user_name(1000), world.effective_uid()) == ("alice", 1000)
    assert world.run(["nvidia-smi"], 5) == RunResult(3, "out --password ********\nline\n", "err\n")
    assert json.loads(world.run(["podman", "container", "inspect", "b"], 5).stdout) == [{"Id": "b", "Name": "y", "Config": {}}]
    assert world.run(["other"], 5).missing
    assert (world.count_kernel_messages("NV_ERR_NO_MEMORY"), world.count_kernel_messages("other")) == (2, None)
    assert world.start_probe("pynvml", dict, 5).finish() == ProbeResult({**READING, "entries": [{**READING["entries"][0], "name": "llama --api-key ********"}]})
    assert world.start_probe("other", dict, 5).finish().data is None
    assert json.loads(world.request("/run/docker.sock", "/containers/a/json", 5).body)["Name"] == "/x"
    assert world.request("/run/docker.sock", "/containers/b/json", 5).status is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (no such file)"),
        ("{", "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[]", "not a recorded node of format 1"),
        ('{"format": 99}', "not a recorded node of format 1"),
        ('{"format": 1, "files": [1]}', "is damaged"),
        ('{"format": 1, "commands": [{"argv": ["x"]}]}', "is damaged"),
        ('{"format": 1, "uid": "me"}', "is damaged"),
        ('{"format": 1, "probes": {"pynvml": {"data": {"devices": []}}}}', "is damaged (ValueError: what pynvml said is not whole)"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "node.json").write_text(text)
    with pytest.raises(WorldError) as caught:
        ReplayWorld(str(tmp_path))
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6), st.sampled_from(["\ud800", [], {}, [[1]], {"a": 1}])
)


def places(document: t.Any, path: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """Where in a JSON document something stands."""
    if path:
        yield path
    inner = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


NODE = {path.parent.name: json.loads(path.read_text()) for path in (Path(__file__).parents[2] / "nodes").glob("*/node.json")}
#: What is looked at first has its own chance: most places of a node are lines of texts.
PLACES = {name: [list(places(node)), [path for path in places(node) if path[0] not in ("files", "failures")]] for name, node in NODE.items()}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_stands_in_a_recording_it_is_refused_in_a_sentence_or_gives_facts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(NODE)))
    path = data.draw(st.sampled_from(PLACES[name][data.draw(st.integers(0, 1))]))
    node = copy.deepcopy(NODE[name])
    holder = node
    for key in path[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[path[-1]] = data.draw(JUNK)
    else:
        del holder[path[-1]]
    directory = tmp_path_factory.mktemp("node")
    (directory / "node.json").write_text(json.dumps(node))
    try:
        facts = gather(ReplayWorld(str(directory)), raw=data.draw(st.booleans()))
    except WorldError as error:
        assert str(directory) in str(error)
    else:
        json.dumps(facts, ensure_ascii=False).encode()
        assert facts["process_memory"] is None or facts["process_memory"] >= 0


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("devices", "index", -1),
        ("devices", "memory_free", -5),
        ("devices", "name", 5),
        ("devices", "problems", {"x": {"code": 3}}),
        ("entries", "pid", "7"),
        ("entries", "memory", -1),
        ("entries", "kind", None),
    ],
)
def test_what_a_driver_said_has_the_right_types(part: str, field: str, value: t.Any) -> None:
    good = {**READING, "devices": [dict(new_device(0))]}
    assert is_reading(good)
    assert not is_reading({**good, part: [{**good[part][0], field: value}]})
    assert not is_reading({**good, part: [{name: entry for name, entry in good[part][0].items() if name != field}]})
    assert not is_reading({**good, "failure": {"code": 3}}) and not is_reading(None) and not is_reading([])


def test_an_empty_name_is_not_the_directory_that_one_is_in() -> None:
    with pytest.raises(WorldError, match="replay is empty"):
        ReplayWorld("")
