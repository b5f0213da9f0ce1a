# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs playbooks on the lab through ansible-runner and reads what happened from its events, never from its text."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = ROOT / "inventory" / "lab.yml"
HOSTS = ("spark-01", "spark-02")
GIB = 1024**3


@dataclass
class Run:
    """One ansible run: its result code, its statistics and every task's result on every host."""

    rc: int
    stats: dict[str, dict[str, int]]
    events: list[dict[str, Any]]
    output: str = field(repr=False)

    def results(self, task: str | None = None, host: str | None = None, kinds: Sequence[str] = ("ok", "failed")) -> list[tuple[str, str, dict[str, Any]]]:
        """(host, task, result) of each finished task, in order; `task` is a part of the task's name."""
        found = []
        for event in self.events:
            data = event.get("event_data", {})
            kind = event["event"].removeprefix("runner_on_")
            if kind not in kinds or (host is not None and data.get("host") != host):
                continue
            name = data.get("task", "")
            if task is None or task in name:
                found.append((data["host"], name, data.get("res", {})))
        return found

    @property
    def changed(self) -> list[tuple[str, str]]:
        """Which task changed which host."""
        return [(host, task) for host, task, result in self.results(kinds=("ok",)) if result.get("changed")]

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """(host, task, message) of each task that failed, the rescued ones too."""
        return [(host, task, str(result.get("msg", ""))) for host, task, result in self.results(kinds=("failed",))]

    def seconds(self, host: str) -> float:
        """How long the tasks of a host took, as the controller saw it."""
        return sum(event["event_data"].get("duration", 0.0) for event in self.events if event.get("event_data", {}).get("host") == host)

    @property
    def unreachable(self) -> list[str]:
        """Hosts that could not be reached."""
        return [event["event_data"]["host"] for event in self.events if event["event"] == "runner_on_unreachable"]

    def fact(self, name: str, host: str) -> Any:
        """The last value that a task of this run gave a fact of a host."""
        values = [result["ansible_facts"][name] for _host, _task, result in self.results(host=host) if name in result.get("ansible_facts", {})]
        if not values:
            raise AssertionError(f"no task of this run set {name} on {host}")
        return values[-1]

    def recap(self, key: str, host: str) -> int:
        """A number of the recap (ok, changed, failures, dark …) for a host."""
        return self.stats.get(key, {}).get(host, 0)


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        # Of this lab alone: another one has hosts of the same addresses, and a shared connection would lead there.
        "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{tempfile.gettempdir()}/unimem-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}",
        **(extra or {}),
    }


def _finish(runner: Any) -> Run:
    events = [event for event in runner.events if event["event"].startswith(("runner_on_", "playbook_on_stats"))]
    return Run(rc=runner.rc, stats=runner.stats or {}, events=events, output=runner.stdout.read())


def run_playbook(
    playbook: str | Path, *arguments: str, extra: Mapping[str, Any] | None = None, inventory: Path = INVENTORY, environment: Mapping[str, str] | None = None
) -> Run:
    """Run a playbook (a path below the repository root, or a collection's playbook by its full name) and return its events.

    Each run has a private directory of its own: ansible-runner keeps a command line in it and would use it again.
    """
    with tempfile.TemporaryDirectory(prefix="unimem-e2e-") as private:
        path = str(ROOT / playbook) if str(playbook).endswith((".yml", ".yaml")) else str(playbook)
        command_line = list(arguments)
        if extra:
            values = Path(private) / "extra.json"
            values.write_text(json.dumps(dict(extra)), encoding="utf-8")
            command_line += ["-e", f"@{values}"]
        return _finish(
            ansible_runner.run(
                private_data_dir=private,
                playbook=path,
                inventory=str(inventory),
                cmdline=shlex.join(command_line) if command_line else None,
                envvars=_environment(environment),
                # Else a cache of ansible-runner's own takes the place of the one that Ansible is set to.
                fact_cache_type="none",
                suppress_env_files=True,
                quiet=os.environ.get("UNIMEM_E2E_VERBOSE", "") == "",
            )
        )


