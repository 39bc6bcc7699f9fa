# SPDX-License-Identifier: Apache-2.0

"""A headless Chromium, for the tests of the page at ``/migrator/v1/ui``."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from tests import backends

#: Chromium connects to nothing but the page, and leaves nothing outside of its directory.
_ARGUMENTS = (
    *('--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-quic', '--no-first-run'),
    *('--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-proxy-server'),
    *('--hide-scrollbars', '--window-size=1200,1180'),
)
_LACKING = (
    '{} is not installed. To have it: as root `tools/packages.sh test`, or `apt-get install chromium chromium-driver` '
    '(bindep.txt, profile test)'
)
#: Seconds after which the page counts as hanging.
PATIENCE = 60


class Browser:
    """The page in a browser.

    :ivar driver: the driver of selenium.
    """

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load the page."""
        self.driver.get(url)

    def sign_in(self, token: str) -> None:
        """Enter a token."""
        self.driver.find_element('id', 'token').send_keys(f'{token}\n')

    def run(self, script: str, *arguments):
        """Return the value of a script."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the visible text of the first element that a selector matches; empty without one."""
        script = """
            const element = document.querySelector(arguments[0]);
            return element?.checkVisibility() ? element.innerText : '';
        """
        return self.run(script, selector)

    def rows(self, selector: str) -> list[list[str]]:
        """Return the texts of the cells of each row that a selector matches."""
        script = """
            return [...document.querySelectorAll(arguments[0])].map(
                (row) => [...row.children].map((cell) => cell.innerText.trim()))
        """
        return self.run(script, selector)

    def wait(self, condition):
        """Wait until a condition holds, and return its value."""
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1).until(lambda _: condition())
        except Exception as error:
            raise AssertionError(f'the page does not show it. It shows: {self.text("body")}') from error

    def type(self, selector: str, text: str) -> None:
        """Type a text into a field, instead of what is there, once the page shows the field."""
        field = self.driver.find_element('css selector', selector)
        self.wait(field.is_displayed)
        field.clear()
        field.send_keys(text)

    def use_width(self, pixels: int, height: int = 900) -> None:
        """Make the window as narrow as that of a telephone, for example."""
        metrics = {'width': pixels, 'height': height, 'deviceScaleFactor': 1, 'mobile': True}
        self.driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', metrics)

    def press(self, selector: str) -> None:
        """Press an element by its keyboard, as a user without a mouse does."""
        from selenium.common.exceptions import StaleElementReferenceException

        while True:
            try:
                self.driver.find_element('css selector', selector).send_keys('\n')
            except StaleElementReferenceException:
                continue  # the page was drawn anew in between, and nothing was pressed
            return

    def use_colours(self, scheme: str) -> None:
        """Prefer a colour scheme: ``light`` or ``dark``."""
        features = [{'name': 'prefers-color-scheme', 'value': scheme}]
        self.driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': features})

    def logged(self) -> list[str]:
        """Return what the browser has logged since the last call: violations of the policy, errors of scripts."""
        return [entry['message'] for entry in self.driver.get_log('browser')]

    def keep_pictures(self, name: str) -> None:
        """Write the page in both colour schemes to the directory that ``MIGRATOR_SCREENSHOTS`` names."""
        for scheme in ('light', 'dark'):
            self.use_colours(scheme)
            path = pathlib.Path(os.environ['MIGRATOR_SCREENSHOTS'], f'{name}-{scheme}.png')
            self.driver.save_screenshot(str(path))
        self.use_colours('')

    def keep_picture(self, selector: str, name: str) -> None:
        """Write the first element that a selector matches to the same directory."""
        path = pathlib.Path(os.environ['MIGRATOR_SCREENSHOTS'], f'{name}.png')
        self.driver.find_element('css selector', selector).screenshot(str(path))


@contextlib.contextmanager
def started(directory: pathlib.Path) -> Iterator[Browser]:
    """Run a browser, or leave the test out if none is installed.

    :param directory: receives the profile of the browser.
    """
    programs = {name: shutil.which(name) for name in ('chromium', 'chromedriver')}
    for name, path in programs.items():
        if path is None:
            backends.left_out(_LACKING.format(name))
    # The import takes long, and only these tests need it.
    from selenium import webdriver
    from selenium.webdriver.chrome import options, service

    wanted = options.Options()
    wanted.binary_location = programs['chromium']
    for argument in (*_ARGUMENTS, f'--user-data-dir={directory / "browser"}'):
        wanted.add_argument(argument)
    wanted.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    # With a path, selenium does not look for a driver to download.
    driver = webdriver.Chrome(options=wanted, service=service.Service(programs['chromedriver']))
    page = Browser(driver)
    form = os.environ.get('MIGRATOR_PAGE')
    if form:
        width, scheme = form.split(',')
        page.use_width(int(width))
        page.use_colours(scheme)
    try:
        yield page
    finally:
        driver.quit()
