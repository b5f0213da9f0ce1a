# Copyright (c) 2026, the unimem.dgx_spark authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# PRIVATE to this collection: it can change at any time without notice.

"""The states of the module model_download, each a function of its parameters that returns the module's result."""

from __future__ import annotations

import os
import time
import typing as t
from dataclasses import dataclass

from ansible_collections.unimem.dgx_spark.plugins.module_utils._alone import hold
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub import (
    About,
    HubError,
    Place,
    Request,
    Would,
    check_endpoint,
    check_token,
    download_arguments,
    environment_for,
    is_passing,
    parse_dry_run,
    place_of,
    request_from,
    sentence,
)
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub_files import Look, Stamp, finished, fresh, look, remove_abandoned, unfinished_bytes
from ansible_collections.unimem.dgx_spark.plugins.module_utils._hub_run import Client, Ended, client_for, run
from ansible_collections.unimem.dgx_spark.plugins.module_utils._model_staging import free_bytes
from ansible_collections.unimem.dgx_spark.plugins.module_utils._page_cache import evict_files
from ansible_collections.unimem.dgx_spark.plugins.module_utils._sizes import format_size, parse_size

#: Between two tries.
_PAUSE: t.Final = 5.0
#: Seconds between two evictions of what has been finished: until the end of a download it would fill the memory.
_EVICT_EVERY: t.Final = 10.0


class Report(t.Protocol):
    """What is told of the progress, on the way."""

    def __call__(self, sent: int, total: int, waiting: bool = False) -> None:
        """Bytes so far, and bytes in all (0 where nobody knows)."""


@dataclass(frozen=True)
class Missing:
    """What is to be fetched."""

    #: None where nobody knows
    size: int | None
    files: int
    #: bytes in the way that go before the new ones come
    replaced: int


def _told(request: Request, place: Place, seen: Look) -> dict[str, t.Any]:
    return {"complete": seen.complete, "reasons": seen.reasons[:20], "layout": place.layout, "model_path": place.model_path, "revision": request.revision}


def report(params: t.Mapping[str, t.Any], check_mode: bool, tell: Report) -> dict[str, t.Any]:
    """Tell whether the commit is there, from the disk alone."""
    del check_mode, tell
    request = request_from(params)
    place = place_of(request)
    return {"changed": False, **_told(request, place, look(place, request, params["root"]))}


def downloaded(params: t.Mapping[str, t.Any], check_mode: bool, tell: Report) -> dict[str, t.Any]:
    """Fetch what is missing of the commit. In check mode ask the Hub how much that is, and fetch nothing."""
    request = request_from(params)
    place = place_of(request)
    endpoint, token = check_endpoint(params["endpoint"] or ""), check_token(params["token"] or "")
    reserve = parse_size(params["reserve"], "reserve")
    seen = look(place, request, params["root"])
    if seen.complete:
        return {"changed": False, "downloaded_bytes": 0, **_told(request, place, seen)}
    client = client_for(params["program"], place.folder, environment_for(os.environ, endpoint, token))
    about = About(request.repository, request.revision, place.folder, endpoint, token)
    work = _Work(params, request, place, client, about)
    if check_mode:
        missing = work.missing(seen)
        space = work.check_space(missing, reserve)
        return {"changed": True, "downloaded_bytes": missing.size or 0, "space": space, **_client(client), **_told(request, place, seen)}
    with hold("model-download", place.folder, float("inf"), lambda: tell(0, 0, waiting=True)):
        # Another run may have fetched it in the meantime.
        seen = look(place, request, params["root"])
        if seen.complete:
            return {"changed": False, "downloaded_bytes": 0, **_told(request, place, seen)}
        removed = remove_abandoned(place)
        missing = work.missing(seen)
        space = work.check_space(missing, reserve)
        before = finished(place)
        tries = work.fetch(missing.size or 0, before, tell)
        seen = look(place, request, params["root"])
        if not seen.complete:
            raise HubError(_not_whole(request, seen))
        fetched = sum(fresh(before, finished(place)).values())
    return {
        "changed": True,
        "downloaded_bytes": fetched,
        "removed_bytes": removed,
        "space": space,
        "tries": tries,
        **_client(client),
        **_told(request, place, seen),
    }


def _client(client: Client) -> dict[str, t.Any]:
    """Who has fetched it, and with what."""
    return {"program": client.program, "version": "{}.{}".format(*client.version), "user": client.account.name if client.account is not None else ""}


