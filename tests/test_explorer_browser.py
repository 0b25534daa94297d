"""The explorer page in headless Chromium: it asks for nothing, opens everywhere, can be read and driven."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.explorer_pages import HOSTILE, SENTENCE, page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="needs playwright: pip install playwright"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, as in a container, Chromium starts only without its sandbox.
        arguments = ["--no-sandbox"] if os.name == "posix" and os.getuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


class Visit:
    """A page in a window, with what went wrong in it and what it asked for.

    Args:
        browser: to open the window in.
        path: of the file.
        settings: of the window: viewport, colour scheme.
    """

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        usual = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"}
        self.context = browser.new_context(**(usual | settings))
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def close(self) -> None:
        """Leave; whatever was done, nothing may have been complained about or asked for."""
        self.context.close()
        assert self.complaints == []
        # Going to a box's anchor is no request; the icon is in the page.
        assert {url.partition("#")[0] for url in self.requests} <= {self.address, "data:,"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    path.write_text(page_of(SENTENCE).html, encoding="utf-8")
    return path


@pytest.fixture
def visit(browser: Any, path: Path) -> Iterator[Visit]:
    visit = Visit(browser, path)
    yield visit
    visit.close()


def shown_steps(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        ".step", "sections => sections.filter(s => s.checkVisibility()).map(s => s.id)"
    )
    return found


def test_every_box_opens_its_step_and_fills_its_tables(visit: Visit) -> None:
    page = visit.page
    assert shown_steps(page) == ["overview"]
    boxes = page.locator("#map .box")
    assert boxes.count() == 1 + 13 * 2 + 1
    for i in range(boxes.count()):
        box = boxes.nth(i)
        step = box.get_attribute("data-step")
        box.click()
        assert shown_steps(page) == [step]
        assert page.locator("#map .box.open").count() == 1
        assert box.get_attribute("aria-current") == "step"
        assert page.evaluate("document.activeElement.id").startswith(step)
        empty = page.locator(f"#{step} .array:empty").evaluate_all(
            "all => all.filter(a => a.checkVisibility())"
        )
        assert empty == []
    # Whatever is folded fills as it opens.
    page.evaluate("location.hash = 'attention'")
    page.wait_for_selector("#attention.current")
    page.eval_on_selector_all("#attention details", "all => all.forEach(d => d.open = true)")
    page.wait_for_function("!document.querySelector('#attention .array:empty')")


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page, keys = visit.page, visit.page.keyboard

    def focus() -> Any:
        return page.evaluate(
            "[document.activeElement.className, document.activeElement.hash ?? document.activeElement.id]"
        )

    keys.press("Tab")
    assert focus()[0] == "skip"
    keys.press("Tab")
    assert focus()[1] == "theme"
    keys.press("Tab")
    assert focus()[1] == "#overview"
    for _ in range(4):
        keys.press("ArrowDown")
    assert focus()[1] == "#attention"
    keys.press("ArrowRight")
    assert focus()[1] == "#attention-backward"
    keys.press("ArrowUp")
    assert focus()[1] == "#qkv-backward"
    keys.press("ArrowLeft")
    assert focus()[1] == "#qkv"
    keys.press("Enter")
    page.wait_for_function("document.activeElement.id === 'qkv-title'")
    assert shown_steps(page) == ["qkv"]
    # On from the heading: the first line with numbers, pressed with the keyboard.
    while "dot" not in focus()[0].split():
        keys.press("Tab")
    keys.press("Tab")
    keys.press("Enter")
    assert "line 56 of linear_forward" in page.inner_text("#qkv .values")
    while page.evaluate("document.activeElement.type") != "range":
        keys.press("Tab")
    before = page.inner_text("#qkv .nudge output")
    keys.press("ArrowRight")
    assert page.inner_text("#qkv .nudge output") != before
    while page.evaluate("document.activeElement.tagName") != "SUMMARY":
        keys.press("Tab")
    keys.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    keys.press("Escape")
    assert focus()[1] == "#qkv"
    keys.press("Home")
    for _ in range(40):
        keys.press("ArrowUp")
    assert focus()[1] == "#overview"


def test_the_browser_goes_back_to_the_step_before(visit: Visit) -> None:
    page = visit.page
    page.click("#map [href='#gelu']")
    page.click("#map [href='#loss']")
    page.go_back()
    page.wait_for_selector("#gelu.current")
    assert shown_steps(page) == ["gelu"]
    page.goto(visit.address + "#no-such-step")
    assert shown_steps(page) == ["overview"]


def test_the_cells_hold_the_arrays(visit: Visit) -> None:
    page, calls = visit.page, page_of(SENTENCE).experiment.calls
    for step, name, expected in (
        ("qkv", "d_weight", calls[2].gradients["weight"]),
        ("attention", "d_values", calls[3].gradients["values"]),
        ("embedding", "x", calls[0].out),
        ("loss", "cross_entropy.probabilities", calls[10].saved.cross_entropy.probabilities),
    ):
        page.click(f"#map [href='#{step}']")
        place = f"#{step} .tensor > .array[data-name='{name}']"
        page.eval_on_selector(place, "place => place.closest('details').open = true")
        page.wait_for_selector(f"{place} td")
        titles = page.eval_on_selector_all(f"{place} td", "cells => cells.map(cell => cell.title)")
        numbers = [
            float(title.split("\n")[0].removeprefix("backward ").replace("\u2212", "-")) for title in titles
        ]
        np.testing.assert_array_equal(np.reshape(numbers, expected.shape), expected)
        texts = page.eval_on_selector_all(f"{place} td", "cells => cells.map(cell => cell.textContent)")
        scale = page.locator(f"{place} .scale sup").all_inner_texts() or ["0"]
        power = float(scale[0].replace("\u2212", "-"))
        rounded = [float(text.replace("\u2212", "-")) * 10**power for text in texts]
        np.testing.assert_allclose(rounded, np.ravel(expected), rtol=0, atol=0.051 * np.abs(expected).max())
    heads = page.locator("#attention .array[data-name='q'] caption").all_text_contents()
    assert {"sequence 0, head 0", "sequence 1, head 1"} <= set(heads)


def test_a_line_lights_up_with_those_that_undo_it(visit: Visit) -> None:
    page = visit.page
    page.click("#map [href='#feed_forward_norm']")
    page.hover("#feed_forward_norm .line:has-text('y = normalized * weight + bias') >> nth=0")
    lit = page.locator("#feed_forward_norm .line.lit .number").all_inner_texts()
    assert len(lit) == 5  # the line itself, the comment that cites it, and three lines of backward
    page.hover("h1")
    assert page.locator(".line.lit").count() == 0


def test_the_nudged_number_follows_the_slider(visit: Visit) -> None:
    page = visit.page
    nudge = next(step for step in page_of(SENTENCE).page.steps if step.key == "out_proj").nudges[1]
    page.click("#map [href='#out_proj']")
    page.click("#out_proj .choices button >> nth=1")
    page.eval_on_selector(
        "#out_proj input", "slider => { slider.value = 0; slider.dispatchEvent(new Event('input')) }"
    )
    facts = page.locator("#out_proj output b").all_inner_texts()
    shown = [float(fact.replace("\u2212", "-")) for fact in facts]
    start = nudge.losses[len(nudge.losses) // 2]
    slope = (nudge.losses[0] - start) / (nudge.values[0] - nudge.value)
    tangent = start + nudge.gradient * (nudge.values[0] - nudge.value)
    expected = [nudge.values[0], nudge.losses[0], tangent, nudge.gradient, slope]
    np.testing.assert_allclose(shown, expected, rtol=5e-3, atol=6e-5)


CONTRASTS = """() => {
  const parse = (text) => {
    const numbers = text.match(/-?[\\d.]+(?:e-?\\d+)?/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return { rgb: numbers.slice(0, 3).map((n) => n * scale), alpha: numbers[3] ?? 1 };
  };
  const luminance = (rgb) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const { rgb, alpha } = parse(getComputedStyle(e).backgroundColor);
      if (alpha === 1) return rgb;
      if (alpha !== 0) throw new Error("a background that is half transparent");
    }
    throw new Error("no background");
  };
  const bad = new Set();
  let count = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("script, style, .skip, noscript")) continue;
    const style = getComputedStyle(element);
    const ink = luminance(parse(element.closest("svg") ? style.fill : style.color).rgb);
    const paper = luminance(background(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    count += 1;
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) {
      bad.add(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
    }
  }
  return [count, [...bad]];
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_background(browser: Any, path: Path, theme: str) -> None:
    visit = Visit(browser, path, color_scheme=theme)
    page = visit.page
    backgrounds = set()
    for step in ("overview", "attention", "up_proj", "loss", "update"):
        page.evaluate(f"location.hash = '{step}'")
        page.wait_for_selector(f"#{step}.current")
        if step in ("attention", "loss"):
            page.eval_on_selector_all(f"#{step} details", "all => all.forEach(d => d.open = true)")
            page.wait_for_function(f"!document.querySelector('#{step} .array:empty')")
            page.hover(f"#{step} .line.linked >> nth=0")
        count, bad = page.evaluate(CONTRASTS)
        assert count > 100
        assert bad == []
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    page.click("#theme")
    backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert page.evaluate(CONTRASTS)[1] == []
    assert len(backgrounds) == 2, "the toggle goes to the other theme"
    visit.close()


def test_no_width_needs_scrolling_sideways(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 800})
    steps = page.eval_on_selector_all(".step", "sections => sections.map(s => s.id)")
    for step in steps:
        page.evaluate(f"location.hash = '{step}'")
        page.wait_for_selector(f"#{step}.current")
        assert too_wide(page) == 0, step
    for width in (900, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        for step in ("overview", "embedding", "attention", "update"):
            page.evaluate(f"location.hash = '{step}'")
            page.wait_for_selector(f"#{step}.current")
            assert too_wide(page) == 0, f"{step} at {width}"


def too_wide(page: Any) -> int:
    """Return how much wider the page is than its window, or a listing's code than its frame."""
    excess: int = page.evaluate(
        """Math.max(document.documentElement.scrollWidth - innerWidth,
            ...[...document.querySelectorAll('.current .code')].map(c => c.scrollWidth - c.clientWidth), 0)"""
    )
    return excess


def test_printing_shows_every_step_in_light_colours(browser: Any, path: Path) -> None:
    visit = Visit(browser, path, color_scheme="dark")
    page = visit.page
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert len(shown_steps(page)) == 15
    assert page.locator("#map").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    empty = page.locator(".array:empty").evaluate_all("all => all.filter(a => a.checkVisibility()).length")
    assert empty == 0
    assert page.evaluate(CONTRASTS)[1] == []
    visit.close()


def test_a_hostile_sentence_stays_text(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(page_of(HOSTILE).html, encoding="utf-8")
    visit = Visit(browser, path, viewport={"width": 390, "height": 800})
    tokens = visit.page.locator(".token b").all_text_contents()
    batch = page_of(HOSTILE).experiment.batch
    assert tokens == [token for row in batch.tokens(batch.token_ids) for token in row]
    visit.page.click("#map [href='#attention']")
    rows = visit.page.locator("#attention tbody th").all_text_contents()
    assert set(tokens) <= set(rows)
    assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    visit.close()


def test_without_scripts_the_text_is_there(browser: Any, path: Path) -> None:
    visit = Visit(browser, path, java_script_enabled=False)
    assert visit.page.locator(".step >> visible=true").count() == 15
    assert visit.page.locator(".noscript").is_visible()
    visit.close()
