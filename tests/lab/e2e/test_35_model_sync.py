# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""model_sync as people use it: unchanged runs that cost nothing, memory that comes back, the daemon, the key for a stock pair."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness import HOSTS, Run, empty_page_cache, meminfo, on_host, run_module, run_playbook
from models import BASE, SOURCE, TARGET, Model, fresh, has_new, listing, python, resident

SOURCE_ADDRESS, TARGET_ADDRESS, THIRD_ADDRESS = "192.168.200.12", "192.168.200.13", "192.168.200.99"
FABRIC_INTERFACE = "enp1s0f0np0"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Whatever a test did, the hosts are as before."""
    yield
    for host in HOSTS:
        on_host(host, "rm", "-rf", BASE)
        assert left_open(host) == [], "a copy left something open"


def left_open(host: str) -> list[str]:
    """What a copy opens and has to close: daemons, their folders, keys, private halves."""
    found = on_host(host, "pgrep", "--list-full", "--exact", "rsync", check=False).stdout.splitlines()
    found += on_host(host, "sh", "-c", "ls -d /run/unimem-model-sync/* /run/unimem-copy-key-* 2>/dev/null", check=False).stdout.split()
    found += on_host(host, "grep", "--no-messages", "unimem-model-sync", "/root/.ssh/authorized_keys", check=False).stdout.splitlines()
    found += on_host(host, "sh", "-c", "ls -d ~/.ansible_async/unimem-* 2>/dev/null", check=False).stdout.split()
    units = ["unimem-model-sync-*", "unimem-copy-key-*"]
    found += on_host(host, "systemctl", "list-units", "--all", "--plain", "--no-legend", *units, check=False).stdout.splitlines()
    return found


def work(run: Run) -> float:
    """Seconds that our modules worked on the nodes, as they say themselves."""
    return sum(float(result.get("seconds", 0)) for _host, _task, result in run.results() if "hashed_bytes" in result)


def test_an_unchanged_model_of_50_shards_costs_less_than_a_second() -> None:
    model = fresh(Model("cache", shards=50, size=20_000), old=False)
    first = model.sync()
    assert first.rc == 0, first.failures
    assert has_new(model)
    second = model.sync()
    assert second.rc == 0 and not second.changed, second.changed
    assert all(second.recap("changed", host) == 0 for host in HOSTS)
    assert 0 < work(second) < 1.0
    assert all(result["hashed_bytes"] == 0 for _host, _task, result in second.results() if "hashed_bytes" in result)
    result = second.fact("model_sync_result", TARGET)
    assert result["changed"] is False and result["verified"] == "content" and result["model_path"] == model.served()


@pytest.mark.soak
def test_the_memory_comes_back_on_both_hosts_and_progress_is_shown() -> None:
    model = fresh(Model("cache", shards=4, size=100_000_000), old=False)
    for host in HOSTS:
        empty_page_cache(host)
    before = {host: meminfo(host)["MemFree"] for host in HOSTS}
    run = model.sync()
    assert run.rc == 0, run.failures
    # Asking costs memory too: first what the copy has left, then who has it.
    after = {host: meminfo(host)["MemFree"] for host in HOSTS}
    for host in HOSTS:
        assert resident(host) < 0.02, f"{host} keeps the model in its page cache"
        assert after[host] > 0.95 * before[host], f"{host}: {before[host]} bytes were free, {after[host]} are"
    assert has_new(model)
    lines = [line for line in run.output.splitlines() if line.startswith("copy: ")]
    assert lines and "(100 %)" in lines[-1] and TARGET in lines[-1]
    sent = run.results(task="Send what is missing")[-1][2]
    assert sent["sent_bytes"] > 400_000_000 and sent["seconds"] > 0 and sent["streams"] >= 1


@pytest.mark.soak
def test_check_mode_tells_what_would_be_copied_and_copies_nothing() -> None:
    model = fresh(Model("shared"))
    before = listing(TARGET)
    run = model.sync("--check", "--diff", model_sync_transport="daemon")
    assert run.rc == 0, run.failures
    assert run.fact("model_sync_result", TARGET)["changed"] is True
    assert listing(TARGET) == before and on_host(TARGET, "ls", "-A", f"{BASE}/hub").stdout.split() == ["blobs", "models--org--x"]
    key = model.sync("--check", model_sync_temporary_key=True)
    assert key.rc == 0, key.failures


def rsync_listeners() -> list[str]:
    """Addresses with ports at which an rsync listens on the receiver."""
    lines = on_host(TARGET, "ss", "-Hltnp").stdout.splitlines()
    return [line.split()[3] for line in lines if '"rsync"' in line]


DOOR = "0123456789abcdef"
PASSWORD = "k" * 32


def door(**arguments: Any) -> Run:
    """The module that opens and closes it, as the role calls it."""
    run = run_module("unimem.dgx_spark.model_door", json.dumps({"name": DOOR, **arguments}), pattern=TARGET)
    assert run.rc == 0, run.failures
    return run


def knock(outward: str, port: int, password: str, *words: str) -> tuple[int, str]:
    """Call the daemon from an address of the source; `words` are rsync's, with {} for the daemon's module."""
    url = f"rsync://copy-{DOOR}@{TARGET_ADDRESS}:{port}/model"
    call = ["rsync", f"--address={outward}", "--timeout=5", "--contimeout=5", "--password-file=-", *[word.format(url) for word in words]]
    done = on_host(SOURCE, "sh", "-c", f"echo {password} | {shlex.join(call)}", check=False)
    return done.returncode, done.stderr


def test_the_daemon_lets_one_address_in_with_its_secret_to_write_one_folder(request: pytest.FixtureRequest) -> None:
    folder = f"{BASE}/door"
    on_host(TARGET, "sh", "-c", f"mkdir -p {folder} && echo kept > {BASE}/outside && echo mine > {folder}/inside")
    on_host(SOURCE, "ip", "address", "add", f"{THIRD_ADDRESS}/24", "dev", FABRIC_INTERFACE)
    request.addfinalizer(lambda: on_host(SOURCE, "ip", "address", "del", f"{THIRD_ADDRESS}/24", "dev", FABRIC_INTERFACE))
    assert rsync_listeners() == []
    opened = door(address=TARGET_ADDRESS, allow=SOURCE_ADDRESS, folder=folder, password=PASSWORD)
    try:
        port = opened.results()[-1][2]["port"]
        assert rsync_listeners() == [f"{TARGET_ADDRESS}:{port}"]
        # Where the hosts have control groups v2, the kernel itself has dropped it.
        assert re.search("access denied|timeout waiting for daemon connection", knock(THIRD_ADDRESS, port, PASSWORD, "/etc/hostname", "{}/")[1])
        assert "auth failed" in knock(SOURCE_ADDRESS, port, "x" * 32, "/etc/hostname", "{}/")[1]
        assert knock(SOURCE_ADDRESS, port, PASSWORD, "/etc/hostname", "{}/") == (0, "")
        for refused in (["{}/inside", "/tmp/"], ["--delete", "--recursive", "/etc/ssh/", "{}/"]):
            assert knock(SOURCE_ADDRESS, port, PASSWORD, *refused)[0] != 0, refused
        # Above its folder there is nothing for it: this ends in the folder.
        knock(SOURCE_ADDRESS, port, PASSWORD, "/etc/hostname", "{}/../outside")
        assert on_host(TARGET, "cat", f"{BASE}/outside", f"{folder}/inside").stdout == "kept\nmine\n"
        modes = on_host(TARGET, "sh", "-c", "stat -c '%a %U' /run/unimem-model-sync/*/* /run/unimem-model-sync/*").stdout.splitlines()
        assert sorted(set(modes)) == ["600 root", "700 root"]
        assert PASSWORD not in json.dumps(opened.events)
    finally:
        door(state="closed")
    assert rsync_listeners() == []
    assert not door(state="closed").changed


class Watch(threading.Thread):
    """Looks at both hosts while a copy runs: who listens, what processes are called, what the secret is."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ports: set[str] = set()
        self.processes: set[str] = set()
        self.secrets: set[str] = set()
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            self.ports |= set(rsync_listeners())
            shown = on_host(TARGET, "sh", "-c", "cat /run/unimem-model-sync/*/secrets 2>/dev/null", check=False).stdout
            self.secrets |= {line.split(":", 1)[1] for line in shown.splitlines() if ":" in line}
            for host in HOSTS:
                self.processes |= set(on_host(host, "ps", "-eww", "-o", "args").stdout.splitlines())


