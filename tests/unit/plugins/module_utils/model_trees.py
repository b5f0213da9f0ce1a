# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees as users have them, made small: a plain directory and the three shapes of the Hugging Face cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"


def safetensors(name: str, count: int) -> bytes:
    """A valid file with one tensor of `count` bytes."""
    header = json.dumps({name: {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes((number * 7 + len(name)) % 251 for number in range(count))


def model_files(shards: int = 3) -> dict[str, bytes]:
    """The files of a complete model."""
    files = {"config.json": b'{"model_type": "x"}', "tokenizer.json": b"{}"}
    weight_map = {}
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        files[name] = safetensors(f"w{number}", 1000 + number)
        weight_map[f"w{number}"] = name
    total = sum(1000 + number for number in range(1, shards + 1))
    files["model.safetensors.index.json"] = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}).encode()
    return files


def plain(base: Path, name: str = "models/x") -> Path:
    """A directory with the files in it."""
    path = base / name
    path.mkdir(parents=True)
    for file, content in model_files().items():
        (path / file).write_bytes(content)
    return path


def blob_name(file: str, content: bytes) -> str:
    """What the hub calls a file's blob."""
    if file.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def cache(base: Path, shared: bool = False) -> Path:
    """A repository of the cache, classic or with the blobs in a store that repositories share."""
    repository = base / "hub" / "models--org--x"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    for file, content in model_files().items():
        name = blob_name(file, content)
        blob = repository / "blobs" / name
        if shared and file.endswith(".safetensors"):
            store = base / "hub" / "blobs" / name[:2]
            store.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(content)
            blob.symlink_to(os.path.join("..", "..", "blobs", name[:2], name))
        else:
            blob.write_bytes(content)
        (snapshot / file).symlink_to(os.path.join("..", "..", "blobs", name))
    return repository
