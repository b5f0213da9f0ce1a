# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees as users have them, made small: a plain directory, one of `hf download --local-dir`, and two shapes of the Hugging Face cache.

Only the standard library is used, so that the end-to-end tests can run this very text on a lab host.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"


def safetensors(name: str, count: int) -> bytes:
    """A valid file with one tensor of `count` bytes."""
    header = json.dumps({name: {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return len(header).to_bytes(8, "little") + header + random.Random(f"{name} {count}").randbytes(count)


def model_files(shards: int = 3, size: int = 1000, extra: str = "") -> dict[str, bytes]:
    """The files of a complete model. Every shard has a few bytes more than the one before; `extra` is the name of one more file."""
    files = {"config.json": json.dumps({"model_type": "x", "size": size}).encode(), "tokenizer.json": b"{}"}
    weight_map = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        files[name] = safetensors(f"w{number}", size + number)
        weight_map[f"w{number}"] = name
    total = sum(size + number for number in range(1, shards + 1))
    files["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}).encode()
    if extra:
        files[extra] = b"by name"
    return files


def plain(base: Path, name: str = "models/x", files: dict[str, bytes] | None = None) -> Path:
    """A directory with the files in it."""
    path = base / name
    path.mkdir(parents=True)
    for file, content in (files or model_files()).items():
        (path / file).write_bytes(content)
    return path


def local_dir(base: Path, name: str = "models/x", files: dict[str, bytes] | None = None) -> Path:
    """What `hf download --local-dir` leaves: the files, and the client's own bookkeeping beside them."""
    path = plain(base, name, files)
    bookkeeping = path / ".cache" / "huggingface" / "download"
    bookkeeping.mkdir(parents=True)
    (bookkeeping / "config.json.metadata").write_text(f"{REVISION}\nabc\n1\n")
    (bookkeeping / "config.json.lock").write_text("")
    return path


def blob_name(file: str, content: bytes) -> str:
    """What the hub calls a file's blob."""
    if file.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def cache(base: Path, shared: bool = False, name: str = "hub/models--org--x", files: dict[str, bytes] | None = None, revision: str = REVISION) -> Path:
    """A repository of the cache, classic or with the blobs in a store that repositories share."""
    repository = base / name
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    for file, content in (files or model_files()).items():
        digest = blob_name(file, content)
        blob = repository / "blobs" / digest
        if shared and file.endswith(".safetensors"):
            # Its name there is a hash, and not that of the content.
            stored = hashlib.sha256(b"another protocol's " + content).hexdigest()
            store = repository.parent / "blobs" / stored[:2]
            store.mkdir(parents=True, exist_ok=True)
            (store / stored).write_bytes(content)
            if not blob.is_symlink():
                blob.symlink_to(os.path.join("..", "..", "blobs", stored[:2], stored))
        else:
            blob.write_bytes(content)
        (snapshot / file).symlink_to(os.path.join("..", "..", "blobs", digest))
    return repository
