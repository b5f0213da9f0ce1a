# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""model_sync downloads, with the real `hf` and a Hub of our own on the loopback: one host, which is this machine.

`make units` names the program in UNIMEM_HF; without that these tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.tests.lab.e2e import hub as hub_server
from ansible_collections.unimem.dgx_spark.tests.lab.e2e.harness import ROOT, Run, run_playbook
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.model_trees import model_files

HF = os.environ.get("UNIMEM_HF", "")
pytestmark = pytest.mark.skipif(not HF, reason="UNIMEM_HF names no hf; `make units` does")

OLD, NEW = "a" * 40, "b" * 40
SHARD = 1_500_000
PLAYBOOK = "tests/lab/e2e/playbooks/model_sync.yml"


class Hub:
    """The Hub, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for commit, size in ((OLD, SHARD), (NEW, SHARD + 500)):
            place = folder / "repos" / "org" / "x" / commit
            place.mkdir(parents=True)
            for name, content in model_files(3, size, extra="merges.txt").items():
                (place / name).write_bytes(content)
        (folder / "repos" / "org" / "x" / "refs.json").write_text(json.dumps({"main": NEW}))
        self.server = hub_server.serve(0, folder)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def set(self, **knobs: Any) -> None:
        """What goes wrong from now on."""
        (self.folder / "knobs.new").write_text(json.dumps(knobs))
        os.replace(self.folder / "knobs.new", self.folder / "knobs.json")

    @property
    def requests(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in (self.folder / "requests.log").read_text().splitlines()]
        except OSError:
            return []

    def forget(self) -> None:
        (self.folder / "requests.log").unlink(missing_ok=True)

    @property
    def fetched(self) -> list[str]:
        """Names of the large files that were asked for."""
        return [request["path"].rpartition("/")[2] for request in self.requests if request["path"].startswith("/files/") and request["method"] == "GET"]

    def size(self, commit: str) -> int:
        return sum(path.stat().st_size for path in (self.folder / "repos" / "org" / "x" / commit).iterdir())

    def content(self, commit: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "repos" / "org" / "x" / commit).iterdir()}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "hub-server")
    yield made
    made.server.shutdown()
    made.server.server_close()


class Node:
    """This machine as the only host."""

    def __init__(self, base: Path, hub: Hub) -> None:
        self.base, self.hub = base, hub
        self.cache = base / "hub" / "models--org--x"
        self.inventory = base / "inventory.yml"
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        self.inventory.write_text(json.dumps({"sparks": {"hosts": {"spark-01": host}}}))
        # Whoever is logged in to the Hub here has no part in it.
        self.environment = {"HF_HOME": str(base / "hf-home"), "ANSIBLE_ASYNC_DIR": str(base / "jobs")}

    def variables(self, **more: Any) -> dict[str, Any]:
        given = {"model_sync_source": "spark-01", "model_sync_path": str(self.cache), "model_sync_revision": NEW, "model_sync_download_repository": "org/x",
                 "model_sync_download_program": HF, "model_sync_download_endpoint": self.hub.url, "model_sync_reserve": "1MiB"}  # fmt: skip
        return {**given, **more}

    def sync(self, *arguments: str, **more: Any) -> Run:
        return run_playbook(PLAYBOOK, *arguments, extra=self.variables(**more), inventory=self.inventory, environment=self.environment)

    def refused(self, *arguments: str, **more: Any) -> str:
        """What the role says when it fails."""
        run = self.sync(*arguments, **more)
        assert run.rc != 0 and run.failures, run.output
        return run.failures[-1][2]

    def holds(self, commit: str, path: Path | None = None) -> bool:
        served = path or self.cache / "snapshots" / commit
        return {file.name: file.read_bytes() for file in served.iterdir() if file.is_file()} == self.hub.content(commit)

    def there(self) -> list[str]:
        """All that lies where the model goes, and in the program's own folders."""
        return sorted(str(path) for folder in ("hub", "plain", "hf-home", "jobs") for path in (self.base / folder).rglob("*"))


