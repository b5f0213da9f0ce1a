# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_memory_facts costs, beside Ansible's own ping and setup: on two hosts at once, and the module alone on a node.

The first table is what a user waits for: one ad-hoc call to both lab hosts over kept ssh connections. The second is the very file
that Ansible sends, run on the node: without ssh, and without the controller's work. Each with pynvml, which a virtual environment
of the lab's hosts has, and with nvidia-smi.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable

from tools import timing
from tools.benches._hosts import on_host
from tools.console import ToolError, say
from tools.environments import Environment

PING, SETUP, FACTS = "ansible.builtin.ping", "ansible.builtin.setup", "unimem.dgx_spark.gpu_memory_facts"
HOST = "spark-01"
#: Interpreters of the lab's hosts: the distribution's, which has no pynvml, and that of a virtual environment which has.
SYSTEM_PYTHON, PYNVML_PYTHON = "/usr/bin/python3", "/opt/nvidia-ml/bin/python3"
KEPT = "/root/.unimem-bench"

#: Runs on the node: a program so many times, each time a fresh interpreter with its input closed, as Ansible starts it.
_TIMER = """
import json, subprocess, sys, time
interpreter, program = sys.argv[1:]
start = time.monotonic()
done = subprocess.run([interpreter, program], stdin=subprocess.DEVNULL, capture_output=True, text=True)
took = time.monotonic() - start
answer = json.loads(done.stdout)
facts = answer.get("ansible_facts", {}).get("gpu_memory", {})
print(json.dumps({"took": took, "failed": bool(answer.get("failed")), "source": facts.get("sources", {}).get("gpu")}))
"""


def _ad_hoc(environment: Environment, module: str, interpreter: str) -> float:
    argv = ["ansible", "-i", "inventory/lab.yml", "sparks", "-m", module, "-e", f"ansible_python_interpreter={interpreter}"]
    return timing.seconds(environment, argv)


def _payload(environment: Environment, module: str) -> str:
    """Have Ansible put a module's file on the node and leave it there; its path."""
    variables = {"ANSIBLE_KEEP_REMOTE_FILES": "1", "ANSIBLE_PIPELINING": "0", "ANSIBLE_REMOTE_TMP": f"{KEPT}/{module}"}
    timing.seconds(environment, ["ansible", "-i", "inventory/lab.yml", HOST, "-m", module], variables)
    found = on_host(HOST, "find", f"{KEPT}/{module}", "-name", "AnsiballZ_*.py").split()
    if len(found) != 1:
        raise ToolError(f"Ansible left {len(found)} files of {module} on {HOST}, where one was expected")
    return found[0]


def _on_node(interpreter: str, payload: str, source: str | None) -> float:
    answer = json.loads(on_host(HOST, "python3", "-", interpreter, payload, stdin=_TIMER))
    if answer["failed"] or answer["source"] != source:
        raise ToolError(f"{payload} with {interpreter}: failed is {answer['failed']}, the GPU was read by {answer['source']} instead of {source}")
    return float(answer["took"])


def measure(environment: Environment, rounds: int) -> None:
    """Print both tables. The ratios are to ping's median."""
    calls: dict[str, Callable[[], float]] = {
        "ping": functools.partial(_ad_hoc, environment, PING, SYSTEM_PYTHON),
        "setup": functools.partial(_ad_hoc, environment, SETUP, SYSTEM_PYTHON),
        "gpu_memory_facts, pynvml": functools.partial(_ad_hoc, environment, FACTS, PYNVML_PYTHON),
        "gpu_memory_facts, nvidia-smi": functools.partial(_ad_hoc, environment, FACTS, SYSTEM_PYTHON),
    }
    timing.table("ad hoc, both hosts at once", timing.in_turns(calls, rounds), "ping", wanted={name: 1.3 for name in calls if "facts" in name})
    try:
        ping, setup, facts = (_payload(environment, module) for module in (PING, SETUP, FACTS))
        processes: dict[str, Callable[[], float]] = {
            "ping": functools.partial(_on_node, SYSTEM_PYTHON, ping, None),
            "setup": functools.partial(_on_node, SYSTEM_PYTHON, setup, None),
            "gpu_memory_facts, pynvml": functools.partial(_on_node, PYNVML_PYTHON, facts, "pynvml"),
            "gpu_memory_facts, nvidia-smi": functools.partial(_on_node, SYSTEM_PYTHON, facts, "nvidia-smi"),
        }
        seen = timing.in_turns(processes, rounds)
    finally:
        on_host(HOST, "rm", "-rf", KEPT)
    timing.table(f"the module's process on {HOST}", seen, "ping")
    own = {name: [took - base for took, base in zip(seen[name], seen["ping"], strict=True)] for name in seen if name != "ping"}
    timing.table(f"of it, what the module itself takes (ping's process taken off, round by round) on {HOST}", own, "setup", wanted={name: 1.0 for name in own})
    middle = statistics.median(own["gpu_memory_facts, pynvml"])
    say(f"with pynvml {middle:.3f} s{timing.at_most(middle, 0.15)}")
