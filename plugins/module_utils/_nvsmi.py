# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""Readings of the GPU by nvidia-smi: CSV for GPUs and compute processes, the table for graphics processes, XML where CSV is refused.

Each text is parsed by what it says, not by columns: they moved between drivers 550 and 610.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.unimem.dgx_spark.plugins.module_utils._gpu import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    Device,
    Entry,
    Problem,
    Reading,
    new_device,
    new_reading,
    pci_device_id,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import Deadline, RunResult, World

PROGRAM = "nvidia-smi"
MIB = 1024 * 1024

#: The name comes last: it may hold a comma, and nothing is quoted.
GPU_FIELDS = (
    "index",
    "uuid",
    "pci.device_id",
    "compute_cap",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "mig.mode.current",
    "addressing_mode",
    "name",
)
GPU_QUERY = (PROGRAM, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits")
#: For drivers that refuse a field of the longer query, and print no XML that can be read.
SHORT_GPU_FIELDS = ("index", "uuid", "driver_version", "memory.total", "memory.used", "memory.free", "name")
SHORT_GPU_QUERY = (PROGRAM, f"--query-gpu={','.join(SHORT_GPU_FIELDS)}", "--format=csv,noheader,nounits")
APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
APP_QUERY = (PROGRAM, f"--query-compute-apps={','.join(APP_FIELDS)}", "--format=csv,noheader,nounits")
TABLE = (PROGRAM,)
XML = (PROGRAM, "-q", "-x")

_NOT_SUPPORTED_WORDS = ("n/a", "not supported", "not available")
#: What the program says when it cannot work at all, with NVML's code for it.
_FAILURES = (
    (re.compile(r"driver/library version mismatch", re.IGNORECASE), VERSION_MISMATCH),
    (re.compile(r"couldn'?t find libnvidia-ml|libnvidia-ml\.so[^ ]{0,32} not found|error while loading shared libraries", re.IGNORECASE), LIBRARY_NOT_FOUND),
    (re.compile(r"couldn'?t communicate with the nvidia driver|driver is not loaded|driver not loaded", re.IGNORECASE), DRIVER_NOT_LOADED),
    (re.compile(r"insufficient permissions?", re.IGNORECASE), NO_PERMISSION),
    (re.compile(r"gpu is lost", re.IGNORECASE), GPU_IS_LOST),
)
_NO_DEVICES = re.compile(r"no devices (?:were )?found", re.IGNORECASE)
_REFUSED_FIELD = re.compile(r"is not a valid field|invalid combination of input|not a valid option|unrecognized|invalid option", re.IGNORECASE)

_PROCESS_ROW = re.compile(
    r"^\|\s+(?P<gpu>\d{1,4})\s+(?P<gi>\d{1,9}|N/A)\s+(?P<ci>\d{1,9}|N/A)\s+(?P<pid>\d{1,9})\s+(?P<type>[A-Z](?:\+[A-Z]){0,3})\s+(?P<rest>.*)\|$",
)
_ROW_MEMORY = re.compile(r"(?<!\S)(?P<memory>\d{1,12}\s?MiB|\[?N/A\]?|\[?Not Supported\]?|\[?Unknown Error\]?)$")
#: A row has about 90 characters; names are cut to fit.
_ROW_LENGTH = 400
_CUDA_VERSION = re.compile(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)")
_DRIVER_VERSION = re.compile(r"(?:Driver|KMD) Version:\s*(\d+(?:\.\d+)+)")


def parse_number(token: str) -> tuple[int | None, Problem | None]:
    """A number as nvidia-smi prints it, with or without unit, or the problem that stands in its place: ``[N/A]``, ``ERR!``, …"""
    text = token.strip()
    match = re.fullmatch(r"(\d{1,15})(?:\.\d+)?(?:\s*(?:MiB|MB))?", text)
    if match:
        return int(match[1]), None
    bare = text.strip("[] ").lower()
    if bare in _NOT_SUPPORTED_WORDS:
        return None, Problem(code=NOT_SUPPORTED, text=f"nvidia-smi says {text}")
    if "insufficient permission" in bare:
        return None, Problem(code=NO_PERMISSION, text=f"nvidia-smi says {text}")
    return None, Problem(code=None, text=f"nvidia-smi says {text or 'nothing'}")


def _clean(token: str) -> str | None:
    """A text field; None where a placeholder stands. Drivers from 610 mark some values as ``[Deprecated; …]``."""
    text = re.sub(r"\[Deprecated[^\]]{0,100}\]", "", token).strip()
    return None if not text or text.strip("[] ").lower() in (*_NOT_SUPPORTED_WORDS, "not found", "unknown error") or text == "ERR!" else text


def _set_memory(device: Device, field: str, token: str) -> None:
    number, problem = parse_number(token)
    if problem is not None:
        device["problems"][field] = problem
    elif number is not None:
        device[field] = number * MIB  # type: ignore[literal-required]


def _finish_memory(device: Device) -> None:
    if device["memory_total"] == 0:
        zero = Problem(code=NOT_SUPPORTED, text="the driver answers 0 bytes")
        for field in ("memory_total", "memory_used", "memory_free"):
            device[field] = None
            device["problems"][field] = zero


def _set_mode(device: Device, mig: str | None, addressing: str | None) -> None:
    words = {"enabled": True, "disabled": False}
    device["mig"] = words.get((mig or "").strip("[] ").lower())
    if device["mig"] is None:
        device["problems"]["mig"] = parse_number(mig or "")[1] or Problem(code=None, text=f"nvidia-smi says {mig}")
    mode = _clean(addressing or "")
    device["addressing_mode"] = mode.upper() if mode and mode.upper() in ("ATS", "HMM") else "none" if mode and mode.lower() == "none" else None
    if device["addressing_mode"] is None:
        device["problems"]["addressing_mode"] = parse_number(addressing or "")[1] or Problem(code=None, text=f"nvidia-smi says {addressing}")


def parse_gpus(text: str, fields: tuple[str, ...]) -> tuple[list[Device], str | None]:
    """GPUs and driver version from the CSV of a --query-gpu; lines that are not CSV are left out."""
    devices: list[Device] = []
    driver: str | None = None
    for line in text.split("\n"):
        tokens = [token.strip() for token in line.split(",", len(fields) - 1)]
        if len(tokens) != len(fields) or not re.fullmatch(r"\d{1,4}", tokens[0]):
            continue
        row = dict(zip(fields, tokens))
        device = new_device(int(row["index"]))
        for field, column in (("uuid", "uuid"), ("name", "name"), ("compute_capability", "compute_cap")):
            value = _clean(row.get(column, ""))
            device[field] = value  # type: ignore[literal-required]
            if value is None:
                device["problems"][field] = Problem(code=None, text=f"nvidia-smi says {row.get(column) or 'nothing'}")
        device["pci_device"] = pci_device_id(row.get("pci.device_id"))
        for field in ("total", "used", "free"):
            _set_memory(device, f"memory_{field}", row[f"memory.{field}"])
        _finish_memory(device)
        _set_mode(device, row.get("mig.mode.current"), row.get("addressing_mode"))
        driver = driver or _clean(row["driver_version"])
        devices.append(device)
    return devices, driver


def parse_compute_apps(text: str, devices: list[Device]) -> list[Entry]:
    """Compute processes from the CSV of --query-compute-apps."""
    by_uuid = {device["uuid"]: device["index"] for device in devices}
    entries: list[Entry] = []
    for line in text.split("\n"):
        tokens = [token.strip() for token in line.split(",", len(APP_FIELDS) - 1)]
        if len(tokens) != len(APP_FIELDS) or not re.fullmatch(r"\d{1,9}", tokens[1]):
            continue
        memory = parse_number(tokens[2])[0]
        entries.append(
            Entry(
                # A process on a MIG instance is listed under the UUID of that instance.
                gpu=by_uuid.get(tokens[0], devices[0]["index"] if devices else 0),
                pid=int(tokens[1]),
                kind="compute",
                memory=None if memory is None else memory * MIB,
                name=_clean(tokens[3]),
                instance=None,
            )
        )
    return entries


def _kinds(types: str) -> list[str]:
    # C compute, G graphics, C+G both, M+C compute through MPS.
    return [kind for letter, kind in (("C", "compute"), ("G", "graphics")) if letter in types.split("+")]


def parse_table(text: str) -> list[Entry] | None:
    """Processes from the table that nvidia-smi prints without options; None when the text has no list of processes."""
    start = text.find("Processes:")
    if start < 0:
        return None
    entries: list[Entry] = []
    for line in text[start:].split("\n"):
        row = _PROCESS_ROW.match(line.rstrip()[:_ROW_LENGTH])
        rest = _ROW_MEMORY.search(row["rest"].rstrip()) if row else None
        if not row or not rest:
            continue
        memory = parse_number(rest["memory"])[0]
        name = _clean(row["rest"][: rest.start()])
        for kind in _kinds(row["type"]):
            entries.append(
                Entry(
                    gpu=int(row["gpu"]),
                    pid=int(row["pid"]),
                    kind=kind,
                    memory=None if memory is None else memory * MIB,
                    # Long names are cut at their beginning; such a part is no name.
                    name=None if name and name.startswith("...") else name,
                    instance=int(row["gi"]) if row["gi"].isdecimal() else None,
                )
            )
    return entries


def parse_xml(text: str) -> Reading | None:
    """Everything from ``nvidia-smi -q -x``; None when the text is not that."""
    from xml.etree import ElementTree  # only where CSV was refused: it costs milliseconds to import

    # The document type names a file that is not there; nothing in it is needed, and entities are never wanted.
    if "<!ENTITY" in text:
        return None
    try:
        root = ElementTree.fromstring(text[text.find("<?xml") :] if "<?xml" in text else text)
    except ElementTree.ParseError:
        return None
    if root.tag != "nvidia_smi_log":
        return None

    def say(element: t.Any, *paths: str) -> str:
        return next((found.strip() for found in (element.findtext(path) for path in paths) if found and found.strip()), "")

    reading = new_reading()
    reading["driver_version"] = _clean(say(root, "driver_version", "kmd_version"))
    reading["cuda_version"] = _clean(say(root, "cuda_version", "cuda_umd_version"))
    for index, gpu in enumerate(root.findall("gpu")):
        device = new_device(index)
        device["uuid"], device["name"] = _clean(say(gpu, "uuid")), _clean(say(gpu, "product_name"))
        device["pci_device"] = pci_device_id(say(gpu, "pci/pci_device_id"))
        device["compute_capability"] = None
        device["problems"]["compute_capability"] = Problem(code=None, text="this nvidia-smi does not print it")
        for field in ("total", "used", "free"):
            _set_memory(device, f"memory_{field}", say(gpu, f"fb_memory_usage/{field}"))
        _finish_memory(device)
        _set_mode(device, say(gpu, "mig_mode/current_mig"), say(gpu, "addressing_mode"))
        numa = say(gpu, "gpu_numa_id", "numa_id", "platformInfo/gpu_numa_id")
        device["numa_node"] = int(numa) if re.fullmatch(r"\d{1,4}", numa) else None
        reading["devices"].append(device)
        for process in gpu.iterfind(".//process_info"):
            pid, memory = say(process, "pid"), parse_number(say(process, "used_memory"))[0]
            instance = say(process, "gpu_instance_id")
            for kind in _kinds(say(process, "type")) if re.fullmatch(r"\d{1,9}", pid) else []:
                reading["entries"].append(
                    Entry(
                        gpu=index,
                        pid=int(pid),
                        kind=kind,
                        memory=None if memory is None else memory * MIB,
                        name=_clean(say(process, "process_name")),
                        instance=int(instance) if re.fullmatch(r"\d{1,9}", instance) else None,
                    )
                )
    return reading


def failure_of(result: RunResult) -> Problem:
    """What a run that gave nothing says about the driver."""
    said = " ".join(f"{result.stdout} {result.stderr}".split())
    for pattern, code in _FAILURES:
        if pattern.search(said):
            return Problem(code=code, text=f"nvidia-smi: {said[:300]}")
    return Problem(code=None, text=f"nvidia-smi ended with status {result.rc}: {said[:300] or 'no message'}")


def _says_no_devices(result: RunResult) -> bool:
    return bool(_NO_DEVICES.search(result.stdout) or _NO_DEVICES.search(result.stderr))


class Asked:
    """The three questions under way: at once, since each starts the program, and not waited for, since there are other things to read."""

    def __init__(self, world: World, deadline: Deadline) -> None:
        self._world, self._deadline, self._left = world, deadline, deadline.left()
        self._pending = [world.start(query, self._left) for query in (GPU_QUERY, APP_QUERY, TABLE)]

    def finish(self) -> tuple[Reading, bool]:
        """Everything that nvidia-smi says, and whether it hung."""
        gpus, apps, table = (run.finish() for run in self._pending)
        if gpus.missing:
            return new_reading(Problem(code=None, text="nvidia-smi is not installed"), absent=True), False
        if gpus.timed_out or apps.timed_out or table.timed_out:
            return new_reading(Problem(code=None, text=f"nvidia-smi did not answer within {self._left:.1f} s")), True
        if _says_no_devices(gpus):
            return new_reading(), False
        reading = new_reading()
        reading["devices"], reading["driver_version"] = parse_gpus(gpus.stdout, GPU_FIELDS)
        if not reading["devices"]:
            if not _REFUSED_FIELD.search(gpus.stdout + gpus.stderr):
                return new_reading(failure_of(gpus)), False
            older, hung = _read_older(self._world, self._deadline)
            if hung or older["failure"]:
                return older, hung
            reading = older
        cuda = _CUDA_VERSION.search(table.stdout)
        if cuda:
            reading["cuda_version"] = cuda[1]
        driver = _DRIVER_VERSION.search(table.stdout)
        if driver and not reading["driver_version"]:
            reading["driver_version"] = driver[1]
        _add_processes(self._world, self._deadline, reading, apps, table)
        return reading, False


def _read_older(world: World, deadline: Deadline) -> tuple[Reading, bool]:
    """For drivers that refuse a field: the XML, and where that cannot be read either, only fields that all drivers have."""
    left = deadline.left()
    run = world.run(XML, left)
    if run.timed_out:
        return new_reading(Problem(code=None, text=f"nvidia-smi -q did not answer within {left:.1f} s")), True
    reading = parse_xml(run.stdout)
    if reading and reading["devices"]:
        return reading, False
    run = world.run(SHORT_GPU_QUERY, deadline.left())
    if run.timed_out:
        return new_reading(Problem(code=None, text="nvidia-smi did not answer in time")), True
    reading = new_reading()
    reading["devices"], reading["driver_version"] = parse_gpus(run.stdout, SHORT_GPU_FIELDS)
    if not reading["devices"]:
        reading["failure"] = failure_of(run)
    return reading, False


def _add_processes(world: World, deadline: Deadline, reading: Reading, apps: RunResult, table: RunResult) -> None:
    listed = parse_table(table.stdout)
    if listed is None and not reading["entries"]:
        run = world.run(XML, deadline.left())
        xml = parse_xml(run.stdout)
        listed = xml["entries"] if xml else None
    if listed is None and not reading["entries"]:
        reading["problems"]["processes.graphics"] = failure_of(table)
    entries = [*reading["entries"], *(listed or [])]
    if apps.rc == 0:
        # The table has the MIG instance of a process, the CSV has its whole name; a process may have come or gone in between.
        for app in parse_compute_apps(apps.stdout, reading["devices"]):
            same = [entry for entry in entries if entry["pid"] == app["pid"] and entry["kind"] == "compute" and entry["gpu"] == app["gpu"]]
            for entry in same:
                entry["name"] = app["name"] or entry["name"]
            if not same:
                entries.append(app)
            elif len(same) == 1 and same[0]["memory"] is None:
                same[0]["memory"] = app["memory"]
    elif listed is None:
        reading["problems"]["processes.compute"] = failure_of(apps)
    reading["entries"] = entries