@pytest.mark.soak
def test_the_secret_is_in_no_log_diff_or_process_list() -> None:
    model = fresh(Model("cache", shards=4, size=150_000_000))
    watch = Watch()
    watch.start()
    try:
        run = model.sync("--diff", "-vvv", model_sync_transport="daemon")
    finally:
        watch.ended = True
        watch.join(30)
    assert run.rc == 0, run.failures
    assert has_new(model)
    assert rsync_listeners() == []
    assert len(watch.ports) == 1 and sorted(watch.ports)[0].startswith(TARGET_ADDRESS + ":"), watch.ports
    (secret,) = watch.secrets
    assert len(secret) >= 32
    assert any("rsync --daemon" in process for process in watch.processes) and not any(secret in process for process in watch.processes)
    assert secret not in run.output and secret not in json.dumps(run.events)
    for host in HOSTS:
        assert secret not in on_host(host, "journalctl", "--no-pager", "--since=-10min").stdout
        assert on_host(host, "grep", "-rlsF", secret, "/root/.ansible_async", "/tmp", "/run/unimem-model-sync", "/var/tmp", check=False).stdout == ""


@pytest.mark.soak
def test_a_daemon_whose_controller_has_gone_ends_by_itself() -> None:
    on_host(TARGET, "mkdir", "-p", f"{BASE}/door")
    python(TARGET, _open_a_door(15))
    assert rsync_listeners() != []
    end = time.monotonic() + 120
    while left_open(TARGET) and time.monotonic() < end:
        time.sleep(0.5)
    assert left_open(TARGET) == []


