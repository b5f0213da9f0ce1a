# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The ranks of a deployment that are there: which containers they are, and whether they are the group that is wanted.

Lists of containers are as the Docker API gives them (GET /containers/json), one entry a container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Labels of a rank's container.
DEPLOYMENT_LABEL = "io.unimem.deployment"
LAUNCH_LABEL = "io.unimem.launch-id"

#: A deployment's name becomes part of the names of containers, files and units.
DEPLOYMENT_PATTERN = r"[a-z0-9][a-z0-9_.-]{0,40}"


def refuse_deployment(name: str) -> str | None:
    """Why this cannot be a deployment's name, in a sentence; None for one that can."""
    if re.fullmatch(DEPLOYMENT_PATTERN, name):
        return None
    return f"deployment is {name!r}, which is no name of a deployment: up to 41 of a-z, 0-9, _, . and -, a letter or digit first"


def container_name(deployment: str, rank: int | str) -> str:
    """The name of a rank's container."""
    return f"unimem-{deployment}-rank{rank}"


def is_rank_container(name: str, deployment: str) -> bool:
    """Whether a container has the name of a rank of this deployment."""
    rank = name.rpartition("rank")[2]
    return rank.isdigit() and name == container_name(deployment, rank)


def is_rank_of(process: Mapping[str, Any], deployment: str) -> bool:
    """Whether a process of the facts belongs to a rank's container of this deployment."""
    owner = process.get("owner") or {}
    return owner.get("kind") == "container" and is_rank_container(str(owner.get("name") or ""), deployment)


def _names(entry: Mapping[str, Any]) -> list[str]:
    """The names of a container as people write them; a link's name ("/other/alias") is not one."""
    names = [str(name).lstrip("/") for name in entry.get("Names") or [] if str(name).count("/") <= 1]
    return names or [str(entry.get("Id", ""))]


def rank_list(containers: Mapping[str, Sequence[Mapping[str, Any]]], deployment: str) -> list[dict[str, Any]]:
    """The ranks of a deployment on all nodes, in the order of their ranks, from each node's list of containers."""
    found = []
    for node, entries in containers.items():
        for entry in entries or []:
            labels = entry.get("Labels") or {}
            if labels.get("io.unimem.deployment") == deployment:
                rank = str(labels.get("io.unimem.rank", ""))
                found.append(
                    {
                        "host": str(node),
                        "rank": int(rank) if re.fullmatch(r"[0-9]{1,6}", rank) else -1,  # anybody may write a label
                        "role": str(labels.get("io.unimem.role", "")),
                        "container": _names(entry)[0],
                        "id": str(entry.get("Id", "")),
                        "launch_id": str(labels.get("io.unimem.launch-id", "")),
                        "running": entry.get("State") == "running",
                        "ready": "(healthy)" in str(entry.get("Status", "")),
                        "status": str(entry.get("Status", entry.get("State", "unknown"))),
                        "created": entry.get("Created"),
                    }
                )
    return sorted(found, key=lambda item: (item["rank"], item["host"]))


def group_state(plan: Mapping[str, Any], containers: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """What of a deployment is there, from each node's list of containers (as the Docker API lists them).

    A container that has a rank's name and is none of ours is in ``foreign``, and is nobody's to replace.
    ``state`` is ``absent``, ``current`` (every rank runs, all of one launch, exactly as wanted) or ``stale`` with ``why``;
    ``launch_id`` is the running launch's when current; ``containers`` maps each node to the names found there.
    """
    label = "io.unimem."
    names: dict[str, list[str]] = {}
    foreign: list[str] = []
    why: list[str] = []
    launches: set[str] = set()
    for node, rank in plan["ranks"].items():
        mine = []
        for entry in containers.get(node) or []:
            if (entry.get("Labels") or {}).get(label + "deployment") == plan["deployment"]:
                mine.append(entry)
            elif rank["container"] in _names(entry):
                foreign.append(f"{node} has a container {rank['container']} that is none of ours; rename or remove it")
        names[node] = sorted(name for entry in mine for name in _names(entry)[:1])
        if not mine:
            why.append(f"rank {rank['rank']} is not there on {node}")
            continue
        if len(mine) > 1:
            why.append(f"{node} has {len(mine)} ranks of it: {', '.join(names[node])}")
        for entry in mine:
            labels = entry.get("Labels") or {}
            launches.add(str(labels.get(label + "launch-id")))
            if entry.get("State") != "running":
                why.append(f"rank {labels.get(label + 'rank')} on {node} is {entry.get('State')}")
            elif labels.get(label + "spec") != plan["spec"]:
                why.append(f"rank {labels.get(label + 'rank')} on {node} was started with other settings")
            elif str(labels.get(label + "rank")) != str(rank["rank"]):
                why.append(f"{node} runs rank {labels.get(label + 'rank')}, not {rank['rank']}")
    if not any(names.values()):
        return {"state": "absent", "why": [], "launch_id": None, "containers": names, "foreign": foreign}
    if len(launches) > 1:
        why.append(f"the ranks are of {len(launches)} launches: {', '.join(sorted(launches))}")
    return {
        "state": "stale" if why else "current",
        "why": why,
        "launch_id": None if why else next(iter(launches)),
        "containers": names,
        "foreign": foreign,
    }
