"""Runs in the browser as they go on: a page, and server-sent events that make its charts grow.

Read-only. Names in a request are looked up among the runs that were found in the folder; none becomes a path.
"""

import asyncio
import contextlib
import html
import ipaddress
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from fathom.report import page, read, series

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise page.MissingError(
        "watching needs starlette and uvicorn; install them with: pip install 'fathom[report]'."
    ) from error

POLL = 0.5  # seconds between two looks at the folder
SHOWN = 12  # runs at once
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Bind an address; the socket, and where a browser finds it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        if listener:
            listener.close()
        why = error.strerror or error
        raise ValueError(f"cannot listen on {host}, port {port}: {why}; choose another --port or --host.") from error
    name = f"[{host}]" if ":" in host else host
    return listener, f"http://{name}:{listener.getsockname()[1]}"


def serve(folder: Path, listener: socket.socket, host: str) -> None:
    """Serve until Ctrl-C."""
    app = application(folder, {host}, lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, server_header=False))
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def application(folder: Path, hosts: set[str], ended: Callable[[], bool]) -> Starlette:
    """The server's application, for a folder of runs, the names it may be called by, and whether it is to end."""
    look = watcher(folder)
    title = html.escape(str(folder))
    files = {
        "/": ("text/html", page.fill(page.asset("watch.html"), {"folder": title})),
        "/plotly.js": ("text/javascript", page.plotly()),
        **{f"/{name}": ("text/javascript", page.asset(name)) for name in ("charts.js", "watch.js")},
        "/style.css": ("text/css", page.asset("style.css")),
    }

    async def answer(request: Request) -> Response:
        if not _known(request.headers.get("host", ""), hosts):
            return PlainTextResponse("This name is not one that fathom watch answers to.", 400, headers=HEADERS)
        if request.url.path == "/events":
            names = request.query_params.getlist("run")[:SHOWN]
            return StreamingResponse(_stream(look, names, ended), media_type="text/event-stream", headers=HEADERS)
        kind, text = files[request.url.path]
        return Response(text, media_type=kind, headers=HEADERS)

    return Starlette(routes=[Route(path, answer, methods=["GET"]) for path in (*files, "/events")])


class _Seen(NamedTuple):
    """A run as it was read last."""

    mark: list[tuple[int, float, int]]  # of its files
    run: read.Run | str  # or why it cannot be read
    brief: dict[str, Any]


def watcher(folder: Path) -> Callable[[list[str]], dict[str, Any]]:
    """A function that looks at the folder: all runs in brief, and the curves of those that are named.

    What was read is kept, and read on from there; what has not changed is not worked out again. Several browsers share
    it.
    """
    kept: dict[str, _Seen] = {}
    drawn: dict[tuple[str, ...], tuple[list[Any], dict[str, Any]]] = {}
    lock = threading.Lock()

    def charts(names: list[str]) -> dict[str, Any]:
        there = [kept[name] for name in names if name in kept and isinstance(kept[name].run, read.Run)]
        marks = [seen.mark for seen in there]
        if (past := drawn.get(tuple(names))) and past[0] == marks:
            return past[1]
        runs = [seen.run for seen in there if isinstance(seen.run, read.Run)]
        found = {"runs": series.described(runs), "clients": series.clients(runs)}
        if len(drawn) >= SHOWN:
            drawn.clear()
        drawn[tuple(names)] = (marks, found)
        return found

    def look(names: list[str]) -> dict[str, Any]:
        with lock:
            there = read.found(folder)
            for gone in kept.keys() - there.keys():
                del kept[gone]
            for name, path in there.items():
                mark = [_mark(path / file) for file in read.FILES]
                past = kept.get(name)
                if past is None or past.mark != mark:
                    run = _read(path, past.run if past and isinstance(past.run, read.Run) else None)
                    kept[name] = _Seen(mark, run, _brief(name, run, max(m[1] for m in mark)))
            briefs = [seen.brief for seen in kept.values()]
            return {
                "runs": sorted(briefs, key=lambda run: (run["state"] != "running", -run["changed"])),
                "charts": charts(names),
            }

    return look


async def _stream(
    look: Callable[[list[str]], dict[str, Any]], names: list[str], ended: Callable[[], bool]
) -> AsyncIterator[str]:
    """An event for each part of what is seen that has changed."""
    sent: dict[str, str] = {}
    quiet = time.monotonic()
    while not ended():
        for kind, part in (await asyncio.to_thread(look, names)).items():
            text = json.dumps(part, allow_nan=False)
            if sent.get(kind) != text:
                sent[kind], quiet = text, time.monotonic()
                yield f"event: {kind}\ndata: {text}\n\n"
        if time.monotonic() - quiet > 15:
            quiet = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(POLL)


def _known(header: str, hosts: set[str]) -> bool:
    """Whether a request calls this server by its own name or an address, not by a name that a stranger pointed here."""
    name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    name = name.strip("[]").lower()
    if name in {"localhost", socket.gethostname().lower(), *hosts}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _mark(path: Path) -> tuple[int, float, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0.0, 0)
    return (stat.st_ino, stat.st_mtime, stat.st_size)


def _read(path: Path, past: read.Run | None) -> read.Run | str:
    try:
        return read.read(path, past)._replace(name=path.name)
    except ValueError as error:
        return str(error)


def _brief(name: str, run: read.Run | str, changed: float) -> dict[str, Any]:
    """A run in one line of the list."""
    if isinstance(run, str):
        return {"name": name, "state": "unreadable", "told": run, "changed": changed}
    last = list({row["trial"]: row for row in run.measured}.values())  # of each trial
    accuracies = [v for v in {r["trial"]: series.value(r, "accuracy") for r in run.measured}.values() if v is not None]
    return {
        "name": name,
        "state": run.state,
        "changed": changed,
        "task": run.spec["task"]["name"],
        "tuner": run.spec["tuner"]["name"],
        "round": run.done,
        "rounds": run.spec["rounds"],
        "accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
        "hparams": {key: _mean([row[key] for row in last]) for key in ("lr", "epochs", "batch")} if last else None,
        "left": left(run),
        "undone": sum(row["rolled_back"] for row in run.rows),
        "rejected": sum({row["trial"]: row["rejected"] for row in run.rows}.values()),
        "damaged": run.records.damaged,
    }


def _mean(values: list[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def left(run: read.Run) -> float | None:
    """Seconds that a run has still to go, at the pace since its first record; the first rounds compile."""
    timed = [(row["round"], row["seconds"]) for row in run.rows if row["seconds"] is not None]
    if run.state != "running" or not timed:
        return None
    (first, start), (last, end) = timed[0], timed[-1]
    pace = (end - start) / (last - first) if last > first else end / last
    return max(0.0, pace) * (run.spec["rounds"] - last)
