"""A headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol). Standard library only."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 120  # s, of one command of the protocol


def find():
    """The path of a browser; None: there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. `messages` has what it wrote to the console and its uncaught exceptions, `requests` the addresses that it asked for."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="sftrun-browser-", ignore_cleanup_errors=True)
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()

        def place_pipes():  # Chromium reads descriptor 3 and writes 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.messages, self.requests, self.loaded = b"", 0, [], [], False
        target = next(one for one in self.call("Target.getTargets", at_browser=True)["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", at_browser=True, targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        try:
            self.call("Browser.close", at_browser=True)
            self.process.wait(TIMEOUT)
        finally:
            self.process.kill()
            self.process.wait()
        os.close(self.output)
        os.close(self.input)
        self.profile.cleanup()

    def call(self, method, at_browser=False, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if not at_browser:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        return self.wait(lambda answer: answer.get("id") == self.number)["result"]

    def wait(self, is_wanted):
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            while b"\0" in self.buffer:
                text, self.buffer = self.buffer.split(b"\0", 1)
                answer = json.loads(text)
                self.note(answer)
                if is_wanted(answer):
                    if "error" in answer:
                        raise RuntimeError(answer["error"])
                    return answer
            if select.select([self.input], [], [], 1)[0]:
                self.buffer += os.read(self.input, 1 << 20)
        raise RuntimeError("the browser did not answer")

    def note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(one.get("value", one.get("description"))) for one in parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            self.messages.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def show(self, width, height, scheme="light", is_phone=False):
        """Size of the window in CSS pixels, and the colour scheme that the system prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def open(self, page):
        self.call("Page.navigate", url=pathlib.Path(page).resolve().as_uri())
        self.wait(lambda event: event.get("method") == "Page.loadEventFired")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def drag(self, begin, end, button="left"):
        for kind, (x, y) in (("mousePressed", begin), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=1, clickCount=1)

    def screenshot(self, path, whole=True):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(picture["data"]))