@pytest.fixture
def node(tmp_path: Path, hub: Hub) -> Node:
    return Node(tmp_path, hub)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def test_it_comes_once_and_then_no_network_is_touched(node: Node, hub: Hub) -> None:
    check = node.sync("--check", "--diff")
    assert check.rc == 0, check.failures
    assert node.there() == [] and hub.fetched == []
    would = check.fact("model_sync_result", "spark-01")
    assert would["changed"] and abs(would["downloaded_bytes"] - hub.size(NEW)) < 100_000 and would["model_path"] == str(node.cache / "snapshots" / NEW)
    assert any("spark-01 would download 4.3 MiB of org/x" in str(result.get("msg")) for _host, _task, result in check.results())

    first = node.sync()
    assert first.rc == 0, first.failures
    result = first.fact("model_sync_result", "spark-01")
    assert result["downloaded_bytes"] == hub.size(NEW) == result["bytes"] and result["changed"] and result["revision"] == NEW
    assert result["model_path"] == would["model_path"] and node.holds(NEW)
    assert len(first.changed) == 1, first.changed
    assert [told["evicted_bytes"] for _host, _task, told in first.results(task="Drop its files")] == [hub.size(NEW)]
    assert "download: 4.3 MiB of 4.3 MiB (100 %)" in first.output and "on spark-01" in first.output

    hub.forget()
    second = node.sync(model_sync_download_program="/no/such/hf")
    assert second.rc == 0 and second.changed == [] and second.fact("model_sync_result", "spark-01")["downloaded_bytes"] == 0
    assert hub.requests == []


def test_a_plain_directory_and_another_commit_in_it(node: Node, hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / "plain" / "x"
    check = node.sync("--check", model_sync_path=str(path), model_sync_revision=OLD)
    assert check.rc == 0 and node.there() == [], check.failures
    run = node.sync(model_sync_path=str(path), model_sync_revision=OLD)
    assert run.rc == 0 and node.holds(OLD, path), run.failures
    hub.forget()
    again = node.sync(model_sync_path=str(path), model_sync_revision=OLD)
    assert again.rc == 0 and again.changed == [] and hub.requests == []
    other = node.sync(model_sync_path=str(path), model_sync_revision=NEW)
    assert other.rc == 0 and node.holds(NEW, path), other.failures
    # The tokenizer is the same in both.
    assert 3 * SHARD < other.fact("model_sync_result", "spark-01")["downloaded_bytes"] < hub.size(NEW)


def test_a_commit_beside_another_in_a_cache_and_patterns(node: Node, hub: Hub) -> None:
    assert node.sync(model_sync_revision=OLD).rc == 0
    run = node.sync(model_sync_download_exclude=["merges.txt"])
    assert run.rc == 0, run.failures
    assert (node.cache / "snapshots" / OLD / "merges.txt").exists() and not (node.cache / "snapshots" / NEW / "merges.txt").exists()
    hub.forget()
    assert node.sync(model_sync_download_exclude=["merges.txt"]).changed == [] and hub.requests == []
    said = node.refused(model_sync_download_exclude=["*00002*"], model_sync_path=str(node.base / "hub2" / "models--org--x"))
    assert "1 of 3 weight files are missing" in said and "model_sync_download_exclude" in said


def test_a_gated_repository_and_a_token_that_nobody_sees(node: Node, hub: Hub, tmp_path: Path) -> None:
    token = "hf_" + "abcdefghijklmnop" * 2
    hub.set(token=token, gated=True)
    for arguments in ((), ("--check",)):
        said = node.refused(*arguments)
        assert "org/x is gated" in said and "no token was given" in said and "model_sync_download_token" in said
    said = node.refused(model_sync_download_token="hf_" + "zyxwvutsrqponmlk" * 2)
    assert "does not know the token" in said and "zyxw" not in said
    # The program, with what it was called with written down.
    seen = tmp_path / "seen"
    program = tmp_path / "hf"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {seen}\nexec {HF} "$@"\n')
    program.chmod(0o755)
    run = node.sync("-vvv", "--diff", model_sync_download_token=token, model_sync_download_program=str(program))
    assert run.rc == 0 and node.holds(NEW), run.failures
    assert "download org/x" in seen.read_text() and token not in seen.read_text()
    assert token not in json.dumps([event["event_data"].get("res") for event in run.events if "event_data" in event])
    assert token not in "".join(line for line in run.output.splitlines() if "extra-vars" not in line)
    assert all(token not in path.read_text(errors="replace") for path in (tmp_path / "jobs").rglob("*") if path.is_file())
    # Where the large files lie is another host, which is told no token.
    assert {request["token"] for request in hub.requests if request["path"].startswith("/files/")} == {None}


def test_what_is_not_there_is_said(node: Node, hub: Hub) -> None:
    assert f"org/x has no commit {'c' * 40} on {hub.url}" in node.refused(model_sync_revision="c" * 40)
    said = node.refused(model_sync_download_repository="org/y", model_sync_path=str(node.base / "hub" / "models--org--y"))
    assert f"{hub.url} shows no repository org/y" in said
    said = node.refused(model_sync_download_program="hf-of-nobody")
    assert "no program hf-of-nobody" in said and "install the package huggingface_hub" in said
    assert node.there() == []


def test_no_room_is_found_before_anything_is_fetched(node: Node, hub: Hub) -> None:
    said = node.refused(model_sync_reserve="900TB")
    assert "4.3 MiB of org/x are missing" in said and "free there" in said
    assert hub.fetched == [] and node.there() == []


def downloads(node: Node) -> list[int]:
    """The node's processes that download: other tests, which run beside this one, have some of their own."""
    words = f"download org/x --revision {NEW} --cache-dir {node.cache.parent} "
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and words in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(entry.name))
    return found


