# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: parse_size
short_description: Bytes of a size like 11.7GiB
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Reads a size as all modules and roles of this collection do. Bytes as a number, or a number with one of the units B, KiB, MiB, GiB, TiB, kB, MB, GB and TB.
  - M(ansible.builtin.assert) and friends compare numbers; the filter P(ansible.builtin.human_to_bytes#filter) refuses the binary units.
options:
  _input:
    description:
      - The size.
    type: raw
    required: true
seealso:
  - plugin: unimem.dgx_spark.format_size
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show a size
  ansible.builtin.debug:
    msg: "{{ '11.7GiB' | unimem.dgx_spark.parse_size }}"  # 12562778521
"""

RETURN = r"""
_value:
  description:
    - The number of bytes.
  type: int
  sample: 12562778521
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _sizes


def parse_size(value: Any) -> int:
    """Bytes of a size like 11.7GiB; see DOCUMENTATION."""
    try:
        return _sizes.parse_size(value)
    except _sizes.SizeError as exc:
        raise AnsibleFilterError(f"unimem.dgx_spark.parse_size: {exc}") from exc


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"parse_size": parse_size}
