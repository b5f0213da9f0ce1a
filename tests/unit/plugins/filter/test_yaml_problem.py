# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.unimem.dgx_spark.plugins.filter.yaml_problem import FilterModule

yaml_problem = FilterModule().filters()["yaml_problem"]


@pytest.mark.parametrize("text", ["", "a: 1\n", "---\na: [1, {b: c}]\n", "a: !vault |\n  $ANSIBLE_VAULT;1.1\nb: !unsafe '{{ x }}'\n", "a: &x 1\nb: *x\n"])
def test_what_is_yaml(text: str) -> None:
    assert yaml_problem(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:\n  b: [1\n  c: 2\n", "line 3, column 4: expected ',' or ']', but got ':' (while parsing a flow sequence that begins in line 2)"),
        ("a: b: c\n", "line 1, column 5: mapping values are not allowed here"),
        ("a: 1\n\tb: 2\n", "line 2, column 1: found character '\\t' that cannot start any token (while scanning for the next token)"),
        ("a: 1\nb: *x\n", "line 2, column 4: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document (expected a single document in the stream that begins in line 1)"),
        ("a: 1\nb: \0\n", "line 2: a character that YAML does not allow, 0x0000"),
        (b"a: 1\n\nb: \xe4\n".decode(errors="surrogateescape"), "line 3: a byte that is no UTF-8"),
    ],
)
def test_where_it_is_none(text: str, problem: str) -> None:
    assert yaml_problem(text) == problem


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match=r"unimem\.dgx_spark\.yaml_problem needs a text, not dict"):
        yaml_problem({})
