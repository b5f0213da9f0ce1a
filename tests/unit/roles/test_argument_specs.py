# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""defaults/main.yml and meta/argument_specs.yml of every role say the same, and every role has what a role here has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def options(role: Path) -> dict[str, dict[str, Any]]:
    return load(role / "meta" / "argument_specs.yml")["argument_specs"]["main"]["options"]


def each(role: Path) -> str:
    return role.name


@pytest.mark.parametrize("role", ROLES, ids=each)
def test_role_has_its_files(role: Path) -> None:
    for name in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml"):
        assert (role / name).is_file(), f"{role.name} has no {name}"


@pytest.mark.parametrize("role", ROLES, ids=each)
def test_defaults_and_specification_name_the_same_variables(role: Path) -> None:
    defaults = set(load(role / "defaults" / "main.yml"))
    specified = options(role)
    required = {name for name, option in specified.items() if option.get("required")}
    without_default = {name for name, option in specified.items() if "default" not in option}
    assert defaults | without_default >= set(specified), f"specified, and no default: {set(specified) - defaults - without_default}"
    assert defaults <= set(specified), f"a default, and not specified: {defaults - set(specified)}"
    assert not required & defaults, f"required, and yet a default: {required & defaults}"


@pytest.mark.parametrize("role", ROLES, ids=each)
def test_defaults_are_the_specified_ones(role: Path) -> None:
    defaults = load(role / "defaults" / "main.yml")
    for name, option in options(role).items():
        if "default" in option:
            assert name in defaults, f"{name} has a default in the specification only"
            assert defaults[name] == option["default"], name


@pytest.mark.parametrize("role", ROLES, ids=each)
def test_every_variable_is_prefixed_described_and_of_a_type(role: Path) -> None:
    for name, option in options(role).items():
        assert name.startswith(f"{role.name}_"), name
        assert option.get("description") and option.get("type"), name


@pytest.mark.parametrize("role", ROLES, ids=each)
def test_internal_variables_are_prefixed(role: Path) -> None:
    path = role / "vars" / "main.yml"
    for name in load(path) if path.is_file() else ():
        assert name.startswith(f"__{role.name}_"), name


@pytest.mark.parametrize("role", ROLES, ids=each)
def test_required_variables_stand_in_the_defaults_as_comments(role: Path) -> None:
    text = (role / "defaults" / "main.yml").read_text(encoding="utf-8")
    for name, option in options(role).items():
        if option.get("required"):
            assert f"# {name}:" in text, f"{name} is required, and defaults/main.yml does not mention it"
