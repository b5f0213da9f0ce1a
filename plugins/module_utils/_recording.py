# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""A machine kept: recorded while it is read, secrets masked, and read again from the recording, anywhere.

A recording comes from somebody else. Whatever is wrong with it is one sentence, and nothing in it is trusted to have the right type.
"""

from __future__ import annotations

import json
import os
import typing as t
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._json import parse_json
from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import mask_argv, mask_command
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import (
    KERNEL_LOG,
    FakeWorld,
    PendingProbe,
    PendingRun,
    ProbeResult,
    Response,
    RunResult,
    World,
    why,
)

#: The one file of a recorded node, and the version of its layout.
RECORDING_FILE = "node.json"
RECORDING_FORMAT = 1

#: Name of the GPU driver's answer among the probes.
GPU_PROBE = "pynvml"


class WorldError(ValueError):
    """A recorded node cannot be used; the text is a sentence for the user."""


class RecordingWorld:
    """Passes every reading through and keeps a copy, secrets masked; ``recording()`` is what ReplayWorld reads."""

    def __init__(self, inner: World) -> None:
        self._inner = inner
        self.reasons = inner.reasons
        self._files: dict[str, list[str]] = {}
        self._links: dict[str, str] = {}
        self._directories: dict[str, list[str]] = {}
        self._processes: dict[str, str] = {}
        self._users: dict[str, str] = {}
        self._commands: list[dict[str, t.Any]] = []
        self._probes: dict[str, dict[str, t.Any]] = {}
        self._responses: list[dict[str, t.Any]] = []
        self._kernel_messages: dict[str, int] = {}
        self._failures: dict[str, str] = {}

    def _failed(self, path: str) -> None:
        reason = self.reasons.get(path)
        if reason:
            self._failures[path] = reason

    def read_text(self, path: str, timeout: float | None = None) -> str | None:
        """See World."""
        text = self._inner.read_text(path, timeout)
        if text is None:
            self._failed(path)
        else:
            # Lists of lines, because a diff of a recorded node is then readable; joining them gives the text back exactly.
            masked = "\0".join(mask_argv(text.split("\0"))) if path.endswith("/cmdline") else text
            self._files[path] = masked.split("\n")
        return text

    def read_text_of(self, uid: int, path: str, timeout: float) -> str | None:
        """See World."""
        text = self._inner.read_text_of(uid, path, timeout)
        if text is None:
            self._failed(path)
        else:
            self._files[path] = [mask_command(line) for line in text.split("\n")]
        return text

    def list_dir(self, path: str) -> list[str]:
        """See World."""
        names = self._inner.list_dir(path)
        self._directories[path] = names
        if not names:
            self._failed(path)
        return names

    def read_link(self, path: str) -> str | None:
        """See World."""
        target = self._inner.read_link(path)
        if target is None:
            self._failed(path)
        else:
            self._links[path] = target
        return target

    def process_table(self) -> dict[int, str]:
        """See World."""
        table = self._inner.process_table()
        self._processes = {str(pid): comm for pid, comm in table.items()}
        return table

    def user_name(self, uid: int) -> str | None:
        """See World."""
        name = self._inner.user_name(uid)
        if name is not None:
            self._users[str(uid)] = name
        return name

    def effective_uid(self) -> int:
        """See World."""
        return self._inner.effective_uid()

    def start(self, argv: Sequence[str], timeout: float) -> PendingRun:
        """See World."""
        return _RecordedRun(self._inner.start(argv, timeout), lambda result: self._ran(argv, result))

    def _ran(self, argv: Sequence[str], result: RunResult) -> None:
        stdout = [mask_command(line) for line in result.stdout.split("\n")]
        if argv[0] == "podman":
            stdout = [_inspected_without_secrets(result.stdout)]
        self._commands.append(
            {
                "argv": list(argv),
                "rc": result.rc,
                "stdout": stdout,
                "stderr": [mask_command(line) for line in result.stderr.split("\n")],
                "timed_out": result.timed_out,
                "missing": result.missing,
            }
        )

    def run(self, argv: Sequence[str], timeout: float) -> RunResult:
        """See World."""
        return self.start(argv, timeout).finish()

    def start_probe(self, name: str, function: Callable[[], dict[str, t.Any]], timeout: float) -> PendingProbe:
        """See World."""
        return _RecordedProbe(self._inner.start_probe(name, function, timeout), lambda result: self._probed(name, result))

    def _probed(self, name: str, result: ProbeResult) -> None:
        data = result.data
        if name == GPU_PROBE and data is not None:
            # Some drivers give a whole command line for a name.
            entries = [{**entry, "name": mask_command(entry["name"]) if entry["name"] else None} for entry in data["entries"]]
            data = {**data, "entries": entries}
        self._probes[name] = {"data": data, "error": result.error, "timed_out": result.timed_out}

    def request(self, socket_path: str, url_path: str, timeout: float) -> Response:
        """See World."""
        response = self._inner.request(socket_path, url_path, timeout)
        self._responses.append(
            {"socket": socket_path, "path": url_path, "status": response.status, "body": _without_secrets(response.body), "error": response.error}
        )
        return response

    def count_kernel_messages(self, text: str) -> int | None:
        """See World."""
        count = self._inner.count_kernel_messages(text)
        if count is None:
            self._failed(KERNEL_LOG)
        else:
            self._kernel_messages[text] = count
        return count

    def monotonic(self) -> float:
        """See World."""
        return self._inner.monotonic()

    def recording(self) -> dict[str, t.Any]:
        """Everything read so far, ready for JSON."""
        return {
            "format": RECORDING_FORMAT,
            "uid": self.effective_uid(),
            "files": self._files,
            "links": self._links,
            "directories": self._directories,
            "processes": self._processes,
            "users": self._users,
            "commands": self._commands,
            "probes": self._probes,
            "responses": self._responses,
            "kernel_messages": self._kernel_messages,
            "failures": self._failures,
        }


@dataclass
class _RecordedRun:
    inner: PendingRun
    done: Callable[[RunResult], None]

    def finish(self) -> RunResult:
        result = self.inner.finish()
        self.done(result)
        return result


@dataclass
class _RecordedProbe:
    inner: PendingProbe
    done: Callable[[ProbeResult], None]

    def finish(self) -> ProbeResult:
        result = self.inner.finish()
        self.done(result)
        return result


#: What is used of a container's description. The rest (environment, mounts, commands) can hold secrets and is never kept.
_CONTAINER_PARTS: dict[str, tuple[str, ...]] = {
    "": ("Id", "Name", "Created", "Image"),
    "State": ("Status", "Running", "Pid", "StartedAt"),
    "HostConfig": ("RestartPolicy", "AutoRemove", "PidMode"),
    "Config": ("Image",),
}
_LABEL_PREFIXES = ("com.docker.compose.", "io.unimem.", "io.podman.")


def _without_secrets(body: str) -> t.Any:
    try:
        return _kept(parse_json(body))
    except ValueError:
        return None


def _inspected_without_secrets(text: str) -> str:
    """What Podman's command prints: a list of containers."""
    try:
        documents = parse_json(text)
    except ValueError:
        return ""
    return json.dumps([_kept(document) for document in documents]) if isinstance(documents, list) else ""


