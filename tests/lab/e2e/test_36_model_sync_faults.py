# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""model_sync when something is wrong: for each layout and each fault the right files, or a clear error and the old model as it was.

`make test` runs one layout of each fault, `make soak` all of them.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import HOSTS, INVENTORY, ROOT, on_host
from models import BASE, LAYOUTS, REVISIONS, SOURCE, TARGET, Model, fresh, has_new, listing, python

DAEMON_PORT = 45873
#: No layout: the fault is another's sibling, and in `make test` that one stands for both.
SOAK_ONLY = ""


def layouts(short: str) -> pytest.MarkDecorator:
    """Every layout; all but one of them in `make soak` only."""
    return pytest.mark.parametrize("layout", [pytest.param(name, marks=[] if name == short else [pytest.mark.soak]) for name in LAYOUTS])


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    for host in HOSTS:
        on_host(host, "sh", "-c", f"umount {BASE} 2>/dev/null; rm -rf {BASE}", check=False)


def copied(model: Model) -> Model:
    """Both hosts have the new version, and neither knows its hashes yet."""
    fresh(model, old=False)
    model.build(TARGET, "new")
    assert has_new(model)
    return model


def refused(model: Model, expected: str, **variables: Any) -> None:
    """The role fails with these words, and the old model is as it was."""
    before = listing(TARGET)
    run = model.sync(**variables)
    said = [message for _host, _task, message in run.failures]
    assert run.rc != 0, "this should have been refused"
    assert any(re.search(expected, message) for message in said), said
    assert listing(TARGET) == before


def arrives(model: Model, **variables: Any) -> None:
    """The role brings the new version."""
    run = model.sync(**variables)
    assert run.rc == 0, run.failures
    assert has_new(model)


@layouts("plain")
def test_missing_shard(layout: str) -> None:
    model = fresh(Model(layout))
    on_host(SOURCE, "rm", f"{model.served()}/model-00002-of-00003.safetensors")
    refused(model, r"1 of 3 weight files are missing, model-00002-of-00003\.safetensors first")


@layouts("cache")
def test_flipped_byte_is_repaired(layout: str) -> None:
    model = copied(Model(layout))
    flip(TARGET, model.file(TARGET, model.first_shard))
    assert not has_new(model)
    run = model.sync()
    assert run.rc == 0, run.failures
    assert has_new(model)
    assert run.fact("model_sync_result", TARGET)["copied_bytes"] < 2 * model.size, "only the damaged file is sent"


@layouts(SOAK_ONLY)
def test_flipped_byte_on_the_source_is_not_published(layout: str) -> None:
    model = fresh(Model(layout))
    if model.is_cache:
        flip(SOURCE, model.file(SOURCE, model.first_shard))
        refused(model, r"received 1 files twice with other content than their hash says.*download them again")
        return
    # A plain directory has no hash that came with it: what was listed is what is sent. Damage after that is seen.
    arrives(model)


def flip(host: str, path: str) -> None:
    """Change one byte; size and time stay."""
    python(host, f"import os\np = {path!r}\ns = os.stat(p)\nf = open(p, 'r+b')\nf.seek(5000)\nb = f.read(1)\nf.seek(5000)\n"
                 "f.write(bytes([b[0] ^ 1]))\nf.close()\nos.utime(p, ns=(s.st_atime_ns, s.st_mtime_ns))\n")


@layouts("shared")
def test_dangling_link(layout: str) -> None:
    model = fresh(Model(layout))
    if model.is_cache:
        on_host(SOURCE, "rm", model.file(SOURCE, model.first_shard))
    else:
        on_host(SOURCE, "sh", "-c", f"cd {model.path} && rm {model.first_shard} && ln -s ../gone {model.first_shard}")
    refused(model, r"leads to .*that is not there")


@layouts(SOAK_ONLY)
def test_truncated_file_on_the_source(layout: str) -> None:
    model = fresh(Model(layout))
    on_host(SOURCE, "truncate", "--size=-1000", model.file(SOURCE, model.first_shard))
    refused(model, r"is not complete: .*" + re.escape(model.first_shard))


