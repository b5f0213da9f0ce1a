# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copying a model from one lab host to the other: model_sync against rsync as people call it, cp and a bare TCP stream.

One tree (a repository of the Hugging Face cache with 8 shards of 128 MiB), the same for all, copied to nothing each time with cold
page caches; the order changes from round to round. Seconds of model_sync are those that its modules spend on the hosts, one after
the other; what Ansible itself takes (it is the same for 1 GiB and for 118) stands beside it. Ratios are medians of each round's.

A second table runs the same flags against what goes wrong: a copy that is quick and wrong is no copy.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import timing
from tools.console import ToolError, call, say
from tools.environments import Environment
from tools.places import ROOT

SHARDS, SHARD = 8, 128 << 20
#: Seconds between emptying the page caches and copying. A virtual machine gives free pages back to its host meanwhile, and getting each of them
#: again makes any copy slower. A playbook takes its time (LEAD) before it copies, a bare command does not: all have to start from the same.
SETTLE, LEAD = 5, 5
ADDRESS = "192.168.200.13"
RAW_PORT = 45874

#: How peers call rsync, by what their source says.
PEERS = {
    "rsync -a (default ssh)": ["-a"],
    "sparkrun's flags": ["-a", "--size-only", "--mkpath", "--partial", "--links", "--copy-unsafe-links", "--no-perms"],
    "eugr's flags": ["-av", "--mkpath", "--progress"],
    "spark-pulse's flags": ["-a", "-W", "--partial"],
    "dgxarley's flags": ["-ah", "--info=progress2", "--inplace"],
}
BASELINE = "rsync -a (default ssh)"
#: How many times as fast as the baseline, with verification.
WANTED = {"model_sync, ssh": 1.3, "model_sync, daemon": 1.5}

_RECEIVE = """
import os, socket
server = socket.create_server((ADDRESS, PORT))
peer, _ = server.accept()
buffer = memoryview(bytearray(1 << 20))
with open(FILE, "wb", buffering=0) as handle:
    while count := peer.recv_into(buffer):
        handle.write(buffer[:count])
"""
_SEND = """
import os, socket, time
for _ in range(100):
    try:
        peer = socket.create_connection((ADDRESS, PORT))
        break
    except OSError:
        time.sleep(0.05)
start = time.monotonic()
for folder, _folders, names in os.walk(BASE):
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.islink(path):
            with open(path, "rb") as handle:
                peer.sendfile(handle)
peer.close()
print(time.monotonic() - start)
"""


def measure(environment: Environment, rounds: int) -> None:
    """Measure in the development environment, which has what runs playbooks."""
    path = f"{ROOT}:{ROOT / 'tests' / 'lab' / 'e2e'}:{environment.env()['PYTHONPATH']}"
    status = call([environment.python, "-m", "tools.benches.sync", str(rounds)], {**environment.env(), "PYTHONPATH": path}, ROOT)
    if status != 0:
        raise ToolError(f"the measurement ended with status {status}")


@dataclass
class Times:
    """What one way to copy took, round by round."""

    seconds: list[float] = field(default_factory=list)
    #: of these, verification
    verifying: list[float] = field(default_factory=list)
    #: with all that Ansible does
    whole: list[float] = field(default_factory=list)


