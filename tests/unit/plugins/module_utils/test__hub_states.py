# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import pwd
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _alone, _hub_run, _hub_states
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import HubError
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils import model_trees
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.fake_hf import FakeHf, as_files
from ansible_collections.unimem.dgx_spark.tests.unit.plugins.module_utils.model_trees import REVISION

SIZE = sum(len(content) for content in model_trees.model_files().values())


def quiet(sent: int, total: int, waiting: bool = False) -> None:
    """Nobody looks."""


@pytest.fixture
def hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHf:
    monkeypatch.setattr(_hub_states, "_PAUSE", 0.0)
    monkeypatch.setattr(_hub_run, "_PAUSE", 0.02)
    monkeypatch.setattr(_alone, "_PAUSE", 0.02)
    fake = FakeHf(tmp_path / "program")
    # What it brings: a whole repository in a cache.
    repository = model_trees.cache(tmp_path)
    fake.real({"files": as_files(repository)})
    shutil.rmtree(repository)
    return fake


def asked(tmp_path: Path, hf: FakeHf, **more: Any) -> dict[str, Any]:
    given = {"repository": "org/x", "revision": REVISION, "path": str(tmp_path / "hub" / "models--org--x"), "root": None, "include": [], "exclude": [],
             "program": str(hf.path), "token": "", "endpoint": "", "workers": 0, "timeout": 30, "tries": 3, "reserve": "1MiB"}  # fmt: skip
    return {**given, **more}


def download(params: dict[str, Any], check_mode: bool = False, tell: Any = quiet) -> dict[str, Any]:
    return _hub_states.downloaded(params, check_mode, tell)


def test_what_is_missing_comes_once_and_then_nothing_is_asked(tmp_path: Path, hf: FakeHf) -> None:
    params = asked(tmp_path, hf)
    before = _hub_states.report(params, False, quiet)
    assert not before["complete"] and not before["changed"] and hf.calls == []
    first = download(params)
    assert first["changed"] and first["complete"] and first["downloaded_bytes"] == SIZE and first["space"] == "checked" and first["version"] == "2.4"
    assert hf.kinds == ["version", "dry", "real"]
    assert hf.calls[-1]["argv"][:4] == ["download", "org/x", "--revision", REVISION]
    second = download(params)
    assert not second["changed"] and second["complete"] and second["downloaded_bytes"] == 0
    assert _hub_states.report(params, False, quiet)["complete"] and len(hf.calls) == 3


def test_check_mode_asks_and_fetches_nothing(tmp_path: Path, hf: FakeHf) -> None:
    told = download(asked(tmp_path, hf), check_mode=True)
    assert told["changed"] and not told["complete"] and told["downloaded_bytes"] == 9_050_000
    assert hf.kinds == ["version", "dry"] and not (tmp_path / "hub").exists() or not list((tmp_path / "hub").iterdir())


def test_the_token_is_in_the_environment_and_in_no_argument(tmp_path: Path, hf: FakeHf) -> None:
    told = download(asked(tmp_path, hf, token="t0ken-of-mine", endpoint="http://127.0.0.1:9/"))
    assert all(call["env"]["HF_TOKEN"] == "t0ken-of-mine" and call["env"]["HF_ENDPOINT"] == "http://127.0.0.1:9" for call in hf.calls)
    assert not any("t0ken" in word for call in hf.calls for word in call["argv"])
    assert "t0ken" not in json.dumps(told)


def test_no_room_is_found_before_anything_is_fetched(tmp_path: Path, hf: FakeHf) -> None:
    hf.dry({"out": "[dry-run] Will download 39 files (out of 39) totalling 900.0T."})
    with pytest.raises(HubError, match=r"free, and 81.\.. TiB of org/x are missing \(reserve 1.0 MiB\): make .* free there"):
        download(asked(tmp_path, hf))
    assert hf.kinds == ["version", "dry"]


