"""The page in a real browser: drop, paste, neighbours, marks, maps, keys, errors, a phone's width, both schemes."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
waiting = pytest.importorskip("selenium.webdriver.support.ui", reason="selenium is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="chromium and chromedriver are not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    yield driver
    driver.quit()


def prefer(driver: Any, **features: str) -> None:
    chosen = [{"name": name, "value": value} for name, value in features.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": chosen})


def wait(driver: Any, script: str, *arguments: Any) -> Any:
    """Wait until a script returns something true, and return it."""
    return waiting.WebDriverWait(driver, 60, poll_frequency=0.05).until(
        lambda one: one.execute_script(f"return {script}", *arguments)
    )


def find(driver: Any, selector: str) -> Any:
    return driver.find_element(webdriver.common.by.By.CSS_SELECTOR, selector)


def press(driver: Any, *keys: str) -> None:
    webdriver.ActionChains(driver).send_keys(*keys).perform()


LABELS = "[...document.querySelectorAll('.card strong')].map(one => one.textContent)"


@pytest.fixture
def page(browser: Any, service: Any) -> Iterator[Any]:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.set_window_size(1280, 900)
    prefer(browser, **{"prefers-reduced-motion": "reduce"})
    browser.get_log("browser")
    browser.get(service.address)
    wait(browser, "document.readyState === 'complete' && typeof htmx === 'object'")
    yield browser
    errors = [entry for entry in browser.get_log("browser") if "status of 4" not in entry["message"]]
    assert errors == [], "the policy of the page was broken, or a script failed"


@pytest.fixture
def found(page: Any, gallery: Any) -> Any:
    """The page after a picture was chosen."""
    find(page, "#picture").send_keys(str(gallery.pictures / gallery.ids[40]))
    wait(page, "document.querySelectorAll('.card').length === 12")
    return page


def test_a_chosen_picture_brings_its_neighbours(found: Any, gallery: Any) -> None:
    assert wait(found, LABELS)[0] == gallery.ids[40].partition("/")[0]
    scores = found.execute_script("return [...document.querySelectorAll('.score span')].map(one => one.textContent)")
    assert scores[0] == "1.000"
    widths = found.execute_script(
        "return [...document.querySelectorAll('.score .fill')].map(one => one.getAttribute('width'))"
    )
    assert widths[0] == "100"
    assert find(found, "#preview").is_displayed()
    broken = found.execute_async_script(
        "const done = arguments[0]; const all = [...document.querySelectorAll('.card img')];"
        "all.forEach(i => i.loading = 'eager');"
        "Promise.all(all.map(i => i.decode().then(() => 0, () => 1))).then(r => done(r.reduce((a, b) => a + b, 0)))"
    )
    assert broken == 0


FILE = """
const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], arguments[1], {type: arguments[2]}));
"""
DROP = (
    FILE
    + """
const target = document.querySelector('#drop');
for (const kind of ['dragenter', 'dragover', 'drop'])
  target.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));
