# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers: directories of the lab that build a part of the hosts (driver, services, engine). The contract is in README.md."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import mounts, plan, recipe
from .command import run_logged
from .errors import LabError

MANIFEST = "layer.json"
BUILD = "build.sh"
TIMEOUT = 3600
#: A constant time for archives that a layer makes: 2026-01-01.
EPOCH = "1767225600"
#: Outputs of a layer that stay in the cache: the one in use and the one before it.
KEPT = 2


@dataclass(frozen=True)
class Layer:
    """One layer, as its manifest describes it."""

    name: str
    source: Path
    order: int
    hosts: tuple[str, ...]
    inputs: tuple[Path, ...]
    packages: tuple[str, ...]
    needs: tuple[str, ...]
    driver_unit: str = ""

    def key(self, keys: dict[str, str]) -> str:
        """The hash of the layer's inputs; ``keys`` are those of earlier layers and of the root file system."""
        extra = [f"{name}={keys[name]}" for name in sorted((*self.needs, "rootfs"))]
        own = [self.source / name for name in (MANIFEST, BUILD) if (self.source / name).exists()]
        return recipe.hash_paths(self.source, [*own, *self.inputs], extra)


def parse(source: Path, text: str) -> Layer:
    """Read a manifest; raises LabError that names the file and the key."""
    where = source / MANIFEST
    try:
        data = json.loads(text)
    except ValueError as problem:
        raise LabError(f"{where} is not JSON: {problem}") from problem
    known = {"order", "hosts", "inputs", "packages", "needs", "driver_unit"}
    if not isinstance(data, dict) or set(data) - known:
        raise LabError(f"{where} must be an object with the keys {', '.join(sorted(known))} only.")
    hosts = _words(where, data, "hosts", [host.name for host in plan.HOSTS])
    for name in hosts:
        if name not in [host.name for host in plan.HOSTS]:
            raise LabError(f"{where} names the host {name}, which the lab does not have.")
    if not isinstance(data.get("order", 50), int):
        raise LabError(f"{where}: order must be a number.")
    inputs = tuple((source / name) for name in _words(where, data, "inputs", ["."]))
    for path in inputs:
        if not path.exists():
            raise LabError(f"{where} lists the input {path}, which does not exist.")
    return Layer(
        name=source.name,
        source=source,
        order=data.get("order", 50),
        hosts=tuple(hosts),
        inputs=inputs,
        packages=tuple(_words(where, data, "packages", [])),
        needs=tuple(_words(where, data, "needs", [])),
        driver_unit=str(data.get("driver_unit", "")),
    )


def _words(where: Path, data: dict[str, object], name: str, default: list[str]) -> list[str]:
    value = data.get(name, default)
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise LabError(f"{where}: {name} must be a list of names.")
    return list(value)


def find(source: Path, without: frozenset[str] = frozenset()) -> list[Layer]:
    """All layers of the lab in their order, except those named in ``without``."""
    found = [
        parse(manifest.parent, manifest.read_text(encoding="utf-8"))
        for manifest in sorted(source.glob(f"*/{MANIFEST}"))
        if manifest.parent.name not in without
    ]
    found.sort(key=lambda layer: (layer.order, layer.name))
    earlier: set[str] = set()
    for layer in found:
        for name in layer.needs:
            if name not in earlier:
                raise LabError(f"The layer {layer.name} needs {name}, which is not an earlier layer.")
        earlier.add(layer.name)
    return found


def keys(layers: list[Layer], rootfs_key: str) -> dict[str, str]:
    """The hash of each layer, by name, and that of the root file system as ``rootfs``."""
    result = {"rootfs": rootfs_key}
    for layer in layers:
        result[layer.name] = layer.key(result)
    return result


def output(cache: Path, layer: Layer, key: str) -> Path:
    return cache / "layers" / f"{layer.name}-{key}"


def build(layer: Layer, key: str, *, cache: Path, rootfs: Path, needs: dict[str, Path], before_exec: Callable[[], None]) -> Path:
    """Build a layer unless its output is in the cache; returns the output directory."""
    target = output(cache, layer, key)
    if target.is_dir():
        return target
    partial = target.with_name(f"{target.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    downloads = cache / "downloads" / layer.name
    downloads.mkdir(parents=True, exist_ok=True)
    program = layer.source / BUILD
    if program.exists():
        environment = {"LAB_ROOTFS": str(rootfs), "LAB_DOWNLOADS": str(downloads), "SOURCE_DATE_EPOCH": EPOCH}
        environment.update({f"LAB_LAYER_{name.upper()}": str(path) for name, path in needs.items()})
        run_logged(
            [program, partial],
            cache / "logs" / f"{layer.name}.log",
            what=f"The build of the layer {layer.name} ({program})",
            timeout=TIMEOUT,
            cwd=layer.source,
            env=environment,
            before_exec=before_exec,
        )
    else:  # a layer of plain files
        shutil.copytree(layer.source / "root", partial / "root", symlinks=True, ignore=shutil.ignore_patterns(*recipe.IGNORED_DIRECTORIES))
    if left := mounts.below([partial]):
        raise LabError(f"The build of the layer {layer.name} left {left[0]} mounted.")
    own(partial)
    partial.rename(target)
    return target


def own(top: Path) -> None:
    """Give root all of an output that came from a checkout; what a build gave to others on purpose stays.

    Directories and files of a checkout have the modes of its umask: nothing in a host may be writable by others.
    """
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            path = Path(directory) / name
            if not path.is_symlink() and path.stat().st_mode & 0o022 and not path.stat().st_mode & 0o1000:
                path.chmod(path.stat().st_mode & ~0o022)


def trees(layer: Layer, built: Path, host: str) -> list[Path]:
    """The directories to lay over a host's root, the topmost first."""
    if host not in layer.hosts:
        return []
    candidates = [built / "hosts" / host / "root", built / "root"]
    return [tree for tree in candidates if tree.is_dir()]


def prune(cache: Path, layer: Layer, current: Path) -> None:
    """Remove old outputs of a layer: not the current one, nor one that is mounted, nor the last before it."""
    old = [path for path in (cache / "layers").glob(f"{layer.name}-*") if path != current]
    old.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    used = Path("/proc/mounts").read_text(encoding="utf-8")
    for path in old[KEPT - 1 :]:
        if str(path) not in used and time.time() - path.stat().st_mtime > 60:
            shutil.rmtree(path)
