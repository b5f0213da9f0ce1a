# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Models on the lab's hosts: made there, looked at there, over the lab's own ssh and never through what is tested."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

from harness import ROOT, Run, on_host, run_playbook

BASE = "/srv/unimem-sync"
SOURCE, TARGET = "spark-01", "spark-02"
LAYOUTS = ("plain", "local_dir", "cache", "shared")
#: The unit tests' builder, which runs on the hosts as it is.
_BUILDER = (ROOT / "tests" / "unit" / "plugins" / "module_utils" / "model_trees.py").read_text(encoding="utf-8")
REVISIONS = {"old": "a" * 40, "new": "b" * 40}

#: What is below a directory: for each path its link's target or its content's hash. Our own folder is not part of a model.
_LISTING = """
import hashlib, json, os
found = {}
for folder, folders, names in os.walk(BASE):
    folders[:] = [name for name in folders if name != ".unimem-model-sync"]
    for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
        path = os.path.join(folder, name)
        if os.path.islink(path):
            found[os.path.relpath(path, BASE)] = "-> " + os.readlink(path)
        else:
            with open(path, "rb") as handle:
                digest = hashlib.sha256()
                while block := handle.read(1 << 20):
                    digest.update(block)
            found[os.path.relpath(path, BASE)] = digest.hexdigest()
print(json.dumps(found))
"""

#: Bytes of a file's pages that are in memory, by mincore(2).
_RESIDENT = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
page, resident, size = mmap.PAGESIZE, 0, 0
for folder, _folders, names in os.walk(BASE):
    for name in names:
        path = os.path.join(folder, name)
        length = 0 if os.path.islink(path) else os.path.getsize(path)
        if not length:
            continue
        size += length
        descriptor = os.open(path, os.O_RDWR)
        area = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        seen = (ctypes.c_ubyte * (-(-length // page)))()
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), seen):
            raise OSError(ctypes.get_errno(), path)
        resident += page * sum(byte & 1 for byte in seen)
        os.close(descriptor)
print(resident, size)
"""


def python(host: str, code: str, timeout: float = 300) -> str:
    """Run a program of ours on a host, and return what it prints."""
    command = ["ssh", "-F", str(ROOT / ".lab" / "ssh_config"), host, "python3", "-"]
    done = subprocess.run(command, input=code, text=True, capture_output=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{host}: python3 ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done.stdout


def listing(host: str, base: str = BASE) -> dict[str, str]:
    """Every file and link below a directory of a host, with its content's hash or its target."""
    told: dict[str, str] = json.loads(python(host, f"BASE = {base!r}\n{_LISTING}"))
    return told


def resident(host: str, base: str = BASE) -> float:
    """Which share of the files below a directory is in a host's page cache."""
    pages, size = python(host, f"BASE = {base!r}\n{_RESIDENT}").split()
    return int(pages) / int(size)


@dataclass(frozen=True)
class Model:
    """One model in one layout, the same place on both hosts."""

    layout: str
    #: the last part of its name
    name: str = "x"
    shards: int = 3
    size: int = 100_000
    extra: str = ""

    @property
    def is_cache(self) -> bool:
        return self.layout in ("cache", "shared")

    @property
    def path(self) -> str:
        """What the role is given."""
        return f"{BASE}/hub/models--org--{self.name}" if self.is_cache else f"{BASE}/models/{self.name}"

    def served(self, which: str = "new") -> str:
        """What an engine is given."""
        return f"{self.path}/snapshots/{REVISIONS[which]}" if self.is_cache else self.path

    def build(self, host: str, which: str) -> None:
        """Make the old or the new version on a host. The two differ in every weight and in the configuration."""
        relative = self.path.removeprefix(BASE + "/")
        size = self.size if which == "new" else self.size - 500
        arguments = f"Path({BASE!r}), name={relative!r}, files=model_files({self.shards}, {size}, {self.extra!r})"
        call = f"cache({arguments}, shared={self.layout == 'shared'}, revision={REVISIONS[which]!r})" if self.is_cache else f"{self.layout}({arguments})"
        python(host, f"{_BUILDER}\nPath({BASE!r}).mkdir(parents=True, exist_ok=True)\n{call}\n")

    def sync(self, *arguments: str, environment: dict[str, str] | None = None, **variables: Any) -> Run:
        """Run the role."""
        extra = {"model_sync_source": SOURCE, "model_sync_path": self.path, "model_sync_reserve": "1MiB", **variables}
        return run_playbook("tests/lab/e2e/playbooks/model_sync.yml", *arguments, extra=extra, environment=environment)

    def file(self, host: str, name: str) -> str:
        """Where the bytes of one of its files are, links followed."""
        return on_host(host, "readlink", "--canonicalize", f"{self.served()}/{name}").stdout.strip()

    @property
    def first_shard(self) -> str:
        return f"model-00001-of-{self.shards:05d}.safetensors"


def fresh(model: Model, old: bool = True) -> Model:
    """The new version on the source, the old one (or nothing) on the target, and nothing else of ours."""
    for host in (SOURCE, TARGET):
        on_host(host, "sh", "-c", f"umount {BASE} 2>/dev/null; rm -rf {shlex.quote(BASE)}")
    model.build(SOURCE, "new")
    if old:
        model.build(TARGET, "old")
    return model


def has_new(model: Model) -> bool:
    """Whether the target has everything of the new version, byte by byte."""
    there, wanted = listing(TARGET), listing(SOURCE)
    return {path: value for path, value in there.items() if path in wanted and "/.cache/" not in path} == {
        path: value for path, value in wanted.items() if "/.cache/" not in path
    }