@layouts("plain")
def test_truncated_file_on_the_receiver_is_repaired(layout: str) -> None:
    model = copied(Model(layout))
    on_host(TARGET, "truncate", "--size=-1000", model.file(TARGET, model.first_shard))
    arrives(model)


@layouts("cache")
def test_incomplete_download(layout: str) -> None:
    model = fresh(Model(layout))
    blob = model.file(SOURCE, model.first_shard)
    on_host(SOURCE, "mv", blob, blob + ".incomplete")
    refused(model, r"download is not finished \(there is an \.incomplete file\)" if model.is_cache else r"1 of 3 weight files are missing")


@pytest.fixture
def small_disk() -> Iterator[Callable[[str], None]]:
    """Put a file system with these options under the receiver's models."""

    def mount(options: str) -> None:
        on_host(TARGET, "sh", "-c", f"mkdir -p {BASE} && mount -t tmpfs -o {options} tmpfs {BASE}")

    yield mount
    on_host(TARGET, "umount", BASE, check=False)


@layouts("plain")
def test_disk_too_small_is_found_before_anything_is_sent(layout: str, small_disk: Callable[[str], None]) -> None:
    model = fresh(Model(layout), old=False)
    small_disk("size=2m")
    refused(model, r"2\.0 MiB free, and .* of the model are missing.*make .* free there", model_sync_reserve="8MiB")


@layouts("cache")
def test_disk_full_half_way(layout: str, small_disk: Callable[[str], None]) -> None:
    model = fresh(Model(layout), old=False)
    # Room for the bytes and not for the files: what statvfs says is enough, and it fails on the way.
    small_disk("size=200m,nr_inodes=8")
    refused(model, r"the peer's disk is full", model_sync_tries=2)


@layouts("plain")
def test_read_only_target(layout: str, small_disk: Callable[[str], None]) -> None:
    model = fresh(Model(layout), old=False)
    small_disk("size=64m")
    model.build(TARGET, "old")
    on_host(TARGET, "mount", "-o", "remount,ro", BASE)
    refused(model, r"mounted read-only")


@layouts("shared")
def test_wrong_owner(layout: str) -> None:
    model = fresh(Model(layout))
    # Owned by a container's root, as after a download in one; the user of the copy is another one.
    on_host(TARGET, "sh", "-c", f"chown -R root:root {BASE} && chmod -R go-w {BASE}")
    refused(model, r"user 1000 may not write in .*run with become, or `chown", ansible_user="spark")


@layouts(SOAK_ONLY)
def test_owner_and_modes_of_the_source_arrive(layout: str) -> None:
    model = fresh(Model(layout), old=False)
    shard = model.file(SOURCE, model.first_shard)
    on_host(SOURCE, "sh", "-c", f"chown -R 1000:1000 {BASE} && chmod 0640 {shard}")
    arrives(model)
    assert on_host(TARGET, "stat", "--format=%u %g %a", model.file(TARGET, model.first_shard)).stdout.split() == ["1000", "1000", "640"]


@layouts("plain")
def test_names_with_spaces_and_quotes(layout: str) -> None:
    model = fresh(Model(layout, name="we ird'mo\"del $(x) é", extra="a b'c\"d $HOME `x` é.txt"))
    arrives(model, model_sync_transport="daemon" if layout in ("plain", "shared") else "ssh")


