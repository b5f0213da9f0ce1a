# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: copy_rounds
short_description: Plan who copies something to whom, in as few rounds as there can be
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - In each round, every host that has it sends it to one host that lacks it, so that the hosts that have it double. The number of rounds grows
    with the logarithm of the number of hosts.
positional: _input, holders
options:
  _input:
    description:
      - The hosts that lack it.
    type: list
    elements: str
    required: true
  holders:
    description:
      - The hosts that have it, those that shall send first in front.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
---
- name: Say who sends to whom
  ansible.builtin.debug:
    msg: "{{ ['spark-02', 'spark-03', 'spark-04'] | unimem.dgx_spark.copy_rounds(['spark-01']) }}"
"""

RETURN = r"""
_value:
  description:
    - The rounds, each a list of pairs with C(source) and C(target).
  type: list
  elements: list
  sample:
    - - source: spark-01
        target: spark-02
    - - source: spark-01
        target: spark-03
      - source: spark-02
        target: spark-04
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.plugin_utils._fan_out import FanOutError, rounds


def copy_rounds(lacking: Any, holders: Any) -> list[list[dict[str, str]]]:
    """Plan the rounds; see DOCUMENTATION."""
    for given in (lacking, holders):
        if not isinstance(given, (list, tuple)):
            raise AnsibleFilterError(f"unimem.dgx_spark.copy_rounds needs lists of hosts, not {type(given).__name__}")
    try:
        return rounds([str(name) for name in lacking], [str(name) for name in holders])
    except FanOutError as exc:
        raise AnsibleFilterError(f"unimem.dgx_spark.copy_rounds: {exc}") from exc


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"copy_rounds": copy_rounds}
