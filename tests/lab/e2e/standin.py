# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deployments with a stand-in engine (standin_image/vllm, sglang_image/sglang), for failures: all but the engine is the real one, from the playbooks
and roles to Docker, the driver and its memory.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import HOSTS, ROOT, Run, on_host, ranks, run_playbook, unit

IMAGE = ROOT / "tests" / "lab" / "e2e" / "standin_image"
SGLANG_IMAGE = ROOT / "tests" / "lab" / "e2e" / "sglang_image"
CUDA = ROOT / "tests" / "lab" / "driver" / "gb10_cuda.py"
NAME = "default"

#: What differs from the lab's real engine. Little memory is asked for, so that nothing has to go, and the host's Python is the image's;
#: /usr can be written, since the driver's parts are put there.
SETTINGS: dict[str, Any] = {
    "deploy_name": NAME,
    "image_build_image": "unimem-lab/standin",
    "image_build_bases": [],
    "tp_launch_engine": "vllm_mp",
    "tp_launch_kv_cache_memory": "512 MiB",
    "tp_launch_gpu_memory_utilization": 0.3,
    "tp_launch_volumes": ["/usr:/usr", "/usr/bin:/bin:ro", "/usr/lib:/lib:ro", "/usr/lib64:/lib64:ro"],
    "tp_launch_start_timeout": 90,
    "tp_launch_completion_timeout": 15,
}
#: SGLang's stand-in instead of vLLM's.
SGLANG: dict[str, Any] = {
    "image_build_image": "unimem-lab/standin-sglang",
    "tp_launch_engine": "sglang",
    "tp_launch_kv_cache_memory": None,
    "tp_launch_gpu_memory_utilization": None,
    "tp_launch_mem_fraction_static": 0.3,
    "deploy_engine_version": "",
}
#: With it the embeddings service has to go on the worker.
LARGE = {"tp_launch_kv_cache_memory": "4000 MiB"}


@contextlib.contextmanager
def settings(fault: str = "", **changes: Any) -> Iterator[dict[str, Any]]:
    """The settings of a deployment; the image's build context is there as long as they are."""
    with tempfile.TemporaryDirectory(prefix="unimem-standin-") as directory:
        context = Path(directory) / "context"
        shutil.copytree(SGLANG_IMAGE if changes.get("tp_launch_engine") == "sglang" else IMAGE, context)
        shutil.copy(CUDA, context)
        environment = {"STANDIN_FAULT": fault, "STANDIN_API_TOKEN": "s3cret-of-the-users"}
        yield {**SETTINGS, "image_build_context": str(context), "tp_launch_env": environment, **changes}


@dataclass
class Failed:
    """A deployment that failed, and what was written of it."""

    run: Run
    report: dict[str, Any]
    directory: Path

    @property
    def verdict(self) -> tuple[str, str]:
        """The class and the node that were named."""
        return self.report["class"], self.report["diagnosis"]["node"]


def deploy(directory: Path | None = None, fault: str = "", **changes: Any) -> Run:
    """deploy_qwen.yml with the stand-in."""
    with settings(fault, **changes) as extra:
        return run_playbook("playbooks/deploy_qwen.yml", extra={**extra, **({"deploy_reports": str(directory)} if directory else {})})


def deploy_failing(directory: Path, fault: str = "", **changes: Any) -> Failed:
    """The same where it is to fail."""
    run = deploy(directory, fault, **changes)
    assert run.rc != 0, "it was to fail, and did not"
    kept = directory / f"{NAME}-failed"
    return Failed(run, json.loads((kept / "report.json").read_text(encoding="utf-8")), kept)


@dataclass
class Group:
    """A running group of stand-ins."""

    name: str
    settings: dict[str, Any]

    def wait_ended(self, seconds: float = 20) -> float:
        """Until no rank runs on any host; the seconds that it took."""
        return until(lambda: not any(rank["status"] == "running" for host in HOSTS for rank in ranks(host).values()), "all ranks have ended", seconds)