def _not_whole(request: Request, seen: Look) -> str:
    """The sentence for a download that went well and a model that is not."""
    reasons = "; ".join(reason.rstrip(".") for reason in seen.reasons[:3])
    text = f"hf has fetched what it wanted of {request.repository} at {request.revision}, and the model is not complete: {reasons}"
    if request.include or request.exclude:
        return f"{text}. Check model_sync_download_include and model_sync_download_exclude: they may leave out what the model needs"
    return f"{text}. A file that is damaged has to be removed before it is fetched again; one that the repository itself lacks is not to be had there"


class _Work:
    """One download."""

    def __init__(self, params: t.Mapping[str, t.Any], request: Request, place: Place, client: Client, about: About) -> None:
        self.request, self.place, self.client, self.about = request, place, client, about
        self._patience, self._tries, self._workers = float(params["timeout"]), int(params["tries"]), int(params["workers"])

    def _try(self, run_it: t.Callable[[], Ended]) -> tuple[Ended, int]:
        """Run the program until it ends well, as often as is allowed where another try may help. Raises HubError."""
        for number in range(1, self._tries + 1):
            ended = run_it()
            if ended.status == 0 and not ended.stuck:
                return ended, number
            if number == self._tries or not (ended.stuck or is_passing(ended.said)):
                break
            time.sleep(_PAUSE)
        if ended.stuck:
            text = f"nothing came from {self.about.hub} for {self._patience:.0f} s (model_sync_download_timeout), {number} times"
            raise HubError(f"{text}; run again, finished files are kept")
        raise HubError(sentence(self.about, ended.status, ended.said))

    def missing(self, seen: Look) -> Missing:
        """What is to be fetched: by the client's own list where it has one, else by what it says that it would do."""
        if seen.listing is not None:
            paths = [os.path.join(self.place.folder, name) for name in seen.lacking] if self.place.layout == "plain" else []
            replaced = sum(os.stat(path).st_size for path in paths if os.path.isfile(path))
            return Missing(sum(seen.lacking.values()), len(seen.lacking), replaced)
        # Even a dry run makes folders in a plain directory, and none in a cache that is not there.
        plain = self.place.layout == "plain"
        where = ["--cache-dir", os.path.join(self.place.locks, "none")] if plain else self.place.options
        ended, _number = self._try(lambda: run(self.client, [*download_arguments(self.request, where, self._workers), "--dry-run"], self._patience))
        would: Would | None = parse_dry_run(ended.stdout)
        if would is None:
            return Missing(None, 0, 0)
        # Of a directory of which nothing is known all is asked for, and what is there is fetched over or kept.
        return Missing(would.size, would.files, min(would.size, sum(stamp[0] for stamp in finished(self.place).values())) if plain else 0)

    def check_space(self, missing: Missing, reserve: int) -> str:
        """Refuse where there is no room. Return what is known of it."""
        if missing.size is None:
            return f"not checked: hf {self.client.version[0]}.{self.client.version[1]} did not say how much it would download"
        free = free_bytes(self.place.folder)
        required = max(0, missing.size - missing.replaced - unfinished_bytes(self.place)) + reserve
        if free < required:
            raise HubError(
                f"{self.place.folder} has {format_size(free)} free, and {format_size(missing.size)} of {self.request.repository} are missing "
                f"(reserve {format_size(reserve)}): make {format_size(required - free)} free there"
            )
        return "checked"

    def fetch(self, total: int, before: t.Mapping[str, Stamp], tell: Report) -> int:
        """Run the download; return how many tries it took."""
        begun, last = unfinished_bytes(self.place), time.monotonic()
        evicted: set[str] = set()

        def progress() -> int:
            nonlocal last
            files = fresh(before, finished(self.place))
            fetched = max(0, sum(files.values()) + unfinished_bytes(self.place) - begun)
            tell(min(fetched, total) if total else fetched, total)
            if time.monotonic() - last >= _EVICT_EVERY:
                last = time.monotonic()
                evict_files([os.path.realpath(path) for path in files if path not in evicted])
                evicted.update(files)
            return fetched

        arguments = download_arguments(self.request, self.place.options, self._workers)
        return self._try(lambda: run(self.client, arguments, self._patience, progress))[1]


STATES: dict[str, t.Callable[[t.Mapping[str, t.Any], bool, Report], dict[str, t.Any]]] = {"report": report, "downloaded": downloaded}
