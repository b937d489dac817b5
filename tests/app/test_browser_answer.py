"""A click is answered where the eye is, a knob moves in sight of the map, and the clocks agree with the headline: in a
real browser, at the sizes people have."""

import re

import pytest

SIZES = ((1440, 900), (1280, 720), (1280, 500), (390, 844))
# The card, the clicked cell and the part of the window that nothing covers, as [left, top, right, bottom].
BOXES = """() => { const box = (node) => { const r = node.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
    const foot = document.querySelector('.go-wrap'), fixed = getComputedStyle(foot).position === 'fixed' && foot.clientHeight;
    return {card: box(document.querySelector('.explain')), answer: box(document.querySelector('.answer')), afloat: document.querySelector('.explain').classList.contains('afloat'),
            seen: [0, 0, document.documentElement.clientWidth, fixed ? foot.getBoundingClientRect().top : innerHeight]}; }"""

SCRUB = "(at) => { const s = document.querySelector('.scrub'); s.value = at === 'max' ? s.max : at; s.dispatchEvent(new Event('input', {bubbles: true})); }"


@pytest.fixture(scope="module")
def shared(lasting):
    """One page for all tests here; each sets the window's size."""
    page = lasting(reduced_motion="reduce")
    page.wait_for_function("lab6.state.preset === 'sixbit' && document.querySelector('.answer')")
    return page


@pytest.fixture
def page(shared):
    """The shared page as it was on arrival."""
    yield shared
    shared.keyboard.press("Escape")
    shared.evaluate("() => { lab6.setLanguage('en'); lab6.emit('look', {source: 'recording:red-star', policy: null, preset: null, view: 'decision', undo: true}); }")
    shared.wait_for_function("lab6.state.preset === 'sixbit' && !lab6.state.draft")


