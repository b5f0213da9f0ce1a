# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Makefile's tools, as far as they decide anything: what counts as passed, which Python works, what is made again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools import checkout, console, dependencies, environments, lab, places, pythons, system_packages  # noqa: E402
from tools.console import FAILED, NOT_RUN, PASSED, Outcome, ToolError  # noqa: E402


def test_a_step_that_did_not_run_is_loud_and_no_pass(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [Outcome("a", PASSED, 1.0), console.not_run("b", "no Python 3.12")]
    assert console.summary(outcomes) == 0
    out = capsys.readouterr().out
    assert "!!! NOT RUN: no Python 3.12" in out and "1 step(s) did NOT run" in out and "1 passed, 0 failed, 1 skipped" in out


@pytest.mark.parametrize(("states", "status"), [([PASSED], 0), ([PASSED, FAILED], 1), ([NOT_RUN], 1), ([], 1), ([PASSED, NOT_RUN], 0)])
def test_nothing_run_is_not_success(states: list[str], status: int) -> None:
    assert console.summary([Outcome(f"step {number}", state) for number, state in enumerate(states)]) == status


def test_a_step_fails_with_its_sentence_and_a_bug_is_raised() -> None:
    def refuse() -> int:
        raise ToolError("install make first")

    def bug() -> int:
        raise KeyError("x")

    assert console.step("x", refuse).note == "install make first"
    assert console.step("x", lambda: 3) == Outcome("x", FAILED, pytest.approx(0, abs=1), "exit status 3")
    with pytest.raises(KeyError):
        console.step("x", bug)


def test_a_command_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ToolError, match="is not on this machine"):
        console.call(["no-such-command-anywhere"])


def test_an_interpreter_that_refuses_to_start_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    real = tmp_path / "good" / "python3.12"
    real.parent.mkdir()
    real.write_text("#!/bin/sh\necho 3.12\necho /opt/python3.12\n")
    real.chmod(0o755)
    monkeypatch.setattr(pythons, "_places", lambda: [tmp_path, real.parent])
    pythons.find.cache_clear()
    try:
        assert pythons.find("3.12") == Path("/opt/python3.12")
        assert pythons.find("3.13") is None
        assert pythons.first(("3.13", "3.12")) == ("3.12", Path("/opt/python3.12"))
    finally:
        pythons.find.cache_clear()