def _run(rounds: int) -> None:
    import models
    from harness import on_host

    model = models.fresh(models.Model("cache", shards=SHARDS, size=SHARD), old=False)
    size = SHARDS * SHARD

    def bare(*arguments: str) -> Callable[[], Times]:
        def copy() -> Times:
            command = ["rsync", *arguments, f"{model.path}", f"{ADDRESS}:{models.BASE}/hub/"]
            return Times([_timed(lambda: on_host(models.SOURCE, *command, timeout=600))])

        return copy

    def daemon() -> Times:
        """The same rsync as model_sync's, to a daemon, without anything around it."""
        text = f"uid=root\\ngid=root\\nuse chroot=no\\n[model]\\npath={models.BASE}/hub\\nread only=no\\n"
        script = f"printf '{text}' > /run/bench.conf && exec rsync --daemon --address={ADDRESS} --port={RAW_PORT} --config=/run/bench.conf"
        on_host(models.TARGET, "sh", "-c", script)
        try:
            command = ["rsync", "-a", "--inplace", model.path, f"rsync://{ADDRESS}:{RAW_PORT}/model/"]
            return Times([_timed(lambda: on_host(models.SOURCE, *command, timeout=600))])
        finally:
            on_host(models.TARGET, "pkill", "--exact", "rsync", check=False)

    def cp() -> Times:
        return Times([_timed(lambda: on_host(models.SOURCE, "cp", "-a", f"{models.BASE}/hub", f"{models.BASE}/copy", timeout=600))])

    def raw() -> Times:
        receiver = threading.Thread(
            target=models.python, args=(models.TARGET, f"ADDRESS, PORT, FILE = {ADDRESS!r}, {RAW_PORT}, {models.BASE + '/hub/raw'!r}\n{_RECEIVE}", 600)
        )
        receiver.start()
        sent = models.python(models.SOURCE, f"ADDRESS, PORT, BASE = {ADDRESS!r}, {RAW_PORT}, {model.path!r}\n{_SEND}", 600)
        receiver.join()
        return Times([float(sent)])

    def ours(transport: str, verify: str) -> Callable[[], Times]:
        def copy() -> Times:
            start = time.monotonic()
            run = model.sync(model_sync_transport=transport, model_sync_verify=verify)
            whole = time.monotonic() - start
            if run.rc != 0:
                raise ToolError(f"model_sync failed: {run.failures}")
            steps = {task: float(result["seconds"]) for _host, task, result in run.results() if "seconds" in result}
            published = sum(seconds for task, seconds in steps.items() if "Verify and put into place" in task)
            return Times([sum(steps.values())], [published], [whole])

        return copy

    aes = "ssh -c aes128-gcm@openssh.com -o Compression=no"
    ways: dict[str, Callable[[], Times]] = {
        **{name: bare(*flags) for name, flags in PEERS.items()},
        "bare: rsync, fast cipher": bare("-a", "--inplace", "-e", aes),
        "bare: rsync daemon": daemon,
        "model_sync, ssh": ours("ssh", "content"),
        "model_sync, ssh, by size": ours("ssh", "size"),
        "model_sync, daemon": ours("daemon", "content"),
        "model_sync, daemon, by size": ours("daemon", "size"),
        "cp on one host": cp,
        "raw TCP, one stream": raw,
    }
    seen = {name: Times() for name in ways}
    for number in range(rounds + 1):
        turn = number % len(ways)
        names = list(ways)
        for name in names[turn:] + names[:turn]:
            _clean(on_host, models.BASE)
            time.sleep(SETTLE if name.startswith("model_sync") else SETTLE + LEAD)
            took = ways[name]()
            if number:
                seen[name].seconds += took.seconds
                seen[name].verifying += took.verifying
                seen[name].whole += took.whole
    _table(seen, size, rounds)
    on_host(models.SOURCE, "rm", "-rf", f"{models.BASE}/copy")
    _wrong(on_host)
    for host in (models.SOURCE, models.TARGET):
        on_host(host, "rm", "-rf", models.BASE)


def _timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def _clean(on_host: Callable[..., object], base: str) -> None:
    """Nothing at the receiver, nothing in the page caches, nothing to be written back."""
    on_host("spark-01", "sh", "-c", f"rm -rf {base}/copy; sync; echo 3 > /proc/sys/vm/drop_caches")
    on_host("spark-02", "sh", "-c", f"rm -rf {base}; mkdir -p {base}/hub; sync; echo 3 > /proc/sys/vm/drop_caches")


