# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.unimem.dgx_spark.plugins.module_utils._systemd import (
    PROPERTIES,
    Systemd,
    SystemdError,
    parse_show,
    unit_key,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._world import FakeWorld, RunResult

# As systemd 252 prints it for a unit that runs a container.
SHOWN = """Restart=always
TimeoutStopUSec=1min 30s
MainPID=211
NRestarts=4
ExecStartPre={ path=/usr/local/sbin/make ; argv[]=/usr/local/sbin/make ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; code=(null) }
ExecStartPre={ path=/usr/bin/docker ; argv[]=/usr/bin/docker pull image ; ignore_errors=yes ; start_time=[n/a] ; pid=0 ; code=(null) }
ExecStart={ path=/usr/bin/docker ; argv[]=/usr/bin/docker start --attach vllm_embeddings ; ignore_errors=no ; start_time=[n/a] ; pid=211 ; code=(null) }
ControlGroup=/system.slice/vllm-embeddings.service
WorkingDirectory=!/opt/models
KillMode=control-group
Id=vllm-embeddings.service
Names=embeddings.service vllm-embeddings.service
RequiredBy=web.service
WantedBy=multi-user.target
BoundBy=
ConsistsOf=part.service web.service
PropagatesStopTo=victim.service
Requires=sysinit.target db.service
Wants=db.service cache.service
StopWhenUnneeded=yes
OnSuccess=
OnFailure=mail@vllm-embeddings.service
ConditionResult=no
Triggers=
TriggeredBy=vllm-embeddings.socket
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/etc/systemd/system/vllm-embeddings.service
UnitFileState=enabled
RefuseManualStop=no
Transient=no
InvocationID=5724721861834a9b854c9993577b0f11
"""
MISSING = "MainPID=0\nId=nothing.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"


def test_shown_unit() -> None:
    (unit,) = parse_show(SHOWN)
    assert unit.name == "vllm-embeddings.service" and unit.names == ("embeddings.service", "vllm-embeddings.service")
    assert unit.running and unit.starts_at_boot and unit.key == "unit:vllm-embeddings.service"
    assert unit.dependents == ("web.service", "part.service", "victim.service")
    assert unit.needs == ("sysinit.target", "db.service", "cache.service") and unit.needed_by == ("web.service", "multi-user.target")
    assert unit.successors == ("mail@vllm-embeddings.service",)
    assert unit.goes_unneeded and not unit.conditions_met and unit.unstartable == ""
    assert unit.triggered_by == ("vllm-embeddings.socket",)
    assert unit.commands[0] == ("/usr/local/sbin/make",) and unit.commands[2] == ("/usr/bin/docker", "start", "--attach", "vllm_embeddings")
    assert (unit.stop_seconds, unit.restarts, unit.main_pid, unit.working_directory) == (90.0, 4, 211, "/opt/models")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("LoadState=loaded", "LoadState=masked", "it is masked"),
        ("LoadState=loaded", "LoadState=not-found", "its unit file is gone"),
        ("LoadState=loaded", "LoadState=bad-setting", "LoadState=bad-setting"),
        ("RefuseManualStop=no", "RefuseManualStart=yes", "RefuseManualStart=yes"),
    ],
)
def test_what_could_not_be_started_again(old: str, new: str, why: str) -> None:
    (unit,) = parse_show(SHOWN.replace(old, new))
    assert why in unit.unstartable


def test_several_units_and_one_that_is_not_there() -> None:
    first, second = parse_show(SHOWN + "\n" + MISSING, uid=1000)
    assert first.key == "unit:vllm-embeddings.service@uid:1000"
    assert not second.running and second.load_state == "not-found"
    assert parse_show("") == []


@pytest.mark.parametrize(
    ("state", "wanted", "at_boot"),
    [
        ("enabled", (), True),
        ("disabled", (), False),
        ("static", ("multi-user.target",), False),
        ("enabled-runtime", (), False),
        ("masked", (), False),
        ("generated", ("multi-user.target",), True),
        ("generated", (), False),
    ],
)
def test_what_the_next_boot_would_start(state: str, wanted: tuple[str, ...], at_boot: bool) -> None:
    (unit,) = parse_show(SHOWN)
    assert unit._replace(file_state=state, wanted_by=wanted).starts_at_boot is at_boot


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30.0), ("2min 500ms", 120.5), ("infinity", None), ("", None), ("1h", 3600.0)])
def test_time_spans(text: str, seconds: float | None) -> None:
    (unit,) = parse_show(SHOWN.replace("1min 30s", text))
    assert unit.stop_seconds == seconds


SHOW = ("systemctl", "show", "--no-pager", "--all", f"--property={','.join(PROPERTIES)}", "--")


