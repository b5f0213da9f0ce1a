# SPDX-FileCopyrightText: 2026 the unimem.dgx_spark authors
# SPDX-License-Identifier: GPL-3.0-or-later

"""model_sync with a download: from a Hub on the source to the source, and from there over the fabric; as deploy_qwen.yml uses it.

The lab has no way out and its hosts no `hf`: the program is that of the engine's image, and the Hub is hub.py on the source's loopback.
What the download does by itself is tested on one machine, with the real program, in tests/unit/roles/model_sync.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import HOSTS, ROOT, Run, on_host, run_playbook, wait_until
from models import BASE, SOURCE, TARGET, listing, python, resident

# Long; `make units` runs the same program against the same Hub on one machine.
pytestmark = pytest.mark.soak

PORT = 45876
HUB = "/srv/unimem-hub"
PROGRAM = f"{HUB}/bin/hf"
COMMIT = "b" * 40
CACHE = f"{BASE}/hub/models--org--x"
SIZE = 60_000_000
_BUILDER = (ROOT / "tests" / "unit" / "plugins" / "module_utils" / "model_trees.py").read_text(encoding="utf-8")
_SERVER = (ROOT / "tests" / "lab" / "e2e" / "hub.py").read_text(encoding="utf-8")

#: What hf is told by its environment goes on into the container; the container's root writes the files, as root of the host would.
_PASSED = [
    "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_UPDATE_CHECK",
    "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "NO_COLOR", "LC_ALL",
]  # fmt: skip
_PROGRAM = "\n".join(
    [
        "#!/bin/sh",
        f"printf '%s\\n' \"$*\" >> {HUB}/called",
        "exec docker run --rm --init --network host --entrypoint python3.11 --volume /srv:/srv "
        + " ".join(f"--env {name}" for name in _PASSED)
        + ' unimem-lab/vllm-cpu-base:0.32.0 -m huggingface_hub.cli.hf "$@"',
        "",
    ]
)


@pytest.fixture
def hub() -> Iterator[None]:
    """A Hub on the source that has org/x at one commit, the program beside it, and nothing of ours on any host."""
    _clean()
    code = f"""{_BUILDER}
import os
place = Path({HUB!r}) / "repos" / "org" / "x" / {COMMIT!r}
place.mkdir(parents=True)
for name, content in model_files(3, {SIZE}, "merges.txt").items():
    (place / name).write_bytes(content)