def _kept(document: t.Any) -> dict[str, t.Any] | None:
    if not isinstance(document, dict):
        return None
    kept: dict[str, t.Any] = {name: document[name] for name in _CONTAINER_PARTS[""] if name in document}
    for part in ("State", "HostConfig", "Config"):
        inner = document.get(part)
        if isinstance(inner, dict):
            kept[part] = {name: inner[name] for name in _CONTAINER_PARTS[part] if name in inner}
    config = document.get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    if isinstance(labels, dict):
        kept.setdefault("Config", {})["Labels"] = {name: value for name, value in labels.items() if str(name).startswith(_LABEL_PREFIXES)}
    return kept


_TEXT = (str, type(None))
_COUNT = (int, type(None))
_FLAG = (bool, type(None))
#: Types of the fields of what a driver said (_gpu.Reading and its parts). A number is never negative, but for an error code.
_READING = {"driver_version": _TEXT, "cuda_version": _TEXT, "devices": (list,), "entries": (list,), "problems": (dict,), "absent": (bool,)}
_DEVICE = {
    **dict.fromkeys(("uuid", "name", "compute_capability", "addressing_mode", "pci_device"), _TEXT),
    **dict.fromkeys(("memory_total", "memory_used", "memory_free", "numa_node"), _COUNT),
    "index": (int,),
    "mig": _FLAG,
    "integrated": _FLAG,
    "lost": (bool,),
    "problems": (dict,),
}
_ENTRY = {"gpu": (int,), "pid": (int,), "kind": (str,), "memory": _COUNT, "name": _TEXT, "instance": _COUNT}


