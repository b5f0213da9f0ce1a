# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is committed works anywhere: nothing in it belongs to the machine or the network that it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


def files() -> list[str]:
    argv = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    return [name for name in subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\0") if name and (ROOT / name).is_file()]


# Put together from pieces, so that this file does not itself hold what it looks for.
PACKAGE_INDEXES = [("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("deb.debian", "org"), ("archive.ubuntu", "com"),
                   ("ports.ubuntu", "com"), ("crates", "io"), ("proxy.golang", "org"), ("rubygems", "org"), ("repo.maven", "apache.org")]  # fmt: skip
PATTERNS = {
    "the host of a package registry": "|".join(re.escape(".".join(pieces)) for pieces in PACKAGE_INDEXES),
    "a home directory of a person": r"/(?:home/(?!spark\b|user\b|alice\b|bob\b|me\b|you\b|ubuntu\b|nvidia\b)|Users/)[a-z]\w*/",
    "a path of one machine": "|".join(re.escape("/".join(("", *pieces)) + "/") for pieces in (("work",), ("tmp", "brief"), ("tmp", "dev"))),
    "a private key": "BEGIN (?:OPENSSH|RSA|EC) " + "PRIVATE KEY",
}
TEXT_LIMIT = 4 << 20


@pytest.mark.parametrize("what", sorted(PATTERNS))
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(PATTERNS[what])
    found = []
    for name in files():
        path = ROOT / name
        if path.is_symlink() or path.stat().st_size > TEXT_LIMIT:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            match = pattern.search(line)
            if match:
                found.append(f"{name}:{number}: {match.group()}")
    assert not found, f"{what}: " + "; ".join(found[:20])


def test_the_patterns_find_what_they_are_for() -> None:
    assert re.search(PATTERNS["the host of a package registry"], "https://files." + "pythonhosted" + ".org/x")
    assert re.search(PATTERNS["a path of one machine"], "cd /" + "work/main")
    homes = PATTERNS["a home directory of a person"]
    assert re.search(homes, "/home/" + "carol/x") and not re.search(homes, "/home/spark/x")


def test_no_file_is_large() -> None:
    large = [name for name in files() if (ROOT / name).stat().st_size > 2 << 20]
    assert not large, f"larger than 2 MiB: {large}"


def test_both_ansible_configurations_say_the_same() -> None:
    """playbooks/ansible.cfg is ../ansible.cfg with its paths one folder up."""

    def settings(name: str) -> list[str]:
        return [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]

    above = [re.sub(r"^(inventory|collections_path) = ", r"\1 = ../", line) for line in settings("ansible.cfg")]
    assert settings("playbooks/ansible.cfg") == above and any("../" in line for line in above)


def test_pins_of_the_collections_are_within_the_ranges_of_galaxy_yml() -> None:
    pins = {entry["name"]: entry["version"] for entry in yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]}
    ranges = yaml.safe_load((ROOT / "galaxy.yml").read_text())["dependencies"]
    assert set(pins) == set(ranges)
    for name, version in pins.items():
        number = tuple(int(part) for part in version.split("."))
        for bound in ranges[name].split(","):
            operator, limit = re.fullmatch(r"(>=|<)([0-9.]+)", bound).groups()
            edge = tuple(int(part) for part in limit.split("."))
            assert number >= edge if operator == ">=" else number < edge, f"{name} {version} is not {bound}"


def test_every_module_is_in_the_action_group() -> None:
    group = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["action_groups"]["gpu"]
    modules = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
    assert group == modules
    for name in modules:
        assert "_attributes.actiongroup_gpu" in (ROOT / "plugins" / "modules" / f"{name}.py").read_text(), name
