# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Services of strangers on a lab host for the tests of reclaiming: real units, containers and processes, gone after each test."""

from __future__ import annotations

import ast
import io
import json
import shlex
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from harness import ROOT, meminfo, on_host, ssh_argv

HERE = Path(__file__).parent
LIBRARY = "/usr/local/lib/unimem-e2e"
HOLD = f"{LIBRARY}/hold.py"
JOURNAL = "/var/lib/unimem/e2e.json"
IMAGE = "unimem-lab/vllm-embeddings:0.20.1"
MIB = 2**20


def module_defaults() -> dict[str, Any]:
    """The parameters of gpu_process_reclaim as its documentation gives them."""
    tree = ast.parse((ROOT / "plugins" / "modules" / "gpu_process_reclaim.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "DOCUMENTATION":
            options = yaml.safe_load(ast.literal_eval(node.value))["options"]
            return {name: option.get("default") for name, option in options.items()}
    raise AssertionError("the module has no DOCUMENTATION")


def send(host: str, path: str, text: str | bytes, mode: int = 0o644) -> None:
    """Put a file on a host."""
    data = text.encode() if isinstance(text, str) else text
    command = f"mkdir -p {shlex.quote(str(Path(path).parent))} && cat > {shlex.quote(path)} && chmod {mode:o} {shlex.quote(path)}"
    subprocess.run([*ssh_argv(host), command], input=data, check=True, timeout=60)


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true answer; fails when there is none in time."""
    end = time.monotonic() + seconds
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < end, f"not so within {seconds:g} s"
        time.sleep(0.1)


class StandIns:
    """What one test puts on a host. ``remove`` takes all of it away again."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.units: list[str] = []
        self.files: list[str] = []
        self.containers: list[str] = []
        self.scopes: list[str] = []
        self.pids: list[int] = []

    def prepare(self) -> None:
        """The library on the host, small contexts, and a page cache that leaves room for them."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in sorted((ROOT / "plugins" / "module_utils").glob("*.py")):
                archive.add(path, f"ansible_collections/unimem/dgx_spark/plugins/module_utils/{path.name}")
            for path in sorted((HERE / "node").glob("*.py")):
                archive.add(path, path.name)
        send(self.host, f"{LIBRARY}.tar.gz", packed.getvalue())
        script = (
            f"rm -rf {LIBRARY} && mkdir {LIBRARY} && tar -C {LIBRARY} --no-same-owner -xzf {LIBRARY}.tar.gz && rm {LIBRARY}.tar.gz"
            " && echo 3 > /proc/sys/vm/drop_caches && gb10-sim-ctl set context_bytes=8MiB context_margin=8MiB"
        )
        self.run("sh", "-c", script)

    def run(self, *argv: str, check: bool = True, timeout: float = 120) -> str:
        return on_host(self.host, *argv, check=check, timeout=timeout).stdout.strip()

    # What can be there

    def process(self, name: str, *arguments: str, user: str = "spark", scope: str | None = None) -> int:
        """A bare process with GPU memory, started as from somebody's session. Its pid."""
        unit = f"e2e-{len(self.scopes)}-{scope or 'session'}.scope"
        self.scopes.append(unit)
        argv = ["systemd-run", "--scope", "--quiet", "--collect", "--unit", unit, "--uid", user, HOLD, "--name", name, *arguments, "--daemon"]
        pid = int(self.run(*argv))
        self.pids.append(pid)
        return pid

    def unit(self, name: str, command: str, *, install: str = "multi-user.target", start: bool = True, **sections: str) -> str:
        """A unit of the system from its command and further lines of sections. Its name."""
        kind = sections.pop("Type", "notify" if command.startswith(HOLD) else "exec")
        text = f"[Unit]\nDescription=end-to-end test\n{sections.pop('Unit', '')}\n[Service]\nType={kind}\nExecStart={command}\n{sections.pop('Service', '')}\n"
        text += f"[Install]\nWantedBy={install}\n" if install else ""
        self.unit_file(name, text)
        if install:
            self.run("systemctl", "enable", "--quiet", "--no-reload", name)
        self.reload()
        if start:
            self.run("systemctl", "start", name)
        return name

    def unit_file(self, name: str, text: str) -> None:
        path = f"/etc/systemd/system/{name}"
        send(self.host, path, text)
        self.units.append(name)
        self.files.append(path)

    def drop_in(self, name: str, text: str) -> None:
        """More lines for a unit that is not the test's, until the test ends."""
        path = f"/run/systemd/system/{name}.d/e2e.conf"
        send(self.host, path, text)
        self.files.append(path)
        self.reload()

    def reload(self) -> None:
        self.run("systemctl", "daemon-reload")

    def container(self, name: str, *options: str, utilization: str = "0.01", run: bool = True) -> str:
        """A container with 60 MiB of GPU memory. Its full id."""
        self.containers.append(name)
        argv = ["docker", "run" if run else "create", "--name", name, "--gpus", "all", *(["--detach"] if run else []), *options]
        made = self.run(*argv, IMAGE, "serve", name, "--gpu-memory-utilization", utilization)
        if run:
            wait_for(lambda: self.listens_in(name))
        return made

    def listens_in(self, name: str) -> bool:
        """Whether the server in a container has its memory and answers."""
        pid = self.inspect(name)["State"]["Pid"]
        return bool(pid) and ":1F40 " in self.run("cat", f"/proc/{pid}/net/tcp", check=False)

    def inspect(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.run("docker", "inspect", name))[0])

    # What is done to it

    def reclaim(self, state: str = "freed", *, check: bool = False, die_at: int | None = None, **parameters: Any) -> dict[str, Any]:
        """Run the module's code on the host as root. Its result with ``failed`` and ``msg``; empty where it was killed."""
        asked = {"parameters": {**module_defaults(), "state": state, "journal": JOURNAL, "timeout": 30, **parameters}, "check": check, "die_at": die_at}
        command = f"PYTHONPATH={LIBRARY} PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 {LIBRARY}/reclaim.py"
        done = subprocess.run([*ssh_argv(self.host), command], input=json.dumps(asked), text=True, capture_output=True, timeout=120, check=False)
        if die_at is not None and done.returncode != 0 and not done.stdout:
            return {}
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def restored(self, **parameters: Any) -> dict[str, Any]:
        """All put back, or the reason why not."""
        result = self.reclaim("restored", **parameters)
        assert result["verdict"] == "restored", result["msg"]
        return result

    def listed(self) -> dict[int, int]:
        """Bytes that the driver holds, by the pid for which, told by the driver itself."""
        held: dict[int, int] = {}
        for entry in json.loads(self.run("gb10-sim-ctl", "status", "--json"))["allocations"]:
            held[entry["pid"]] = held.get(entry["pid"], 0) + entry["bytes"]
        return held

    def alive(self, pid: int) -> bool:
        """Whether a process runs (a zombie does not)."""
        state = self.run("sed", "-n", "s/^State:\\s*\\(.\\).*/\\1/p", f"/proc/{pid}/status", check=False)
        return state not in ("", "Z", "X")

    def state(self, *names: str) -> dict[str, str]:
        """Active and enabled states of units, and running states and policies of all containers of the test, in words."""
        units = [f"printf '%s|%s %s\\n' {name} $(systemctl show --value --property=ActiveState {name}) $(systemctl is-enabled {name} 2> /dev/null)"
                 for name in names or self.units]  # fmt: skip
        format_ = "{{.Name}}|{{.State.Status}} {{.HostConfig.RestartPolicy.Name}}"
        containers = [f"docker inspect --format {shlex.quote(format_)} {shlex.join(self.containers)}"] if self.containers else []
        lines = self.run("sh", "-c", "; ".join([*units, *containers]), check=False).splitlines()
        return {name.lstrip("/"): state.strip() for name, _, state in (line.partition("|") for line in lines)}

    def available(self) -> int:
        return meminfo(self.host)["MemAvailable"]

    def seed(self) -> str:
        """How the seed's own service is kept: not what a test of strangers is to change."""
        policy = self.run("docker", "inspect", "--format", "{{.HostConfig.RestartPolicy.Name}}", "vllm_embeddings")
        return f"{policy} {self.run('systemctl', 'is-enabled', 'vllm-embeddings.service', check=False)}"

    def remove(self) -> None:
        """All of it gone, whatever a test has left, and the driver as it was."""
        lines = ["gb10-sim-ctl reset"]
        if self.scopes:
            lines.append(f"systemctl kill --signal=KILL {shlex.join(self.scopes)}")
        if self.units:
            lines.append(f"systemctl stop --no-block {shlex.join(self.units)}; systemctl kill --signal=KILL {shlex.join(self.units)}")
            lines.append(f"systemctl disable --quiet {shlex.join(self.units)}")
        if self.containers:
            lines.append(f"docker rm --force {shlex.join(self.containers)}")
        lines += [f"kill -KILL {pid}" for pid in self.pids]
        lines.append(f"rm -f {shlex.join([*self.files, JOURNAL])}")
        if self.files:
            lines.append("systemctl daemon-reload; systemctl reset-failed")
        self.run("sh", "-c", "; ".join(f"{{ {line}; }} > /dev/null 2>&1" for line in lines) + "; true")


def rows(result: Mapping[str, Any], number: int | None = None) -> list[tuple[str, str, str]]:
    """(layer, target, action) of what was done, or only of one round."""
    return [(row["layer"], row["target"], row["action"]) for row in result["actions"] if number in (None, row["round"])]


def outcomes(result: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """What came of each action, by target and action."""
    return {(row["target"], row["action"]): row["result"] for row in result["actions"]}


def codes(result: Mapping[str, Any]) -> set[tuple[str, str]]:
    """(target, code) of each refusal."""
    return {(row["target"], row["code"]) for row in result["refused"]}
