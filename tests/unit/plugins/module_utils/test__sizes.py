# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import GIB, KIB, MIB, TIB, SizeError, format_size, format_sizes, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (8589934592, 8589934592),
        ("0", 0),
        ("8589934592", 8589934592),
        ("10 GiB", 10 * GIB),
        ("10GiB", 10 * GIB),
        ("  10 gib  ", 10 * GIB),
        ("1.5 MiB", 1572864),
        ("0.1 GiB", 107374182),
        ("11.7 GiB", 12562779340),
        ("2 TiB", 2 * TIB),
        ("3 KiB", 3 * KIB),
        ("127.15 GB", 127150000000),
        ("600MB", 600_000_000),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("2 TB", 2 * 10**12),
        ("7 B", 7),
    ],
)
def test_parse(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10G", "GiB (1024s) or GB (1000s)"),
        ("10 g", "GiB (1024s) or GB (1000s)"),
        ("5M", "MiB"),
        ("5 Ti", "TiB"),
        ("64k", "KiB"),
        ("10 GiBs", "unit 'GiBs' is unknown"),
        ("10 Gbit", "unit 'Gbit' is unknown"),
        ("", "not a size"),
        ("GiB", "not a size"),
        ("30", "add its unit, like '30 GiB'"),
        ("65535", "the unit is lost at the space"),
        ("-1 GiB", "not a size"),
        (-1, "negative"),
        ("1,5 GiB", "not a size"),
        ("1e9", "not a size"),
        ("nan", "not a size"),
        ("1.5", "whole number of bytes"),
        ("9" * 5000, "not a size"),
        ("99999999999999999999 TiB", "larger than"),
        (1 << 61, "larger than"),
        (True, "not bool"),
        (1.5, "not float"),
        (None, "not NoneType"),
        (["1 GiB"], "not list"),
    ],
)
def test_refuse(text: object, says: str) -> None:
    with pytest.raises(SizeError) as caught:
        parse_size(text, "need")  # type: ignore[arg-type]
    message = str(caught.value)
    assert says in message
    assert message.startswith("need ")
    assert message.endswith(".")
    assert len(message) < 250


def test_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size("many")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (12562779341, "11.7 GiB"),
        (MIB - 1, "1.0 MiB"),
        (600_000_000, "572.2 MiB"),
        (5 * TIB, "5.0 TiB"),
        (-3 * GIB, "-3.0 GiB"),
    ],
)
def test_format(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize("size", [1024, 5 * MIB, 3 * GIB, 7 * TIB])
def test_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        ((120 * GIB, 800 * MIB, 3 * MIB, 1), ["120.0 GiB", "0.78 GiB", "0.003 GiB", "less than 0.001 GiB"]),
        ((0, 5 * MIB, -MIB // 2), ["0 MiB", "5.0 MiB", "-0.50 MiB"]),
        ((7, 0), ["7 B", "0 B"]),
        ((), []),
    ],
)
def test_sizes_that_are_compared_have_one_unit(sizes: tuple[int, ...], texts: list[str]) -> None:
    assert format_sizes(*sizes) == texts