def sized(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(150)


def click(page, block, step):
    """Click a cell of the 12 × 30 map, wherever the page is scrolled to; gives the cell's [left, top, right, bottom]."""
    area = page.locator(".plot").bounding_box()
    wide, high = (area["width"] - 48) / 30, (area["height"] - 42) / 12
    left, top = area["x"] + 42 + wide * (step - 1), area["y"] + 4 + high * block
    page.mouse.click(left + wide / 2, top + high / 2)
    page.wait_for_function(f"document.querySelector('.explain h2').textContent.startsWith('Block {block}, step {step}:')")
    return [left, top, left + wide, top + high]


def inside(inner, outer, slack=1):
    return inner[0] >= outer[0] - slack and inner[1] >= outer[1] - slack and inner[2] <= outer[2] + slack and inner[3] <= outer[3] + slack


def apart(a, b):
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@pytest.mark.parametrize("size", SIZES)
def test_the_answer_to_a_click_is_in_the_window_and_beside_the_cell(page, size):
    sized(page, *size)
    for block, step in ((1, 2), (11, 29), (6, 16)):
        page.keyboard.press("Escape")
        page.evaluate("() => document.querySelector('.plot-frame').scrollIntoView({block: 'center'})")
        cell = click(page, block, step)
        found = page.evaluate(BOXES)
        assert inside(found["card"] if found["afloat"] else found["answer"], found["seen"]) and apart(found["card"], cell), (block, step, found)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0


@pytest.mark.parametrize("size", [(1440, 900), (1280, 720)])
def test_race_map_headline_and_answer_are_on_the_first_screen(page, size):
    sized(page, *size)
    page.evaluate("scrollTo(0, 0)")
    assert page.inner_text(".headline .lead").startswith("Cheaper: ") and "The price: " in page.inner_text(".headline .lead")
    click(page, 6, 16)
    bottoms = page.evaluate("['.panes canvas', '.headline .lead', '.plot', '.legend', '.answer'].map((name) => document.querySelector(name).getBoundingClientRect().bottom)")
    assert max(bottoms) <= size[1] and not page.evaluate(BOXES)["afloat"], bottoms


def test_a_floating_answer_grows_within_the_window_and_closes(page):
    sized(page, 390, 844)
    page.evaluate("() => scrollBy(0, document.querySelector('.plot').getBoundingClientRect().top - 420)")
    cell = click(page, 2, 4)
    assert page.evaluate(BOXES)["afloat"] and page.is_visible(".explain .close")
    page.click(".numbers summary")
    page.wait_for_timeout(100)
    found = page.evaluate(BOXES)
    assert inside(found["card"], found["seen"]) and apart(found["card"], cell)
    assert page.evaluate("() => { const card = document.querySelector('.explain'); return card.scrollHeight > card.clientHeight; }")
    page.click(".numbers summary")
    page.evaluate("scrollBy(0, 60)")
    page.wait_for_timeout(100)
    moved = page.evaluate(BOXES)
    assert moved["afloat"] and apart(moved["card"], [cell[0], cell[1] - 60, cell[2], cell[3] - 60])
    page.keyboard.press("Escape")
    assert not page.evaluate(BOXES)["afloat"] and page.evaluate("document.activeElement.className") == "plot-frame"
    click(page, 2, 5)
    page.click(".explain .close")
    assert not page.evaluate(BOXES)["afloat"] and page.is_visible(".explain h2") and not page.is_visible(".explain .close")
    click(page, 2, 6)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("!document.querySelector('.explain').classList.contains('afloat')")


def test_the_answer_is_reached_and_heard_from_the_keyboard(page):
    sized(page, 1280, 500)
    page.evaluate("() => scrollBy(0, document.querySelector('.plot').getBoundingClientRect().top - 100)")
    click(page, 5, 15)
    page.focus(".plot-frame")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.explain h2').textContent.startsWith('Block 4, step 16:')")
    assert page.evaluate(BOXES)["afloat"] and page.get_attribute(".explain .body", "aria-live") == "polite"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Close"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Show the numbers"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "plot-frame"


def test_escape_on_a_knob_shuts_the_floating_answer_and_leaves_the_focus_there(page):
    sized(page, 1280, 500)
    page.evaluate("() => scrollBy(0, document.querySelector('.plot').getBoundingClientRect().top - 100)")
    click(page, 5, 15)
    assert page.evaluate(BOXES)["afloat"]
    page.locator("#knob-tdc_threshold").evaluate("knob => knob.focus({preventScroll: true})")
    page.keyboard.press("Escape")
    assert not page.evaluate(BOXES)["afloat"] and page.evaluate("document.activeElement.id") == "knob-tdc_threshold"


def test_the_fold_of_the_numbers_keeps_the_focus_while_the_map_changes(page):
    sized(page, 1440, 900)
    click(page, 6, 16)
    page.focus(".numbers summary")
    for way in ("fold", "scroll"):
        if way == "scroll":
            page.keyboard.press("Enter")
            page.keyboard.press("Tab")
        told, on = page.inner_text(".answer"), page.evaluate("document.activeElement.tagName + document.activeElement.className")
        page.evaluate("way => lab6.emit('look', {policy: {...lab6.state.policy, tdc_threshold: way === 'fold' ? 0.001 : 0.9, warmup_steps: 0}, preset: ''})", way)
        page.wait_for_function("told => document.querySelector('.answer').innerText !== told", arg=told)
        assert page.evaluate("document.activeElement.tagName + document.activeElement.className") == on == {"fold": "SUMMARY", "scroll": on}[way]
    page.click(".numbers summary")


def test_every_colour_of_the_clicked_cell_has_its_sentence_and_swatch(page, source):
    sized(page, 1440, 900)
    page.evaluate("scrollTo(0, 0)")
    click(page, 6, 16)
    marks = page.evaluate("[...document.querySelectorAll('.answer .mark')].map((m) => m.className.split(' ')[1])")
    took = set(source.trace.layers.query("block == 6 and step == 15")["precision"])
    assert set(marks) == took and page.locator(".answer p").count() == len(marks) + 1
    shades = page.evaluate("[...document.querySelectorAll('.answer .mark')].map((m) => getComputedStyle(m).backgroundColor)")
    legend = page.evaluate("[...document.querySelectorAll('.legend i')].map((m) => getComputedStyle(m).backgroundColor)")
    assert set(shades) <= set(legend)
    page.click("#lab-map [data-view=verdict]")
    page.wait_for_function("!document.querySelector('.answer .mark')")
    assert page.locator(".answer p").count() == len(marks) + 1


PIXELS = """() => { const canvas = document.querySelector('.strip canvas'); return [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]
    .reduce((found, v, i, all) => found + (i % 4 === 0 && v > 200 && all[i + 1] > 60 && all[i + 1] < 120 && all[i + 2] < 60), 0); }"""


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
def test_on_a_phone_the_map_its_outlines_and_the_net_line_stay_while_a_knob_moves(page, lang):
    sized(page, 390, 844)
    page.evaluate("lang => lab6.setLanguage(lang)", lang)
    plain = None
    for name in ("error_threshold", "tdc_threshold", "outlier_threshold"):
        page.evaluate("name => document.querySelector(`#knob-${name}`).scrollIntoView({block: 'center'})", name)
        page.wait_for_timeout(100)
        plain = page.evaluate(PIXELS) if plain is None else plain
        box = page.locator(f"#knob-{name}").bounding_box()
        before = page.evaluate("Number(document.querySelector('.strip').dataset.drawn)")
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=4)
        page.wait_for_function(f"Number(document.querySelector('.strip').dataset.drawn) > {before} && lab6.state.draft")
        page.wait_for_timeout(150)
        strip, knob, foot = (page.evaluate("name => { const r = document.querySelector(name).getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; }", name)
                             for name in (".strip", f"#knob-{name}", ".go-wrap"))
        assert strip[1] >= -1 and strip[3] < knob[1] < knob[3] <= foot[1] and strip[3] - strip[1] < 180
        assert page.evaluate(PIXELS) > plain + 20
        told = page.inner_text(".strip-net")
        assert told.count("≈") >= 2 and "%" in told and "×" in told
        assert page.is_visible(".strip-undo") and page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
        page.mouse.up()
        page.click(".strip-undo")
        page.wait_for_function("!lab6.state.draft")


