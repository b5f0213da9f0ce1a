# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From all images and the model present to tokens: the role tp_launch, beside the same two ranks started by hand with a script.

Both start the very same processes: the script runs the commands and the environment that the role's own containers had, in the same
image, and asks for the same completion. What it leaves out is what the role does besides: the preflight, the supervision of each rank,
the proof that all ranks are of one launch. The engine is vLLM without Ray, since by hand that is one command a node.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any

from tools import timing
from tools.benches._hosts import on_host
from tools.console import ToolError, say
from tools.environments import Environment

HOSTS = ("spark-01", "spark-02")
SETTINGS: dict[str, Any] = {
    "deploy_name": "bench",
    "tp_launch_deployment": "bench",
    "tp_launch_engine": "vllm_mp",
    # So little that nobody has to go for it.
    "tp_launch_kv_cache_memory": "512 MiB",
    "tp_launch_gpu_memory_utilization": 0.3,
}
#: Seconds that the role takes before the engines start. A virtual machine gives free pages back to its host meanwhile, and getting each of them again
#: makes any start slower: a script that begins at once with the pages of the run before would be measured on another machine.
LEAD = 14
_PLAYBOOK = ("ansible-playbook", "-i", "inventory/lab.yml", "-e", json.dumps(SETTINGS))

#: Runs on the head: asks until tokens come, as often as they could.
_ASK = """
import json, sys, time, urllib.request
url, model = sys.argv[1:]
body = json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 8}).encode()
end = time.monotonic() + 600
while True:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
            assert json.load(answer)["choices"][0]["text"].strip()
            break
    except OSError:
        if time.monotonic() > end:
            raise
        time.sleep(0.2)
"""


def _run_line(host: str, rank: int) -> list[str]:
    """The `docker run` that starts the engine of a rank as the role's container has it, and nothing around it."""
    (found,) = json.loads(on_host(host, "docker", "inspect", f"unimem-bench-rank{rank}"))
    setup, config = found["HostConfig"], found["Config"]
    programs = next(mount["Source"] for mount in found["Mounts"] if mount["Destination"] == "/opt/unimem")
    (engine,) = (step for step in json.loads(on_host(host, "cat", f"{programs}/rank.json"))["steps"] if step["name"] == "engine")
    if setup["NetworkMode"] != "host" or not setup["Init"]:
        raise ToolError(f"the role's container on {host} is not as this script knows it; {__name__} has to be looked at again")
    line = ["docker", "run", "--detach", "--name", f"by-hand-rank{rank}", "--network", "host", "--init", "--ipc", setup["IpcMode"], "--gpus", "all"]
    line += ["--shm-size", str(setup["ShmSize"])] if setup["IpcMode"] != "host" else []
    # The programs of the role are what a script does without.
    for mount in (mount for mount in found["Mounts"] if mount["Source"] != programs):
        line += ["--mount", f"type=bind,source={mount['Source']},target={mount['Destination']}" + ("" if mount["RW"] else ",readonly")]
    for variable in [*config["Env"], *(f"{name}={value}" for name, value in engine["env"].items())]:
        line += ["--env", variable]
    command, *arguments = engine["argv"]
    return [*line, "--entrypoint", command, found["Image"], *arguments]


class _Launches:
    """The two ways, each with its own end: what is timed is the start alone."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lines: dict[str, list[str]] = {}
        self._question: list[str] = []

    def by_role(self) -> float:
        took = timing.seconds(self._environment, [*_PLAYBOOK, "-e", f"tp_launch_image={self.image}", "tests/lab/e2e/playbooks/launch_only.yml"])
        if not self._lines:
            self._lines = {host: _run_line(host, rank) for rank, host in enumerate(HOSTS)}
        self.end()
        return took

    def by_hand(self) -> float:
        if not self._lines:
            self.by_role()
        time.sleep(LEAD)
        start = time.monotonic()
        for host in HOSTS:
            on_host(host, *self._lines[host])
        on_host(HOSTS[0], "python3", "-", "http://127.0.0.1:8000/v1/completions", "unimem/tiny-hybrid", stdin=_ASK)
        took = time.monotonic() - start
        for rank, host in enumerate(HOSTS):
            on_host(host, "docker", "rm", "--force", f"by-hand-rank{rank}")
        return took

    @functools.cached_property
    def image(self) -> str:
        """The engine's image, which a deployment has left on both hosts."""
        names = [set(on_host(host, "docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "unimem-lab/vllm-cpu").split()) for host in HOSTS]
        common = sorted(names[0] & names[1])
        if not common:
            raise ToolError("the engine's image is not on both hosts: deploy once, then undeploy")
        return common[0]

    def end(self) -> None:
        """Nothing of either runs."""
        settings = ("-e", "tp_launch_state=stopped", "-e", f"tp_launch_image={self.image}")
        timing.seconds(self._environment, [*_PLAYBOOK, *settings, "tests/lab/e2e/playbooks/launch_only.yml"])


def measure(environment: Environment, rounds: int) -> None:
    """Print the table. The ratio is to the script's median."""
    say("deploying and undeploying once, so that image and model are on both hosts")
    for playbook in ("deploy_qwen", "undeploy_qwen"):
        timing.seconds(environment, ["ansible-playbook", "-i", "inventory/lab.yml", f"playbooks/{playbook}.yml"])
    launches = _Launches(environment)
    try:
        seen = timing.in_turns({"by hand": launches.by_hand, "role tp_launch": launches.by_role}, rounds)
    finally:
        launches.end()
    timing.table("from images present to tokens", seen, "by hand", wanted={"role tp_launch": 1.15})
