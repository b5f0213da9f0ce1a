# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""`hf download` of one repository at one commit: what is asked for, where it goes, the arguments, and what the program says as sentences.

The program is `hf` of the package huggingface_hub, 1.0 or newer: it has been seen to do what is written here from 1.0 to 2.4. Its texts
are not an interface. What is not understood is passed on as it is, and a size that cannot be read is said not to be known.
"""

from __future__ import annotations

import math
import os
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._mask import MASK, mask_command
from ansible_collections.unimem.dgx_spark.plugins.module_utils._problems import shown

#: Before it, several patterns of files lose all but the last, and nothing tells what would be fetched.
OLDEST: t.Final = (1, 0)
HUB: t.Final = "https://huggingface.co"

_COMMIT: t.Final = re.compile(r"[0-9a-f]{40}")
_REPOSITORY: t.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_ENDPOINT: t.Final = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]{1,253}(?:/[A-Za-z0-9._~/-]{0,200})?")
_VERSION: t.Final = re.compile(r"(?<![\d.])(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")
_WOULD: t.Final = re.compile(r"Will download (\d{1,9}) files? \(out of (\d{1,9})\) totalling (\d{1,4}(?:\.\d)?)([KMGTP]?)\.")
_ANSI: t.Final = re.compile(r"\x1b\[[0-9;]{0,16}m")
#: What a Python program says last when it dies of an error: the error's name and text, at the beginning of a line.
_RAISED: t.Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,63}\.){0,8}[A-Za-z]{0,48}(?:Error|Exception|Exceeded|Timeout|NotFound)(?::|$)")

#: Those that only say that nothing could be done about an earlier one, and lines that say nothing.
_RAISED_LAST: t.Final = re.compile(r"huggingface_hub\.errors\.(?:DryRunError|LocalEntryNotFoundError)")
_NO_WORDS: t.Final = ("Traceback", "The above exception", "During handling", "For more information", "Hint:")

#: Where to get the program. No registry is named: pip's own setting says which.
REMEDY: t.Final = "install the package huggingface_hub there (`uv tool install huggingface_hub`, `pipx install huggingface_hub`, or pip in an environment)"


class HubError(ValueError):
    """Nothing can be downloaded like this; the text says why and what to do."""


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    repository: str
    #: the full commit
    revision: str
    path: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where it goes."""

    #: "cache" (models--org--name of the Hugging Face cache) or "plain" (a directory with the files)
    layout: str
    #: the repository's folder, or the plain directory
    folder: str
    #: the directory to give to an engine
    model_path: str
    #: what the program keeps of its own: its locks, and its list of the commit's files where it has written one
    locks: str
    listing: str

    @property
    def options(self) -> list[str]:
        """The place as `hf download` takes it."""
        return ["--cache-dir", os.path.dirname(self.folder)] if self.layout == "cache" else ["--local-dir", self.folder]


def request_from(params: t.Mapping[str, t.Any]) -> Request:
    """A request from a module's options. Raises HubError for what could be misread, or would bring another thing each time."""
    repository, revision, path = str(params["repository"]), str(params.get("revision") or ""), os.path.normpath(str(params["path"]))
    if not _REPOSITORY.fullmatch(repository) or "--" in repository or ".." in repository:
        raise HubError(f"{shown(repository)} is no repository of the Hub; it is like Qwen/Qwen3.5-122B-A10B-FP8")
    if not os.path.isabs(path) or path == "/":
        raise HubError(f"{shown(path)} is not an absolute path to a model")
    parent, name = os.path.split(path)
    if os.path.basename(parent) == "snapshots" and os.path.basename(os.path.dirname(parent)).startswith("models--"):
        if revision and revision != name:
            raise HubError(f"the revision is {shown(revision)}, and the path is that of another snapshot: {path}")
        revision = name
    if not _COMMIT.fullmatch(revision):
        raise HubError(
            f"the revision of {repository} is {shown(revision) if revision else 'empty'}: a download needs the full commit, 40 hexadecimal digits, because "
            f"a branch or a tag moves, and two runs would bring two models. The repository's page has it under Files, History; `hf models info {repository}` "
            "says it as sha"
        )
    patterns = [tuple(str(pattern) for pattern in params.get(name) or ()) for name in ("include", "exclude")]
    if not all(pattern and "\0" not in pattern for part in patterns for pattern in part):
        raise HubError("a pattern of include or exclude is empty")
    return Request(repository, revision, path, *patterns)


