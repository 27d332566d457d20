"""A headless Chromium that shows a file, with what a test wants to know about it."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.debian_packages import tool

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser without a window or a profile of its user."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # slow to import

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for argument in (
        "headless=new",
        "disable-gpu",
        "disable-dev-shm-usage",
        "hide-scrollbars",
        "force-color-profile=srgb",
    ):
        options.add_argument(f"--{argument}")
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(tool("chromedriver", "chromium-driver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A browser with one page."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def show(self, page: Path | str, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a page from its file or its address, at this width in CSS pixels."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get_log("performance")  # earlier entries
        self.driver.get(page.as_uri() if isinstance(page, Path) else page)

    def run(self, script: str) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.driver.execute_script(script)

    def wait_for(self, script: str) -> None:
        """Run a script until it returns something true."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(script), self.complaints())

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was loaded, itself included."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """The console's messages."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, path: Path) -> None:
        """Write all of the page as a PNG."""
        size = self.run("return [document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def print(self, path: Path) -> None:
        """Write the page as a PDF, as printed."""
        done = self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
        path.write_bytes(base64.b64decode(done["data"]))