def test_show_asks_only_for_what_can_be_a_name() -> None:
    world = FakeWorld(commands={(*SHOW, "a.service"): RunResult(0, MISSING.replace("nothing", "a"))})
    assert list(Systemd(world).show(["a.service", "$(reboot).service", "a b", ""])) == ["a.service"]
    assert Systemd(world).show(["$(reboot)"]) == {}


def test_show_that_fails_says_why() -> None:
    world = FakeWorld(commands={(*SHOW, "a.service"): RunResult(1, "", "Failed to connect to bus: No such file\n")})
    with pytest.raises(SystemdError, match="Failed to connect to bus"):
        Systemd(world).show(["a.service"])


def test_nothing_is_reloaded_and_nobody_is_asked_for_a_password() -> None:
    asked: list[tuple[str, ...]] = []

    class Noting(FakeWorld):
        def start(self, argv, timeout):  # type: ignore[no-untyped-def]
            asked.append(tuple(argv))
            return super().start(argv, timeout)

        def run(self, argv, timeout):  # type: ignore[no-untyped-def]
            asked.append(tuple(argv))
            return RunResult(0)

    systemd = Systemd(Noting())
    systemd.disable("a.service", None, 5)
    systemd.enable("a.service", None, 5)
    systemd.mask("a.service", None, 5)
    systemd.unmask("a.service", None, 5)
    assert all("--no-reload" in argv and "--no-ask-password" in argv for argv in asked) and len(asked) == 4


def test_a_users_manager_is_asked_as_that_user() -> None:
    asked: list[tuple[str, ...]] = []

    class Noting(FakeWorld):
        def run(self, argv, timeout):  # type: ignore[no-untyped-def]
            asked.append(tuple(argv))
            return RunResult(0)

    Systemd(Noting(users={0: "root", 1000: "alice"})).start("a.service", 1000, 5)
    Systemd(Noting(users={1000: "alice"}, uid=1000)).start("a.service", 1000, 5)
    assert asked[0][:4] == ("runuser", "-u", "alice", "--") and asked[0][-6:] == ("systemctl", "--user", "--no-ask-password", "start", "--", "a.service")
    assert asked[1][0] == "env" and "XDG_RUNTIME_DIR=/run/user/1000" in asked[1]


@pytest.mark.parametrize(
    ("result", "denied"),
    [
        (RunResult(1, "", "Failed to stop a.service: Access denied"), True),
        (RunResult(1, "", "Failed to stop a.service: Interactive authentication required."), True),
        (RunResult(5, "", "Failed to stop a.service: Unit a.service not loaded."), False),
        (RunResult(-9, "", "", timed_out=True), False),
        (RunResult(127, "", "", missing=True), False),
    ],
)
def test_refusals(result: RunResult, denied: bool) -> None:
    world = FakeWorld(commands={("systemctl", "--no-ask-password", "start", "--", "a.service"): result})
    with pytest.raises(SystemdError) as caught:
        Systemd(world).start("a.service", None, 5)
    assert caught.value.denied is denied and "a.service" in str(caught.value)


def test_a_failure_says_its_reason_first() -> None:
    said = "Job for a.service failed because start of the service was attempted too often.\nSee \"systemctl status a.service\" for details.\n"
    world = FakeWorld(commands={("systemctl", "--no-ask-password", "start", "--", "a.service"): RunResult(1, "", said)})
    with pytest.raises(SystemdError, match="^systemctl start a.service failed: Job for a.service failed because start of the service was attempted too often"):
        Systemd(world).start("a.service", None, 5)


def test_units_that_are_not_loaded_have_no_starts_to_forget() -> None:
    said = RunResult(1, "", "Failed to reset failed state of unit a.service: Unit a.service not loaded.\n")
    Systemd(FakeWorld(commands={("systemctl", "--no-ask-password", "reset-failed", "--", "a.service", "b.socket"): said})).forget_starts(
        ["a.service", "b.socket"], None, 5
    )


def test_links_of_a_unit() -> None:
    world = FakeWorld(
        links={
            "/etc/systemd/system/multi-user.target.wants/a.service": "/etc/systemd/system/a.service",
            "/etc/systemd/system/web.target.requires/a.service": "../a.service",
            "/etc/systemd/system/alias.service": "/etc/systemd/system/a.service",
            "/etc/systemd/system/a.service": "/opt/a.service",
            "/etc/systemd/system/multi-user.target.wants/b.service": "/etc/systemd/system/b.service",
        }
    )
    assert sorted(Systemd(world).links("a.service")) == [
        "/etc/systemd/system/alias.service",
        "/etc/systemd/system/multi-user.target.wants/a.service",
        "/etc/systemd/system/web.target.requires/a.service",
    ]
    assert Systemd(world).links("a.service", 1000) == {}


def test_keys() -> None:
    assert unit_key("a.service", None) == "unit:a.service" and unit_key("a.service", 5) == "unit:a.service@uid:5"