def _table(seen: dict[str, Times], size: int, rounds: int) -> None:
    base = seen[BASELINE].seconds
    say(f"\n{'way to copy 1 GiB':<30} {'median s':>9} {'MB/s':>6} {'x rsync -a':>11} {'verify s':>9} {'with Ansible':>13}    ({rounds} rounds)")
    for name, times in seen.items():
        middle = statistics.median(times.seconds)
        ratio = statistics.median(theirs / ours for theirs, ours in zip(base, times.seconds, strict=True))
        verify = f"{statistics.median(times.verifying):9.2f}" if times.verifying else " " * 9
        whole = f"{statistics.median(times.whole):13.1f}" if times.whole else ""
        wanted = timing.at_least(ratio, WANTED.get(name))
        say(f"{name:<30} {middle:9.2f} {size / middle / 1e6:6.0f} {ratio:11.2f} {verify} {whole}{wanted}")
    for transport, bare in (("ssh", "bare: rsync, fast cipher"), ("daemon", "bare: rsync daemon")):
        pairs = zip(seen[bare].seconds, seen[f"model_sync, {transport}, by size"].seconds, strict=True)
        ratio = statistics.median(theirs / ours for theirs, ours in pairs)
        say(f"model_sync over {transport} without verification is {ratio:.2f} of the same transport bare{timing.at_least(ratio, 0.9)}")


def _wrong(on_host: Callable[..., object]) -> None:
    """Which ways bring what is needed, repair what is damaged, and never show a file that is not whole."""
    import models

    def there(path: str) -> bool:
        return getattr(on_host(models.TARGET, "test", "-e", path, check=False), "returncode", 1) == 0

    def theirs(flags: list[str]) -> tuple[Callable[[Any], object], Callable[[Any], object]]:
        def command(model: Any) -> list[str]:
            parent = model.path.rpartition("/")[0]
            on_host(models.TARGET, "mkdir", "-p", parent)
            return ["rsync", *flags, model.path, f"{ADDRESS}:{parent}/"]

        return (
            lambda model: on_host(models.SOURCE, *command(model)),
            lambda model: on_host(models.SOURCE, "timeout", "--signal=INT", "0.8", *command(model), check=False),
        )

    def cut_ours(model: Any) -> None:
        """End the receiving rsync when a part has arrived, and do not try again."""
        sizes = f"du -s --block-size=1 {models.BASE}/models/.unimem-model-sync/*/ 2>/dev/null | cut -f1"
        script = f"for i in $(seq 600); do s=$({sizes}); if [ ${{s:-0}} -gt 1000000 ]; then pkill -KILL -x rsync; exit 0; fi; sleep 0.05; done; exit 1"
        killer = threading.Thread(target=on_host, args=(models.TARGET, "sh", "-c", script), daemon=True)
        killer.start()
        model.sync(model_sync_tries=1)
        killer.join(60)

    ways = {name: theirs(flags) for name, flags in PEERS.items()}
    ways["model_sync"] = (lambda model: model.sync(), cut_ours)
    say(f"\n{'way to copy':<30} {'links that leave the folder':>28} {'a flipped byte':>15} {'a cut file':>11}")
    for name, (copy, cut) in ways.items():
        model = models.fresh(models.Model("shared"), old=False)
        copy(model)
        arrived = there(f"{model.served()}/{model.first_shard}")
        model = models.fresh(models.Model("plain"), old=False)
        copy(model)
        flip = f"p={model.path + '/' + model.first_shard!r};import os;s=os.stat(p);f=open(p,'r+b');f.seek(5000);b=f.read(1);f.seek(5000)"
        models.python(models.TARGET, f"{flip};f.write(bytes([b[0]^1]));f.close();os.utime(p,ns=(s.st_atime_ns,s.st_mtime_ns))")
        copy(model)
        repaired = models.has_new(model)
        model = models.fresh(models.Model("plain", shards=1, size=250_000_000), old=False)
        cut(model)
        time.sleep(1)
        seen = there(f"{model.path}/{model.first_shard}")
        words = ("arrive" if arrived else "LEAD NOWHERE", "repaired" if repaired else "STAYS", "IS SEEN" if seen else "is not seen")
        say(f"{name:<30} {words[0]:>28} {words[1]:>15} {words[2]:>11}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "lab" / "e2e"))
    _run(int(sys.argv[1]))