def test_an_interrupted_download_goes_on_and_leaves_nothing(node: Node, hub: Hub) -> None:
    hub.set(hang=200_000, only="-00003-of")
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(node.refused()))
    thread.start()
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    wait_for(lambda: all((node.cache / "snapshots" / NEW / name).exists() for name in shards[:2]) and any(node.cache.rglob("*.incomplete")))
    for pid in downloads(node):
        os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert "ended by signal 9" in told[0] and "run again" in told[0]
    left = list(node.cache.rglob("*.incomplete"))
    assert left
    hub.set()
    hub.forget()
    run = node.sync()
    assert run.rc == 0 and node.holds(NEW), run.failures
    assert hub.fetched == [shards[2]], "what was finished is fetched again"
    assert not list(node.cache.rglob("*.incomplete"))


def test_a_controller_that_is_killed_leaves_a_download_that_ends_well(node: Node, hub: Hub) -> None:
    hub.set(hang=200_000, only="-00003-of")
    values = node.base / "values.json"
    values.write_text(json.dumps(node.variables()))
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(node.inventory), str(ROOT / PLAYBOOK), "-e", f"@{values}"]
    environment = {**os.environ, **node.environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    controller = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True)
    try:
        wait_for(lambda: any(node.cache.rglob("*.incomplete")))
    finally:
        os.killpg(controller.pid, signal.SIGKILL)
        controller.wait()
    time.sleep(1)
    assert downloads(node), "the node goes on by itself"
    told: list[Run] = []
    thread = threading.Thread(target=lambda: told.append(node.sync()))
    thread.start()
    time.sleep(6)
    assert thread.is_alive(), "the next run waits for it"
    hub.set()
    thread.join(90)
    assert told and told[0].rc == 0 and node.holds(NEW), told
    assert sorted(hub.fetched) == sorted({*hub.fetched}), "nothing is fetched twice"
    assert told[0].changed == [], "it was the first run that downloaded"


def test_plan_says_what_is_missing_and_downloads_nothing(node: Node, hub: Hub, tmp_path: Path) -> None:
    profile = tmp_path / "model.yml"
    settings = {name: value for name, value in node.variables().items() if name != "model_sync_reserve"}
    profile.write_text(json.dumps({"deploy_profile": {**settings, "tp_launch_tensor_parallel": 1}}))
    extra = {"deploy_profile_file": str(profile)}
    plan = run_playbook("playbooks/plan.yml", extra=extra, inventory=node.inventory, environment=node.environment)
    said = plan.failures[-1][2]
    assert plan.rc != 0 and f"spark-01 does not have org/x at {NEW} yet" in said and "deploy_qwen downloads it" in said
    assert hub.requests == [] and node.there() == []
    run = node.sync()
    assert run.rc == 0, run.failures
    hub.forget()
    plan = run_playbook("playbooks/plan.yml", extra=extra, inventory=node.inventory, environment=node.environment)
    assert plan.results(task="Find the model on the host that has it", kinds=("ok",)), plan.failures
    assert hub.requests == []
    shutil.rmtree(node.base / "hub")