@contextlib.contextmanager
def launched(**changes: Any) -> Iterator[Group]:
    """A group that answers."""
    with settings(**changes) as extra:
        run = run_playbook("playbooks/deploy_qwen.yml", extra=extra)
        assert run.rc == 0, run.failures
        yield Group(NAME, extra)


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> float:
    """Wait for something, at most so long; how long it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - begin


@contextlib.contextmanager
def beside(work: Callable[[], object], patience: float) -> Iterator[None]:
    """Do something beside the body. It must have been done so many seconds after the body's end."""
    outcome: list[BaseException | None] = []

    def done() -> None:
        try:
            work()
            outcome.append(None)
        except BaseException as error:  # the thread has nobody to raise to
            outcome.append(error)

    thread = threading.Thread(target=done, daemon=True)
    thread.start()
    yield
    thread.join(patience)
    assert outcome == [None], outcome or "the moment never came"


@contextlib.contextmanager
def meanwhile(condition: Callable[[], bool], action: Callable[[], object]) -> Iterator[None]:
    """Do something beside the body, as soon as something is so. Both must have come about by the end of the body."""

    def work() -> None:
        until(condition, "the moment has come", 120)
        action()

    with beside(work, 5):
        yield


def tokens(model: str = NAME, key: str = "") -> bool:
    """Whether the endpoint gives any, asked on the head and past our own code."""
    body = json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0})
    ask = (
        "import sys, json, urllib.request as u; "
        "h = {'Content-Type': 'application/json', 'Authorization': 'Bearer ' + sys.argv[2]}; "
        "r = u.Request('http://127.0.0.1:8000/v1/completions', sys.argv[1].encode(), h); "
        "print(json.load(u.urlopen(r, timeout=20))['choices'][0]['text'])"
    )
    return bool(on_host("spark-01", "python3", "-c", ask, body, key, check=False).stdout.strip())


def rank_says(host: str, number: int, text: str) -> Callable[[], bool]:
    """Whether the rank's log has a text."""
    return lambda: text in _log(host, number)


def _log(host: str, number: int) -> str:
    done = on_host(host, "docker", "logs", f"unimem-{NAME}-rank{number}", check=False)
    return done.stdout + done.stderr


def kill(host: str, number: int, pattern: str) -> None:
    """KILL the processes of a rank whose command line matches."""
    pids = on_host(host, "pgrep", "-f", pattern).stdout.split()
    assert pids, f"{host} has no process {pattern}"
    on_host(host, "kill", "-KILL", *pids)


def left_behind(host: str) -> list[str]:
    """All that a failed deployment could have left on a host, in words."""
    found = [f"container {name}" for name in ranks(host)]
    # The seed's service is a vLLM as well.
    theirs = on_host(host, "docker", "top", "vllm_embeddings", "-eo", "pid", check=False).stdout.split()
    running = on_host(host, "pgrep", "-af", "VLLM::|rank_supervisor", check=False).stdout.splitlines()
    found += [f"process {line}" for line in running if line.split()[0] not in theirs]
    found += [f"/dev/shm/{name}" for name in on_host(host, "ls", "-A", "/dev/shm").stdout.split()]
    # Those that do something, and files. A unit that has neither is one that systemd remembers since the boot, until somebody has it reload.
    units = on_host(host, "systemctl", "list-units", "--plain", "--no-legend", "unimem-lease*", check=False).stdout
    found += [f"unit {line.split()[0]}" for line in units.splitlines()]
    found += on_host(host, "find", "/etc/systemd/system", "/run/systemd/transient", "-name", "unimem-lease*", check=False).stdout.split()
    found += [f"/var/lib/unimem/launch/{name}" for name in on_host(host, "ls", "-A", "/var/lib/unimem/launch", check=False).stdout.split()]
    return found


def embeddings_answer() -> bool:
    """Whether the embeddings service of the worker runs and answers."""
    ask = "import urllib.request as u;print(u.urlopen('http://127.0.0.1:8001/health',timeout=5).status)"
    active = unit("spark-02", "vllm-embeddings.service")["ActiveState"] == "active"
    return active and on_host("spark-02", "python3", "-c", ask, check=False).stdout.strip() == "200"