def test_a_size_that_is_not_said_is_said_not_to_be_known(tmp_path: Path, hf: FakeHf) -> None:
    hf.dry({"out": "Would get six files."})
    told = download(asked(tmp_path, hf))
    assert told["space"] == "not checked: hf 2.4 did not say how much it would download" and told["complete"]


def test_with_the_clients_list_no_dry_run_is_needed(tmp_path: Path, hf: FakeHf) -> None:
    params = asked(tmp_path, hf)
    files = {name: {"size": len(content)} for name, content in model_trees.model_files().items()}
    listing = tmp_path / "hub" / "models--org--x" / "trees" / f"{REVISION}.json"
    listing.parent.mkdir(parents=True)
    listing.write_text(json.dumps({"format_version": 1, "files": files}))
    assert download(params, check_mode=True)["downloaded_bytes"] == SIZE
    assert download(params)["complete"] and hf.kinds == ["version", "version", "real"]


def test_a_connection_that_breaks_is_tried_again_and_a_refusal_is_not(tmp_path: Path, hf: FakeHf) -> None:
    brings = json.loads((hf.base / "real").read_text())[0]
    broken = {"status": 1, "err": "httpx.ReadTimeout: The read operation timed out\n"}
    hf.real(broken, broken, brings)
    assert download(asked(tmp_path, hf))["tries"] == 3
    shutil.rmtree(tmp_path / "hub")
    hf.real(broken)
    with pytest.raises(HubError, match="broke again and again"):
        download(asked(tmp_path, hf, tries=2))
    hf.real({"status": 1, "err": "Error: Access denied. Model 'org/x' requires approval.\n"}, brings)
    with pytest.raises(HubError, match="org/x is gated"):
        download(asked(tmp_path, hf))
    assert hf.kinds.count("real") == 3 + 2 + 1


def test_a_download_that_stands_still_is_ended_and_begun_again(tmp_path: Path, hf: FakeHf) -> None:
    brings = json.loads((hf.base / "real").read_text())[0]
    hf.real({"sleep": 60}, brings)
    start = time.monotonic()
    assert download(asked(tmp_path, hf, timeout=1))["tries"] == 2
    assert time.monotonic() - start < 20
    shutil.rmtree(tmp_path / "hub")
    hf.real({"sleep": 60})
    with pytest.raises(HubError, match=r"nothing came from https://huggingface.co for 1 s \(model_sync_download_timeout\), 2 times"):
        download(asked(tmp_path, hf, timeout=1, tries=2))


def test_a_model_that_is_not_whole_afterwards_is_no_success(tmp_path: Path, hf: FakeHf) -> None:
    brings = json.loads((hf.base / "real").read_text())[0]
    some = {path: text for path, text in brings["files"].items() if "00002-of" not in path}
    hf.real({"files": some})
    with pytest.raises(HubError, match="has fetched what it wanted of org/x .* is not complete: 1 of 3 weight files are missing"):
        download(asked(tmp_path, hf))
    hf.real({})
    with pytest.raises(HubError, match="Check model_sync_download_include"):
        download(asked(tmp_path, hf, exclude=["*00002*"]))


def test_who_comes_second_waits_and_finds_it_done(tmp_path: Path, hf: FakeHf) -> None:
    brings = json.loads((hf.base / "real").read_text())[0]
    hf.real({**brings, "sleep": 1})
    params, told, waited = asked(tmp_path, hf), [], []
    first = threading.Thread(target=lambda: told.append(download(params)))
    # The lock is one between processes; two threads have it as well.
    with _alone.hold("model-download", params["path"], 1, lambda: None):
        first.start()
        time.sleep(0.2)
    second = download(params, tell=lambda sent, total, waiting=False: waited.append(waiting))
    first.join(20)
    assert sorted([told[0]["changed"], second["changed"]]) == [False, True] and hf.kinds.count("real") == 1


