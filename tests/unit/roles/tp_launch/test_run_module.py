# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A module that is run with a key which no command line shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[4] / "roles" / "tp_launch" / "files" / "run_module.py"
#: Says what it was given, and what the kernel shows of it.
SERVER = """
import argparse, json, sys
parser = argparse.ArgumentParser()
parser.add_argument("--api-key", dest="key")
parser.add_argument("--stop", nargs="+")
read = vars(parser.parse_args())
with open("/proc/self/cmdline") as shown:
    print(json.dumps({**read, "main": __name__, "name": sys.argv[0], "shown": shown.read()}))
"""


def run(tmp_path: Path, key: str, *extra: str) -> subprocess.CompletedProcess[str]:
    package = tmp_path / "server"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "launch.py").write_text(SERVER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1", "THE_KEY": key}
    command = [sys.executable, str(PROGRAM), "--api-key", "THE_KEY", "server.launch", *extra]
    return subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("key", ["s3cret", "-s3cret", "--help", "a=b c", "schl\u00fcssel"])
@pytest.mark.parametrize("extra", [[], ["--stop", "1", "2"]])
def test_the_key_is_read_as_the_key_whatever_it_is(key: str, extra: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, key, *extra)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["key"] == key and said["stop"] == (extra[1:] or None)
    assert said["main"] == "__main__" and said["name"].endswith("launch.py")
    assert key not in said["shown"]


@pytest.mark.parametrize("extra", [["--", "x"], ["--no-such-option", "1"], ["--stop"]])
def test_a_refused_command_line_does_not_tell_the_key(extra: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, "the-key-itself", *extra)
    assert done.returncode == 2 and "error: " in done.stderr
    assert "the-key-itself" not in done.stdout + done.stderr
