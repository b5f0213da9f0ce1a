# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: format_size
short_description: A number of bytes for people
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Writes a number of bytes as all messages of this collection do, in binary units.
options:
  _input:
    description:
      - The number of bytes.
    type: int
    required: true
seealso:
  - plugin: unimem.dgx_spark.parse_size
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show a size
  ansible.builtin.debug:
    msg: "{{ 12562778521 | unimem.dgx_spark.format_size }}"  # 11.7 GiB
"""

RETURN = r"""
_value:
  description:
    - The size with its unit.
  type: str
  sample: 11.7 GiB
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _sizes


def format_size(value: Any) -> str:
    """A number of bytes for people; see DOCUMENTATION."""
    try:
        return _sizes.format_size(int(value))
    except (TypeError, ValueError) as exc:
        raise AnsibleFilterError(f"unimem.dgx_spark.format_size: {exc}") from exc


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"format_size": format_size}