SEEN = "names => names.map((name) => { const box = document.querySelector(name).getBoundingClientRect(); return [box.top, innerHeight - box.bottom]; }).flat()"


def in_sight(page, *names):
    """Once the page has settled, all of these are in the window."""
    page.wait_for_function(f"names => Math.min(...({SEEN})(names)) > -1", arg=list(names))
    page.wait_for_timeout(60)
    assert min(page.evaluate(SEEN, list(names))) > -1, names


@pytest.mark.parametrize("size", [(1100, 700), (1280, 720), (1366, 768), (1440, 900), (1920, 1080)])
def test_the_whole_map_and_the_draft_are_beside_the_knob_that_is_moved(page, size):
    sized(page, *size)
    for name in ("error_threshold", "tdc_threshold", "outlier_threshold"):
        for block in ("end", "center"):
            page.evaluate("([name, block]) => document.querySelector(`.knob.${name}`).scrollIntoView({block})", [name, block])
            in_sight(page, ".headline", ".map-head", ".plot", f".knob.{name}")
    page.locator("#knob-outlier_threshold").evaluate("knob => { knob.value = 12; knob.dispatchEvent(new Event('input', {bubbles: true})); }")
    page.wait_for_selector(".draft .undo:visible")
    assert not page.is_visible(".strip") and page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    middle = page.evaluate("() => { const box = document.querySelector('#place-lab').getBoundingClientRect(); return box.left + box.right - innerWidth; }")
    assert abs(middle) < 2


def test_a_large_map_stays_within_a_low_window_too(page):
    sized(page, 1366, 625)
    page.evaluate("lab6.open('recording:large')")
    page.wait_for_function("document.querySelector('.plot').dataset.x === '-0.5,49.5'")
    page.evaluate("() => document.querySelector('.knob.tdc_threshold').scrollIntoView({block: 'center'})")
    in_sight(page, ".headline", ".plot", ".knob.tdc_threshold")
    page.evaluate("lab6.open('recording:red-star')")
    page.wait_for_function("document.querySelector('.plot').dataset.x === '-0.5,29.5'")


def test_what_is_opened_below_the_map_is_read_by_scrolling_and_a_knob_brings_the_map_back(page):
    sized(page, 1280, 720)
    page.evaluate("scrollTo(0, 0)")
    click(page, 6, 16)
    page.evaluate("scrollTo(0, 300)")
    page.wait_for_timeout(300)
    before = page.locator(".numbers summary").bounding_box()["y"]
    page.click(".numbers summary")
    page.wait_for_timeout(100)
    assert abs(page.locator(".numbers summary").bounding_box()["y"] - before) < 2          # nothing moves under the pointer
    down = 0
    while page.evaluate(SEEN, [".explain"])[1] < 0 and down < 20:
        down += 1
        page.evaluate("scrollBy(0, 40)")
        page.wait_for_timeout(30)
    assert 3 < down < 20 and page.locator(".explain").bounding_box()["height"] > 400
    page.click(".numbers summary")
    page.evaluate("() => { const knob = document.querySelector('#knob-tdc_threshold'); knob.value = 0.3; knob.dispatchEvent(new Event('input', {bubbles: true})); }")
    in_sight(page, ".headline", ".plot")


