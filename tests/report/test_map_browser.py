"""The new parts in a real browser: the map, the confusion, keys, themes, print, narrow screens, the comparison."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from proxemics.report import write_report
from proxemics.report.palette import LIGHT

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
waiting = pytest.importorskip("selenium.webdriver.support.ui", reason="selenium is not installed")
BY = webdriver.common.by.By.CSS_SELECTOR
KEYS = webdriver.common.keys.Keys
MAP = "document.querySelector('section.map').map"


@pytest.fixture(scope="module")
def pages(full_run: Path, comparison: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "comparison.html").write_text(comparison, encoding="utf-8")
    report = write_report(full_run, out=folder / "report.html")
    return {"report": report.as_uri(), "comparison": (folder / "comparison.html").as_uri()}


def open_page(driver: Any, address: str, *, width: int = 1200, height: int = 900, **features: str) -> Any:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    chosen = {"prefers-reduced-motion": "reduce", "prefers-color-scheme": "light", **features}
    media = [{"name": name.replace("_", "-"), "value": value} for name, value in chosen.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": media})
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(address)
    driver.execute_script("try { localStorage.clear() } catch {} delete document.documentElement.dataset.theme")
    driver.execute_script("dispatchEvent(new Event('themechange'))")
    waiting.WebDriverWait(driver, 30).until(lambda one: one.execute_script("return document.readyState") == "complete")
    return driver


@pytest.fixture
def report(browser: Any, pages: dict[str, str]) -> Any:
    return open_page(browser, pages["report"])


def until(driver: Any, script: str, *arguments: object) -> Any:
    return waiting.WebDriverWait(driver, 20).until(lambda one: one.execute_script(script, *arguments))


def point_at(driver: Any, row: int) -> None:
    """Move a real pointer over a point of the map."""
    canvas = driver.find_element(BY, "canvas.points")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = driver.execute_script(f"return {MAP}.place(arguments[0])", row)
    size = canvas.size
    chain = webdriver.ActionChains(driver, duration=0)
    chain.move_to_element_with_offset(canvas, 3 - size["width"] // 2, 3 - size["height"] // 2)
    chain.move_to_element_with_offset(canvas, round(x - size["width"] / 2), round(y - size["height"] / 2)).perform()


def lonely(driver: Any, count: int) -> list[int]:
    """Points with no other nearby, so that the pointer can only mean them."""
    places = np.array(driver.execute_script(f"return Array.from({{length: 360}}, (_, row) => {MAP}.place(row))"))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return [int(row) for row in np.argsort(-apart.min(axis=1))[:count]]


def test_nothing_complains_and_nothing_is_asked_for(browser: Any, pages: dict[str, str]) -> None:
    for address in pages.values():
        driver = open_page(browser, address)
        driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
        driver.execute_script("scrollTo(0, document.body.scrollHeight)")
        messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        assert asked
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert driver.get_log("browser") == []


def test_pointing_at_a_point_shows_its_file(report: Any, full_run: Path) -> None:
    queries = pd.read_parquet(full_run / "per_query.parquet").set_index("path")
    frame = pd.read_parquet(full_run / "split.parquet")
    test = frame[frame["split"] == "test"].reset_index(drop=True)
    for row in lonely(report, 4):
        point_at(report, row)
        path = test["path"][row]
        until(report, "return document.querySelector('.mapcard canvas').dataset.row === arguments[0]", str(row))
        card = report.find_element(BY, ".mapcard")
        assert path.endswith(card.find_element(BY, "code").text)
        assert card.find_element(BY, "code").get_attribute("title") == path
        assert card.find_element(BY, "strong").text == test["label"][row]
        assert card.find_element(BY, ".domain").text == f"domain {test['domain'][row]}"
        nearest = queries.loc[path, "nearest_label"]
        wanted = "Nearest picture: same class" if nearest == test["label"][row] else f"Taken for {nearest}"
        assert card.find_element(BY, ".verdict").text == wanted
        uri = report.execute_script("return document.querySelector('.mapcard canvas').toDataURL()")
        (full_run.parent / "thumb.png").write_bytes(base64.b64decode(uri.partition(",")[2]))
        shown = np.asarray(Image.open(full_run.parent / "thumb.png").convert("RGB").resize((32, 32)), float)
        file = np.asarray(Image.open(path).convert("RGB").resize((32, 32)), float)
        others = [np.asarray(Image.open(one).convert("RGB").resize((32, 32)), float) for one in test["path"][::40]]
        assert np.abs(shown - file).mean() < 12
        assert np.abs(shown - file).mean() < min(
            np.abs(shown - other).mean() for other in others if not (other == file).all()
        )


def pixel(driver: Any, row: int) -> list[int]:
    script = (
        f"const [x, y] = {MAP}.place(arguments[0]), canvas = document.querySelector('canvas.points');"
        "const ratio = canvas.width / canvas.getBoundingClientRect().width;"
        "return [...canvas.getContext('2d').getImageData(Math.round(x * ratio), Math.round(y * ratio), 1, 1).data]"
    )
    found: list[int] = driver.execute_script(script, row)
    return found


def colour(text: str) -> list[int]:
    return [int(text[at : at + 2], 16) for at in (1, 3, 5)]


def test_points_have_the_colour_of_their_answer(report: Any, full_run: Path) -> None:
    queries = pd.read_parquet(full_run / "per_query.parquet").set_index("path")
    frame = pd.read_parquet(full_run / "split.parquet")
    paths = frame.loc[frame["split"] == "test", "path"].tolist()
    for row in lonely(report, 6):
        right = queries.loc[paths[row], "nearest_label"] == queries.loc[paths[row], "label"]
        red, _, blue, alpha = pixel(report, row)
        assert alpha > 100
        assert np.allclose(pixel(report, row)[:3], colour(LIGHT[0 if right else 1]), atol=6), row
        assert (blue > red) == right


def test_colours_by_class_and_domain_have_a_legend(report: Any) -> None:
    assert {one.text.split()[0] for one in report.find_elements(BY, ".maplegend button")} == {"right", "wrong"}
    report.find_element(BY, "input[value=label]").click()
    assert len(report.find_elements(BY, ".maplegend button")) == 24
    assert "and 6 more" in report.find_element(BY, ".maplegend .more").text
    shapes = {one.get_attribute("data-shape") for one in report.find_elements(BY, ".maplegend button")}
    assert shapes == {"circle", "square", "triangle"}
    report.find_element(BY, "input[value=domain]").click()
    assert len(report.find_elements(BY, ".maplegend button")) == 3
    button = report.find_elements(BY, ".maplegend button")[1]
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert report.execute_script(f"return {MAP}.kept().size") == 120
    button.click()
    assert report.execute_script(f"return {MAP}.kept()") is None


def test_search_highlights_a_class_and_enter_goes_there(report: Any, full_run: Path) -> None:
    name = pd.read_parquet(full_run / "per_query.parquet")["label"].iloc[0]
    box = report.find_element(BY, "#map-filter")
    box.send_keys(name.upper())
    assert report.find_element(BY, "output[for=map-filter]").text == "12 pictures of 1 class"
    assert report.execute_script(f"return {MAP}.kept().size") == 12
    box.send_keys(KEYS.ENTER)
    assert report.execute_script(f"return {MAP}.scale()") > 1
    box.clear()
    box.send_keys("no such class")
    assert report.find_element(BY, "output[for=map-filter]").text == "0 pictures of 0 classes"
    box.clear()
    box.send_keys("x" + KEYS.BACKSPACE)
    assert report.execute_script(f"return {MAP}.kept()") is None


def test_the_map_can_be_used_from_the_keyboard(report: Any) -> None:
    canvas = report.find_element(BY, "canvas.points")
    report.execute_script("arguments[0].focus()", canvas)
    canvas.send_keys(KEYS.ARROW_RIGHT)
    first = report.execute_script(f"return {MAP}.chosen()")
    assert first >= 0
    assert report.find_element(BY, ".mapcard").is_displayed()
    before = report.execute_script(f"return {MAP}.place({MAP}.chosen())")
    canvas.send_keys(KEYS.ARROW_RIGHT)
    after = report.execute_script(f"return {MAP}.place({MAP}.chosen())")
    assert after[0] > before[0]
    canvas.send_keys("++")
    assert report.execute_script(f"return {MAP}.scale()") == pytest.approx(2.25, rel=1e-3)
    place = report.execute_script(f"return {MAP}.place(0)")
    canvas.send_keys(KEYS.SHIFT + KEYS.ARROW_LEFT)
    assert report.execute_script(f"return {MAP}.place(0)")[0] == pytest.approx(place[0] + 60, abs=0.5)
    canvas.send_keys("0")
    assert report.execute_script(f"return {MAP}.scale()") == pytest.approx(1)
    here = report.execute_script(f"return {MAP}.chosen()")
    canvas.send_keys("n")
    assert report.execute_script(f"return {MAP}.chosen()") != here
    canvas.send_keys(KEYS.ESCAPE)
    assert report.execute_script(f"return {MAP}.chosen()") == -1
    assert not report.find_element(BY, ".mapcard").is_displayed()
    width = report.execute_script("return getComputedStyle(arguments[0]).outlineWidth", canvas)
    assert float(width.removesuffix("px")) >= 2  # the focus can be seen


def test_dragging_moves_and_buttons_zoom(report: Any) -> None:
    canvas = report.find_element(BY, "canvas.points")
    report.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    before = report.execute_script(f"return {MAP}.place(0)")
    chain = webdriver.ActionChains(report, duration=0)
    chain.move_to_element(canvas).click_and_hold().move_by_offset(40, 25).release().perform()
    after = report.execute_script(f"return {MAP}.place(0)")
    assert [after[0] - before[0], after[1] - before[1]] == pytest.approx([40, 25], abs=1)
    for button, least in (("1.6", 1.5), ("0.625", 0.9), ("fit", 0.99)):
        report.find_element(BY, f"button[data-zoom='{button}']").click()
        assert report.execute_script(f"return {MAP}.scale()") > least
    # The wheel belongs to the page until the map has the focus.
    report.execute_script("document.activeElement.blur()")
    scroll = (
        "const turn = new WheelEvent('wheel', {deltaY: -200, cancelable: true});"
        "return document.querySelector('canvas.points').dispatchEvent(turn)"
    )
    assert report.execute_script(scroll) is True
    assert report.execute_script(f"return {MAP}.scale()") == pytest.approx(1)
    report.execute_script("arguments[0].focus()", canvas)
    assert report.execute_script(scroll) is False
    assert report.execute_script(f"return {MAP}.scale()") > 1.2


def test_a_point_leads_to_its_query(report: Any, full_run: Path) -> None:
    row = report.find_element(BY, "#worst-1")
    path = row.get_attribute("data-path")
    frame = pd.read_parquet(full_run / "split.parquet")
    number = frame.loc[frame["split"] == "test", "path"].tolist().index(path)
    report.execute_script(f"{MAP}.choose(arguments[0])", number)
    link = report.find_element(BY, ".mapcard a")
    assert link.is_displayed()
    report.execute_script("arguments[0].click()", link)
    assert report.current_url.endswith("#worst-1")


def test_confusion_cells_lead_to_the_pictures(report: Any) -> None:
    cell = report.find_element(BY, ".matrix td a")
    title, target = cell.get_attribute("title"), cell.get_attribute("href").partition("#")[2]
    cell.click()
    details = report.find_element(BY, f"#{target}")
    until(report, "return document.getElementById(arguments[0]).open", target)
    label, _, rest = title.partition(" taken for ")
    assert label in details.text.replace("\n", " ")
    assert rest.partition(":")[0] in details.text
    assert int(cell.text) >= len(details.find_elements(BY, ".examples code")) >= 1
    folder = details.find_element(BY, ".examples code").get_attribute("title")
    assert Path(folder).exists()


def test_keys_go_through_the_page(report: Any) -> None:
    body = report.find_element(BY, "body")
    tops = "return [...document.querySelectorAll('main > section')].map(s => s.getBoundingClientRect().top)"
    body.send_keys("j")
    assert report.execute_script("return document.activeElement.id") == "numbers"
    webdriver.ActionChains(report).send_keys("jj").perform()
    assert report.execute_script("return document.activeElement.id") == "queries"
    assert 0 <= report.execute_script(tops)[3] < 200
    webdriver.ActionChains(report).send_keys("k").perform()
    assert report.execute_script("return document.activeElement.id") == "training"
    webdriver.ActionChains(report).send_keys("/").perform()
    assert report.execute_script("return document.activeElement.id") == "query-filter"
    webdriver.ActionChains(report).send_keys("jt").perform()  # typed, not obeyed
    assert report.find_element(BY, "#query-filter").get_attribute("value") == "jt"
    webdriver.ActionChains(report).send_keys(KEYS.ESCAPE).send_keys("?").perform()
    assert report.find_element(BY, "dialog.keys").is_displayed()
    webdriver.ActionChains(report).send_keys(KEYS.ESCAPE).perform()
    assert not report.find_element(BY, "dialog.keys").is_displayed()


def page_colour(driver: Any) -> str:
    found: str = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    return found


def test_the_theme_can_be_turned(browser: Any, pages: dict[str, str]) -> None:
    for address in pages.values():
        driver = open_page(browser, address)
        light = page_colour(driver)
        button = driver.find_element(BY, "button.theme")
        button.click()
        dark = page_colour(driver)
        assert dark != light
        assert button.get_attribute("aria-pressed") == "true"
        webdriver.ActionChains(driver).send_keys("t").perform()
        assert page_colour(driver) == light
    driver = open_page(browser, pages["report"], prefers_color_scheme="dark")
    assert page_colour(driver) == dark
    driver.find_element(BY, "button.theme").click()
    assert page_colour(driver) == light


def test_the_similarity_veils_can_be_lifted(report: Any) -> None:
    veil = report.find_element(BY, ".pairs .over")
    assert veil.is_displayed()
    report.find_element(BY, "#veils").click()
    waiting.WebDriverWait(report, 10).until(lambda _: not veil.is_displayed())


def test_print_shows_everything(report: Any) -> None:
    """Nothing cut, nothing that moves: the map is its drawing, what was folded is open."""
    report.execute_script("dispatchEvent(new Event('beforeprint'))")
    report.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = report.execute_script(
        "const seen = s => [...document.querySelectorAll(s)].some(e => e.offsetWidth > 0);"
        "return [seen('.static'), seen('.mapbox'), seen('.tools'), seen('nav'), seen('.buttons')]"
    )
    assert shown == [True, False, False, False, False]
    cut = report.execute_script(
        "return [...document.querySelectorAll('.scroll, pre')].filter(e => e.scrollHeight > e.clientHeight + 2).length"
    )
    assert cut == 0
    assert report.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
    pdf = base64.b64decode(report.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 100_000


@pytest.mark.parametrize("width", [360, 800])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "comparison"])
def test_nothing_is_wider_than_the_screen(
    browser: Any, pages: dict[str, str], name: str, width: int, scheme: str
) -> None:
    driver = open_page(browser, pages[name], width=width, height=740, prefers_color_scheme=scheme)
    driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    over = driver.execute_script(
        "return [...document.querySelectorAll('main > section')].filter(s => s.scrollWidth > innerWidth).map(s => s.id)"
    )
    assert over == []


CONTRASTS = """
const light = c => {
  const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255);
  const [r, g, b] = v.map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const back = e => {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(c)) return c;
  }
};
return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetWidth && e.textContent.trim()).map(e => {
  const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
  return [(a + 0.05) / (b + 0.05), e.textContent.trim().slice(0, 30)]; }).filter(([c]) => c < 4.5);
