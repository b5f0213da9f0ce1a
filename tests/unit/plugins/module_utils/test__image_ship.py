# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._chain_ids import chain_ids, common_layers
from ansible_collections.unimem.dgx_spark.plugins.module_utils._image_ship import (
    ShipError,
    filter_archive,
    legacy_folders,
    members_to_drop,
    ship,
)

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def archive(*members: tuple[str, bytes]) -> bytes:
    """A tar archive in the order given."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_chain_ids_are_those_of_the_image_specification() -> None:
    assert chain_ids([]) == []
    assert chain_ids([A]) == [A]
    two = chain_ids([A, B])
    assert two[1] == "sha256:" + hashlib.sha256(f"{A} {B}".encode()).hexdigest()
    assert chain_ids([A, B, C])[:2] == two and len(set(chain_ids([A, B, C]))) == 3


@pytest.mark.parametrize(
    ("images", "number"),
    [([], 0), ([[B, A]], 0), ([[A]], 1), ([[A, C], [A, B]], 2), ([[A, B, C, A]], 3), ([[]], 0)],
)
def test_common_layers_are_counted_from_the_bottom(images: list[list[str]], number: int) -> None:
    assert common_layers([A, B, C], images) == number


def test_legacy_folders_are_those_of_docker_20() -> None:
    # Recorded from Docker 20.10.24: `docker image inspect` (RootFS.Layers) and manifest.json of `docker image save` of one image.
    layers = [
        "sha256:36d277d2ae012cc75a8b186d82a8723edd954af96c093c9bf937d3a4cd5df0ba",
        "sha256:0b66966b41107e2c264e8688606c474b0841ba3480dff493852ae82a6d27b49a",
        "sha256:6972cb4206bd6e71525515923eff65ffe56bfffdddc9d6be8ad39f175e06ea5a",
    ]
    folders = [
        "7d23b97b876483020baac42ebd7dcd08b9b0b1d5acbf25cdb3b7947ba987be5f",
        "b2ad5e1da6dfcd7b9c60ee33f3718d156c9a5f271665f172cf705b2a519a65d2",
    ]
    assert legacy_folders(layers) == folders


def test_dropped_members_are_named_in_both_formats_and_the_top_layer_never_by_the_old_one() -> None:
    assert members_to_drop([A, B], 0) == set()
    names = members_to_drop([A, B], 1)
    assert f"blobs/sha256/{'a' * 64}" in names and f"blobs/sha256/{'b' * 64}" not in names and len(names) == 2
    assert len(members_to_drop([A, B], 2)) == 3


def test_filtered_archive_is_an_archive_without_these_members() -> None:
    data = archive(("a/layer.tar", b"x" * 5000), ("a/json", b"{}"), ("b/layer.tar", b"y" * 512), ("c/empty", b""), ("manifest.json", b"[]"))
    sink = io.BytesIO()
    shipment = filter_archive(io.BytesIO(data), sink, {"a/layer.tar", "not there"})
    assert contents(sink.getvalue()) == {"a/json": b"{}", "b/layer.tar": b"y" * 512, "c/empty": b"", "manifest.json": b"[]"}
    assert shipment.spared_bytes == 5120 and shipment.sent_bytes == len(sink.getvalue()) == len(data) - 5120 - 512


def test_nothing_to_drop_is_a_copy() -> None:
    data = archive(("ü" * 150, b"long name"), ("b", b"z" * 1025))
    sink = io.BytesIO()
    filter_archive(io.BytesIO(data), sink, set())
    assert sink.getvalue() == data


@pytest.mark.parametrize("cut", [100, 512, 700, 2000])
def test_a_cut_archive_is_never_taken_for_a_whole_one(cut: int) -> None:
    data = archive(("a", b"x" * 3000))
    with pytest.raises(ShipError):
        filter_archive(io.BytesIO(data[:cut]), io.BytesIO(), set())


def test_what_is_no_archive_is_said_to_be_none() -> None:
    with pytest.raises(ShipError, match="no tar archive"):
        filter_archive(io.BytesIO(b"Error response from daemon".ljust(1024, b"!")), io.BytesIO(), set())


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_pipeline_passes_everything_on(tmp_path: Path) -> None:
    data = archive(("a", b"x" * 3_000_000), ("b", b"y" * 100))
    (tmp_path / "in").write_bytes(data)
    save = python(f"import sys; sys.stdout.buffer.write(open({str(tmp_path / 'in')!r}, 'rb').read())")
    load = python(f"import sys; open({str(tmp_path / 'out')!r}, 'wb').write(sys.stdin.buffer.read())")
    shipment = ship(save, load, {"b"})
    assert contents((tmp_path / "out").read_bytes()) == {"a": b"x" * 3_000_000}
    assert shipment.spared_bytes == 512


def test_failing_sender_fails_the_whole_though_the_receiver_is_content(tmp_path: Path) -> None:
    data = archive(("a", b"x"))
    save = python(f"import sys; sys.stdout.buffer.write({data!r}); sys.stderr.write('no space left'); sys.exit(3)")
    with pytest.raises(ShipError, match=r"status 3 \(no space left\)"):
        ship(save, python("import sys; sys.stdin.buffer.read()"), set())


def test_failing_receiver_is_named_with_its_words() -> None:
    data = archive(("a", b"x" * 5_000_000))
    save = python(f"import sys; sys.stdout.buffer.write({data[:512]!r} + b'x' * 5000192 + b'\\0' * 10240)")
    with pytest.raises(ShipError, match=r"status 7 \(disk full\)"):
        ship(save, python("import sys; sys.stdin.buffer.read(10); sys.stderr.write('disk full'); sys.exit(7)"), set())


def test_receiver_of_a_cut_archive_is_ended_and_not_left_to_take_it_for_whole(tmp_path: Path) -> None:
    save = python(f"import sys; sys.stdout.buffer.write({archive(('a', b'x' * 3000))[:700]!r})")
    load = python(f"import sys; sys.stdin.buffer.read(); open({str(tmp_path / 'loaded')!r}, 'w')")
    with pytest.raises(ShipError):
        ship(save, load, set())
    assert not (tmp_path / "loaded").exists()