def test_progress_is_what_is_on_disk(tmp_path: Path, hf: FakeHf) -> None:
    brings = json.loads((hf.base / "real").read_text())[0]
    hf.real({**brings, "sleep": 0.5})
    seen: list[tuple[int, int]] = []
    blobs = tmp_path / "hub" / "models--org--x" / "blobs"
    blobs.mkdir(parents=True)
    timer = threading.Timer(0.2, lambda: (blobs / "x.incomplete").write_bytes(b"x" * 8192))
    timer.start()
    with pytest.raises(HubError, match="interrupted"):
        download(asked(tmp_path, hf), tell=lambda sent, total, waiting=False: seen.append((sent, total)))
    assert (0, 9_050_000) in seen and (8192, 9_050_000) in seen


def test_the_program_is_looked_for_where_uv_and_pipx_put_it(tmp_path: Path, hf: FakeHf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    with pytest.raises(HubError, match=r"no program hf-x, neither on PATH nor in .*/\.local/bin: as .*, install the package huggingface_hub there \(`uv tool"):
        _hub_run.find_program("hf-x", None)
    shutil.copy(hf.path, tmp_path / ".local" / "bin" / "hf-x")
    assert _hub_run.find_program("hf-x", None) == str(tmp_path / ".local" / "bin" / "hf-x")
    assert _hub_run.find_program("~/program/hf", None) == str(hf.path)
    with pytest.raises(HubError, match="is no program on this node"):
        _hub_run.find_program("/nowhere/hf", None)
    with pytest.raises(HubError, match="is the old program and is not used"):
        _hub_run.find_program("huggingface-cli", None)


@pytest.mark.parametrize(
    ("version", "expected"), [("0.36.2", r"is of huggingface_hub 0.36; 1.0 or newer is needed"), ("none", r"does not work on this node \(none\)")]
)
def test_a_program_that_is_too_old_or_broken(tmp_path: Path, version: str, expected: str) -> None:
    with pytest.raises(HubError, match=expected):
        _hub_run.client_for(str(FakeHf(tmp_path / "p", version).path), str(tmp_path), os.environ)


def test_a_program_that_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "hf"
    path.write_text("#!/no/such/python\n")
    path.chmod(0o755)
    with pytest.raises(HubError, match="cannot be started: No such file or directory; install the package"):
        _hub_run.client_for(str(path), str(tmp_path), os.environ)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_as_root_it_runs_as_the_owner_of_the_folder(tmp_path: Path, hf: FakeHf, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    cache = tmp_path / "hub"
    cache.mkdir(exist_ok=True)
    os.chown(cache, nobody.pw_uid, nobody.pw_gid)
    monkeypatch.setattr(_hub_run, "find_program", lambda name, account: name)
    ran = []

    def run(client: _hub_run.Client, arguments: list[str], patience: float, progress: Any = None) -> _hub_run.Ended:
        ran.append(client)
        return _hub_run.Ended(0, "2.4.0", "", False)

    monkeypatch.setattr(_hub_run, "run", run)
    client = _hub_run.client_for("hf", str(cache / "models--org--x"), {"HOME": "/root", "XDG_CACHE_HOME": "/root/c", "SUDO_USER": "x", "PATH": "/bin"})
    assert client.account is not None and client.account.uid == nobody.pw_uid
    assert dict(client.environment) == {"HOME": nobody.pw_dir, "USER": "nobody", "LOGNAME": "nobody", "PATH": "/bin"}
    os.chown(cache, 0, 0)
    assert _hub_run.account_for(str(cache / "a" / "b")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_and_really_is_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    account = _hub_run.Account(nobody.pw_uid, nobody.pw_gid, (nobody.pw_gid,), "nobody", "/")
    ended = _hub_run.run(_hub_run.Client("/usr/bin/id", {"PATH": "/usr/bin"}, account), ["-u"], 30)
    assert ended.status == 0 and ended.stdout.strip() == str(nobody.pw_uid)