def half_way(model: Model, command: str, **variables: Any) -> tuple[int, list[str]]:
    """Run the role; when half a shard has arrived, the receiver runs this command.

    The receiver itself looks, since on a busy machine a copy can be over before anybody has asked it from outside.
    """
    size = f"du -s --block-size=1 {BASE}/*/.unimem-model-sync/*/ 2>/dev/null | sort -n | tail -1 | cut -f1"
    script = f"while true; do size=$({size}); if [ ${{size:-0}} -gt {model.size // 2} ]; then {command}; exit 0; fi; sleep 0.02; done"
    watcher = subprocess.Popen(["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), TARGET, script], stdin=subprocess.DEVNULL)
    try:
        run = model.sync(**variables)
        acted = watcher.poll() is not None
    finally:
        watcher.kill()
        watcher.wait()
        on_host(TARGET, "pkill", "--full", "unimem-model-sync/.*sort -n", check=False)
    assert acted, "the copy was over before anything could happen to it"
    return run.rc, [message for _host, _task, message in run.failures]


@layouts("cache")
def test_a_connection_that_breaks_half_way_goes_on(layout: str) -> None:
    model = fresh(Model(layout, size=120_000_000))
    status, said = half_way(model, "pkill -KILL -x rsync")
    assert status == 0, said
    assert has_new(model)


@layouts("plain")
def test_a_peer_that_is_gone_half_way(layout: str) -> None:
    model = fresh(Model(layout, size=120_000_000))
    before = listing(TARGET)
    rule = ["INPUT", "--protocol", "tcp", "--destination-port", str(DAEMON_PORT), "--jump", "DROP"]
    try:
        status, said = half_way(
            model,
            shlex.join(["iptables", "--insert", *rule]),
            model_sync_transport="daemon",
            model_sync_daemon_port=DAEMON_PORT,
            model_sync_timeout=4,
            model_sync_tries=2,
        )
    finally:
        on_host(TARGET, "iptables", "--delete", *rule, check=False)
    assert status != 0
    assert any(re.search(r"rsync to 192\.168\.200\.13 ended with status (10|12|30|35): ", message) for message in said), said
    assert listing(TARGET) == before
    staged = on_host(TARGET, "sh", "-c", f"du -s --block-size=1 {BASE}/*/.unimem-model-sync | cut -f1").stdout
    assert int(staged) > model.size // 2, "what has arrived is kept for the next run"
    arrives(model)


def killed_after(model: Model, seconds: float) -> None:
    """Run the role and end all of it on the controller, without a warning, after some seconds."""
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(INVENTORY), str(ROOT / "tests/lab/e2e/playbooks/model_sync.yml"),
        "-e", f"model_sync_source={SOURCE}", "-e", f"model_sync_path={model.path}", "-e", "model_sync_reserve=1MiB",
    ]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT, start_new_session=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def versioned(host: str) -> dict[str, str]:
    """What differs between the versions: all but the hub client's bookkeeping, which is not copied."""
    return {path: value for path, value in listing(host).items() if "/.cache/" not in path}


def is_old_or_new(model: Model, old: dict[str, str], new: dict[str, str]) -> None:
    """Every file is whole, of one version or the other; and where what is looked at first is new, all is new."""
    there = versioned(TARGET)
    for path, value in there.items():
        assert value in (old.get(path), new.get(path)), f"{path} is neither the old file nor the new one"
    assert set(old) <= set(there), "the old model lost a file"
    relative = model.path.removeprefix(BASE + "/")
    first = f"{relative}/refs/main" if model.is_cache else f"{relative}/config.json"
    if there.get(first) == new[first]:
        assert all(there.get(path) == value for path, value in new.items()), "half of the new model can be seen"


@pytest.mark.parametrize("moments", [1, pytest.param(20, marks=pytest.mark.soak)])
@layouts("cache")
def test_killed_at_random_moments(layout: str, moments: int) -> None:
    chance = random.Random(f"{layout} {moments}")
    model = fresh(Model(layout, size=80_000_000))
    old, new = versioned(TARGET), versioned(SOURCE)
    for number in range(moments):
        killed_after(model, chance.uniform(1.0, 12.0))
        if number % 2:
            # Half of the time the node's part dies as well, and not only who waits for it.
            for host in HOSTS:
                on_host(host, "pkill", "--signal", "KILL", "--full", "rsync|AnsiballZ_model", check=False)
        is_old_or_new(model, old, new)
        if has_new(model):
            fresh(model)
    arrives(model)
    assert REVISIONS["new"] in model.served() or not model.is_cache