def test_the_strip_shows_a_map_that_is_out_of_sight_leaves_the_knob_free_and_is_gone_in_a_narrow_window(page):
    for high, name, block in ((720, "#knob-outlier_threshold", "end"), (500, "#knob-error_threshold", "start")):
        sized(page, 1280, high)
        page.evaluate("() => { document.querySelector('.lab-right').style.position = 'static'; }")          # as with a tall answer
        page.evaluate("([name, block]) => document.querySelector(name).scrollIntoView({block})", [name, block])
        page.wait_for_timeout(100)
        assert not page.is_visible(".strip")
        box = page.locator(name).bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20, steps=4)
        page.wait_for_function("lab6.state.draft && document.querySelector('.strip.aloft')")
        page.wait_for_timeout(150)
        strip = page.locator(".strip").bounding_box()
        knob = page.locator(name).bounding_box()
        assert strip["y"] >= 0 and strip["y"] + strip["height"] <= high
        assert strip["y"] + strip["height"] <= knob["y"] if block == "end" else knob["y"] + knob["height"] <= strip["y"]
        assert page.inner_text(".strip-net").count("≈") >= 2
        page.mouse.up()
        if block == "start":
            sized(page, 390, 844)
            assert page.locator(".strip").evaluate("strip => [strip.className, strip.getAttribute('style'), strip.offsetWidth === strip.parentElement.clientWidth]") == ["strip", None, True]
            sized(page, 1280, high)
        page.wait_for_selector(".strip", state="hidden")
        page.evaluate("lab6.emit('look', {policy: null, preset: null, undo: true})")
        page.wait_for_function("!lab6.state.draft")
    page.evaluate("() => { document.querySelector('.lab-right').style.position = ''; }")


def test_a_wide_page_has_no_strip_and_the_draft_stands_above_the_map(page):
    sized(page, 1440, 900)
    page.evaluate("scrollTo(0, 0)")
    assert not page.is_visible(".strip")
    top = page.locator(".plot").bounding_box()["y"]
    page.evaluate("lab6.emit('look', {policy: {...lab6.state.policy, tdc_threshold: 0.22}, preset: ''})")
    page.wait_for_selector(".run-draft:visible")
    draft, plot = page.locator(".draft").bounding_box(), page.locator(".plot").bounding_box()
    assert plot["y"] == top and 0 < plot["y"] - draft["y"] - draft["height"] < 80 and not page.is_visible(".headline .lead")


def test_the_clocks_and_the_headline_tell_one_story(page):
    sized(page, 1440, 900)
    page.evaluate(SCRUB, "max")
    page.wait_for_function("document.querySelector('.times').textContent.includes('÷')")
    long, short, ratio = map(float, re.search(r"([\d.]+) s ÷ ([\d.]+) s = ([\d.]+)×", page.inner_text(".times")).groups())
    assert abs(long / short - ratio) < 0.006 and f"{ratio:.2f}×" in page.inner_text(".headline .lead")
    clocks = [re.search(r"· ([\d.]+) s", clock).group(1) for clock in page.locator(".pane .clock").all_inner_texts()]
    assert [float(clock) for clock in clocks] == pytest.approx([long, short], abs=0.051)
    page.evaluate(SCRUB, 12)
    told, clocks = page.inner_text(".times"), page.locator(".pane .clock").all_inner_texts()
    here = [float(n) for n in re.search(r"At step 12: ([\d.]+) s and ([\d.]+) s so far\.", told).groups()]
    assert here == pytest.approx([float(re.search(r"12/30 · ([\d.]+) s", clock).group(1)) for clock in clocks], abs=0.051)
    assert f"= {ratio:.2f}×" in told
    page.evaluate(SCRUB, "max")


@pytest.mark.parametrize("lang", ["en", "zh-CN"])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_in_a_floating_answer_on_a_phone(page, lang, dark):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    sized(page, 390, 844)
    page.evaluate("dark => document.body.classList.toggle('dark', dark)", dark)
    page.evaluate("() => scrollBy(0, document.querySelector('.plot').getBoundingClientRect().top - 420)")
    click(page, 3, 8)
    page.evaluate("lang => lab6.setLanguage(lang)", lang)
    page.evaluate("lab6.emit('look', {policy: {...lab6.state.policy, tdc_threshold: 0.22}, preset: ''})")
    page.wait_for_selector(".strip-undo:visible")
    found = axe.Axe().run(page).response["violations"]
    page.evaluate("() => document.body.classList.remove('dark')")
    assert not [(v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
