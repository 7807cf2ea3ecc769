"""`fathom watch`: what it serves, what it refuses, and the page in a browser while a run goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

import chromium
import rundirs

pytest.importorskip("starlette")
from fathom.report import live, page, read

CACHE = Path(__file__).parents[1] / ".pytest_cache" / "fathom"
ENVIRONMENT = {
    **os.environ,
    "JAX_NUM_CPU_DEVICES": "1",
    "FATHOM_CACHE": str(CACHE),
    "COLUMNS": "120",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
}
WATCH = "import typer; from fathom.cli_report import watch; typer.run(watch)"
EVIL = "<img src=x onerror=evil()>"
browser = pytest.mark.skipif(bool(chromium.missing()), reason=chromium.missing())


@pytest.fixture
def watched(tmp_path):
    """`fathom watch` over a folder, in a process of its own: the folder and the address."""
    start = [sys.executable, "-c", WATCH, str(tmp_path / "runs"), "--port", "0"]
    process = subprocess.Popen(start, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = next((found[0] for line in process.stdout if (found := re.search(r"http://\S+", line))), None)
        assert address
        yield tmp_path / "runs", address, process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def request(address, path, method="GET", host=None):
    """The status and the body of a plain request, byte by byte as given."""
    import http.client

    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=20)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    if answer.headers.get_content_type() == "text/event-stream":
        events = {}
        while len(events) < 2:
            kind, data, _ = (answer.readline().decode() for _ in range(3))
            events[kind.split()[1]] = json.loads(data[len("data: ") :])
        connection.close()
        return answer.status, events
    body = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, body


def test_it_reads_and_nothing_else(watched):
    folder, address, _ = watched
    rundirs.write(folder.parent / "secret")
    rundirs.write(folder / "mine", finished=None)
    rundirs.write(folder / "broken").joinpath("spec.toml").write_text("no")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert request(address, "/", method)[0] == 405
    for path in (
        "/../secret/spec.toml",
        "/%2e%2e/secret/spec.toml",
        "/runs/mine/spec.toml",
        "//etc/passwd",
        "/style.css/..",
    ):
        assert request(address, path)[0] == 404
    for name in ("../secret", "..%2Fsecret", "%2Fetc", "mine%2F..%2F..%2Fsecret", "mine%00", "broken"):
        status, events = request(address, f"/events?run={name}")
        assert (status, events["charts"]["runs"]) == (200, [])
        assert [run["name"] for run in events["runs"]] == ["mine", "broken"]  # what goes on comes first
    _, events = request(address, "/events?run=mine")
    assert [run["name"] for run in events["charts"]["runs"]] == ["mine"]
    assert "spec.toml is damaged" in events["runs"][1]["told"]
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        assert request(address, "/", host=host)[0] == 400
        assert request(address, "/events", host=host)[0] == 400
    assert request(address, "/", host="localhost:1")[0] == 200


def test_an_interrupt_ends_it_quietly_while_a_browser_looks(watched):
    _, address, process = watched
    with urllib.request.urlopen(f"{address}/events", timeout=20) as answer:
        assert answer.readline() == b"event: runs\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
    assert process.wait(20) == 0


def test_names_that_it_answers_to():
    assert all(live._known(name, {"here"}) for name in ("here:80", "localhost", "[::1]:8", "[::1]", "10.0.0.1:9"))
    assert not any(live._known(name, {"here"}) for name in ("there", "", "here.evil", "localhost.evil:80", "[evil]"))


def test_time_left_follows_the_pace_after_the_first_record(tmp_path):
    rows = [rundirs.row(5, 0, 0.1, seconds=60.0), rundirs.row(10, 0, 0.2, seconds=70.0)]
    run = read.read(rundirs.write(tmp_path / "run", rows=rows, finished=None, rounds=30))
    assert live.left(run) == 40.0  # 20 rounds of 2 s: the first rounds compiled
    assert live.left(run._replace(state="finished")) is None


def test_a_port_that_is_taken_is_one_clear_line():
    listener, address = live.listen("127.0.0.1", 0)
    with listener, pytest.raises(ValueError, match=r"cannot listen on .* choose another --port"):
        live.listen("127.0.0.1", int(address.rsplit(":", 1)[1]))


@browser
def test_a_curve_grows_in_the_browser_while_a_run_goes_on(watched):
    folder, address, _ = watched
    rundirs.write(folder / "earlier", tuner=EVIL)
    options = ["--rounds", "100000", "--every", "5", "--cohort", "4", "--tuner", "fixed", "--out", str(folder / "now")]
    points = "(document.querySelector('.chart')?.data || []).map(trace => trace.x.length)"
    with chromium.Page() as tab:
        tab.open(address, "document.querySelectorAll('#list tbody tr').length === 1")
        start = [sys.executable, "-m", "fathom", "run", "synthetic", *options]
        run = subprocess.Popen(start, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            tab.wait("document.querySelectorAll('#list tbody tr').length === 2", 60)
            before = tab.wait(f"Math.max(...{points}) > 3 && Math.max(...{points})", 60)
            tab.wait(f"Math.max(...{points}) > {before}", 30)
            assert "left" in tab.evaluate("document.querySelector('#list tbody').textContent")
        finally:
            run.kill()
            run.wait()
        assert tab.evaluate(f"{points}.length") == 2
        tab.evaluate("document.querySelector('input[data-run=earlier]').click()")
        tab.wait(f"{points}.length === 1")
        assert tab.evaluate("document.querySelectorAll('#list img').length") == 0
        assert EVIL in tab.evaluate("document.querySelector('#list tbody').textContent")
        assert tab.errors == []


@browser
def test_a_report_shows_the_gain_where_a_run_has_it(tmp_path):
    rows = [rundirs.row(number, 0, 0.5, gain=0.5) for number in (5, 10)]
    (tmp_path / "page.html").write_text(page.page([read.read(rundirs.write(tmp_path / "a", rows=rows))]))
    with chromium.Page() as tab:
        tab.open((tmp_path / "page.html").as_uri(), "document.querySelectorAll('.chart.js-plotly-plot').length === 13")
        assert tab.errors == []


@browser
def test_a_report_draws_all_charts_and_runs_no_script_of_strangers(tmp_path):
    evil = "</script><script>window.evil = 1</script>" + EVIL.replace("evil()", "window.evil=1")
    runs = [read.read(rundirs.write(tmp_path / "a", [(0.1, 0.5, 0.7)] * 2, task=evil))._replace(name=evil)]
    runs.append(read.read(rundirs.write(tmp_path / "b", tuner="fixed")))
    (tmp_path / "page.html").write_text(page.page(runs))
    with chromium.Page(390, 800, phone=True) as tab:
        tab.open((tmp_path / "page.html").as_uri(), "document.querySelectorAll('.chart .main-svg').length > 0")
        assert tab.evaluate("document.querySelectorAll('.chart.js-plotly-plot').length") == 12  # all but the gain
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        tab.evaluate("document.querySelector('#runs input').click()")
        tab.wait("document.querySelector('.chart').data.length === 1")
        assert tab.evaluate("window.evil === undefined && !document.querySelector('img:not([src^=data])')")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        tab.wait("[...document.querySelectorAll('.js-plotly-plot')].every(chart => chart._fullLayout.width === 335)")
        assert tab.errors == []