def test_this_interpreter_is_found_by_its_version() -> None:
    found = pythons.find(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert found is not None and found.is_file()


def test_an_environment_is_made_again_when_a_pin_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    kind = environments.Kind("x", "", ("3.11",), ("a.txt",))
    (tmp_path / "a.txt").write_text("pytest==1\n")
    before = environments._stamp(kind, Path("/usr/bin/python3"))
    assert environments._stamp(kind, Path("/usr/bin/python3")) == before != environments._stamp(kind, Path("/usr/local/bin/python3"))
    (tmp_path / "a.txt").write_text("pytest==2\n")
    assert environments._stamp(kind, Path("/usr/bin/python3")) != before


@pytest.mark.parametrize("bare", [False, True])
def test_a_bare_environment_has_what_is_listed_and_nothing_else(bare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BUILD", tmp_path / "build"), ("REQUIREMENTS", tmp_path), ("available", lambda _name: ("3.11", Path(sys.executable)))):
        monkeypatch.setattr(environments, name, value)
    monkeypatch.setitem(environments.KINDS, "x", environments.Kind("x", "", ("3.11",), ("a.txt",), "a thing", bare))
    (tmp_path / "a.txt").write_text("thing==1\n")
    ran: list[list[str]] = []
    monkeypatch.setattr(environments, "_make_venv", lambda version, python, path: path.mkdir())
    monkeypatch.setattr(environments, "need", lambda argv: ran.append([str(word) for word in argv]))
    environments.ensure("x")
    assert [("--no-deps" in argv, "--only-binary" in argv) for argv in ran] == [(bare, bare)] and ran[0][-2:] == ["-r", str(tmp_path / "a.txt")]
    assert environments.missing("x").startswith("a thing needs Python 3.11, and no working one was found")


def test_every_requirement_is_pinned_but_those_for_many_pythons() -> None:
    for path in sorted(places.REQUIREMENTS.glob("*.txt")):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert lines, path.name
        if path.name != "target.txt":
            assert all("==" in line for line in lines), path.name


def test_collections_come_out_of_the_wheel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "ansible.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*dependencies.WANTED, "other/thing"):
            archive.writestr(f"ansible_collections/{name}/MANIFEST.json", "{}")
    calls = []
    monkeypatch.setattr(dependencies, "_wheel", lambda python, pin: calls.append(pin) or wheel)
    base = ROOT / ".build" / f"test-collections-{tmp_path.parent.name}-{tmp_path.name}"
    try:
        dependencies.fill(Path("python3"), base)
        dependencies.fill(Path("python3"), base)
        assert len(calls) == 1
        assert (base / "ansible_collections" / "community" / "docker" / "MANIFEST.json").is_file()
        assert not (base / "ansible_collections" / "other").exists()
        assert (base / "ansible_collections" / "unimem" / "dgx_spark").resolve() == ROOT
    finally:
        shutil.rmtree(base)


def test_the_pinned_bundle_and_requirements_yml_name_the_same_versions() -> None:
    found = places.COLLECTIONS / "ansible_collections"
    if not found.is_dir():
        pytest.fail(".collections is empty: make deps fills it")
    for entry in yaml.safe_load((ROOT / "requirements.yml").read_text())["collections"]:
        manifest = json.loads((found / entry["name"].replace(".", "/") / "MANIFEST.json").read_text())
        assert manifest["collection_info"]["version"] == entry["version"], entry["name"]


def test_a_copy_has_what_git_would_have_and_loses_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    (source / "plugins").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(source)], check=True)
    (source / ".gitignore").write_text("*.pyc\n")
    (source / "plugins" / "a.py").write_text("a")
    (source / "plugins" / "a.pyc").write_text("x")
    (source / "tests").mkdir()
    (source / "tests" / "b").write_text("b")
    monkeypatch.setattr(checkout, "ROOT", source)
    monkeypatch.setattr(checkout, "files", lambda root=source, listed=checkout.files: listed(root))
    copy = checkout.copy_below(tmp_path / "copy", ("tests/",))
    assert sorted(checkout.files(copy)) == [".gitignore", "plugins/a.py"]
    (source / "plugins" / "a.py").unlink()
    (source / "plugins" / "c.py").symlink_to("../.gitignore")
    checkout.copy_below(tmp_path / "copy", ("tests/",))
    assert sorted(checkout.files(copy)) == [".gitignore", "plugins/c.py"] and (copy / "plugins" / "c.py").is_symlink()


@pytest.mark.parametrize(("value", "off"), [(None, False), ("on", False), ("off", True)])
def test_the_lab_is_left_out_only_when_that_is_said(value: str | None, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lab.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(lab.SWITCH, value)
    assert lab.switched_off() is off
    monkeypatch.setenv(lab.SWITCH, "no")
    with pytest.raises(ToolError, match="it is `on`"):
        lab.switched_off()


def test_without_the_lab_its_tests_are_listed_as_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lab.SWITCH, "off")
    outcomes = lab.steps()
    assert {outcome.state for outcome in outcomes} == {NOT_RUN} and len(outcomes) == 1 + len(lab.scenarios())


def test_a_lab_that_does_not_come_up_fails_the_tests_and_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lab.SWITCH, raising=False)
    monkeypatch.setattr(environments, "development", lambda: None)
    calls = []
    monkeypatch.setattr(lab, "control", lambda environment, *words: calls.append(words) or int(words == ("up",)))
    outcomes = lab.steps()
    assert calls == [("up",), ("down",)]
    assert [outcome.state for outcome in outcomes] == [FAILED, NOT_RUN, PASSED] and console.summary(outcomes) == 1


