# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""What a GPU driver said, in one shape whoever was asked, and what follows from it: the class of the machine and its GPU processes."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping

from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import World

#: Error codes of NVML (nvml.h) that mean different things here.
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
VERSION_MISMATCH = 18

#: Names and PCI device ids of GPUs that have no memory of their own. GB10 is GB20B [10de:2e12]; 2e03 and 2e06 are the N1X, which
#: reports a small carve-out as its memory.
UNIFIED_NAMES = re.compile(r"\b(?:GB10|Thor|Orin|Xavier|Tegra)\b|\(nvgpu\)")
UNIFIED_PCI_DEVICES = frozenset({"2e12", "2e03", "2e06"})
#: GPUs with memory of their own that the system can address coherently.
COHERENT_NAMES = re.compile(r"\b(?:GH200|GB200|GB300)\b")


class Problem(t.TypedDict):
    """Why a field has no value: NVML's error code where there is one, and a text."""

    code: int | None
    text: str


class Device(t.TypedDict):
    """One GPU. Sizes are bytes; ``addressing_mode`` is ATS, HMM or none; ``pci_device`` has four hexadecimal digits.

    ``lost``: the driver knows that there is such a GPU, and nothing more about it.
    """

    index: int
    uuid: str | None
    name: str | None
    compute_capability: str | None
    addressing_mode: str | None
    memory_total: int | None
    memory_used: int | None
    memory_free: int | None
    mig: bool | None
    pci_device: str | None
    numa_node: int | None
    integrated: bool | None
    lost: bool
    problems: dict[str, Problem]


class Entry(t.TypedDict):
    """One line of a process list. ``instance`` is the MIG GPU instance; memory is None when the driver does not say."""

    gpu: int
    pid: int
    kind: str
    memory: int | None
    name: str | None
    instance: int | None


class Reading(t.TypedDict):
    """Everything one source said. ``failure`` is set when it said nothing at all; ``absent`` when that source does not exist here."""

    driver_version: str | None
    cuda_version: str | None
    devices: list[Device]
    entries: list[Entry]
    problems: dict[str, Problem]
    failure: Problem | None
    absent: bool


def new_reading(failure: Problem | None = None, absent: bool = False) -> Reading:
    """An empty reading."""
    return Reading(driver_version=None, cuda_version=None, devices=[], entries=[], problems={}, failure=failure, absent=absent)


def new_device(index: int) -> Device:
    """A GPU of which nothing is known yet."""
    return Device(
        index=index,
        uuid=None,
        name=None,
        compute_capability=None,
        addressing_mode=None,
        memory_total=None,
        memory_used=None,
        memory_free=None,
        mig=None,
        pci_device=None,
        numa_node=None,
        integrated=None,
        lost=False,
        problems={},
    )


def pci_device_id(value: str | int | None) -> str | None:
    """The device part of a combined PCI id: 0x2E1210DE (device 2e12 of vendor 10de) gives ``2e12``."""
    try:
        number = int(value, 16) if isinstance(value, str) else value
    except ValueError:
        return None
    if number is None or not 0xFFFF < number <= 0xFFFFFFFF or number & 0xFFFF != 0x10DE:
        return None
    return f"{number >> 16:04x}"