"""


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_bias_card_on_narrow_and_dark_screens(browser: Any, pages: dict[str, str], width: int, scheme: str) -> None:
    driver = open_page(browser, pages["report"], width=width, height=740, prefers_color_scheme=scheme)
    driver.execute_script("document.querySelector('#probes').scrollIntoView()")
    wide = driver.execute_script(
        "const over = e => e.getBoundingClientRect().right > innerWidth + 1;"
        "return [...document.querySelectorAll('#probes *')].filter(over).length"
    )
    assert wide == 0
    assert (
        driver.execute_script(CONTRASTS, "#probes small, #probes td b, #probes .value, #probes h3, #probes .hint") == []
    )
    heads = driver.execute_script("return getComputedStyle(document.querySelector('#probes thead')).display")
    assert (heads == "none") == (width == 360)
    if width == 360:  # each value says what it is
        said = driver.execute_script(
            "return getComputedStyle(document.querySelector('#probes td'), '::before').content"
        )
        assert said == '"Trained"'


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_of_the_new_parts_has_contrast(browser: Any, pages: dict[str, str], scheme: str) -> None:
    driver = open_page(browser, pages["report"], prefers_color_scheme=scheme)
    driver.execute_script(f"{MAP}.choose(0)")
    for part in ("#mistakes small", ".meanings li", ".meaning", ".mapcard code", ".mapcard .verdict", ".still"):
        assert driver.execute_script(CONTRASTS, part) == []
    assert driver.execute_script(CONTRASTS, "#mistakes strong, .maplegend button, #similarity .label") == []
    driver = open_page(browser, pages["comparison"], prefers_color_scheme=scheme)
    assert driver.execute_script(CONTRASTS, ".tasks td, .tasks small, .answer .run span, .change") == []
