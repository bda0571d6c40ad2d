"""A small site and a headless Chromium, driven over a pipe by its DevTools protocol: no package is needed for that.

The site has every page but those of the labs, whose runs and notebooks take minutes; tests/integration builds them all.
"""

import base64
import contextlib
import functools
import http.server
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip
HOOKS = ("catalogue", "claims_page", "calculators", "symptom_index")
SECONDS = 60
WIDTHS = {"desktop": 1280, "phone": 390}


def pytest_collection_modifyitems(items):
    missing = [name for name in ("mkdocs", "material") if not find_spec(name)]
    reason = f"the site needs breakfix[site]; not there: {', '.join(missing)}" if missing else ""
    reason = reason or ("" if chromium() else f"needs a browser: one of {', '.join(NAMES)}")
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


# ------------------------------------------------------------------------------------------------------------ the site


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """Where the small site is served."""
    folder = tmp_path_factory.mktemp("small")
    build(folder)
    handler = functools.partial(Quiet, directory=folder / "site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def build(folder: Path) -> None:
    """The site of mkdocs.yml in `folder`/site, strictly: without notebooks, and of each lab a page that is empty."""
    for name in ("bench", "claims", "datasets", "docs", "hooks", "labs", "records", "solutions", "src", "tests"):
        (folder / name).symlink_to(ROOT / name)
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "hooks": [*(f"hooks/{name}.py" for name in HOOKS), "tests/browser/empty_labs.py"],
        "plugins": ["search"],
        "watch": [],
        "nav": ["index.md", "symptom.md", "labs/index.md", "claims.md", "calculators.md"],
        "validation": {"omitted_files": "ignore"},
        "exclude_docs": "walkthroughs/",
    }
    (folder / "mkdocs.yml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


# --------------------------------------------------------------------------------------------------------- the browser


class Browser:
    """Commands go to descriptor 3 of Chromium, answers and events come from 4: JSON, each ended by a zero byte."""

    def __init__(self, folder: Path):
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        command = [chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *command]
        self.process = subprocess.Popen(shell, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.numbers, self.rest, self.events = itertools.count(1), b"", []

    def send(self, method: str, session: str = "", **parameters):
        """The result of a command; what happens meanwhile goes to `events`."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def read(self) -> dict:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], SECONDS)
            assert ready, f"the browser has said nothing for {SECONDS} s"
            piece = os.read(self.back, 1 << 20)
            assert piece, "the browser has ended"
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.send("Browser.close")
        os.close(self.to)
        self.process.wait(SECONDS)
        os.close(self.back)


class Page:
    """One tab of a given width and palette."""

    def __init__(self, browser: Browser, address: str, width: int, dark: bool):
        self.browser, self.address = browser, address
        context = browser.send("Target.createBrowserContext")["browserContextId"]  # its storage is empty
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        palette = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[palette])

    def send(self, method: str, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def open(self, path: str) -> None:
        self.send("Page.navigate", url=f"{self.address}/{path}")
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def run(self, script: str):
        """What the script gives; an exception in it is one here."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.05)

    def choose(self, selector: str, value: str) -> None:
        """As a person does: the value, and the event that tells of it."""
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            "e.dispatchEvent(new Event('input', {bubbles: true}));"
            "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def screenshot(self, path: Path, whole: bool = True) -> None:
        made = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    @property
    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self._own("Network.requestWillBeSent")]

    @property
    def complaints(self) -> list[str]:
        """Exceptions, errors in the console, and what could not be loaded."""
        logged = [e["params"]["entry"] for e in self._own("Log.entryAdded")]
        said = [e["params"] for e in self._own("Runtime.consoleAPICalled")]
        return [
            *(e["params"]["exceptionDetails"]["text"] for e in self._own("Runtime.exceptionThrown")),
            *(f"{entry['text']} {entry.get('url', '')}" for entry in logged if entry["level"] == "error"),
            *(str(entry["args"]) for entry in said if entry["type"] in ("error", "assert")),
        ]

    def _own(self, method: str) -> list[dict]:
        self.run("0")  # whatever has happened has been told then
        return [e for e in self.browser.events if e.get("sessionId") == self.session and e.get("method") == method]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def tab(browser, address):
    """tab("phone", dark=True): a fresh page. At the end nobody else was asked for anything, and nothing complained."""
    made = []

    def make(size: str = "desktop", dark: bool = False) -> Page:
        made.append(Page(browser, address, WIDTHS[size], dark))
        return made[-1]

    yield make
    for page in made:
        elsewhere = [url for url in page.requests if not url.startswith((address, "data:", "blob:", "about:"))]
        assert elsewhere == []
        assert page.complaints == []