def _has(value: t.Any, types: Mapping[str, tuple[type, ...]]) -> bool:
    return isinstance(value, dict) and all(
        name in value and isinstance(value[name], kinds) and not (isinstance(value[name], int) and value[name] < 0) for name, kinds in types.items()
    )


def _is_problem(value: t.Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("code", ""), (int, type(None))) and isinstance(value.get("text"), str)


def is_reading(value: t.Any) -> bool:
    """Whether something is what a driver said, whole and of the right types."""
    if not _has(value, _READING) or not (value.get("failure", "") is None or _is_problem(value["failure"])):
        return False
    if not all(_has(device, _DEVICE) for device in value["devices"]) or not all(_has(entry, _ENTRY) for entry in value["entries"]):
        return False
    problems = [value["problems"], *(device["problems"] for device in value["devices"])]
    return all(_is_problem(problem) for each in problems for problem in each.values())


def _replayed(name: str, probe: Mapping[str, t.Any]) -> ProbeResult:
    data = probe.get("data")
    if name == GPU_PROBE and data is not None and not is_reading(data):
        raise ValueError(f"what {name} said is not whole")
    error = probe.get("error")
    return ProbeResult(data, None if error is None else str(error), bool(probe.get("timed_out")))


class ReplayWorld(FakeWorld):
    """A recorded machine, read from a directory that holds ``node.json``. WorldError when it cannot be used."""

    def __init__(self, directory: str) -> None:
        if not directory:
            raise WorldError(f"replay is empty; it is the directory of a recorded node, which holds {RECORDING_FILE}.")
        path = os.path.join(directory, RECORDING_FILE)
        try:
            with open(path, encoding="utf-8") as stream:
                node = parse_json(stream.read())
        except OSError as error:
            raise WorldError(
                f"{path} cannot be read ({why(error)}); a recorded node is a directory that holds {RECORDING_FILE}, as record.yml writes it."
            ) from error
        except ValueError as error:
            raise WorldError(f"{path} is not JSON: {error}.") from error
        if not isinstance(node, dict) or node.get("format") != RECORDING_FORMAT:
            raise WorldError(f"{path} is not a recorded node of format {RECORDING_FORMAT}; record the node again with this version of the collection.")
        try:
            super().__init__(
                files={name: "\n".join(lines) for name, lines in node.get("files", {}).items()},
                links={name: str(target) for name, target in node.get("links", {}).items()},
                commands={
                    tuple(str(word) for word in run["argv"]): RunResult(
                        rc=int(run["rc"]),
                        stdout="\n".join(run.get("stdout", [])),
                        stderr="\n".join(run.get("stderr", [])),
                        timed_out=bool(run.get("timed_out", False)),
                        missing=bool(run.get("missing", False)),
                    )
                    for run in node.get("commands", [])
                },
                probes={name: _replayed(name, probe) for name, probe in node.get("probes", {}).items()},
                responses={
                    (str(answer["socket"]), str(answer["path"])): Response(
                        answer.get("status"), "" if answer.get("body") is None else json.dumps(answer["body"]), answer.get("error")
                    )
                    for answer in node.get("responses", [])
                },
                users={int(uid): str(name) for uid, name in node.get("users", {}).items()},
                uid=int(node.get("uid", 0)),
                kernel_messages={str(text): abs(int(count)) for text, count in node.get("kernel_messages", {}).items()},
                reasons={str(name): str(reason) for name, reason in node.get("failures", {}).items()},
            )
            self._directories = {str(name): [str(entry) for entry in names] for name, names in node.get("directories", {}).items()}
            self._processes = {int(pid): str(comm) for pid, comm in node.get("processes", {}).items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WorldError(f"{path} is damaged ({type(error).__name__}: {error}); record the node again.") from error

    def list_dir(self, path: str) -> list[str]:
        """See World."""
        if path in self._directories:
            return list(self._directories[path])
        return super().list_dir(path)

    def process_table(self) -> dict[int, str]:
        """See World."""
        return dict(self._processes) or super().process_table()
