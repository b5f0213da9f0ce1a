# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _agent_archive, _lease_agent
from ansible_collections.unimem.dgx_spark.plugins.module_utils._agent_archive import PACKAGE, ArchiveError, build_archive, collect_sources

MODULES = Path(__file__).resolve().parents[4] / "plugins" / "modules"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(build_archive(_lease_agent))
    return path


def run(archive: Path, verb: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As the node does: nothing but the interpreter, no environment, no site packages."""
    return subprocess.run([sys.executable, "-I", "-S", "-B", str(archive), verb], text=True, capture_output=True, env={}, cwd=cwd, check=False, timeout=120)


def test_it_runs_alone(archive: Path, tmp_path: Path) -> None:
    done = run(archive, "check", tmp_path)
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    assert run(archive, "nonsense", tmp_path).returncode == 2


def test_it_has_what_restores_and_nothing_that_needs_ansible(archive: Path) -> None:
    sources = collect_sources("_lease_agent")
    for name in ("_restore", "_journal", "_lease_guard", "_private_dir", "_docker", "_systemd"):
        assert f"{PACKAGE}.{name}" in sources
    assert not [name for name, text in sources.items() if "from ansible.module_utils" in text]
    with zipfile.ZipFile(archive) as packed:
        assert packed.testzip() is None
        assert f"{PACKAGE.replace('.', '/')}/_restore.py" in packed.namelist()
        assert packed.read(f"{PACKAGE.replace('.', '/')}/_restore.py").decode() == sources[f"{PACKAGE}._restore"]


def test_the_same_sources_make_the_same_archive(archive: Path) -> None:
    assert build_archive(_lease_agent) == archive.read_bytes()


def test_it_is_packed_from_an_archive_too(archive: Path, tmp_path: Path) -> None:
    """On a node the collection itself lies in the archive that Ansible sent."""
    sent = tmp_path / "sent.zip"
    with zipfile.ZipFile(sent, "w") as packed:
        for module, text in collect_sources("_agent_archive").items():
            packed.writestr(f"{module.replace('.', '/')}.py", text)
        for module, text in collect_sources("_lease_agent").items():
            packed.writestr(f"{module.replace('.', '/')}.py", text)
        for depth in range(1, PACKAGE.count(".") + 2):
            packed.writestr("/".join(PACKAGE.split(".")[:depth]) + "/__init__.py", "")
    program = (
        f"import sys; sys.path.insert(0, {str(sent)!r}); from {PACKAGE}._agent_archive import build_archive; "
        f"from {PACKAGE} import _lease_agent; open({str(tmp_path / 'again.pyz')!r}, 'wb').write(build_archive(_lease_agent))"
    )
    subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], check=True, env={}, cwd=tmp_path, timeout=120)
    assert (tmp_path / "again.pyz").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(("module", "agent"), [("node_lease", "_lease_agent"), ("rank_persist", "_persist_agent")])
def test_ansible_sends_all_that_the_module_packs(module: str, agent: str) -> None:
    """It sends what a module imports, and what that imports: an agent that is only named is not on the node."""
    sent: set[str] = set()
    for name in _agent_archive._imports((MODULES / f"{module}.py").read_text(encoding="utf-8")):
        sent.update(collect_sources(name.removeprefix(f"{PACKAGE}.")))
    assert set(collect_sources(agent)) <= sent


def test_a_source_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArchiveError, match="_no_such_file"):
        collect_sources("_no_such_file")

    def relative(module: str) -> str:
        return "from . import _sizes\n"

    monkeypatch.setattr(_agent_archive, "_source", relative)
    with pytest.raises(ArchiveError, match="relative import"):
        collect_sources(t.cast(str, "_lease_agent"))
