# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._chain_ids import chain_ids
from ansible_collections.unimem.dgx_spark.plugins.module_utils._image_archive import archive, boundaries, part_config, part_name
from ansible_collections.unimem.dgx_spark.plugins.module_utils._image_ship import ShipError, feed
from ansible_collections.unimem.dgx_spark.plugins.module_utils._layer_store import Layer, LayerStore, StoreError


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer_tar(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def split(tar: bytes) -> list[dict[str, object]]:
    """What tar-split keeps of an archive: everything but the files' contents, in order."""
    entries: list[dict[str, object]] = []
    end = 0
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        for member in opened:
            entries.append({"type": 2, "payload": base64.b64encode(tar[end : member.offset_data]).decode(), "position": len(entries)})
            name = member.name.encode("utf-8", "surrogateescape")
            try:
                named: dict[str, object] = {"name": name.decode()}
            except UnicodeDecodeError:
                named = {"name_raw": base64.b64encode(name).decode()}
            entries.append({"type": 1, **named, "size": member.size, "payload": "AAAAAAAAAAA=", "position": len(entries)})
            end = member.offset_data + member.size
    entries.append({"type": 2, "payload": base64.b64encode(tar[end:]).decode(), "position": len(entries)})
    return entries


class Docker:
    """A data root with one image, as Docker's classic store lays it out."""

    def __init__(self, root: Path, layers: list[dict[str, bytes]]) -> None:
        self.root = root
        self.tars = [layer_tar(files) for files in layers]
        self.diff_ids = [digest(tar) for tar in self.tars]
        for number, (chain, diff_id, files, tar) in enumerate(zip(chain_ids(self.diff_ids), self.diff_ids, layers, self.tars)):
            folder = root / "image/overlay2/layerdb/sha256" / chain[7:]
            folder.mkdir(parents=True)
            (folder / "diff").write_text(diff_id)
            (folder / "cache-id").write_text(f"{number:064x}")
            lines = "".join(json.dumps(entry) + "\n" for entry in split(tar))
            (folder / "tar-split.json.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
            self.files(number).mkdir(parents=True)
            for name, content in files.items():
                path = self.files(number) / os.fsencode(name).decode("utf-8", "surrogateescape")
                path.parent.mkdir(parents=True, exist_ok=True)
                if not name.endswith("/"):
                    path.write_bytes(content)
        config = {"architecture": "arm64", "os": "linux", "config": {"Env": ["A=1"]}, "rootfs": {"type": "layers", "diff_ids": self.diff_ids}}
        self.config = json.dumps(config).encode()
        images = root / "image/overlay2/imagedb/content/sha256"
        images.mkdir(parents=True)
        (images / digest(self.config)[7:]).write_bytes(self.config)

    def files(self, number: int) -> Path:
        return self.root / "overlay2" / f"{number:064x}" / "diff"


LAYERS = [
    {"bin/": b"", "bin/sh": b"x" * 3_000_000, "etc/passwd": b"root"},
    {"opt/with blank/ü": b"y" * 700, "etc/.wh.passwd": b"", "raw\udcff": b"z"},
    {"top": b"w" * 513},
]


@pytest.fixture
def docker(tmp_path: Path) -> Docker:
    return Docker(tmp_path, LAYERS)


def test_every_layer_comes_out_as_the_archive_that_it_was(docker: Docker) -> None:
    store = LayerStore(str(docker.root))
    for layer, tar in zip(store.layers(docker.diff_ids), docker.tars):
        assert layer.size == len(tar)
        assert b"".join(store.read(layer)) == tar
    assert store.config(digest(docker.config)) == docker.config


def test_damage_is_seen_at_the_latest_at_the_end(docker: Docker) -> None:
    store = LayerStore(str(docker.root))
    layer = store.layers(docker.diff_ids)[0]
    (docker.files(0) / "etc/passwd").write_bytes(b"evil")
    with pytest.raises(StoreError, match="another hash"):
        list(store.read(layer))
    (docker.files(0) / "etc/passwd").write_bytes(b"r")
    with pytest.raises(StoreError, match="shorter"):
        list(store.read(layer))
    (docker.files(0) / "etc/passwd").unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        list(store.read(layer))


def test_no_link_leads_out_of_a_layer(docker: Docker, tmp_path: Path) -> None:
    store = LayerStore(str(docker.root))
    layer = store.layers(docker.diff_ids)[0]
    victim = docker.files(0) / "etc/passwd"
    victim.unlink()
    victim.symlink_to("/etc/passwd")
    with pytest.raises(StoreError, match="cannot be read"):
        list(store.read(layer))


@pytest.mark.parametrize("name", ["../../secret", "a/../../secret", "/..", ".."])
def test_a_name_that_leaves_the_layer_is_refused(docker: Docker, name: str) -> None:
    folder = docker.root / "image/overlay2/layerdb/sha256" / chain_ids(docker.diff_ids)[0][7:]
    (folder / "tar-split.json.gz").write_bytes(gzip.compress(json.dumps({"type": 1, "name": name, "size": 3}).encode()))
    store = LayerStore(str(docker.root))
    with pytest.raises(StoreError):
        list(store.read(Layer(docker.diff_ids[0], chain_ids(docker.diff_ids)[0], 3)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"no json", mtime=0),
        gzip.compress(b'{"type": 2}', mtime=0),
        gzip.compress(b"{}", mtime=0)[:10],
        gzip.compress(b"3", mtime=0),
    ],
)
def test_a_store_that_is_not_as_expected_is_said_to_be_so(docker: Docker, content: bytes) -> None:
    folder = docker.root / "image/overlay2/layerdb/sha256" / chain_ids(docker.diff_ids)[0][7:]
    (folder / "tar-split.json.gz").write_bytes(content)
    store = LayerStore(str(docker.root))
    with pytest.raises(StoreError):
        list(store.read(store.layers(docker.diff_ids)[0]))


def test_other_things_than_digests_are_refused(docker: Docker) -> None:
    store = LayerStore(str(docker.root))
    for wrong in (["sha256:../../x"], [], ["sha256:" + "0" * 64]):
        with pytest.raises(StoreError):
            store.layers(wrong)
    with pytest.raises(StoreError):
        store.config("sha256:../../../etc/passwd")


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_an_archive_has_only_what_is_missing_and_names_all(docker: Docker) -> None:
    store = LayerStore(str(docker.root))
    data = b"".join(archive(store, docker.config, "a/b:c", store.layers(docker.diff_ids), 2))
    found = members(data)
    (manifest,) = json.loads(found.pop("manifest.json"))
    assert manifest["RepoTags"] == ["a/b:c"] and manifest["Layers"] == [f"{diff_id[7:]}/layer.tar" for diff_id in docker.diff_ids]
    assert found.pop(manifest["Config"]) == docker.config and manifest["Config"] == digest(docker.config)[7:] + ".json"
    assert found == {f"{docker.diff_ids[2][7:]}/layer.tar": docker.tars[2]}
    assert len(data) % 10240 == 0


def test_one_content_twice_in_an_image_is_sent_once(tmp_path: Path) -> None:
    docker = Docker(tmp_path, [LAYERS[2], LAYERS[0], LAYERS[2]])
    store = LayerStore(str(docker.root))
    data = b"".join(archive(store, docker.config, "a:b", store.layers(docker.diff_ids), 1))
    assert len([name for name in members(data) if name.endswith("layer.tar")]) == 2


def test_a_part_is_an_image_of_the_lowest_layers_for_the_same_machine(docker: Docker) -> None:
    config = json.loads(part_config(docker.config, 2))
    assert config["rootfs"]["diff_ids"] == docker.diff_ids[:2] and config["architecture"] == "arm64" and config["config"] == {}
    assert part_name("sha256:0123456789abcdef0123", 2) == "unimem-ship/0123456789ab:2"


@pytest.mark.parametrize(
    ("sizes", "present", "ends"),
    [([5, 5, 5], 0, [2, 3]), ([5, 5, 5, 5], 0, [2, 4]), ([5, 5, 5], 2, [3]), ([50, 1], 0, [1, 2]), ([1, 1, 1], 0, [3]), ([50], 0, [1]), ([9, 50, 9], 3, [3])],
)
def test_parts_end_where_enough_has_been_gathered(sizes: list[int], present: int, ends: list[int]) -> None:
    layers = [Layer(f"sha256:{number:064x}", "", size) for number, size in enumerate(sizes)]
    assert boundaries(layers, present, least=10) == ends


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_an_archive_goes_to_the_receiver_as_it_is_made(tmp_path: Path) -> None:
    load = python(f"import sys; open({str(tmp_path / 'out')!r}, 'wb').write(sys.stdin.buffer.read())")
    assert feed(load, [b"a" * 3_000_000, b"b"]) == 3_000_001
    assert (tmp_path / "out").read_bytes() == b"a" * 3_000_000 + b"b"


def test_a_layer_that_turns_out_wrong_is_never_taken_for_whole(tmp_path: Path) -> None:
    def chunks() -> object:
        yield b"a" * 1000
        raise StoreError("another hash")

    load = python(f"import sys; sys.stdin.buffer.read(); open({str(tmp_path / 'loaded')!r}, 'w')")
    with pytest.raises(ShipError, match="another hash"):
        feed(load, chunks())
    assert not (tmp_path / "loaded").exists()


def test_a_receiver_that_fails_is_named_with_its_words() -> None:
    with pytest.raises(ShipError, match=r"status 7 \(disk full\)"):
        feed(python("import sys; sys.stdin.buffer.read(10); sys.stderr.write('disk full'); sys.exit(7)"), [b"x" * 1000] * 10_000)
    with pytest.raises(ShipError, match="status 3"):
        feed(python("import sys; sys.stdin.buffer.read(); sys.exit(3)"), [b"x"])
