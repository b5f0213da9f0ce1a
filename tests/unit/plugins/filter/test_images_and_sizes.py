# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.format_size import format_size
from ansible_collections.unimem.dgx_spark.plugins.filter.image_identity import image_identity
from ansible_collections.unimem.dgx_spark.plugins.filter.parse_size import parse_size

IMAGE = {
    "Id": "sha256:1111",
    "RepoDigests": [],
    "Os": "linux",
    "Architecture": "arm64",
    "Created": "2026-11-30T00:00:00Z",
    "RootFS": {"Type": "layers", "Layers": ["sha256:a", "sha256:b"]},
    "Config": {"Env": ["A=1"], "Cmd": ["serve"], "Volumes": None, "Labels": {"x": "y"}, "Hostname": ""},
}


def test_the_same_image_in_another_store_of_another_docker() -> None:
    other = copy.deepcopy(IMAGE)
    other.update(Id="sha256:2222", RepoDigests=["x@sha256:3"], Variant="")
    other["Config"].update(Volumes={}, OnBuild=[], Hostname="x")
    assert image_identity(other) == image_identity(IMAGE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("Architecture",), "amd64"),
        (("Os",), "windows"),
        (("RootFS", "Layers"), ["sha256:b", "sha256:a"]),
        (("Config", "Env"), ["A=2"]),
        (("Config", "Labels"), {}),
    ],
)
def test_every_difference_that_matters_shows(path: tuple[str, ...], value: object) -> None:
    other = copy.deepcopy(IMAGE)
    place = other
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert image_identity(other) != image_identity(IMAGE)


def test_no_image_is_no_identity_and_nonsense_is_refused() -> None:
    assert image_identity({}) == ""
    for nonsense in ({"RootFS": {}}, {"RootFS": {"Layers": []}}, ["x"], "x"):
        with pytest.raises(AnsibleFilterError):
            image_identity(nonsense)


def test_sizes_there_and_back() -> None:
    assert parse_size("11.7GiB") == 12562779340 and parse_size(5) == 5
    assert format_size(parse_size("3GiB")).endswith("GiB")
    for nonsense in ("1G", "", "x", None, -1):
        with pytest.raises(AnsibleFilterError):
            parse_size(nonsense)
    with pytest.raises(AnsibleFilterError):
        format_size("x")
