# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The versions that the image told, for the callers of the role: of what was asked for, where it was asked."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.tests.unit.roles.role_values import value_of

RECORD = {"vllm": "0.32.0+cpu", "ray": None}


PLACE = "/var/cache/unimem/image-probes/0123456789abcdef-packages.json"
#: As slurp returns it.
READ = {"source": PLACE, "content": base64.b64encode(json.dumps(RECORD).encode()).decode()}


@pytest.mark.parametrize(
    ("registered", "expected", "found"),
    [
        (READ, {"vllm": ">=0.32", "ray": ""}, RECORD),
        (READ, {}, {}),
        ({**READ, "source": PLACE.replace("0", "1")}, {"vllm": ""}, {}),
        (None, {"vllm": ""}, {}),
        ({"skipped": True, "changed": False}, {"vllm": ""}, {}),
    ],
    ids=["told", "nothing is asked for", "an earlier image's", "never looked", "never asked"],
)
def test_packages_are_those_that_this_image_told(registered: dict[str, Any] | None, expected: dict[str, str], found: dict[str, str | None]) -> None:
    host = {} if registered is None else {"__image_build_versions": registered}
    place = {"hostvars": {"a": host}, "image_build_host": "a", "__image_build_versions_record": PLACE}
    assert value_of("image_build", "__image_build_packages", image_build_expect_packages=expected, **place) == found