def place_of(request: Request) -> Place:
    """Where the request's files go. Raises HubError where the path is that of another repository."""
    path = request.path
    if os.path.basename(os.path.dirname(path)) == "snapshots" and os.path.basename(os.path.dirname(os.path.dirname(path))).startswith("models--"):
        path = os.path.dirname(os.path.dirname(path))
    parent, name = os.path.split(path)
    commit = request.revision
    if not name.startswith("models--"):
        own = os.path.join(path, ".cache", "huggingface")
        return Place("plain", path, path, os.path.join(own, "download"), os.path.join(own, "trees", f"{commit}.json"))
    expected = "models--" + request.repository.replace("/", "--")
    if name != expected:
        raise HubError(f"{request.repository} is {expected} in a Hugging Face cache, and the path names {name}: one of the two is wrong")
    if parent == "/":
        raise HubError(f"{path} lies directly below /: name a cache directory that holds it")
    return Place("cache", path, os.path.join(path, "snapshots", commit), os.path.join(parent, ".locks", name), os.path.join(path, "trees", f"{commit}.json"))


def check_endpoint(endpoint: str) -> str:
    """An endpoint, or HubError; "" for the Hub itself."""
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise HubError(f"{shown(mask_command(endpoint))} is no endpoint; it is like https://hub.example.com, without a user or a password")
    return endpoint.rstrip("/")


def check_token(token: str) -> str:
    """A token that can be part of a header, or HubError without it."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise HubError("the token has a blank, a line end or another character that no token has")
    return token


def environment_for(base: t.Mapping[str, str], endpoint: str, token: str) -> dict[str, str]:
    """What `hf` is told by its environment; the token by nothing else."""
    kept = {name: value for name, value in base.items() if name not in ("HF_DEBUG", "HF_HUB_VERBOSITY", "FORCE_COLOR")}
    told = {
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        # Offline is how everything else runs; what is asked for here is the network.
        "HF_HUB_OFFLINE": "0",
        "TRANSFORMERS_OFFLINE": "0",
        # Nobody looks at its bars, and nobody is asked but the Hub.
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    if endpoint:
        told["HF_ENDPOINT"] = endpoint
    if token:
        told.update({"HF_TOKEN": token, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "0"})
    return {**kept, **told}


def download_arguments(request: Request, place: t.Sequence[str], workers: int) -> list[str]:
    """The arguments of `hf`; `place` is where to, as options."""
    patterns = [f"--include={pattern}" for pattern in request.include] + [f"--exclude={pattern}" for pattern in request.exclude]
    return ["download", request.repository, "--revision", request.revision, *place, *(["--max-workers", str(workers)] if workers else []), *patterns]


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor version in what `hf version` says; the last one, since it may say first that there is a newer one."""
    found = _VERSION.findall(_ANSI.sub("", text))
    return (int(found[-1][0]), int(found[-1][1])) if found else None


@dataclass(frozen=True)
class Would:
    """What a dry run would fetch."""

    files: int
    all_files: int
    #: rounded up by what the program rounds: within 0.5 % and 50 MB of the sum, never below it
    size: int


def parse_dry_run(text: str) -> Would | None:
    """What `hf download --dry-run` says; None where it says no size."""
    found = _WOULD.search(_ANSI.sub("", text))
    if found is None:
        return None
    unit = 1000 ** " KMGTP".index(found[4] or " ")
    # One decimal of the unit was kept; a size in bytes is whole.
    size = int(float(found[3])) if unit == 1 else math.ceil((float(found[3]) + 0.05) * unit) if float(found[3]) else 0
    return Would(int(found[1]), int(found[2]), size)


@dataclass(frozen=True)
class About:
    """What a sentence about a failed run can name."""

    repository: str
    revision: str
    folder: str
    endpoint: str = ""
    token: str = ""

    @property
    def hub(self) -> str:
        return self.endpoint or HUB


class _Failure(t.NamedTuple):
    """A kind of failure: signs in lower case, whether another try may succeed, and its sentence."""

    signs: tuple[str, ...]
    passing: bool
    sentence: t.Callable[[About], str]


def _account(about: About) -> str:
    """What to do about who one is to the Hub."""
    if about.token:
        return "the token's account has to be let in there: a token of somebody who is, with the right to read this repository, in model_sync_download_token"
    return "no token was given: put one in model_sync_download_token, best from a vault, or log in on that node with `hf auth login`"


