# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: image_lacks
short_description: Tell what an image lacks of what is expected of it
version_added: "0.1.0"
author:
  - The unimem.dgx_spark authors (@unimem)
description:
  - Holds what a program inside an image has found out against what is expected. Used by the role P(unimem.dgx_spark.image_build#role).
positional: _input, packages, architecture, capability
options:
  _input:
    description:
      - The answer, with C(packages) (name to version, null where there is none), and where it was asked, C(architecture_known), C(gpu_code) and C(gpu_fits).
    type: dict
    required: true
  packages:
    description:
      - For each Python distribution the versions that will do, like V(>=0.20.1), V(==2.60.0) or V(0.20.1), which means that or a newer one. Empty, any.
    type: dict
    default: {}
  architecture:
    description:
      - The model's architecture, for the text.
    type: str
    default: ''
  capability:
    description:
      - The GPUs' compute capability, for the text.
    type: str
    default: ''
"""

EXAMPLES = r"""
---
- name: Say what is missing
  ansible.builtin.debug:
    msg: "{{ {'packages': {'vllm': '0.19.0', 'ray': none}} | unimem.dgx_spark.image_lacks({'vllm': '>=0.20.1', 'ray': ''}) }}"
"""

RETURN = r"""
_value:
  description:
    - What it lacks, each as the end of a sentence about the image. Empty when it has everything.
  type: list
  elements: str
  sample:
    - has vllm 0.19.0, and >= 0.20.1 is expected
    - has no ray
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.module_utils.compat.version import LooseVersion

_WANTED = re.compile(r"(?P<operator>>=|<=|==|!=|>|<|)\s*(?P<version>[0-9][0-9A-Za-z.+!-]*)")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def _numbers(version: str) -> LooseVersion:
    """A version without its local part (+cpu, +cu130), which says how it was built and not what it is."""
    return LooseVersion(version.split("+", 1)[0])


def _package(name: str, wanted: str, found: str | None) -> str | None:
    """What is wrong with one package; None when nothing is."""
    match = _WANTED.fullmatch(wanted.strip())
    if wanted.strip() and match is None:
        raise AnsibleFilterError(f"unimem.dgx_spark.image_lacks: {wanted!r} for {name} is no version; write it like '>=0.20.1'")
    if found is None:
        return f"has no {name}" + (f" ({wanted} is expected)" if wanted.strip() else "")
    if match is None:
        return None
    sign = match["operator"] or ">="
    try:
        fits = _COMPARE[sign](_numbers(found), _numbers(match["version"]))
    except TypeError:
        fits = False  # 1.2.dev3 against 1.2.3: numbers and words cannot be ordered
    return None if fits else f"has {name} {found}, and {sign} {match['version']} is expected"


def image_lacks(answer: Any, packages: Any = None, architecture: str = "", capability: str = "") -> list[str]:
    """Tell what is missing; see DOCUMENTATION."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("packages"), Mapping):
        raise AnsibleFilterError("unimem.dgx_spark.image_lacks needs the answer of a probe, a dictionary with packages")
    found = [_package(str(name), str(wanted or ""), answer["packages"].get(name)) for name, wanted in (packages or {}).items()]
    lacks = [text for text in found if text]
    if architecture and answer.get("architecture_known") is not True:
        engine = "an engine that does not know" if answer.get("architecture_known") is False else "no engine (vllm, sglang) that could know"
        lacks.append(f"has {engine} the model's architecture, {architecture}")
    if capability and answer.get("gpu_fits") is not True:
        code = ", ".join(str(flag) for flag in answer.get("gpu_code") or []) or "no GPU at all"
        lacks.append(f"has GPU code for {code}, which does not run on compute capability {capability}")
    return lacks


class FilterModule:
    """The filter under its name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """See ansible-core."""
        return {"image_lacks": image_lacks}
