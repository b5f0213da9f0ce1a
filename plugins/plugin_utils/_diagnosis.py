# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""One diagnosis from what all nodes tell: the earliest cause, its class, its node, and what to do.

A group fails loudly and everywhere: one rank's single line about memory is followed by hundreds about the network from the ranks that
lost it. So everything that is known is put on one time line, by one clock, and then

1. what only says that something failed elsewhere is left out, and so is what other ranks say after the first rank has ended;
2. a message that tells of a failure of its own goes before one that can as well be another rank's failure seen from here;
3. among equals the earliest one is the cause.

Nothing is read here: the nodes' readings come from rank_info, gpu_memory_facts and the play.
"""

from __future__ import annotations

import datetime
import re
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import (
    CLASSES,
    ECHO,
    EXCEPTION,
    ROOT,
    SYMPTOM,
    Cause,
    Match,
    by_name,
    find,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import PEER_ENDED, PEER_LOST, STOPPED
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size
from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._load_progress import reached

#: Seconds by which two nodes' time stamps may be wrong: where the ranks have compared their clocks, and where they have not.
COMPARED, GUESSED = 0.3, 3.0
#: Clocks that are read over Ansible are believed to differ only beyond this: the tasks themselves are apart by seconds.
CLOCK_NOISE = 10.0
#: Seconds after the first end in which another rank may still say why: its process has to come down first.
LATE = 5.0
#: How a host's message begins that only ended because another one did (roles/tp_launch/tasks/failed.yml).
ELSEWHERE = "Another host failed."
#: The cause that all ranks name when one of them is not ready in time.
NOT_READY = "not_ready"
#: Seconds that a restart of the container engine may take.
RESTART = 180.0

#: Causes that say how a rank ended, whatever it said before.
DECISIVE = ("signal", "asked", "container_killed")

#: What stands for a figure that nobody could read.
_UNKNOWN = "an unknown amount"

#: Less than this share of a file system left is nearly full.
_NEARLY_FULL = 0.05


class Event(t.NamedTuple):
    """Something that a node told, on the common time line. ``time`` is None where nobody knows when it was.

    ``where``: rank (a rank's log), journal, docker, link, state (the container's) or task (the play's). ``raised``: an exception ended with it,
    so that it is no mere warning.
    """

    level: int
    time: float | None
    node: str
    rank: int | None
    where: str
    kind: str
    cause: str
    line: str
    remedy: str
    raised: bool = False


class End(t.NamedTuple):
    """A rank's end on the common time line."""

    time: float
    node: str
    rank: int
    status: int
    reason: str


def _size(value: t.Any) -> str:
    return _UNKNOWN if value is None else format_size(int(value))


def numbers(name: str, node: Mapping[str, t.Any]) -> dict[str, str]:
    """The figures of a node that remedies speak of: node, interface, free, available, cache, holders, disks, progress."""
    moments = node.get("moments") or {}
    moment: Mapping[str, t.Any] = next((moments[which] for which in ("at_launch", "before", "after") if which in moments), {})
    memory = moment.get("memory") or {}
    holders = [f"{entry.get('kind')} {entry.get('name')} {_size(entry.get('memory'))}" for entry in moment.get("holders") or []]
    disks = [f"{disk.get('path')} has {_size(disk.get('free'))} of {_size(disk.get('total'))} left" for disk in _fullest(node.get("disks") or [])]
    return {
        "node": name,
        "interface": str(node.get("interface") or "LINK"),
        "free": _size(memory.get("free")),
        "available": _size(memory.get("available")),
        "cache": _size(memory.get("page_cache")),
        "holders": ", ".join(holders) or "nothing that the driver lists",
        "disks": "; ".join(disks) or "its file systems could not be read",
        "progress": _progress(node) or "nothing is known of its progress",
    }


def _fullest(disks: t.Sequence[Mapping[str, t.Any]]) -> list[Mapping[str, t.Any]]:
    """Those that are nearly full, the fullest first; where none is, all: one may have had room made since."""
    shares = sorted(((int(disk.get("free") or 0) / max(1, int(disk.get("total") or 0)), number) for number, disk in enumerate(disks)))
    full = [disks[number] for share, number in shares if share < _NEARLY_FULL]
    return full or [disks[number] for _share, number in shares]


def _progress(node: Mapping[str, t.Any]) -> str:
    """How far the engine was in each rank of a node, by what the rank's log says."""
    return "; ".join(f"rank {rank.get('rank')} {words}" for rank in node.get("ranks") or [] for words in [_far(rank)[1]] if words)


def _far(rank: Mapping[str, t.Any]) -> tuple[int, str]:
    log = rank.get("log") or {}
    return reached([str(line) for line in (*(log.get("head") or []), *(log.get("tail") or []))])


def own_message(node: Mapping[str, t.Any]) -> str:
    """What the task said that failed on this node itself. That another host failed is nobody's cause, and what follows it quotes that host."""
    message = str((node.get("failure") or {}).get("message") or "").strip()
    return "" if message.startswith(ELSEWHERE) else message


class _Fields(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def remedy(match: Match, figures: Mapping[str, str]) -> str:
    """What to do, with the figures of the message and of the node. Values are never read as templates."""
    values = _Fields({**figures, **match.fields})
    return re.sub(r"\{([a-z_]{1,30})\}", lambda found: values[found[1]], match.cause.remedy)


def clock_offsets(nodes: Mapping[str, Mapping[str, t.Any]]) -> dict[str, tuple[float, float]]:
    """For each node how many seconds its clock is behind the head's, and how much that may be wrong.

    The ranks compare their clocks when they meet; without that only a large difference of what the nodes said over Ansible counts.
    """
    ranks = [(rank, name) for name, node in nodes.items() for rank in node.get("ranks") or []]
    head = next((name for rank, name in ranks if rank.get("rank") == 0), next(iter(nodes), None))
    reference = (nodes.get(head) or {}).get("clock") if head is not None else None
    found: dict[str, tuple[float, float]] = {}
    for name, node in nodes.items():
        told = [(rank.get("log") or {}).get("clock_offset") for rank in node.get("ranks") or []]
        compared = [float(offset) for offset in told if offset is not None]
        if name == head:
            found[name] = (0.0, 0.0)
        elif compared:
            found[name] = (compared[-1], COMPARED)
        else:
            difference = float(reference) - float(node["clock"]) if reference is not None and node.get("clock") is not None else 0.0
            found[name] = (difference if abs(difference) > CLOCK_NOISE else 0.0, GUESSED)
    return found


def _own_end(rank: Mapping[str, t.Any]) -> tuple[float | None, int, str] | None:
    """When, with what status and why a rank ended; None while it runs."""
    end = (rank.get("log") or {}).get("end")
    if end:
        return end.get("time"), int(end.get("status", 0)), str(end.get("reason", ""))
    if rank.get("running") or rank.get("status") in ("created", "running", "restarting", ""):
        return None
    status = rank.get("exit_status")
    reason = f"its container ended with exit status {status}"
    if rank.get("oom_killed"):
        reason = "its container's memory limit was reached, and the kernel ended it"
    elif status == 137:
        reason = "its container was killed by signal 9"
    return rank.get("finished"), int(status if status is not None else -1), reason


def _match_of(entry: Mapping[str, t.Any]) -> Match | None:
    cause = by_name(str(entry.get("cause")))
    return None if cause is None else Match(cause, {str(name): str(value) for name, value in (entry.get("fields") or {}).items()})


class _Collector:
    """Everything that is known, as events on the common time line."""

    def __init__(self, nodes: Mapping[str, Mapping[str, t.Any]]) -> None:
        self.nodes = nodes
        self.offsets = clock_offsets(nodes)
        self.figures = {name: numbers(name, node) for name, node in nodes.items()}
        self.events: list[Event] = []
        self.ends: list[End] = []
        for name, node in nodes.items():
            for rank in node.get("ranks") or []:
                self._rank(name, rank)
            self._journal(name, node)
            self._task(name, node)
            self._links(name, node)
            self._fired(name, node)
        self.ends.sort()
        for name, node in nodes.items():
            self._docker(name, node)

    def common(self, name: str, time: t.Any) -> float | None:
        """A node's time on the common time line."""
        return None if time is None else float(time) + self.offsets[name][0]

    def _add(self, match: Match, time: float | None, name: str, rank: int | None, where: str, line: str) -> None:
        cause, raised = match.cause, EXCEPTION.search(line) is not None
        self.events.append(Event(cause.level, time, name, rank, where, cause.kind, cause.name, line, remedy(match, self.figures[name]), raised))

    def _rank(self, name: str, rank: Mapping[str, t.Any]) -> None:
        log = rank.get("log") or {}
        number = int(rank.get("rank", -1))
        for entry in log.get("found") or []:
            match = _match_of(entry)
            if match is not None:
                self._add(match, self.common(name, entry.get("time")), name, number, "rank", str(entry.get("line", "")))
        for entry in log.get("exceptions") or []:
            said = str(entry.get("line", ""))
            what = "The message is none of those that are known: read the rank's log from there upwards."
            self.events.append(Event(SYMPTOM, self.common(name, entry.get("time")), name, number, "rank", "engine", "exception", said, what, True))
        end = _own_end(rank)
        if end is None:
            return
        time, status, reason = self.common(name, end[0]), end[1], end[2]
        self.ends.append(End(time or 0.0, name, number, status, reason))
        if not log.get("end") and rank.get("oom_killed"):
            self.events.append(Event(ROOT, time, name, number, "state", "memory", "container_limit", reason, "Remove the container's memory limit."))
        elif not log.get("end") and status == 128 + 9:
            what = f"Somebody, or something, killed the whole container on {name}: 'journalctl' there around that time."
            self.events.append(Event(SYMPTOM, time, name, number, "state", "killed", "container_killed", reason, what))
        match = find(str(rank.get("error") or ""))
        if match is not None:
            self._add(match, time, name, number, "state", str(rank["error"]))

    def _journal(self, name: str, node: Mapping[str, t.Any]) -> None:
        for entry in (node.get("journal") or {}).get("found") or []:
            match = _match_of(entry)
            if match is not None:
                self._add(match, self.common(name, entry.get("time")), name, None, "journal", str(entry.get("line", "")))

    def _task(self, name: str, node: Mapping[str, t.Any]) -> None:
        """The first lines of the message of the task that failed: what the play itself found. Further down a log may be quoted."""
        for line in own_message(node).splitlines()[:3]:
            match = find(line)
            if match is not None and match.cause.level != ECHO:
                self._add(match, None, name, None, "task", line.strip())

    def _links(self, name: str, node: Mapping[str, t.Any]) -> None:
        """The fabric's link as it is now: it says who is at fault where the ranks only lost each other."""
        for link in node.get("links") or []:
            if not link.get("up"):
                line = f"{link.get('name')} of {name} is set down"
                what = f"Set it up again ('ip link set {link.get('name')} up' on {name}), and find out who did so."
                self.events.append(Event(ROOT, None, name, None, "link", "network", "link_set_down", line, what))
            elif not link.get("carrier"):
                line = f"{link.get('name')} of {name} has no carrier"
                self.events.append(Event(SYMPTOM, None, name, None, "link", "network", "no_carrier", line, "Look at the cable, and at the other end of it."))

    def _fired(self, name: str, node: Mapping[str, t.Any]) -> None:
        """What the node did by itself, since its lease ran out or its memory did."""
        fired = node.get("fired") or {}
        line = str(fired.get("detail") or fired.get("reason") or "")
        if fired.get("reason") == "memory_floor":
            match = Match(t.cast(Cause, by_name("memory_floor")), {})
            self.events.append(Event(ROOT, None, name, None, "lease", "memory", "memory_floor", line, remedy(match, self.figures[name])))
        elif fired.get("reason") in ("expired", "reboot"):
            what = f"The run could not renew its lease on {name} in time: the way to it, or the controller, was gone. Run again."
            self.events.append(Event(SYMPTOM, None, name, None, "lease", "network", f"lease_{fired['reason']}", line, what))

    def _docker(self, name: str, node: Mapping[str, t.Any]) -> None:
        """The container engine was restarted under a rank: the rank only says that it was asked to stop, or nothing at all."""
        since = self.common(name, (node.get("docker") or {}).get("since"))
        if since is None:
            return
        for end in self.ends:
            if end.node == name and end.status in (STOPPED, 128 + 9, 255) and end.time - LATE <= since <= end.time + RESTART:
                line = f"the container engine of {name} was started anew {max(0.0, since - end.time):.0f} s after rank {end.rank} had to end"
                what = f"Deploy again, and find out who restarts Docker on {name} ('journalctl -u docker' there): unattended upgrades do."
                self.events.append(Event(ROOT, end.time, name, end.rank, "docker", "docker", "docker_restarted", line, what))


def _first_end(collector: _Collector) -> End | None:
    """The rank that ended first and by itself; where each blames another one, the first of them."""
    own = [end for end in collector.ends if end.status not in (PEER_ENDED, PEER_LOST)]
    candidates = own or [end for end in collector.ends if end.status != PEER_ENDED] or collector.ends
    return candidates[0] if candidates else None


def _begin(collector: _Collector) -> float | None:
    """When what failed began: the first rank's start, else that of the run; None where there is neither."""
    ranks = [(name, rank.get("started")) for name, node in collector.nodes.items() for rank in node.get("ranks") or []]
    starts = [float(started) + collector.offsets[name][0] for name, started in ranks if started is not None]
    if not starts:
        for name, node in collector.nodes.items():
            at, clock, before = node.get("readings_at"), node.get("clock"), (node.get("times") or {}).get("before")
            if at is not None and clock is not None and before is not None:
                starts.append(float(before) - float(at) + float(clock) + collector.offsets[name][0])
    return min(starts, default=None)


def _possible(collector: _Collector, first: End | None) -> list[Event]:
    """The events that can be the cause: not what only follows from the first end."""
    begin = _begin(collector)
    possible = []
    for event in collector.events:
        if event.level == ECHO:
            continue
        time = event.time
        if time is not None and time > 0:
            slack = collector.offsets[event.node][1]
            if event.where == "journal" and begin is not None and time < begin - slack:
                continue  # before this launch
            if event.where == "journal" and begin is None:
                event = event._replace(level=SYMPTOM)  # nobody knows whether it has to do with anything
            if first is not None and first.time > 0:
                late = LATE if event.level == ROOT or event.node == first.node else slack
                if time > first.time + late:
                    continue
        possible.append(event)
    return possible


def _order(event: Event) -> tuple[t.Any, ...]:
    return (event.level, event.time if event.time is not None else float("inf"), event.node, event.line)


def diagnose(nodes: Mapping[str, Mapping[str, t.Any]], unreachable: Sequence[str] = ()) -> dict[str, t.Any]:
    """``class``, ``node``, ``rank``, ``time``, ``line``, ``remedy``, ``cause`` (its name), ``sentence``, and the time line.

    ``nodes``: what ``node_report`` returned for each host. Where nothing is known, ``class`` is None.
    """
    collector = _Collector(nodes)
    first = _first_end(collector)
    possible = sorted(_possible(collector, first), key=_order)
    roots = [event for event in possible if event.level == ROOT]
    chosen: Event | None = None
    if roots:
        chosen = roots[0]
    elif unreachable:
        names = ", ".join(unreachable)
        what = (
            "What ran there could not be stopped or restored from here. A node that answers ping and not ssh is most likely out of memory: "
            "wait some minutes, then power it off and on."
        )
        chosen = Event(ROOT, None, unreachable[0], None, "play", "network", "unreachable", f"out of reach: {names}", what)
    elif possible:
        chosen = _among_symptoms(possible, first)
    elif first is not None:
        chosen = _silent_end(collector, first)
    else:
        chosen = _failed_task(nodes)
    if chosen is not None and chosen.cause == NOT_READY:
        chosen = _where_it_hangs(chosen, collector)
    return _told(chosen, collector, unreachable)


def _where_it_hangs(chosen: Event, collector: _Collector) -> Event:
    """All ranks wait for the slowest one, and all of them say that they were not ready: the one that came least far is meant."""
    ranks = [(_far(rank)[0], int(rank.get("rank", -1)), name) for name, node in collector.nodes.items() for rank in node.get("ranks") or []]
    cause = by_name(NOT_READY)
    if cause is None or len({far for far, _number, _name in ranks}) < 2:
        return chosen
    _far_it_was, number, name = min(ranks)
    return chosen._replace(node=name, rank=number, remedy=remedy(Match(cause, {}), collector.figures[name]))


def _among_symptoms(possible: list[Event], first: End | None) -> Event:
    """Of what can be an echo the most telling one.

    On the rank that ended first and by itself: that it was killed, else the first exception, else the first word. Warnings about connections that
    are tried again are common while a group starts, and no cause.
    """
    if first is not None and first.status not in (PEER_ENDED, PEER_LOST):
        own = [event for event in possible if event.node == first.node and event.rank == first.rank]
        killed = [event for event in own if event.cause in DECISIVE and event.time is not None and abs(event.time - first.time) < 1.0]
        raised = [event for event in own if event.raised]
        died = [event for event in own if event.kind == "killed"]
        for events in (killed, raised, died, own):
            if events:
                return events[0]
    timed = [event for event in possible if event.where not in ("task", "link")]
    raised = [event for event in timed if event.raised]
    links = [event for event in possible if event.where == "link"]
    return (links or raised or timed or possible)[0]


def _silent_end(collector: _Collector, first: End) -> Event:
    """A rank that ended without a telling message. Where one of its processes only says that another one failed, that one was killed: it said nothing."""
    echoes = [event for event in collector.events if event.level == ECHO and event.node == first.node and event.rank == first.rank]
    if echoes and first.status not in (PEER_ENDED, PEER_LOST):
        what = f"A process of the engine ended without saying why, as one does that is killed: look at 'journalctl -k' on {first.node} around that time."
        return echoes[0]._replace(kind="killed", cause="silent_end", remedy=what)
    what = "No known message was found: read the rank's log from its end upwards."
    return Event(SYMPTOM, first.time, first.node, first.rank, "state", "unknown", "ended", first.reason, what)


def _failed_task(nodes: Mapping[str, Mapping[str, t.Any]]) -> Event | None:
    """Where no message is known and no rank has ended: the task's own message. That another host failed is nobody's cause."""
    for name, node in nodes.items():
        message = own_message(node)
        if message:
            task = str((node.get("failure") or {}).get("task") or "")
            line = message.splitlines()[0]
            said = f"{line} (in the task '{task}')" if task else line
            return Event(SYMPTOM, None, name, None, "task", "unknown", "task", said, "The message is the task's own.")
    return None


def _iso(time: float | None) -> str | None:
    if time is None or time <= 0:
        return None
    return datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _told(chosen: Event | None, collector: _Collector, unreachable: Sequence[str]) -> dict[str, t.Any]:
    line = [
        {
            "time": event.time,
            "at": _iso(event.time),
            "node": event.node,
            "rank": event.rank,
            "where": event.where,
            "class": event.kind,
            "cause": event.cause,
            "line": event.line,
        }
        for event in sorted((event for event in collector.events if event.time), key=lambda event: (event.time or 0.0, event.node))
    ]
    ends = [{**end._asdict(), "at": _iso(end.time)} for end in collector.ends]
    result: dict[str, t.Any] = {
        "class": None,
        "meaning": None,
        "cause": None,
        "node": None,
        "rank": None,
        "time": None,
        "at": None,
        "line": None,
        "remedy": None,
        "sentence": "",
        "timeline": line,
        "ends": ends,
        "unreachable": [str(name) for name in unreachable],
        "clocks": {name: {"offset": round(offset, 6), "uncertainty": slack} for name, (offset, slack) in collector.offsets.items()},
    }
    if chosen is not None:
        result.update(
            {
                "class": chosen.kind,
                "meaning": CLASSES[chosen.kind],
                "cause": chosen.cause,
                "node": chosen.node,
                "rank": chosen.rank,
                "time": chosen.time,
                "at": _iso(chosen.time),
                "line": chosen.line,
                "remedy": chosen.remedy,
                "sentence": f"{chosen.kind}: {chosen.node} says: {chosen.line}" if chosen.where != "play" else f"{chosen.kind}: {chosen.line}",
            }
        )
    return result


def cause_of_lines(lines: Sequence[str]) -> str:
    """``class: line`` of the first telling message in plain lines of one log; an empty text where none is known."""
    best: tuple[int, str] | None = None
    for line in lines:
        match = find(line)
        if match is not None and match.cause.level != ECHO and (best is None or match.cause.level < best[0]):
            text = line.split(" ", 1)[-1].strip() if re.match(r"\d{4}-\d\d-\d\dT\S{1,40} ", line) else line.strip()
            best = (match.cause.level, f"{match.cause.kind}: {text}")
    return best[1] if best else ""


def page(diagnosis: Mapping[str, t.Any], nodes: Mapping[str, Mapping[str, t.Any]]) -> list[str]:
    """The first lines that a person reads: what, where, when, why, what to do; then the time line and how each rank ended."""
    if not diagnosis.get("class"):
        return ["No cause was found: no rank has ended, and no known message was read."]
    lines = [
        f"class    {diagnosis['class']}: {diagnosis['meaning']}",
        f"node     {diagnosis['node']}" + (f", rank {diagnosis['rank']}" if diagnosis["rank"] is not None else ""),
    ]
    if diagnosis["at"]:
        lines.append(f"when     {diagnosis['at']}{_clock_note(diagnosis)}")
    lines += [f"line     {diagnosis['line']}", f"remedy   {diagnosis['remedy']}"]
    if diagnosis["unreachable"]:
        lines.append(f"missing  {', '.join(diagnosis['unreachable'])} cannot be reached: what is said here is without its logs")
    told = [entry for entry in diagnosis["timeline"] if entry["at"]]
    if told:
        begin = told[0]["time"]
        lines += ["", "What was said, by one clock:"]
        lines += [f"  +{entry['time'] - begin:8.3f} s  {entry['node']}  {entry['class']}: {entry['line'][:200]}" for entry in told[:20]]
        if len(told) > 20:
            lines.append(f"  and {len(told) - 20} more, in report.json")
    if diagnosis["ends"]:
        lines += ["", "How the ranks ended:"]
        for end in diagnosis["ends"]:
            lines.append(f"  {end['at'] or 'at an unknown time'}  {end['node']} rank {end['rank']}: status {end['status']}, {end['reason']}")
    for name, node in nodes.items():
        for what, reason in (("container engine", node.get("engine")), ("journal", (node.get("journal") or {}).get("reason"))):
            if reason:
                lines.append(f"{name}: its {what} could not be read: {reason}")
    return lines


def _clock_note(diagnosis: Mapping[str, t.Any]) -> str:
    offset = diagnosis["clocks"].get(diagnosis["node"], {}).get("offset", 0.0)
    return "" if abs(offset) < 0.001 else f" by the head's clock ({diagnosis['node']}'s own is {abs(offset):.3f} s {'behind' if offset > 0 else 'ahead'})"
