# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""Units: what starts them again, what stops along, what they leave behind, and those that are of a user or of a moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stand_ins import HOLD, IMAGE, MIB, StandIns, codes, outcomes, rows, send, wait_for

# Part of `make soak` for the time that it takes.
pytestmark = pytest.mark.soak

KNOCK = "import socket; socket.create_connection(('127.0.0.1', 7997), 2).close()"


def test_socket_timer_and_path_do_not_bring_it_back(strangers: StandIns) -> None:
    for kind, lines in (
        ("socket", "[Socket]\nListenStream=127.0.0.1:7997"),
        ("timer", "[Timer]\nOnCalendar=*-*-* *:*:00/1\nAccuracySec=100ms"),
        ("path", "[Path]\nPathExists=/etc/hostname"),
    ):
        strangers.unit_file(f"e2e-woken.{kind}", f"[Unit]\nDescription=end-to-end test\n{lines}\n[Install]\nWantedBy=multi-user.target\n")
    strangers.unit("e2e-woken.service", f"{HOLD} --name e2e-woken --mib 16", install="", start=False)
    strangers.run("systemctl", "enable", "--now", "--quiet", "e2e-woken.socket", "e2e-woken.timer", "e2e-woken.path")
    wait_for(lambda: strangers.state()["e2e-woken.service"] == "active static")
    before = strangers.state()
    assert set(before.values()) == {"active enabled", "active static"}

    freed = strangers.reclaim(stop=["unit:e2e-woken"])
    assert freed["verdict"] == "freed", freed["msg"]
    stops = [target for layer, target, action in rows(freed, 1) if action == "stop"]
    assert stops[-1] == "e2e-woken.service" and set(stops[:-1]) == {"e2e-woken.socket", "e2e-woken.timer", "e2e-woken.path"}
    assert set(strangers.state().values()) == {"inactive disabled", "inactive static"}
    assert strangers.run("python3", "-c", KNOCK, check=False) == ""
    strangers.run("sleep", "1.3")  # more than the timer's period
    assert strangers.state()["e2e-woken.service"] == "inactive static"

    strangers.restored()
    assert strangers.state() == before
    assert not strangers.reclaim("restored")["changed"]


def test_what_would_stop_along_must_be_listed(strangers: StandIns) -> None:
    strangers.unit("e2e-model.service", f"{HOLD} --name e2e-model --mib 16")
    strangers.unit("e2e-web.service", "/bin/sleep infinity", Unit="Requires=e2e-model.service\nAfter=e2e-model.service")
    before = strangers.state()
    refused = strangers.reclaim(stop=["unit:e2e-model"])
    assert refused["verdict"] == "not_permitted" and codes(refused) == {("e2e-web.service", "takes_along")}
    assert "unit:e2e-web.service" in refused["refused"][0]["inventory"] and strangers.state() == before
    freed = strangers.reclaim(stop=["unit:e2e-model", "unit:e2e-web"])
    assert freed["verdict"] == "freed" and set(strangers.state().values()) == {"inactive disabled"}
    strangers.restored()
    assert strangers.state() == before


@pytest.mark.parametrize(
    ("mains", "others"),
    [
        ("PropagatesStopTo=e2e-along.service", ""),
        ("", "StopPropagatedFrom=e2e-main.service"),
        ("Wants=e2e-along.service", "StopWhenUnneeded=yes"),
        ("", "PartOf=e2e-main.service"),
        ("", "BindsTo=e2e-main.service\nAfter=e2e-main.service"),
    ],
    ids=["propagates", "propagated-from", "unneeded", "part-of", "binds-to"],
)
def test_every_way_in_which_a_unit_stops_along(strangers: StandIns, mains: str, others: str) -> None:
    strangers.unit("e2e-along.service", "/bin/sleep infinity", install="", start=False, Unit=others)
    strangers.unit("e2e-main.service", f"{HOLD} --name e2e-main --mib 16", Unit=mains)
    strangers.run("systemctl", "start", "e2e-along.service")
    before = strangers.state()
    refused = strangers.reclaim(stop=["unit:e2e-main"], protect=["unit:e2e-along"])
    assert ("e2e-along.service", "takes_along") in codes(refused) and refused["done"] == [] and strangers.state() == before
    freed = strangers.reclaim(stop=["unit:e2e-main", "unit:e2e-along"])
    assert freed["verdict"] == "freed", freed["msg"]
    strangers.restored()
    assert strangers.state() == before