#: The first one whose sign is in what the program said. What makes trying again useless comes first: a full disk also breaks connections.
_FAILURES: t.Final = (
    _Failure(("no space left on device", "disk quota exceeded"), False, lambda about: f"the disk of {about.folder} is full: make room there"),
    _Failure(("read-only file system",), False, lambda about: f"{about.folder} is on a file system that is mounted read-only: mount it for writing"),
    _Failure(
        ("permission denied", "operation not permitted"),
        False,
        lambda about: f"{about.folder} or what is beside it (.locks, blobs) may not be written by who runs the download: `chown -R` it to its owner",
    ),
    _Failure(
        ("cannot access gated repo", "requires approval", "awaiting a review"),
        False,
        lambda about: f"{about.repository} is gated: its owners let in who has accepted their conditions on "
        f"{about.hub}/{about.repository}; {_account(about)}",
    ),
    _Failure(
        ("invalid user token", "invalid username or password", "invalid credentials", "illegal header value"),
        False,
        lambda about: f"{about.hub} does not know the token: it is wrong, has run out or was taken back; make a new one for "
        "model_sync_download_token",
    ),
    _Failure(
        ("revision not found", "invalid rev id"),
        False,
        lambda about: f"{about.repository} has no commit {about.revision} on {about.hub}: look at the history there, and mind the repository's name",
    ),
    _Failure(
        ("repository not found", "' not found"),
        False,
        lambda about: f"{about.hub} shows no repository {about.repository}: its name is wrong, or it is private; {_account(about)}",
    ),
    _Failure(
        ("access to this resource is disabled",),
        False,
        lambda about: f"{about.hub} has disabled {about.repository}: nobody can download it there; name another repository",
    ),
    _Failure(
        ("403 forbidden", "403 client error", "401 client error", "401 unauthorized"),
        False,
        lambda about: f"{about.hub} refuses {about.repository}; {_account(about)}",
    ),
    _Failure(
        ("too large to be downloaded using the regular",),
        False,
        lambda about: "a file is above 50 GB, for which hf needs its part hf_xet: install it beside huggingface_hub",
    ),
    _Failure(
        ("certificate verify failed", "certificate_verify_failed", "unable to get local issuer"),
        False,
        lambda about: f"the certificate of {about.hub} is not trusted there: with a proxy or mirror of your own, name its authority in SSL_CERT_FILE "
        "(the task's environment)",
    ),
    _Failure(
        ("429 client error", "too many requests"),
        True,
        lambda about: f"{about.hub} asks for fewer requests: wait, or give a token",
    ),
    _Failure(
        ("500 internal", "500 server", "502 bad", "502 server", "503 service", "503 server", "504 gateway", "504 server", "server error '5"),
        True,
        lambda about: f"{about.hub} is in trouble itself: try again later",
    ),
    _Failure(
        (
            "name or service not known",
            "temporary failure in name resolution",
            "no address associated",
            "network is unreachable",
            "no route to host",
            "connection refused",
            "connecterror",
            "connecttimeout",
            "proxyerror",
        ),
        True,
        lambda about: f"{about.hub} cannot be reached from that node; a proxy is given in the task's environment (https_proxy), a mirror in "
        "model_sync_download_endpoint; without a network, copy the model there by other means and leave model_sync_download_repository empty",
    ),
    _Failure(
        (
            "timed out",
            "timeout:",
            "timeouterror",
            "peer closed connection",
            "connection reset",
            "connection aborted",
            "protocolerror",
            "consistency check failed",
        ),
        True,
        lambda about: f"the connection to {about.hub} broke again and again",
    ),
)


def _lines(said: str) -> list[str]:
    """What it said, without the program's own text that a traceback shows: that has every word in it."""
    return [line.strip() for line in _ANSI.sub("", said).splitlines() if line.strip() and not line.startswith((" ", "\t", "│", "╭", "╰"))]


def _failure(said: str) -> _Failure | None:
    lower = "\n".join(_lines(said)).lower()
    return next((failure for failure in _FAILURES if any(sign in lower for sign in failure.signs)), None)


def is_passing(said: str) -> bool:
    """Whether another try may succeed."""
    failure = _failure(said)
    return failure is not None and failure.passing


def own_words(said: str, token: str = "") -> str:
    """What of all that the program said names the error: its line that begins so, or the error that it died of."""
    lines = _lines(said)
    chosen = next((line for line in lines if line.startswith("Error:")), "")
    if not chosen:
        raised = [number for number, line in enumerate(lines) if _RAISED.match(line)]
        # The program's own error, and the first: those after it only say that it happened while something else was done.
        own = [number for number in raised if lines[number].startswith("huggingface_hub.") and not _RAISED_LAST.match(lines[number])]
        number = (own or raised or [len(lines) - 1])[0]
        # An error's text may go on.
        chosen = " ".join(line for line in lines[max(number, 0) : number + 2] if line is lines[number] or not line.startswith(_NO_WORDS))
    masked = mask_command(chosen.removeprefix("Error: "))
    return (masked.replace(token, MASK) if token else masked)[:400]


def sentence(about: About, status: int, said: str) -> str:
    """A failed run of the program as a sentence."""
    words = own_words(said, about.token)
    failure = _failure(said)
    quoted = f" ({words})" if words else ""
    if failure is not None:
        return f"{failure.sentence(about)}{quoted}"
    if status < 0:
        return f"hf download was ended by signal {-status}, by somebody or for lack of memory{quoted}; run again, finished files are kept"
    return f"hf download ended with status {status}{quoted}"
