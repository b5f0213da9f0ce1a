# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of a role as Ansible works them out, without a play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLES = Path(__file__).resolve().parents[3] / "roles"


def load(role: str, name: str) -> Any:
    """One of the role's files, as it is written."""
    return yaml.safe_load((ROLES / role / name).read_text(encoding="utf-8"))


def _trusted(value: Any) -> Any:
    """As Ansible has what it reads from a role's files."""
    if isinstance(value, dict):
        return {key: _trusted(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_trusted(entry) for entry in value]
    return trust_as_template(value) if isinstance(value, str) else value


def value_of(role: str, name: str, **variables: Any) -> Any:
    """One of the role's variables, where these others are set."""
    known = {**_trusted(load(role, "defaults/main.yml")), **_trusted(load(role, "vars/main.yml")), **variables}
    return Templar(loader=DataLoader(), variables=known).template(known[name])