@pytest.mark.parametrize("kind", ["masked", "deleted", "refuses"])
def test_what_could_not_be_started_again_is_not_stopped(strangers: StandIns, kind: str) -> None:
    name = "e2e-once.service"
    if kind == "refuses":
        strangers.unit(name, f"{HOLD} --name e2e-once --mib 16", start=False, Unit="RefuseManualStart=yes")
        strangers.unit("e2e-brings.service", "/bin/true", Type="oneshot", Unit=f"Wants={name}", Service="RemainAfterExit=yes")
    else:
        strangers.unit(name, f"{HOLD} --name e2e-once --mib 16")
    # The file stands where an administrator's are, so that a mask needs it gone.
    if kind != "refuses":
        strangers.run("rm", f"/etc/systemd/system/{name}")
        if kind == "masked":
            strangers.run("ln", "-s", "/dev/null", f"/etc/systemd/system/{name}")
        strangers.reload()
    wait_for(lambda: strangers.run("systemctl", "is-active", name, check=False).strip() == "active")
    refused = strangers.reclaim(stop=["unit:e2e-once"])
    assert refused["verdict"] == "not_permitted" and codes(refused) == {(name, "lost")} and refused["done"] == [], refused["msg"]
    assert strangers.run("systemctl", "is-active", name).strip() == "active"
    freed = strangers.reclaim(stop=["unit:e2e-once"], restore={"unit:e2e-once": "never"})
    assert freed["verdict"] == "freed", freed["msg"]


def test_conditions_that_are_not_met_any_more_are_said_at_once(strangers: StandIns) -> None:
    strangers.run("touch", "/run/e2e-flag")
    strangers.unit("e2e-if.service", f"{HOLD} --name e2e-if --mib 16", Unit="ConditionPathExists=/run/e2e-flag")
    freed = strangers.reclaim(stop=["unit:e2e-if"])
    assert freed["verdict"] == "freed", freed["msg"]
    strangers.run("rm", "/run/e2e-flag")
    for _again in range(2):
        failed = strangers.reclaim("restored")
        assert failed["verdict"] == "not_restored" and "Condition...= lines are not met" in failed["msg"], failed["msg"]
    assert not failed["changed"]
    strangers.run("touch", "/run/e2e-flag")
    strangers.restored()
    assert strangers.state() == {"e2e-if.service": "active enabled"}
    strangers.run("rm", "/run/e2e-flag")


def test_a_pattern_that_matches_every_unit_means_those_with_gpu_memory(strangers: StandIns) -> None:
    """The lab's own driver is a unit too, and comes before these by its name."""
    strangers.unit("e2e-zz.service", f"{HOLD} --name e2e-zz --mib 300")
    need = strangers.available() + 150 * MIB
    planned = strangers.reclaim(check=True, stop=["unit:*"], need=need, protect=["unit:vllm-embeddings", "container:*"])
    assert planned["verdict"] == "freed", planned["msg"]
    assert [row["target"] for row in planned["actions"] if row["action"] == "stop"] == ["e2e-zz.service"]
    assert not any("simd" in row["target"] for row in (*planned["actions"], *planned["spared"], *planned["refused"]))
    more = strangers.reclaim(check=True, stop=["unit:*"], need=2**40)
    assert more["verdict"] == "not_enough" and "more than the whole pool" in more["msg"] and more["done"] == []


def test_what_another_unit_upholds_is_not_stopped(strangers: StandIns) -> None:
    strangers.unit("e2e-held.service", f"{HOLD} --name e2e-held --mib 16")
    strangers.unit("e2e-keeper.service", "/bin/sleep infinity", Unit="Upholds=e2e-held.service")
    refused = strangers.reclaim(stop=["unit:e2e-held"])
    assert refused["verdict"] == "not_permitted" and codes(refused) == {("e2e-held.service", "revived")}
    freed = strangers.reclaim(stop=["unit:e2e-held", "unit:e2e-keeper"])
    assert freed["verdict"] == "freed", freed["msg"]


def test_what_a_unit_leaves_behind_is_ended_in_the_next_round(strangers: StandIns) -> None:
    strangers.unit("e2e-leaves.service", f"{HOLD} --name e2e-front --mib -1 --child VLLM::EngineCore:64", Service="KillMode=process")
    freed = strangers.reclaim(stop=["unit:e2e-leaves"])
    assert freed["verdict"] == "freed", freed["msg"]
    assert rows(freed, 1) == [("unit", "e2e-leaves.service", "disable"), ("unit", "e2e-leaves.service", "stop")]
    assert [(layer, action) for layer, _target, action in rows(freed, 2)] == [("process", "terminate")]
    assert not any("VLLM" in row["name"] and row["memory"] < 200 * 2**20 for row in freed["held_by"])