(Path({HUB!r}) / "hub.py").write_text({_SERVER!r})
program = Path({PROGRAM!r})
program.parent.mkdir()
program.write_text({_PROGRAM!r})
program.chmod(0o755)
"""
    python(SOURCE, code)
    on_host(SOURCE, "systemd-run", "--quiet", "--collect", "--unit=unimem-e2e-hub", "python3", f"{HUB}/hub.py", str(PORT), HUB)
    wait_until("the Hub listens", lambda: on_host(SOURCE, "test", "-e", f"{HUB}/port", check=False).returncode == 0, 30)
    try:
        yield
    finally:
        on_host(SOURCE, "systemctl", "stop", "unimem-e2e-hub", check=False)
        _clean()


def _clean() -> None:
    for host in HOSTS:
        on_host(host, "rm", "-rf", BASE, HUB)


def knobs(**told: Any) -> None:
    """What goes wrong from now on."""
    python(SOURCE, f"open({HUB + '/knobs.json'!r}, 'w').write({json.dumps(told)!r})")


def fetched() -> list[str]:
    """The large files that the Hub was asked for, and forget them."""
    told = on_host(SOURCE, "sh", "-c", f"cat {HUB}/requests.log 2>/dev/null; rm -f {HUB}/requests.log").stdout.splitlines()
    requests = [json.loads(line) for line in told]
    return [request["path"].rpartition("/")[2] for request in requests if request["path"].startswith("/files/") and request["method"] == "GET"]


def variables(**more: Any) -> dict[str, Any]:
    return {
        "model_sync_source": SOURCE,
        "model_sync_path": CACHE,
        "model_sync_revision": COMMIT,
        "model_sync_reserve": "1MiB",
        "model_sync_download_repository": "org/x",
        "model_sync_download_program": PROGRAM,
        "model_sync_download_endpoint": f"http://127.0.0.1:{PORT}",
        **more,
    }


def sync(*arguments: str, **more: Any) -> Run:
    return run_playbook("tests/lab/e2e/playbooks/model_sync.yml", *arguments, extra=variables(**more))


def test_it_is_downloaded_once_and_copied_over_the_fabric(hub: None) -> None:
    check = sync("--check")
    assert check.rc == 0, check.failures
    assert fetched() == [] and all(on_host(host, "test", "-e", BASE, check=False).returncode != 0 for host in HOSTS)
    run = sync()
    assert run.rc == 0, run.failures
    results = {host: run.fact("model_sync_result", host) for host in HOSTS}
    assert results[SOURCE]["downloaded_bytes"] > 3 * SIZE and results[TARGET]["copied_bytes"] > 3 * SIZE
    assert results[SOURCE]["changed"] and results[TARGET]["changed"]
    # Before the listings, which read every file.
    for host in HOSTS:
        assert resident(host, f"{CACHE}/blobs") < 0.02, f"{host} keeps the model in its page cache"
    # The program's own bookkeeping stays where it is.
    on_source = {path: value for path, value in listing(SOURCE).items() if "/.locks/" not in path and "/trees/" not in path and "CACHEDIR.TAG" not in path}
    assert listing(TARGET) == on_source
    assert len(fetched()) == 3
    on_host(SOURCE, "systemctl", "stop", "unimem-e2e-hub")
    again = sync()
    assert again.rc == 0 and not again.changed, again.changed


def test_the_token_is_in_no_argument_and_a_repository_that_is_gated_says_so(hub: None) -> None:
    token = "hf_" + "abcdefghijklmnop" * 2
    knobs(token=token, gated=True)
    without = sync()
    assert without.rc != 0 and any("org/x is gated" in message for _host, _task, message in without.failures), without.failures
    run = sync("-vvv", model_sync_download_token=token)
    assert run.rc == 0, run.failures
    assert token not in on_host(SOURCE, "cat", f"{HUB}/called").stdout
    assert token not in json.dumps([event.get("event_data", {}).get("res") for event in run.events])


def test_a_program_that_is_killed_on_the_way_goes_on_in_the_next_run(hub: None) -> None:
    knobs(rate=20_000_000)
    # The source itself looks, and ends the container when the first file is there and another is not.
    done = f"ls {CACHE}/snapshots/*/*.safetensors 2>/dev/null | grep -q . && ls {CACHE}/blobs/*.incomplete 2>/dev/null | grep -q ."
    find = "docker ps --quiet --filter=ancestor=unimem-lab/vllm-cpu-base:0.32.0"
    kill = f"until {done}; do sleep 0.05; done; docker kill $({find})"
    on_host(SOURCE, "systemd-run", "--quiet", "--collect", "--unit=unimem-e2e-killer", "sh", "-c", kill)
    try:
        run = sync(model_sync_download_workers=2)
    finally:
        on_host(SOURCE, "systemctl", "stop", "unimem-e2e-killer", check=False)
    assert run.rc != 0, "it was over before anything could happen to it"
    finished = on_host(SOURCE, "sh", "-c", f"cd {CACHE}/snapshots/* && ls *.safetensors").stdout.split()
    fetched()
    knobs()
    again = sync()
    assert again.rc == 0, again.failures
    assert not set(finished) & set(fetched()), "what was finished is fetched again"
    assert on_host(SOURCE, "sh", "-c", f"ls {CACHE}/blobs/*.incomplete 2>/dev/null || true").stdout == ""
    assert listing(TARGET, CACHE + "/blobs") == listing(SOURCE, CACHE + "/blobs")


def test_deploy_under_check_says_what_would_come_and_that_nothing_can_be_predicted_yet(hub: None) -> None:
    settings = {name: value for name, value in variables().items() if name != "model_sync_reserve"}
    run = run_playbook("playbooks/deploy_qwen.yml", "--check", extra={"deploy_model": "lab-tiny-hybrid", **settings})
    assert run.rc != 0
    said = "\n".join(message for _host, _task, message in run.failures)
    assert f"{SOURCE} does not have org/x at {COMMIT} yet" in said and "deploy_qwen downloads it" in said
    assert any("would download" in str(result.get("msg")) for _host, _task, result in run.results())
    assert fetched() == []
    assert "--dry-run" in on_host(SOURCE, "cat", f"{HUB}/called").stdout