def test_every_role_has_a_scenario() -> None:
    assert lab.scenarios() == sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def test_missing_packages_without_root_are_a_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(system_packages, "installed", lambda package: package == "git")
    monkeypatch.setattr(system_packages.os, "geteuid", lambda: 1000)
    system_packages.ensure(["git"], "make test")
    with pytest.raises(ToolError, match="apt-get install python3.11-venv"):
        system_packages.ensure(["git", "python3.11-venv"], "virtual environments")


def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> environments.Environment:
    """An environment in which the lab's program is this text."""
    monkeypatch.setenv(lab.SWITCH, "on")
    for name, value in (("ROOT", tmp_path), ("BUILD", tmp_path), ("PROGRAM", tmp_path / "lab.py"), ("PREPARED", tmp_path / "lab-prepare.log")):
        monkeypatch.setattr(lab, name, value)
    (tmp_path / "lab.py").write_text(text)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return environments.Environment(environments.KINDS["dev"], "3.11", tmp_path)


def test_what_was_prepared_beside_the_other_steps_is_printed_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = _program(tmp_path, monkeypatch, "import sys; print('lab:', *sys.argv[1:]); sys.exit('too little room')")
    with lab.preparation(environment) as process:
        assert process is not None
        process.wait()
        assert "lab: prepare\n" not in capfd.readouterr().out
        assert lab.prepared(process) == 1
        said = capfd.readouterr().out
        assert "lab: prepare\n" in said and "too little room" in said


def test_nothing_is_prepared_any_more_when_the_other_steps_are_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = _program(tmp_path, monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(KeyboardInterrupt), lab.preparation(environment) as process:
        assert process is not None
        raise KeyboardInterrupt
    assert process.poll() is not None


def test_without_the_lab_nothing_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = _program(tmp_path, monkeypatch, "")
    monkeypatch.setenv(lab.SWITCH, "off")
    with lab.preparation(environment) as process:
        assert process is None


def test_steps_beside_others_are_printed_in_their_turn(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> list[Outcome]:
        return [console.step("apart", lambda: console.call([sys.executable, "-c", "print('it said'); raise SystemExit(3)"])), console.not_run("b", "no Python")]

    with console.beside(work) as finished:
        console.say("here")
        outcomes = finished()
    assert [(outcome.name, outcome.state, outcome.note) for outcome in outcomes] == [("apart", FAILED, "exit status 3"), ("b", NOT_RUN, "no Python")]
    out = capfd.readouterr().out
    assert out.index("here") < out.index("=== apart") < out.index("it said") < out.index("=== b")


def test_a_bug_in_steps_beside_others_is_one_here(capfd: pytest.CaptureFixture[str]) -> None:
    def bug() -> list[Outcome]:
        raise KeyError("x")

    with pytest.raises(RuntimeError, match="beside others"), console.beside(bug) as finished:
        finished()
    assert "KeyError: 'x'" in "".join(capfd.readouterr())


def test_steps_beside_others_end_when_these_are_interrupted(tmp_path: Path) -> None:
    text = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tools import console
started = Path(sys.argv[2])
program = f"import pathlib, time; pathlib.Path({str(started)!r}).write_text('x'); time.sleep(600)"
def work():
    with console.beside(lambda: [console.step("x", lambda: console.call([sys.executable, "-c", program]))]):
        while not started.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
console.main(work)
"""
    done = subprocess.run([sys.executable, "-c", text, str(ROOT), str(tmp_path / "started")], check=False, capture_output=True, timeout=60)
    assert done.returncode == 130


def test_a_tool_that_is_asked_to_end_cleans_up(tmp_path: Path) -> None:
    text = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tools.console import main
def work():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("cleaned up", flush=True)
main(work)
"""
    done = subprocess.run([sys.executable, "-c", text, str(ROOT)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
