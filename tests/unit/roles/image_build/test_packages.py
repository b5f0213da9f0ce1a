# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The versions that the image told, for the callers of the role: of what was asked for, where it was asked."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.tests.unit.roles.role_values import value_of

RECORD = {"image": "x:1", "question": {}, "answer": {"packages": {"vllm": "0.32.0+cpu", "ray": None}, "architecture_known": True}}


@pytest.mark.parametrize(
    ("registered", "asked", "found"),
    [
        ({"content": base64.b64encode(json.dumps(RECORD).encode()).decode()}, {"vllm": ">=0.32", "ray": ""}, {"vllm": "0.32.0+cpu", "ray": None}),
        ({"content": base64.b64encode(json.dumps(RECORD).encode()).decode()}, {}, {}),
        ({"skipped": True, "changed": False}, {"vllm": ""}, {}),
        (None, {"vllm": ""}, {}),
    ],
)
def test_packages_are_those_that_were_asked_for(registered: Any, asked: dict[str, str], found: dict[str, str | None]) -> None:
    host = {} if registered is None else {"__image_build_probe_answer": registered}
    assert value_of("image_build", "__image_build_packages", hostvars={"a": host}, image_build_host="a", image_build_expect_packages=asked) == found