class Controller:
    """A playbook under way, to be ended as a controller can end: all of its processes at once, without a word to anybody."""

    def __init__(self, playbook: str, extra: Mapping[str, Any]) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="unimem-e2e-", suffix=".log", delete=False) as log:
            self._log = Path(log.name)
            argv = ["ansible-playbook", "-i", str(INVENTORY), str(ROOT / playbook), "-e", json.dumps(dict(extra))]
            self._main = subprocess.Popen(argv, env={**os.environ, **_environment(None)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """Its main process."""
        return self._main.pid

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._main.poll() is None

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._main.send_signal(signal.SIGINT)

    def wait(self, timeout: float) -> int:
        """Its exit status, when it ends."""
        return self._main.wait(timeout)

    def kill(self) -> None:
        """SIGKILL the main process, then what it had started: workers have sessions of their own."""
        doomed = _descendants(self._main.pid)
        self._main.kill()
        self._main.wait()
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.running():
            self.kill()
        self._log.unlink()


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def wait_until(what: str, condition: Callable[[], Any], timeout: float, pause: float = 1.0) -> float:
    """Wait for something on the hosts. Seconds that it took; fails with ``what`` when it does not come."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > timeout:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(pause)
    return time.monotonic() - start


@contextlib.contextmanager
def cut_off(namespace: str = "unimem-spark-02", link: str = "enp1s0f1np1") -> Iterator[None]:
    """The worker behind a dead cable: no ssh, no fabric. Done from the machine, in the host's network namespace."""
    subprocess.run(["ip", "-n", namespace, "link", "set", link, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "-n", namespace, "link", "set", link, "up"], check=True)


def run_module(
    module: str,
    arguments: str = "",
    pattern: str = "sparks",
    *options: str,
    inventory: Path = INVENTORY,
    environment: Mapping[str, str] | None = None,
    variables: Mapping[str, Any] | None = None,
    passwords: Mapping[str, str] | None = None,
) -> Run:
    """Run a module ad hoc, as `ansible -m` does, with further options of that command.

    `passwords`: what is answered to a prompt that a regular expression matches.
    """
    with tempfile.TemporaryDirectory(prefix="unimem-e2e-") as private:
        command_line = list(options)
        if variables:
            values = Path(private) / "extra.json"
            values.write_text(json.dumps(dict(variables)), encoding="utf-8")
            command_line += ["-e", f"@{values}"]
        return _finish(
            ansible_runner.run(
                private_data_dir=private,
                module=module,
                module_args=arguments or None,
                host_pattern=pattern,
                inventory=str(inventory),
                cmdline=shlex.join(command_line) if command_line else None,
                envvars=_environment(environment),
                passwords=dict(passwords or {}),
                suppress_env_files=True,
                quiet=True,
            )
        )


def lab(*command: str, hosts: int = 2, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of lab.py; who calls it looks at how it ended."""
    argv = [sys.executable, str(ROOT / "tests" / "lab" / "lab.py"), *command]
    return subprocess.run(argv, env={**os.environ, "LAB_HOSTS": str(hosts)}, text=True, capture_output=True, timeout=timeout, check=False)


def ssh_argv(host: str) -> list[str]:
    """The way to a lab host. One connection is kept for a moment, since a test asks many small things."""
    kept = ["-o", "ControlMaster=auto", "-o", f"ControlPath={tempfile.gettempdir()}/unimem-e2e-%C", "-o", "ControlPersist=15"]
    return ["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), *kept, host]


def on_host(host: str, *argv: str, check: bool = True, timeout: float = 120, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a lab host over its own ssh, not through Ansible: what the tests look at must not depend on what they test."""
    done = subprocess.run(
        [*ssh_argv(host), shlex.join(argv)], text=True, capture_output=True, timeout=timeout, check=False, input=stdin
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{host}: {shlex.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
    return done


def empty_page_cache(host: str) -> None:
    """The lab comes up with a full page cache on the worker, in which no context can be made."""
    on_host(host, "sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches")


def containers(host: str, everything: bool = True) -> dict[str, dict[str, Any]]:
    """The containers of a host by name: id, state, start time, restart policy and labels."""
    names = on_host(host, "docker", "ps", "--no-trunc", "--format", "{{.Names}}", *(["--all"] if everything else [])).stdout.split()
    if not names:
        return {}
    found = {}
    for entry in json.loads(on_host(host, "docker", "inspect", *names).stdout):
        found[entry["Name"].lstrip("/")] = {
            "id": entry["Id"],
            "status": entry["State"]["Status"],
            "started": entry["State"]["StartedAt"],
            "restart": entry["HostConfig"]["RestartPolicy"]["Name"],
            "labels": entry["Config"]["Labels"] or {},
            "image": entry["Image"],
        }
    return found


def ranks(host: str) -> dict[str, dict[str, Any]]:
    """The containers of a host that are ranks of a deployment of ours."""
    return {name: entry for name, entry in containers(host).items() if "io.unimem.launch-id" in entry["labels"]}


def meminfo(host: str) -> dict[str, int]:
    """The host's /proc/meminfo, in bytes."""
    lines = (line.split() for line in on_host(host, "cat", "/proc/meminfo").stdout.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * (1024 if len(words) > 2 else 1) for words in lines if len(words) > 1}


def unit(host: str, name: str) -> dict[str, str]:
    """What systemd says of a unit."""
    shown = on_host(host, "systemctl", "show", name, "--property=ActiveState,SubState,UnitFileState,MainPID,InvocationID").stdout
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def state_of(host: str) -> dict[str, Any]:
    """All that a run may not change under check mode: containers, images, units, the journal, the model and what is installed."""
    tree = on_host(
        host, "find", "/etc", "/var/lib/unimem", "/root", "/usr/local", "/opt", "-xdev", "-not", "-path", "*/.ansible/*", "-not", "-path", "/root/.ansible",
        "-type", "f", "-printf", "%p %s %T@ %m\n", check=False,
    ).stdout
    return {
        "containers": containers(host),
        "images": on_host(host, "docker", "image", "ls", "--no-trunc", "--quiet").stdout,
        "units": on_host(host, "systemctl", "list-units", "--all", "--plain", "--no-legend", "--type=service,timer", "--state=active").stdout.count("\n"),
        "embeddings": unit(host, "vllm-embeddings.service"),
        "files": sorted(tree.splitlines()),
        "shm": sorted(on_host(host, "ls", "-A", "/dev/shm").stdout.split()),
    }
