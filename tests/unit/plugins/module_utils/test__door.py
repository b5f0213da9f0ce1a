# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils import _door
from ansible_collections.unimem.dgx_spark.plugins.module_utils._door import (
    Door,
    DoorError,
    check_secret,
    configuration,
    door_from,
    free_port,
    listens,
    remove_files,
    start_argv,
    write_files,
)

SECRET = "k" * 32
PARAMS = {"state": "open", "name": "0123456789abcdef", "address": "192.168.100.11", "allow": "192.168.100.10", "folder": "/models/a b'c", "seconds": 60}


def test_a_door_lets_one_address_write_one_folder() -> None:
    lines = configuration(door_from(PARAMS)).splitlines()
    assert "path = /models/a b'c" in lines and "hosts allow = 192.168.100.10" in lines and "hosts deny = *" in lines
    assert "write only = yes" in lines and "list = no" in lines and "use chroot = yes" in lines
    assert "auth users = copy-0123456789abcdef" in lines


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc"},
        {"name": "ABCDEF0123"},
        {"address": "spark-02"},
        {"address": "0.0.0.0"},
        {"address": "::"},
        {"allow": "192.168.100.0/24"},
        {"allow": "*"},
        {"allow": "192.168.100.10 10.0.0.0"},
        {"folder": "models"},
        {"folder": "/models\nuid = 0"},
        {"folder": "/models/%USER%"},
        {"folder": "/models/#1"},
        {"folder": "/models "},
        {"seconds": 0},
    ],
)
def test_what_a_configuration_could_misread_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DoorError):
        door_from({**PARAMS, **change})


def test_closing_needs_a_name_only() -> None:
    assert door_from({"state": "closed", "name": "0123456789abcdef"}).unit == "unimem-model-sync-0123456789abcdef.service"
    with pytest.raises(DoorError):
        door_from({"state": "closed", "name": "ssh.service"})


@pytest.mark.parametrize("secret", ["short", "with space in it 1234", "colon:colon:colon:colon", "line\nline\nline\nline\n", "x" * 200])
def test_a_secret_that_cannot_stand_in_the_file_is_refused_and_not_said(secret: str) -> None:
    with pytest.raises(DoorError) as caught:
        check_secret(secret)
    assert secret not in str(caught.value)


def test_files_are_their_owners_alone_and_no_link_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_door, "BASE", str(tmp_path / "run"))
    door = door_from(PARAMS)
    write_files(door, SECRET)
    assert stat.S_IMODE(os.stat(door.directory).st_mode) == 0o700
    for name in os.listdir(door.directory):
        assert stat.S_IMODE(os.stat(os.path.join(door.directory, name)).st_mode) == 0o600
    assert (Path(door.directory) / "secrets").read_text() == f"copy-0123456789abcdef:{SECRET}\n"
    assert SECRET not in configuration(door)
    with pytest.raises(FileExistsError):
        write_files(door, SECRET)
    remove_files(door)
    assert not os.path.exists(door.directory)


def test_systemd_ends_it_whatever_happens_and_knows_no_secret() -> None:
    argv = start_argv(door_from(PARAMS), 40000, "/usr/bin/rsync", "/usr/bin/rm")
    assert "--property=RuntimeMaxSec=60" in argv and "--collect" in argv and "--property=Restart=no" in argv
    assert "--property=ExecStopPost=/usr/bin/rm -rf -- /run/unimem-model-sync/0123456789abcdef" in argv
    assert argv[argv.index("--") + 1 :] == [
        "/usr/bin/rsync",
        "--daemon",
        "--no-detach",
        "--config=/run/unimem-model-sync/0123456789abcdef/rsyncd.conf",
        "--address=192.168.100.11",
        "--port=40000",
    ]
    assert not any(SECRET in word for word in argv)


def test_a_free_port_is_free_and_listening_is_seen() -> None:
    port = free_port("127.0.0.1")
    assert not listens("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert listens("127.0.0.1", port)
    with pytest.raises(OSError):
        free_port("192.0.2.1")


def test_doors_of_two_models_do_not_meet() -> None:
    first, second = Door("a" * 16, "", "", "", 1), Door("b" * 16, "", "", "", 1)
    assert first.unit != second.unit and first.directory != second.directory and first.user != second.user
