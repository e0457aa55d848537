"""A real browser for tests of pages, a headless Chromium driven by Playwright.

Without one these tests are skipped, and say what to install. Where the environment variable `CI` is
set they fail instead.
"""

import os
import shutil
import time

import pytest


def missing(what, how):
    """Skips the test, or fails it in CI."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"tests of pages need {what}: {how}")


def until(page, condition, argument=None):
    """Waits for a condition in JavaScript. `page.wait_for_function` evaluates it again by `eval`,
    which the pages forbid.
    """
    end = time.monotonic() + 10
    while not page.evaluate(condition, argument):
        assert time.monotonic() < end, f"not within 10 seconds: {condition}"
        page.wait_for_timeout(20)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright import sync_api
    except ImportError:
        missing("Playwright", 'pip install "tfattn[test]"')
    with sync_api.sync_playwright() as playwright:
        path = shutil.which("chromium")  # Debian's; else the one that Playwright installs
        # Chromium's sandbox does not work for root.
        arguments = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        try:
            browser = playwright.chromium.launch(executable_path=path, args=arguments)
        except sync_api.Error as error:
            reason = str(error).splitlines()[0]
            how = f"apt-get install chromium, or python -m playwright install chromium ({reason})"
            missing("Chromium", how)
        yield browser
        browser.close()


@pytest.fixture
def open_file(browser):
    """Opens a file in a new window, and closes it at the end; nothing may go wrong or go out."""
    contexts, faults = [], []

    def open_page(path, width=1280, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: faults.append(request.url))
        page.goto(path.as_uri())
        assert faults.pop(0) == path.as_uri()  # the page itself
        return page

    open_page.faults = faults
    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