def _open_a_door(seconds: int) -> str:
    """A program that starts the daemon exactly as the module does."""
    _door = importlib.import_module("ansible_collections.unimem.dgx_spark.plugins.module_utils._door")
    door = _door.Door(DOOR, TARGET_ADDRESS, SOURCE_ADDRESS, f"{BASE}/door", seconds)
    argv = _door.start_argv(door, 45873, "/usr/bin/rsync", "/usr/bin/rm")
    files = {"rsyncd.conf": _door.configuration(door), "secrets": f"{door.user}:{'k' * 32}\n"}
    return (
        f"import os, subprocess, time\nos.makedirs({door.directory!r}, mode=0o700)\n"
        f"for name, text in {files!r}.items():\n"
        f"    with open(os.open(os.path.join({door.directory!r}, name), os.O_WRONLY | os.O_CREAT, 0o600), 'w') as handle:\n        handle.write(text)\n"
        f"subprocess.run({argv!r}, check=True)\ntime.sleep(1)\n"
    )


@pytest.mark.soak
def test_a_stock_pair_copies_with_a_key_for_this_copy(stock_pair: None) -> None:
    model = fresh(Model("plain"), old=False)
    keys = on_host(TARGET, "cat", "/root/.ssh/authorized_keys").stdout
    without = model.sync()
    assert without.rc != 0
    assert any("ssh-copy-id" in message and TARGET_ADDRESS in message for _host, _task, message in without.failures), without.failures
    watched: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            watched.extend(line for line in on_host(TARGET, "cat", "/root/.ssh/authorized_keys").stdout.splitlines() if "unimem-model-sync" in line)
            time.sleep(0.1)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        run = model.sync(model_sync_temporary_key=True)
    finally:
        stop.set()
        watcher.join(30)
    assert run.rc == 0, run.failures
    assert has_new(model)
    assert on_host(TARGET, "cat", "/root/.ssh/authorized_keys").stdout == keys
    assert watched and all(f'from="{SOURCE_ADDRESS}"' in line and "restrict" in line and "expiry-time=" in line for line in watched)


@pytest.mark.soak
def test_a_key_that_an_interrupted_run_left_is_refused_after_its_time_and_removed_by_the_next(stock_pair: None) -> None:
    model = fresh(Model("plain"), old=False)
    on_host(SOURCE, "sh", "-c", "rm -f /tmp/left /tmp/left.pub; ssh-keygen -q -t ed25519 -N '' -C unimem-model-sync-temporary -f /tmp/left")
    public = on_host(SOURCE, "cat", "/tmp/left.pub").stdout.strip()
    line = f'from="{SOURCE_ADDRESS}",restrict,expiry-time="20200101000000" {public}'
    on_host(TARGET, "sh", "-c", f"echo '{line}' >> /root/.ssh/authorized_keys")
    try:
        knock = ["ssh", "-i", "/tmp/left", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", TARGET_ADDRESS, "true"]
        assert on_host(SOURCE, *knock, check=False).returncode == 255
        assert model.sync(model_sync_temporary_key=True).rc == 0
    finally:
        on_host(SOURCE, "rm", "-f", "/tmp/left", "/tmp/left.pub")
    assert "unimem-model-sync" not in on_host(TARGET, "cat", "/root/.ssh/authorized_keys").stdout


#: A key as it is before its controller dies: tasks/key.yml was run, and no_key.yml never will be.
KEY = {"purpose": "model-sync", "id": "0123456789abcdef", "sender": SOURCE, "address": SOURCE_ADDRESS, "login": "root"}
KEY_FOLDER = f"/run/unimem-copy-key-model-sync-{KEY['id']}"


def make_a_key(seconds: int) -> None:
    run = run_playbook("tests/lab/e2e/playbooks/copy_key.yml", extra={"copy_key": {**KEY, "seconds": seconds}, "copy_key_target": TARGET})
    assert run.rc == 0, run.failures
    modes = on_host(SOURCE, "stat", "-c", "%a %U %n", KEY_FOLDER, f"{KEY_FOLDER}/key", check=False).stdout.splitlines()
    assert modes == [f"700 root {KEY_FOLDER}", f"600 root {KEY_FOLDER}/key"]


def lets_in() -> bool:
    words = ["-i", f"{KEY_FOLDER}/key", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    return on_host(SOURCE, "ssh", *words, "-o", "UserKnownHostsFile=/dev/null", TARGET_ADDRESS, "true", check=False).returncode == 0


@pytest.mark.soak
def test_a_key_whose_controller_has_gone_ends_by_itself_and_the_next_run_replaces_it(stock_pair: None) -> None:
    make_a_key(600)
    assert lets_in()
    first = on_host(SOURCE, "cat", f"{KEY_FOLDER}/key.pub").stdout
    # The next run begins by removing what the first one has left.
    make_a_key(20)
    assert on_host(SOURCE, "cat", f"{KEY_FOLDER}/key.pub").stdout != first
    end = time.monotonic() + 120
    while on_host(SOURCE, "test", "-e", KEY_FOLDER, check=False).returncode == 0 and time.monotonic() < end:
        time.sleep(0.5)
    assert left_open(SOURCE) == [], "the private half is still there"
