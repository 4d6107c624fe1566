"""What a server of wandb's answers to who reads runs, as ``wandb.Api`` does; a part of ``wandb_server``.

Source: what wandb 0.31.0's ``wandb.Api`` asks: ``Viewer``, ``Runs``, ``Run``, ``RunHistoryKeys``, ``RunParquetHistory``
and, for the rows of a step range, ``HistoryPage``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.wandb_server import TrackedRun

OWNER = "someone"
_VIEWER = {"id": "viewer", "entity": OWNER, "username": OWNER, "email": "a@b", "flags": "{}", "teams": {"edges": []}}
_WHEN = "2026-01-01T00:00:00"


def read(query: str, asked: Mapping[str, Any], runs: Mapping[str, TrackedRun]) -> dict[str, Any] | None:
    """Returns the answer to a query that reads, and None if it is another one."""
    if "viewer" in query:
        return {"viewer": _VIEWER}
    if "query Runs(" in query:
        return {"project": _page(_chosen(asked, runs), asked)}
    run = runs.get(str(asked.get("name") or asked.get("runName") or asked.get("run")))
    if "query Run(" in query:
        return {"project": {"run": None if run is None else _about(run)}}
    if run is None:
        return None
    if "RunHistoryKeys" in query:
        keys = {key: {} for row in run.history.values() for key in row}
        return _of_run({"historyKeys": {"lastStep": _last_step(run), "keys": keys}})
    if "RunParquetHistory" in query:
        return _of_run({"parquetHistory": {"parquetUrls": [], "liveData": list(run.history.values())}})
    if "HistoryPage" in query:
        rows = [row for row in run.history.values() if asked["minStep"] <= row["_step"] < asked["maxStep"]]
        return _of_run({"history": [json.dumps(row) for row in rows]})
    return None


def _of_run(answer: dict[str, Any]) -> dict[str, Any]:
    return {"project": {"run": answer}}


def _chosen(asked: Mapping[str, Any], runs: Mapping[str, TrackedRun]) -> list[TrackedRun]:
    """The runs of the project that the filter names, in the order in which they came."""
    wanted = {**json.loads(asked.get("filters") or "{}"), "project": asked["project"]}
    names = {"group": "groupName"}
    return [
        run for run in runs.values() if all(run.about.get(names.get(key, key)) == wanted[key] for key in wanted)
    ]  # fmt: skip


def _page(chosen: list[TrackedRun], asked: Mapping[str, Any]) -> dict[str, Any]:
    first = int(asked.get("cursor") or 0)
    end = first + int(asked["perPage"])
    edges = [
        {"node": _about(run), "cursor": str(number + 1)} for number, run in enumerate(chosen) if first <= number < end
    ]
    more = {"endCursor": str(min(end, len(chosen))), "hasNextPage": end < len(chosen)}
    runs = {"edges": edges, "totalCount": len(chosen), "pageInfo": more}
    return {"internalId": "project", "runCount": len(chosen), "readOnly": False, "runs": runs}


def _about(run: TrackedRun) -> dict[str, Any]:
    state = "running" if not run.is_complete else "failed" if run.exit_code else "finished"
    nothing = dict.fromkeys(("commit", "description", "notes"))
    return nothing | {
        "id": "run",
        "internalId": "run",
        "projectId": "1",
        "name": run.name,
        "displayName": run.about.get("displayName"),
        "group": run.about.get("groupName"),
        "jobType": run.about.get("jobType"),
        "sweepName": run.about.get("sweep"),
        "tags": run.about.get("tags") or [],
        "config": run.about.get("config") or "{}",
        "state": state,
        "readOnly": False,
        "createdAt": _WHEN,
        "heartbeatAt": _WHEN,
        "systemMetrics": "{}",
        "summaryMetrics": json.dumps(run.summary),
        "historyLineCount": len(run.history),
        "historyKeys": {"lastStep": _last_step(run), "keys": {}},
        "user": {"name": OWNER, "username": OWNER},
    }


def _last_step(run: TrackedRun) -> int:
    return max((int(row["_step"]) for row in run.history.values()), default=-1)
