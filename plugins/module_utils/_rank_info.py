# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a node can tell of a deployment's ranks: their containers, command lines, environment and logs, and what the kernel, the watchdogs,
the container engine and the file systems say of the same time. Reads only; bounded; secrets masked; what cannot be read has a reason.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import time
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._causes import find
from ansible_collections.unimem.dgx_spark.plugins.module_utils._docker import EngineError
from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import MASK, is_secret_name, mask_argv, mask_command
from ansible_collections.unimem.dgx_spark.plugins.module_utils._rank_log import LINE_LENGTH, RankLog, parse_stamp, split_frames
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: Where the role mounts a rank's programs and its file; _engines/_base.py says the same, which only the controller has.
PROGRAMS = "/opt/unimem"
#: Bytes of one log that are looked at.
LOG_BYTES = 256 * 1024 * 1024
#: Seconds before the first rank's start from which the journal is read; and how far back where there is none.
BEFORE, WITHOUT_RANKS = 60.0, 3600.0
#: Lines of the journal that are kept beside those with a known message.
JOURNAL_LINES = 200
JOURNAL_FINDINGS = 20
#: Units that end processes when memory runs low, and the container engine.
WATCHED_UNITS = ("earlyoom.service", "systemd-oomd.service", "nohang.service", "nohang-desktop.service")
DOCKER_UNIT = "docker.service"

_UNIX_LINE = re.compile(r"^(?P<time>\d{1,12}\.\d{1,6}) \S{1,255} (?P<text>.{0,4000})")
_SS_USER = re.compile(r"\(\"(?P<name>[^\"]{0,64})\",pid=(?P<pid>\d{1,9})")


class Engine(t.Protocol):
    """What is asked of the container engine; EngineError when it does not answer."""

    def describe_labelled(self, label: str) -> list[dict[str, t.Any]]: ...

    def read_log(self, container_id: str, seconds: float) -> t.Iterator[bytes]: ...


def _part(told: t.Mapping[str, t.Any], name: str) -> dict[str, t.Any]:
    value = told.get(name)
    return value if isinstance(value, dict) else {}


def _list(told: t.Mapping[str, t.Any], name: str) -> list[t.Any]:
    value = told.get(name)
    return value if isinstance(value, list) else []


def masked_environment(entries: t.Iterable[t.Any]) -> dict[str, str]:
    """``NAME=value`` texts as a dictionary; the values of secret names, and secrets in other values, masked."""
    found = {}
    for entry in entries:
        name, equals, value = str(entry).partition("=")
        if equals:
            hidden = is_secret_name(name) or name == "UNIMEM_GROUP_TOKEN"
            found[name] = MASK if hidden and value else mask_command(value)
    return found


