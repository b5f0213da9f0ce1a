# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a second, unchanged deployment costs, beside Ansible's own ping on the same two hosts.

The lab's model is deployed first and undeployed at the end; in between each round runs deploy_qwen.yml on what runs already, and
a round in which it changed anything is an error and no measurement.
"""

from __future__ import annotations

import functools
import re
import subprocess

from tools import timing
from tools.console import ToolError, say
from tools.environments import Environment

_PLAYBOOK = ("ansible-playbook", "-i", "inventory/lab.yml")


def _ping(environment: Environment) -> float:
    return timing.seconds(environment, ["ansible", "-i", "inventory/lab.yml", "sparks", "-m", "ansible.builtin.ping"])


def _again(environment: Environment) -> float:
    said: list[subprocess.CompletedProcess[str]] = []
    took = timing.seconds(environment, [*_PLAYBOOK, "playbooks/deploy_qwen.yml"], keep=said.append)
    changed = [int(count) for count in re.findall(r"\bchanged=(\d+)", said[0].stdout)]
    if len(changed) != 2 or any(changed):
        raise ToolError(f"a second deployment changed something: {said[0].stdout[-500:]}")
    return took


def measure(environment: Environment, rounds: int) -> None:
    """Print the table. The ratio is to ping's median."""
    say("deploying the lab's model first")
    timing.seconds(environment, [*_PLAYBOOK, "playbooks/deploy_qwen.yml"])
    try:
        contestants = {"ping": functools.partial(_ping, environment), "deploy_qwen, unchanged": functools.partial(_again, environment)}
        seen = timing.in_turns(contestants, rounds)
    finally:
        timing.seconds(environment, [*_PLAYBOOK, "playbooks/undeploy_qwen.yml"])
    timing.table("on both hosts, over kept ssh connections", seen, "ping", wanted={"deploy_qwen, unchanged": 12})
