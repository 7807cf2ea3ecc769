"""A page in headless Chromium, driven over its DevTools protocol."""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing():
    """Why there is no browser; empty where there is one."""
    if not PROGRAM:
        return "no Chromium here; install it, for example with apt-get install chromium"
    try:
        import websockets.sync.client  # noqa: F401
    except ImportError:
        return "websockets is not installed; pip install 'fathom[test]'"
    return ""


class Page:
    """A browser with one page; a context manager, after which nothing is left."""

    def __init__(self, width=1280, height=900, phone=False):
        self.size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.number, self.errors = 0, []  # of calls; console errors, exceptions and requests that failed

    def __enter__(self):
        from websockets.sync.client import connect

        self.open_now = contextlib.ExitStack()
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        switches = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        self.process = subprocess.Popen(
            [PROGRAM, *switches, "--remote-debugging-port=0", f"--user-data-dir={self.home.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            port = next(found[1] for line in self.process.stderr if (found := re.search(r"ws://[^:]+:(\d+)/", line)))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
                target = next(one for one in json.load(answer) if one["type"] == "page")
            self.socket = self.open_now.enter_context(connect(target["webSocketDebuggerUrl"], max_size=2**27))
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.call("Emulation.setDeviceMetricsOverride", **self.size)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.open_now.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()
        self.home.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and note what the page says meanwhile."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self.socket.recv(timeout=60))
            if told.get("id") == self.number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return told["result"]
            self._note(told)

    def _note(self, told):
        kind, what = told.get("method"), told.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"].get("exception", {}).get("description", str(what)))
        elif kind == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(str([one.get("value", one.get("description")) for one in what["args"]]))
        elif kind == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")

    def open(self, address: str, until: str = "document.readyState === 'complete'") -> None:
        """Go to an address and wait."""
        self.call("Page.navigate", url=address)
        self.wait(until)

    def evaluate(self, script: str) -> Any:
        """The value of a piece of JavaScript."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"].get("exception", {}).get("description", str(done)))
        return done["result"].get("value")

    def wait(self, script: str, seconds: float = 30) -> Any:
        """Wait until a piece of JavaScript is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.evaluate(script):
                return value
            time.sleep(0.1)
        raise TimeoutError(f"{script} was not true within {seconds} s; {self.errors}")

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A picture of the page, or of what is seen of it."""
        done = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(done["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        done = self.call("Page.printToPDF", preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(done["data"]))
