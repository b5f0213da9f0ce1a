# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a run did when, and how each node's memory went meanwhile, on the controller's clock.

The play notes when it begins each step and when it reads a node's memory; the ranks' logs, whose times are the nodes' own, tell the rest.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import parse_stamp
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._load_progress import stage


class Sample(t.NamedTuple):
    """A node's memory at a time (seconds since 1970), in bytes; None for what this reading did not tell."""

    time: float
    available: int
    free: int | None = None
    cache: int | None = None


class Mark(t.NamedTuple):
    """Something that happened on a node. ``kind``: stop, start, ready, end or stage."""

    time: float
    kind: str
    text: str


class Step(t.NamedTuple):
    """A part of the run, from its beginning to the next one's."""

    name: str
    begin: float
    end: float


def steps(noted: Sequence[Mapping[str, t.Any]], end: float) -> list[Step]:
    """The steps that the play noted (``name``, ``at``), the last one until ``end``."""
    found = [(str(entry.get("name")), float(entry["at"])) for entry in noted if entry.get("at") is not None]
    borders = [at for _name, at in found[1:]] + [max(end, found[-1][1])] if found else []
    return [Step(name, begin, max(begin, until)) for (name, begin), until in zip(found, borders)]


def clock_difference(node: Mapping[str, t.Any]) -> float:
    """Seconds by which the controller's clock is ahead of the node's, as far as the play can tell (about a second)."""
    at, clock = node.get("readings_at"), node.get("clock")
    return float(at) - float(clock) if at is not None and clock is not None else 0.0


def _moment(node: Mapping[str, t.Any], name: str) -> Sample | None:
    at = (node.get("times") or {}).get(name)
    memory = ((node.get("moments") or {}).get(name) or {}).get("memory") or {}
    if at is None or memory.get("available") is None:
        return None
    return Sample(float(at), int(memory["available"]), memory.get("free"), memory.get("page_cache"))


def samples(node: Mapping[str, t.Any]) -> list[Sample]:
    """Every reading of the node's memory during the run, in the order of time."""
    found = [sample for sample in (_moment(node, name) for name in ("before", "at_launch", "after")) if sample is not None]
    launch = next((sample for sample in found if sample.time == (node.get("times") or {}).get("at_launch")), None)
    trajectory = node.get("trajectory") or []
    if launch is not None and trajectory:
        # It ends right before the reading at the launch; its own seconds count from its beginning.
        begin = launch.time - float(trajectory[-1][0])
        found += [Sample(begin + float(seconds), int(allocatable)) for seconds, allocatable in trajectory[:-1] if allocatable is not None]
    difference = clock_difference(node)
    for rank in node.get("ranks") or []:
        for entry in (rank.get("log") or {}).get("memory") or []:
            found.append(Sample(float(entry[0]) + difference, int(entry[1]), int(entry[2]), int(entry[3])))
    return sorted(found)


def marks(node: Mapping[str, t.Any], engine: str) -> list[Mark]:
    """What was stopped on the node, and the ranks' starts, stages and ends, in the order of time."""
    found: list[Mark] = []
    launch = (node.get("times") or {}).get("at_launch")
    trajectory = node.get("trajectory") or []
    if launch is not None:
        begin = float(launch) - (float(trajectory[-1][0]) if trajectory else 0.0)
        for action in node.get("actions") or []:
            if action.get("result") not in (None, "planned", "not needed any more"):
                found.append(Mark(begin, "stop", f"{action.get('action')} {action.get('layer')} {action.get('target')}: {action.get('result')}"))
    difference = clock_difference(node)
    for rank in node.get("ranks") or []:
        name = f"rank {rank.get('rank')}"
        if rank.get("started") is not None:
            found.append(Mark(float(rank["started"]) + difference, "start", f"{name} started"))
        found += [Mark(time + difference, "stage", f"{name} {words}") for time, words in stages(rank, engine)]
        end = (rank.get("log") or {}).get("end") or {}
        if end.get("time") is not None:
            found.append(Mark(float(end["time"]) + difference, "end", f"{name} ended: {end.get('reason')}"))
    return sorted(found)


def stages(rank: Mapping[str, t.Any], engine: str) -> list[tuple[float, str]]:
    """When a rank reached each of its stages for the first time, without percentages."""
    found: dict[str, float] = {}
    log = rank.get("log") or {}
    for line in [*(log.get("head") or []), *(log.get("tail") or [])]:
        time = parse_stamp(str(line).split(" ", 1)[0])
        words = stage([str(line)], engine) if time is not None else ""
        if time is not None and words:
            found.setdefault(words.split(",")[0], time)
    return sorted((time, words) for words, time in found.items() if words not in ("has started", "ends"))