"""
)
PASTE = FILE + "document.dispatchEvent(new ClipboardEvent('paste', {bubbles: true, clipboardData: data}));"


@pytest.mark.parametrize("script", [DROP, PASTE], ids=["drop", "paste"])
def test_pictures_are_dropped_and_pasted(page: Any, gallery: Any, script: str) -> None:
    data = base64.b64encode((gallery.pictures / gallery.ids[8]).read_bytes()).decode()
    page.execute_script(script, data, "dropped.png", "image/png")
    wait(page, "document.querySelectorAll('.card').length === 12")
    assert wait(page, LABELS)[0] == gallery.ids[8].partition("/")[0]
    assert "dropped.png" in find(page, "h2").text.replace("\n", "")


def test_errors_are_shown_where_the_results_would_be(page: Any, tmp_path: Path) -> None:
    (tmp_path / "half.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"nothing" * 20)
    find(page, "#picture").send_keys(str(tmp_path / "half.png"))
    text = wait(page, "document.querySelector('#answer .error')?.innerText")
    assert "cannot be read" in text or "no picture" in text
    assert "request" in text
    page.execute_script(DROP, base64.b64encode(b"text").decode(), "notes.txt", "text/plain")
    assert wait(page, "document.querySelector('#notice:not([hidden])')?.textContent") == "This is no picture."


def test_the_keyboard_reaches_everything(found: Any, gallery: Any) -> None:
    keys = webdriver.common.keys.Keys
    focused = "document.activeElement.id"
    found.execute_script("document.querySelector('.card').focus()")
    columns = found.execute_script(
        "const c = [...document.querySelectorAll('.card')]; return c.filter(o => o.offsetTop === c[0].offsetTop).length"
    )
    assert columns > 1
    press(found, keys.ARROW_RIGHT)
    assert found.execute_script(f"return {focused}") == "card-2"
    press(found, keys.ARROW_DOWN)
    assert found.execute_script(f"return {focused}") == f"card-{2 + columns}"
    press(found, keys.ARROW_UP, keys.ARROW_LEFT)
    assert found.execute_script(f"return {focused}") == "card-1"
    press(found, keys.END)
    assert found.execute_script(f"return {focused}") == "card-12"
    press(found, keys.HOME, keys.ARROW_RIGHT)
    stops = found.execute_script("return [...document.querySelectorAll('.card')].filter(o => o.tabIndex === 0).length")
    assert stops == 1, "every result is a stop of the Tab key"
    press(found, "x")
    wait(found, "document.querySelector('#card-2 .mark')?.getAttribute('aria-pressed') === 'true'")
    press(found, "x")
    wait(found, "document.querySelector('#card-2 .mark')?.getAttribute('aria-pressed') === 'false'")
    assert found.execute_script(f"return {focused}") == "card-2"
    press(found, "m")
    wait(found, "document.querySelectorAll('#map[open] img').length === 2")
    press(found, keys.ESCAPE)
    wait(found, "!document.querySelector('#map').open")
    second = found.execute_script(f"return {LABELS}[1]")
    press(found, keys.ENTER)
    wait(found, "document.querySelector('.summary')?.dataset.kind === 'id'")
    assert "/page/neighbours?id=" in found.current_url
    assert wait(found, LABELS)
    press(found, "/")
    assert found.execute_script(f"return {focused}") == "text"
    press(found, second)
    wait(found, "document.querySelector('.summary')?.dataset.kind === 'label'")
    wait(found, f"{LABELS}.every(one => one === arguments[0])", second)
    press(found, keys.ARROW_DOWN)
    assert found.execute_script(f"return {focused}") == "card-1"


def test_a_mark_is_kept_and_shown_again(found: Any, service: Any, gallery: Any) -> None:
    find(found, "#card-3 .mark").click()
    wait(found, "document.querySelector('#card-3 .mark')?.getAttribute('aria-pressed') === 'true'")
    rows = service.client.get("/v1/feedback.csv").text
    assert f",{Path(gallery.ids[40]).name}," in rows
    assert ",wrong," in rows
    found.execute_script(
        "document.querySelector('.results').remove();"
        "document.querySelector('#picture').dispatchEvent(new Event('change', {bubbles: true}))"
    )
    wait(found, "document.querySelector('#card-3 .mark')?.getAttribute('aria-pressed') === 'true'")
    find(found, "#card-3 .mark").click()
    wait(found, "document.querySelector('#card-3 .mark')?.getAttribute('aria-pressed') === 'false'")


def test_a_mark_can_be_taken_back_as_soon_as_it_is_shown(found: Any) -> None:
    # htmx lets 20 milliseconds pass between a new button and its first duty, unless it is told not to.
    found.execute_script(
        "const card = document.querySelector('#card-4'); let changes = 0; window.seen = [];"
        "new MutationObserver(() => {"
        "  const mark = card.querySelector('.mark'); window.seen.push(mark.getAttribute('aria-pressed'));"
        "  if (changes++ === 0) mark.click();"
        "}).observe(card.querySelector('.mark').parentNode, {childList: true});"
        "card.querySelector('.mark').click()"
    )
    wait(found, "window.seen.length === 2")
    assert found.execute_script("return window.seen") == ["true", "false"]


def test_a_map_opens_and_closes(found: Any) -> None:
    find(found, "#card-2 .map").click()
    wait(
        found, "[...document.querySelectorAll('#map[open] img')].filter(i => i.complete && i.naturalWidth).length === 2"
    )
    assert "Cosine" in find(found, "#map").text
    find(found, "#map .close").click()
    wait(found, "!document.querySelector('#map').open")


def test_filters_and_the_number_of_results_hold(page: Any, gallery: Any) -> None:
    find(page, "#where").send_keys("price<30; price>=4")
    webdriver.support.ui.Select(find(page, "#k")).select_by_visible_text("48")
    find(page, "#picture").send_keys(str(gallery.pictures / gallery.ids[40]))
    wait(page, "document.querySelectorAll('.card').length === 26")
    find(page, "#card-1 .similar").click()
    wait(page, "document.querySelector('.summary')?.dataset.kind === 'id'")
    assert len(wait(page, LABELS)) == 25
    page.back()
    wait(page, "document.readyState === 'complete' && document.querySelector('.empty')")


def test_a_service_that_is_away_is_said_so(page: Any) -> None:
    page.execute_cdp_cmd("Network.enable", {})
    page.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/page/*"]})
    try:
        press(page, "/")
        press(page, "class")
        text = wait(page, "document.querySelector('#notice:not([hidden])')?.textContent")
        assert text == "The service cannot be reached."
    finally:
        page.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        page.get_log("browser")


@pytest.mark.parametrize("width", [360, 700, 1280])
def test_nothing_is_wider_than_the_screen(found: Any, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert found.execute_script("return document.documentElement.scrollWidth") <= width
    find(found, "#card-2 .map").click()
    wait(found, "document.querySelectorAll('#map[open] img').length === 2")
    box = found.execute_script(
        "const b = document.querySelector('#map').getBoundingClientRect(); return [b.left, b.right]"
    )
    assert box[0] >= 0
    assert box[1] <= width


def test_results_come_into_view_on_a_phone(page: Any, gallery: Any) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    )
    page.refresh()
    wait(page, "document.readyState === 'complete' && typeof htmx === 'object'")
    find(page, "#picture").send_keys(str(gallery.pictures / gallery.ids[2]))
    wait(page, "document.querySelectorAll('.card').length === 12")
    wait(page, "document.querySelector('.card').getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize(("scheme", "darker"), [("light", False), ("dark", True)])
def test_text_has_contrast_in_both_schemes(found: Any, scheme: str, darker: bool) -> None:
    prefer(found, **{"prefers-color-scheme": scheme})
    ground, texts = found.execute_script(
        "const css = getComputedStyle; const of = s => [css(document.querySelector(s)).color, s];"
        "return [css(document.querySelector('.card')).backgroundColor,"
        " ['h1', '.lede', 'h2', '.card strong', '.score span', '.act', '.small', 'footer', 'label'].map(of)]"
    )
    assert (luminance(ground) < 0.2) == darker
    for text, selector in texts:
        high, low = sorted((luminance(ground), luminance(text)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, selector


def luminance(colour: str) -> float:
    """Relative luminance of a CSS `rgb(...)` colour as WCAG 2 defines it."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_names_of_controls(found: Any) -> None:
    unnamed = found.execute_script(
        "const named = o => o.innerText.trim() || o.ariaLabel || o.labels?.length || o.querySelector('img[alt]');"
        "return [...document.querySelectorAll('button, input, select, a')].filter(o => !named(o)).map(o => o.outerHTML)"
    )
    assert unnamed == []
    assert found.execute_script("return [...document.images].filter(i => !i.hasAttribute('alt')).length") == 0
    assert found.execute_script("return new Set([...document.querySelectorAll('[id]')].map(o => o.id)).size") == (
        found.execute_script("return document.querySelectorAll('[id]').length")
    )


def test_no_request_leaves_the_service(page: Any, service: Any, encode: Callable[..., bytes]) -> None:
    asked = page.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert asked
    assert [url for url in asked if not url.startswith((service.address, "blob:", "data:"))] == []