def test_stop_that_hangs(strangers: StandIns) -> None:
    strangers.unit("e2e-hangs.service", f"{HOLD} --name e2e-hangs --mib 16 --ignore-term", Service="TimeoutStopSec=infinity")
    stays = strangers.reclaim(stop=["unit:e2e-hangs"], grace=1)
    assert stays["verdict"] == "still_held" and "kill_leftovers" in stays["msg"]
    ended = strangers.reclaim(stop=["unit:e2e-hangs"], grace=1, kill_leftovers=True)
    assert ended["verdict"] == "freed", ended["msg"]
    strangers.restored()
    assert strangers.state() == {"e2e-hangs.service": "active enabled"}


def test_unit_that_something_starts_again_is_said(strangers: StandIns) -> None:
    strangers.unit("e2e-again.service", f"{HOLD} --name e2e-again --mib 16")
    strangers.unit("e2e-watch.service", "/bin/sh -c 'while :; do systemctl start e2e-again.service; sleep 0.1; done'")
    freed = strangers.reclaim(stop=["unit:e2e-again"])
    assert freed["verdict"] == "respawning" and "e2e-again.service" in freed["msg"]
    assert len([row for row in freed["actions"] if row["action"] == "stop"]) <= 3


def test_transient_unit_that_runs_a_container_is_lost_only_where_that_is_said(strangers: StandIns) -> None:
    strangers.containers.append("e2e-trial")
    strangers.units.append("e2e-trial.service")
    command = ["docker", "run", "--rm", "--name", "e2e-trial", "--gpus", "all", IMAGE, "serve", "trial", "--gpu-memory-utilization", "0.01"]
    strangers.run("systemd-run", "--quiet", "--unit", "e2e-trial", "--service-type=exec", *command)
    wait_for(lambda: strangers.run("docker", "ps", "--quiet", "--filter", "name=e2e-trial") and strangers.listens_in("e2e-trial"))
    refused = strangers.reclaim(stop=["unit:e2e-trial"])
    assert refused["verdict"] == "not_permitted" and ("e2e-trial.service", "lost") in codes(refused)
    by_its_container = strangers.reclaim(stop=["container:e2e-trial"])
    assert by_its_container["verdict"] == "not_permitted" and not by_its_container["changed"]
    freed = strangers.reclaim(stop=["unit:e2e-trial"], restore={"unit:e2e-trial": "never"})
    assert freed["verdict"] == "freed", freed["msg"]
    assert rows(freed)[0] == ("unit", "e2e-trial.service", "stop"), "the unit before its container"
    assert strangers.run("docker", "ps", "--all", "--quiet", "--filter", "name=e2e-trial") == ""
    strangers.restored()
    strangers.containers.remove("e2e-trial")


@pytest.fixture
def lingering(strangers: StandIns) -> Iterator[StandIns]:
    """A unit of spark's own service manager, which runs without a login."""
    strangers.run("loginctl", "enable-linger", "spark")
    wait_for(lambda: "bus" in strangers.run("ls", "/run/user/1000", check=False).split())
    text = f"[Service]\nType=notify\nExecStart={HOLD} --name e2e-mine --mib 16\nRestart=always\n[Install]\nWantedBy=default.target\n"
    send(strangers.host, "/home/spark/.config/systemd/user/e2e-mine.service", text)
    strangers.run("chown", "-R", "spark:", "/home/spark/.config")
    yield strangers
    strangers.run("systemctl", "--user", "--machine=spark@.host", "disable", "--now", "e2e-mine.service", check=False)
    strangers.run("rm", "-r", "/home/spark/.config/systemd")
    strangers.run("loginctl", "disable-linger", "spark")


def test_unit_of_a_user(lingering: StandIns) -> None:
    def mine(*words: str) -> str:
        return lingering.run("systemctl", "--user", "--machine=spark@.host", *words, check=False)

    mine("daemon-reload")
    mine("enable", "--now", "e2e-mine.service")
    assert (mine("is-active", "e2e-mine"), mine("is-enabled", "e2e-mine")) == ("active", "enabled")
    freed = lingering.reclaim(stop=["unit:e2e-mine"])
    assert freed["verdict"] == "freed", freed["msg"]
    assert outcomes(freed) == {("e2e-mine.service", "disable"): "disabled", ("e2e-mine.service", "stop"): "stopped"}
    assert (mine("is-active", "e2e-mine"), mine("is-enabled", "e2e-mine")) == ("inactive", "disabled")
    lingering.restored()
    assert (mine("is-active", "e2e-mine"), mine("is-enabled", "e2e-mine")) == ("active", "enabled")