def cuda_version(number: int | None) -> str | None:
    """13000 is CUDA 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number and number > 0 else None


class GpuProcess(t.NamedTuple):
    """A process that the driver lists, over all its lists and GPUs. ``memory`` is bytes, or None when it is known on no GPU."""

    pid: int
    kinds: list[str]
    memory: int | None
    partial: bool
    name: str | None
    gpus: list[int]


def merge_entries(entries: Iterable[Entry]) -> list[GpuProcess]:
    """One process a pid: in both the compute and the graphics list of a GPU it has the same memory twice, on two GPUs two memories."""
    kinds: dict[int, set[str]] = {}
    names: dict[int, str] = {}
    sizes: dict[int, dict[tuple[int, int | None], int | None]] = {}
    for entry in entries:
        pid = entry["pid"]
        if pid <= 0:
            continue
        kinds.setdefault(pid, set()).add(entry["kind"])
        if entry["name"]:
            names.setdefault(pid, entry["name"])
        places = sizes.setdefault(pid, {})
        place = (entry["gpu"], entry["instance"])
        known, said = places.get(place), entry["memory"]
        if said is not None and said >= 0 and (known is None or said > known):
            places[place] = said
        else:
            places.setdefault(place, None)
    processes = []
    for pid in sorted(kinds):
        known_sizes = [size for size in sizes[pid].values() if size is not None]
        processes.append(
            GpuProcess(
                pid=pid,
                kinds=[kind for kind in ("compute", "graphics") if kind in kinds[pid]],
                memory=sum(known_sizes) if known_sizes else None,
                partial=bool(known_sizes) and len(known_sizes) < len(sizes[pid]),
                name=names.get(pid),
                gpus=sorted({gpu for gpu, _instance in sizes[pid]}),
            )
        )
    return processes


class Hardware(t.NamedTuple):
    """What the machine says of itself without its GPU driver."""

    product: str | None
    unified: list[str]
    gpu_present: bool


def read_hardware(world: World) -> Hardware:
    """Product, and the signs of unified memory that need no driver: PCI ids, the device tree of Jetsons, the release file of Sparks."""
    vendor = _word(world.read_text("/sys/class/dmi/id/sys_vendor"))
    product_name = _word(world.read_text("/sys/class/dmi/id/product_name"))
    tree_model = _word(world.read_text("/proc/device-tree/model"))
    release = parse_assignments(world.read_text("/etc/dgx-release") or "")
    unified: list[str] = []
    gpu_present = False
    for address in world.list_dir("/sys/bus/pci/devices"):
        if _word(world.read_text(f"/sys/bus/pci/devices/{address}/vendor")) != "0x10de":
            continue
        # Class 03 is a display controller; NVIDIA also makes audio functions, bridges and network adapters.
        if not (_word(world.read_text(f"/sys/bus/pci/devices/{address}/class")) or "").startswith("0x03"):
            continue
        gpu_present = True
        device = (_word(world.read_text(f"/sys/bus/pci/devices/{address}/device")) or "")[2:].lower()
        if device in UNIFIED_PCI_DEVICES:
            unified.append(f"PCI device 10de:{device} at {address}")
    if tree_model and re.search(r"\bJetson\b|\bThor\b|\bOrin\b", tree_model):
        gpu_present = True
        unified.append(f"device tree model {tree_model}")
    elif world.read_text("/etc/nv_tegra_release") is not None:
        gpu_present = True
        unified.append("/etc/nv_tegra_release")
    # Where PCI cannot be seen, a loaded driver says as well that there is a GPU.
    gpu_present = gpu_present or world.read_text("/proc/driver/nvidia/version") is not None
    if "spark" in release.get("DGX_NAME", "").lower():
        unified.append(f"/etc/dgx-release: DGX_NAME={release['DGX_NAME']}")
    return Hardware(product=_product(vendor, product_name, tree_model, release), unified=unified, gpu_present=gpu_present)


def _word(text: str | None) -> str | None:
    stripped = (text or "").strip("\0\n\t ")
    return stripped or None


def _product(vendor: str | None, product_name: str | None, tree_model: str | None, release: Mapping[str, str]) -> str | None:
    if tree_model:
        return tree_model
    if product_name and product_name.lower() not in ("default string", "to be filled by o.e.m.", "system product name", "none"):
        product = product_name.replace("_", " ")
        return product if not vendor or product.lower().startswith(vendor.lower()) else f"{vendor} {product}"
    return release.get("DGX_PRETTY_NAME") or release.get("DGX_NAME")


def parse_assignments(text: str) -> dict[str, str]:
    """NAME="value" lines, quoted or not; of a repeated name the last one counts, as in /etc/dgx-release."""
    assignments: dict[str, str] = {}
    for line in text.split("\n"):
        name, separator, value = line.strip().partition("=")
        if separator and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            assignments[name] = value.strip().strip("\"'")
    return assignments


def _silent(device: Device) -> bool:
    """Whether the driver says that this GPU has no memory that it could report, and for no other reason than that."""
    problem = device["problems"].get("memory_total")
    return device["memory_total"] is None and problem is not None and problem["code"] == NOT_SUPPORTED and device["mig"] is not True


def classify_device(device: Device, hardware: Hardware) -> tuple[str, list[str]]:
    """Class of one GPU (unified, coherent or discrete) and what speaks for it.

    Memory that cannot be read proves nothing alone (a MIG parent, a vGPU guest and a missing permission look alike), and the
    addressing mode ATS proves nothing alone (a GH200 has it, and memory of its own): one sign of each kind is needed.
    """
    name, pci, mode = device["name"] or "", device["pci_device"], device["addressing_mode"]
    signs = []
    if UNIFIED_NAMES.search(name):
        signs.append(f"name {name}")
    if pci in UNIFIED_PCI_DEVICES:
        signs.append(f"PCI device 10de:{pci}")
    if device["integrated"]:
        signs.append("CUDA says that it is integrated")
    if device["memory_total"] is not None:
        told = [f"the driver reports {device['memory_total']} bytes of memory"]
        if signs:
            return "unified", [*signs, f"{told[0]}, which is not its own"]
        if COHERENT_NAMES.search(name) or mode == "ATS" or device["numa_node"] is not None:
            return "coherent", [*told, *([f"name {name}"] if COHERENT_NAMES.search(name) else []), *([f"addressing mode {mode}"] if mode else [])]
        return "discrete", told
    if not _silent(device):
        problem = device["problems"].get("memory_total", Problem(code=None, text="not read"))
        why = "MIG is enabled" if device["mig"] else problem["text"]
        if signs:
            return "unified", [*signs, f"its memory cannot be read: {why}"]
        return "discrete", [f"its memory cannot be read: {why}", "nothing says that it has none of its own"]
    if mode == "ATS" and device["numa_node"] is None and not COHERENT_NAMES.search(name):
        signs.append("addressing mode ATS without a NUMA node of its own")
    signs += hardware.unified
    said = f"the driver reports no memory: {device['problems']['memory_total']['text']}"
    if signs:
        return "unified", [said, *signs]
    return "discrete", [said, "nothing says that it has none of its own"]


def classify(reading: Reading, hardware: Hardware) -> tuple[str, list[str], dict[int, str]]:
    """Class of a machine whose driver has answered, or could not be asked, the evidence, and the class of each GPU by its number.

    A machine with a GPU without memory of its own is unified, whatever else is in it. A hang is not decided here.
    """
    if reading["failure"]:
        why = reading["failure"]["text"]
        # Without its driver the pool is still the same pool; a release file alone may lie on a machine without a GPU.
        if hardware.gpu_present and hardware.unified:
            return "unified", [why, *hardware.unified], {}
        if hardware.gpu_present:
            return "none", [why, "there is an NVIDIA GPU, and no driver that answers"], {}
        return "none", [why], {}
    if not reading["devices"]:
        return "none", ["the driver knows no GPU"], {}
    classes: dict[int, str] = {}
    evidence: list[str] = []
    for device in reading["devices"]:
        if not device["lost"]:
            classes[device["index"]], signs = classify_device(device, hardware)
            evidence += [f"GPU {device['index']} is {classes[device['index']]}: {sign}" for sign in signs]
    return next((name for name in ("unified", "coherent", "discrete") if name in classes.values()), "none"), evidence, classes