def _steps(text: str | None) -> list[dict[str, t.Any]]:
    """The processes of a rank's file, with their own environment."""
    try:
        steps = json.loads(text or "")["steps"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    found = []
    for step in steps if isinstance(steps, list) else []:
        if isinstance(step, dict) and isinstance(step.get("argv"), list):
            environment = step.get("env")
            pairs = [f"{name}={value}" for name, value in environment.items()] if isinstance(environment, dict) else []
            found.append(
                {"name": str(step.get("name", "")), "argv": mask_argv([str(word) for word in step["argv"]]), "environment": masked_environment(pairs)}
            )
    return found


def _stamp(value: t.Any) -> float | None:
    # Docker's zero of time is the year 1.
    stamp = parse_stamp(str(value))
    return stamp if stamp is not None and stamp > 0 else None


def _whole(value: t.Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def describe(told: t.Mapping[str, t.Any], rank_file: str | None) -> dict[str, t.Any]:
    """A rank from its container's description and the text of its file. Labels are anybody's text."""
    state, config, host = _part(told, "State"), _part(told, "Config"), _part(told, "HostConfig")
    labels = _part(config, "Labels")
    rank = str(labels.get("io.unimem.rank", ""))
    limits = [f"{limit.get('Name')}:{limit.get('Soft')}:{limit.get('Hard')}" for limit in _list(host, "Ulimits") if isinstance(limit, dict)]
    return {
        "rank": int(rank) if re.fullmatch(r"[0-9]{1,6}", rank) else -1,
        "role": str(labels.get("io.unimem.role", "")),
        "launch_id": str(labels.get("io.unimem.launch-id", "")),
        "container": str(told.get("Name", "")).lstrip("/"),
        "id": str(told.get("Id", "")),
        "image": str(config.get("Image", "")),
        "image_id": str(told.get("Image", "")),
        "status": str(state.get("Status", "")),
        "running": bool(state.get("Running")),
        "health": str(_part(state, "Health").get("Status", "")),
        "exit_status": None if state.get("Running") else _whole(state.get("ExitCode")),
        "oom_killed": bool(state.get("OOMKilled")),
        "error": mask_command(str(state.get("Error", "")))[:LINE_LENGTH],
        "created": _stamp(told.get("Created")),
        "started": _stamp(state.get("StartedAt")),
        "finished": None if state.get("Running") else _stamp(state.get("FinishedAt")),
        "command": mask_argv([str(word) for word in [told.get("Path", ""), *_list(told, "Args")]]),
        "steps": _steps(rank_file),
        "environment": masked_environment(_list(config, "Env")),
        "container_settings": {
            "ipc_mode": str(host.get("IpcMode", "")),
            "shm_bytes": _whole(host.get("ShmSize")),
            "ulimits": limits,
            "capabilities": [str(name) for name in _list(host, "CapAdd")],
            "devices": [str(device.get("PathOnHost", "")) for device in _list(host, "Devices") if isinstance(device, dict)],
            "restart_policy": str(_part(host, "RestartPolicy").get("Name", "")),
        },
    }


def _rank_file(world: World, told: t.Mapping[str, t.Any]) -> str | None:
    for mount in _list(told, "Mounts"):
        if isinstance(mount, dict) and mount.get("Destination") == PROGRAMS and str(mount.get("Source", "")).startswith("/"):
            return world.read_text(f"{mount['Source']}/rank.json")
    return None


def read_ranks(world: World, engine: Engine, deployment: str, keep: int, seconds: float) -> list[dict[str, t.Any]]:
    """The ranks of a deployment on this node in order, each with its log. Raises EngineError where they cannot even be listed."""
    end = world.monotonic() + seconds
    found = []
    for told in engine.describe_labelled(f"io.unimem.deployment={deployment}"):
        rank = describe(told, _rank_file(world, told))
        log = RankLog(keep)
        reason = None
        try:
            for line in log_lines(told, engine.read_log(rank["id"], max(1.0, end - world.monotonic()))):
                log.feed(line)
        except EngineError as exc:
            reason = str(exc)
        said = log.told()
        # The engine's own check comes seconds after the supervisor's word, and a log cannot always be read.
        ready = bool(rank["running"]) and (said["ready"] is not None or rank["health"] == "healthy")
        found.append({**rank, "ready": ready, "log": {**said, "reason": reason}})
    return sorted(found, key=lambda rank: (t.cast(int, rank["rank"]), t.cast(str, rank["container"])))


def log_lines(told: t.Mapping[str, t.Any], chunks: t.Iterable[bytes]) -> t.Iterator[str]:
    """The lines of a container's log. The stream of one with a terminal has no frames."""
    if _part(told, "Config").get("Tty"):
        chunks = (b"\x01\0\0\0" + len(chunk).to_bytes(4, "big") + chunk for chunk in chunks)
    return split_frames(chunks, LOG_BYTES)


def read_journal(world: World, since: float, timeout: float) -> dict[str, t.Any]:
    """What the kernel and the watchdogs said since then: known messages, and the last lines."""
    argv = ["journalctl", "--no-pager", "--quiet", "--output=short-unix", f"--since=@{int(since)}", "_TRANSPORT=kernel"]
    for unit in WATCHED_UNITS:
        argv += ["+", f"_SYSTEMD_UNIT={unit}"]
    result = world.run(argv, timeout)
    if result.missing or result.timed_out or result.rc != 0:
        why = "there is no journalctl" if result.missing else "journalctl did not answer in time" if result.timed_out else result.stderr.strip()
        return {"found": [], "lines": [], "reason": mask_command(why)[:LINE_LENGTH] or f"journalctl ended with status {result.rc}"}
    found: list[dict[str, t.Any]] = []
    lines = result.stdout.splitlines()
    for line in lines:
        parsed = _UNIX_LINE.match(line)
        match = find(parsed["text"]) if parsed is not None else None
        if parsed is not None and match is not None and match.cause.source in ("kernel", "watchdog") and len(found) < JOURNAL_FINDINGS:
            found.append(
                {
                    "time": float(parsed["time"]),
                    "process": "journal",
                    "cause": match.cause.name,
                    "fields": {name: mask_command(value) for name, value in match.fields.items()},
                    "line": mask_command(parsed["text"]),
                }
            )
    return {"found": found, "lines": [mask_command(line) for line in lines[-JOURNAL_LINES:]], "reason": None}


def read_docker_unit(world: World, timeout: float) -> dict[str, t.Any]:
    """Since when the container engine's unit has been in the state that it is in (seconds since 1970)."""
    result = world.run(["systemctl", "show", DOCKER_UNIT, "--timestamp=unix", "--property=ActiveState,ActiveEnterTimestamp"], timeout)
    values = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    since = values.get("ActiveEnterTimestamp", "").lstrip("@")
    return {"state": values.get("ActiveState") or None, "since": float(since) if re.fullmatch(r"\d{1,12}", since) else None}


def read_disks(world: World, paths: t.Sequence[str], timeout: float) -> list[dict[str, t.Any]]:
    """Size and room of the file systems that the paths are on, in bytes; one entry a file system."""
    result = world.run(["df", "--block-size=1", "--output=target,size,avail", "--", *paths], timeout)
    found: dict[str, dict[str, t.Any]] = {}
    for line in result.stdout.splitlines()[1:]:
        words = line.rsplit(None, 2)
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            found.setdefault(words[0], {"path": words[0], "total": int(words[1]), "free": int(words[2])})
    return list(found.values())


def read_links(world: World, names: t.Iterable[str]) -> list[dict[str, t.Any]]:
    """Whether each link is set up, and has a carrier."""
    found = []
    for name in sorted(set(names)):
        flags = (world.read_text(f"/sys/class/net/{name}/flags") or "").strip()
        if re.fullmatch(r"0x[0-9a-f]{1,8}", flags):
            up = bool(int(flags, 16) & 1)  # IFF_UP
            found.append({"name": name, "up": up, "carrier": up and (world.read_text(f"/sys/class/net/{name}/carrier") or "").strip() == "1"})
    return found


def try_port(port: int) -> str | None:
    """Why a server could not listen on a port of this node; None where it could.

    Tried by binding to it as servers do (SO_REUSEADDR), on all addresses: that finds a listener on any address and a port that is bound
    and not listened on, which no list of listeners shows, and does not stumble over connections that are only in TIME-WAIT.
    """
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((anywhere, port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # no IPv6 here
            return error.strerror or str(error)
    return None


def read_ports(
    world: World, ports: t.Sequence[int], timeout: float, free: t.Callable[[int], str | None] = try_port, containers: t.Collection[str] = ()
) -> dict[str, dict[str, t.Any]]:
    """For each port whether a server could listen on it (``why`` not), who has it now, and whether those are the ``containers``' ``own`` processes.

    Who has bound a port and does not listen on it is not told, and without root neither is whose a socket is; beside containers of ours
    that is taken for one of theirs.
    """
    users: dict[int, list[str]] = {port: [] for port in ports}
    strangers: set[int] = set()
    result = world.run(["ss", "--no-header", "--all", "--tcp", "--numeric", "--processes"], timeout) if ports else None
    for line in result.stdout.splitlines() if result else []:
        words = line.split(None, 5)
        number = words[3].rsplit(":", 1)[-1] if len(words) > 3 else ""
        if number.isdigit() and int(number) in users and words[0] != "TIME-WAIT":
            user = _SS_USER.search(words[5]) if len(words) > 5 else None
            who = f"{user['name']} ({user['pid']})" if user is not None else "a process that this user may not see"
            if user is not None and not _is_in(world, user["pid"], containers):
                strangers.add(int(number))
            text = f"{words[0]} on {words[3]}: {who}"
            if text not in users[int(number)]:
                users[int(number)].append(text)
    return {str(port): {"why": free(port), "users": users[port][:10], "own": bool(containers) and port not in strangers} for port in ports}


def _is_in(world: World, pid: str, containers: t.Collection[str]) -> bool:
    """Whether a process is in one of these containers, by the control groups that the kernel says it is in."""
    groups = world.read_text(f"/proc/{pid}/cgroup") or ""
    return any(container and container in groups for container in containers)


def _interfaces(ranks: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """The links that the ranks were told to use; a name of an environment variable is anybody's text."""
    names = [str(rank["environment"].get(name, "")) for rank in ranks for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")]
    return [name for name in names if re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", name) and name not in (".", "..")]


def read_node(
    world: World,
    engine: Engine | None,
    deployment: str,
    keep: int,
    seconds: float,
    ports: t.Sequence[int] = (),
    paths: t.Sequence[str] = (),
    around: bool = True,
    now: t.Callable[[], float] = time.time,
) -> dict[str, t.Any]:
    """All of it: ``ranks``, ``engine`` (why the container engine cannot be asked), ``ports`` and ``clock``; and what the node says ``around`` them:
    ``journal``, ``docker``, ``links`` and ``disks``.
    """
    ranks: list[dict[str, t.Any]] = []
    reason: str | None = None if engine is not None else "no container engine answers"
    if engine is not None:
        try:
            ranks = read_ranks(world, engine, deployment, keep, seconds)
        except EngineError as exc:
            reason = str(exc)
    started = [rank["started"] or rank["created"] for rank in ranks if rank["started"] or rank["created"]]
    since = min(started) - BEFORE if started else now() - WITHOUT_RANKS
    short = min(10.0, seconds)
    own = [rank["id"] for rank in ranks if rank["running"]]
    result: dict[str, t.Any] = {"ranks": ranks, "engine": reason, "ports": read_ports(world, ports, short, containers=own)}
    if around:
        result["journal"] = read_journal(world, since, short)
        result["docker"] = read_docker_unit(world, short)
        result["links"] = read_links(world, _interfaces(ranks))
        result["disks"] = read_disks(world, ["/", "/tmp", "/var/lib/docker", "/dev/shm", *paths], short)
    result["clock"] = round(now(), 6)
    return result
