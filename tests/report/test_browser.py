"""The report in a real browser: no errors, no requests, sorting and filters, keyboard, narrow and dark screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxemics.report import write_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
waiting = pytest.importorskip("selenium.webdriver.support.ui", reason="selenium is not installed")


def prefer(driver: Any, **features: str) -> None:
    """Emulate media features such as the colour scheme."""
    chosen = [{"name": name, "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": chosen})


@pytest.fixture(scope="module")
def address(glyph_run: Path) -> str:
    return write_report(glyph_run).as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Any:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    prefer(browser, **{"prefers-reduced-motion": "reduce"})  # a click must not chase a page that still scrolls
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # forget what came before
    browser.get(address)
    whole = "return document.readyState === 'complete' && document.querySelector('footer') !== null"
    waiting.WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(whole))
    return browser


ROWS = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]"


def column(driver: Any, table: str, number: int) -> list[str]:
    found: list[str] = driver.execute_script(f"{ROWS}.map(row => row.cells[arguments[1]].dataset.value)", table, number)
    return found


def test_no_errors_and_no_requests(opened: Any) -> None:
    assert opened.get_log("browser") == []
    assert opened.title == "confounded glyphs – Proxemics report"
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_all_pictures_are_drawn(opened: Any) -> None:
    broken = opened.execute_async_script(
        "const done = arguments[0]; const all = [...document.images]; all.forEach(i => i.loading = 'eager');"
        "Promise.all(all.map(i => i.decode().then(() => 0, () => 1))).then(r => done(r.reduce((a, b) => a + b, 0)))"
    )
    assert broken == 0


def test_headings_sort(opened: Any) -> None:
    by = webdriver.common.by.By.CSS_SELECTOR
    table = "#classes table"
    assert column(opened, table, 2) == sorted(column(opened, table, 2), key=float)
    name, _, recall = opened.find_elements(by, f"{table} thead button")[:3]
    recall.click()
    assert column(opened, table, 2) == sorted(column(opened, table, 2), key=float, reverse=True)
    name.click()
    assert column(opened, table, 0) == sorted(column(opened, table, 0))
    states = [cell.get_attribute("aria-sort") for cell in opened.find_elements(by, f"{table} thead th")]
    assert states == ["ascending", "none", "none", "none", "none"]


def test_headings_sort_from_the_keyboard(opened: Any) -> None:
    keys = webdriver.common.keys.Keys
    webdriver.ActionChains(opened).send_keys(keys.TAB).perform()
    assert opened.switch_to.active_element.get_attribute("href").endswith("#main")
    button = opened.find_element(webdriver.common.by.By.CSS_SELECTOR, "#classes thead button")
    opened.execute_script("arguments[0].focus()", button)
    button.send_keys(keys.ENTER)
    assert column(opened, "#classes table", 0) == sorted(column(opened, "#classes table", 0))


def test_filters_hide_what_does_not_match(opened: Any) -> None:
    by = webdriver.common.by.By.CSS_SELECTOR
    name = column(opened, "#classes table", 0)[0]
    opened.find_element(by, "#class-filter").send_keys(name.upper())
    shown = opened.execute_script(
        "return [...document.querySelectorAll('#classes tbody tr')].filter(r => !r.hidden).map(r => r.innerText)"
    )
    assert shown
    assert all(name in text for text in shown)
    assert opened.find_element(by, "#classes output").text == f"{len(shown)} of 30"


@pytest.mark.parametrize("width", [360, 700, 1200])
def test_nothing_is_wider_than_the_screen(opened: Any, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("scheme", "darker"), [("light", False), ("dark", True)])
def test_text_has_contrast_in_both_schemes(opened: Any, scheme: str, darker: bool) -> None:
    prefer(opened, **{"prefers-color-scheme": scheme})
    page, texts = opened.execute_script(
        "const css = getComputedStyle; const probe = s => css(document.querySelector(s)).color;"
        "return [css(document.body).backgroundColor, ['h1', '.lede', '.hint', '.kicker', '.change.gain'].map(probe)]"
    )
    assert (luminance(page) < 0.2) == darker
    for text in texts:
        high, low = sorted((luminance(page), luminance(text)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, text


def luminance(colour: str) -> float:
    """Relative luminance of a CSS `rgb(...)` colour as WCAG 2 defines it."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
