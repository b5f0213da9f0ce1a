# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sizes of memory: one parser and one printer for the whole collection.

The text form is a number and a unit: C(KiB MiB GiB TiB) are powers of 1024, C(kB MB GB TB) powers of 1000
(IEC 80000-13). Ansible's own C(bytes) type refuses C(GiB) and reads C(GB) as 1024**3, so it cannot be used where
7 % of 120 GB decide over a service.
"""

from __future__ import annotations

import re
import typing as t

KIB: t.Final = 1024
MIB: t.Final = 1024**2
GIB: t.Final = 1024**3
TIB: t.Final = 1024**4

_UNITS: t.Final[dict[str, int]] = {
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
_FOLDED: t.Final[dict[str, str]] = {name.lower(): name for name in _UNITS}
#: A bare letter could mean either family, so it is refused; the two candidates are named.
_AMBIGUOUS: t.Final[dict[str, tuple[str, str]]] = {
    "k": ("KiB", "kB"),
    "m": ("MiB", "MB"),
    "g": ("GiB", "GB"),
    "t": ("TiB", "TB"),
    "ki": ("KiB", "kB"),
    "mi": ("MiB", "MB"),
    "gi": ("GiB", "GB"),
    "ti": ("TiB", "TB"),
}
# Bounded repeats: a size is never a long text, and int() of a very long one costs quadratic time.
_TEXT: t.Final = re.compile(r"(?P<number>[0-9]{1,20}(?:\.[0-9]{1,9})?)[ \t]{0,4}(?P<unit>[A-Za-z]{0,8})")
#: Bytes. Fewer, as text without a unit, are what Ansible leaves of `-e reserve=30 GiB`: it splits at the space and keeps the 30.
_LEAST_TEXT: t.Final = 64 * KIB
#: 2**60: more than any machine has; keeps sums far from surprising and outputs readable.
MAX_SIZE: t.Final = 1 << 60


class SizeError(ValueError):
    """A size that cannot be understood; its text is a sentence for the user."""


def parse_size(value: int | str, name: str = "size") -> int:
    """Return *value* in bytes.

    :param value: a whole number of bytes, or text such as V(10 GiB), V(600MB) or V(8589934592).
    :param name: what the size is, for the sentence of the error.
    :raises SizeError: for anything else, with a sentence that says what to write instead.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise SizeError(f"{name} must be a number of bytes or text with a unit like '10 GiB', not {type(value).__name__}.")
    if isinstance(value, int):
        return _checked(value, name)
    text = value.strip()
    match = _TEXT.fullmatch(text)
    if match is None:
        raise SizeError(f"{name} is {_shown(text)}, which is not a size; write a number of bytes or a number with a unit like '10 GiB' or '600 MB'.")
    unit = match["unit"]
    if not unit:
        if "." in match["number"]:
            raise SizeError(f"{name} is {_shown(text)}: a size without a unit is a whole number of bytes; add a unit like 'GiB'.")
        size = _checked(int(match["number"]), name)
        if 0 < size < _LEAST_TEXT:
            raise SizeError(
                f"{name} is {_shown(text)}, which would be {size} bytes: add its unit, like '{size} GiB'. On a command line the unit is lost at the space: "
                f"write {name}={size}GiB."
            )
        return size
    folded = unit.lower()
    if folded in _AMBIGUOUS:
        binary, decimal = _AMBIGUOUS[folded]
        raise SizeError(f"{name} is {_shown(text)}: '{unit}' alone can mean {binary} (1024s) or {decimal} (1000s); write one of the two.")
    known = _FOLDED.get(folded)
    if known is None:
        raise SizeError(f"{name} is {_shown(text)}: the unit '{unit}' is unknown; use one of {', '.join(_UNITS)}.")
    whole, _dot, fraction = match["number"].partition(".")
    # Integer arithmetic: 0.1 GiB must not depend on a float's last bit.
    size = int(whole) * _UNITS[known]
    if fraction:
        size += int(fraction) * _UNITS[known] // 10 ** len(fraction)
    return _checked(size, name)


def format_size(n: int) -> str:
    """Return *n* bytes as a person writes it, in binary units with one decimal: C(11.7 GiB)."""
    sign = "-" if n < 0 else ""
    size = abs(n)
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        # 1023.96 MiB would print as 1024.0 MiB; let the next larger unit have it
        if size * 20 >= _UNITS[unit] * 20 - _UNITS[unit] // 1024:
            return f"{sign}{size / _UNITS[unit]:.1f} {unit}"
    return f"{sign}{size} B"


def format_sizes(*sizes: int) -> list[str]:
    """Sizes of one sentence, all in the unit of the largest, so that they can be compared: ``['119.6 GiB', '0.78 GiB']``."""
    unit = format_size(max((abs(size) for size in sizes), default=0)).split()[1]
    return [f"{_in_unit(size, unit)} {unit}" for size in sizes]


def _in_unit(size: int, unit: str) -> str:
    """At least one decimal, and two figures of what is less than one."""
    value = size / _UNITS[unit]
    if size == 0 or unit == "B":
        return f"{size}"
    decimals = 1 if abs(value) >= 1 else 2 if abs(value) >= 0.1 else 3
    text = f"{value:.{decimals}f}"
    return text if float(text) else f"less than {'-' if size < 0 else ''}0.001"


def _checked(size: int, name: str) -> int:
    if size < 0:
        raise SizeError(f"{name} is negative; a size is zero or more bytes.")
    if size > MAX_SIZE:
        raise SizeError(f"{name} is larger than {MAX_SIZE // TIB} TiB, which no machine has; check the unit.")
    return size


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
