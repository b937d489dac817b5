"""What two parts of the page say of one thing agrees: the map and the small one above the knobs, the race and its button, a
fold and its label. In a real browser with the Lab's own answers."""

import pytest

from tests.app.test_browser_parts import bench, lab, lane  # noqa: F401

CLOCKS = "[...document.querySelectorAll('.pane .clock')].map((clock) => clock.textContent).join()"
PICTURES = "[...document.querySelectorAll('.pane canvas')].map((canvas) => canvas.toDataURL()).join()"
MOVES = "(before) => [...document.querySelectorAll('.pane .clock')].map((clock) => clock.textContent).join() !== before"


def word(page):
    return page.locator(".play").inner_text().split()[-1]


def stands(page, milliseconds=500):
    """Whether clocks and pictures stay as they are."""
    page.wait_for_timeout(100)
    before = page.evaluate(CLOCKS), page.evaluate(PICTURES)
    page.wait_for_timeout(milliseconds)
    return (page.evaluate(CLOCKS), page.evaluate(PICTURES)) == before


def started(bench):  # noqa: F811
    page = bench()
    page.wait_for_function("document.querySelector('[data-pane=b] canvas').dataset.shown > 2")
    return page


def test_pause_stops_the_race_and_play_lets_it_go_on(bench):  # noqa: F811
    page = started(bench)
    page.click(".play")
    assert word(page) == "Play" and stands(page)
    before, label = page.evaluate(CLOCKS), page.inner_text(".step-label")
    page.click(".play")
    page.wait_for_function(MOVES, arg=before)
    step, later = (int(said.split()[1]) for said in (label, page.inner_text(".step-label")))
    assert word(page) == "Pause" and 0 < step <= later < step + 6


def test_a_race_that_was_paused_before_its_pictures_came_starts_standing(bench):  # noqa: F811
    page = bench(before="""() => { const decode = HTMLImageElement.prototype.decode, opened = new Promise((open) => { window.letIn = open; });
        HTMLImageElement.prototype.decode = function () { return opened.then(() => decode.call(this)); }; }""")
    page.click(".play")
    page.evaluate("window.letIn()")
    page.wait_for_function("document.querySelector('[data-pane=b] canvas').dataset.shown > 0")
    assert word(page) == "Play" and stands(page) and page.inner_text(".step-label") == "step 1 of 30"
    page.click(".play")
    page.wait_for_function("document.querySelector('.step-label').textContent.split(' ')[1] > 3")


def test_a_click_on_a_cell_holds_the_race_there_and_play_goes_on_from_there(bench):  # noqa: F811
    page = started(bench)
    page.locator(".plot").scroll_into_view_if_needed()
    area = page.locator(".plot").bounding_box()
    wide, high = (area["width"] - 48) / 30, (area["height"] - 42) / 12
    page.mouse.click(area["x"] + 42 + wide * 15.5, area["y"] + 4 + high * 6.5)
    page.wait_for_function("document.querySelector('.step-label').textContent === 'step 16 of 30'")
    assert word(page) == "Play" and stands(page)
    before = page.evaluate(CLOCKS)
    page.click(".play")
    page.wait_for_function(MOVES, arg=before)
    assert word(page) == "Pause" and 16 <= int(page.inner_text(".step-label").split()[1]) < 22
    page.evaluate("lab6.emit('step', {step: 30, from: 'map'})")
    page.click(".play")
    page.wait_for_selector(".again:visible")
    assert word(page) == "Pause" and not stands(page)          # the race is over; its clips go on
    page.click(".play")
    assert word(page) == "Play" and stands(page)
    page.click(".again")
    page.wait_for_function("document.querySelector('.step-label').textContent.split(' ')[1] > 3")
    assert word(page) == "Pause"


def test_a_live_run_is_held_in_sight_and_followed_again(bench):  # noqa: F811
    page = bench()

    def tell(step, state="running"):
        pane = {**lane(30, state), "step": step, "seconds": step / 2}
        page.evaluate("race => lab6.emit('race', race)", {"run": "one", "fps": 8, "panes": {"a": pane, "b": pane}})

    tell(4)
    page.click(".play")
    tell(9)
    assert word(page) == "Play" and page.inner_text(".step-label") == "step 4 of 30" and page.evaluate(CLOCKS).count("4/30") == 2
    page.click(".play")
    assert word(page) == "Pause" and page.inner_text(".step-label") == "step 9 of 30" and page.evaluate(CLOCKS).count("9/30") == 2
    page.evaluate("lab6.emit('step', {step: 2, from: 'map'})")
    tell(12)
    assert word(page) == "Play" and page.inner_text(".step-label") == "step 2 of 30"
    tell(30, "done")
    page.click(".play")
    assert word(page) == "Pause" and page.evaluate(CLOCKS).count("30/30") == 2


@pytest.mark.parametrize("lang, show, hide", [("en", "Show the numbers", "Hide the numbers"), ("zh-CN", "显示数值", "收起数值")])
def test_the_fold_of_the_numbers_says_what_a_press_does(bench, lang, show, hide):  # noqa: F811
    page = bench("?lang=" + lang)
    fold = page.locator(".numbers summary")
    for label in (show, hide, show, hide):
        page.wait_for_function("label => document.querySelector('.numbers summary')?.textContent === label", arg=label)
        fold.click()
    fold.click()
    title = page.inner_text(".explain h2")
    page.evaluate("lab6.emit('pin', {block: 3, step: 9, clicked: false})")
    page.wait_for_function("title => document.querySelector('.explain h2').textContent !== title", arg=title)
    assert fold.text_content() == hide


# The colours in the middle of the four tiles of some cells, as [map's, strip's] per tile. The strip's canvas reaches past
# its frame by the map's margins, so that the same places on both are found with one sum.
TILES = """([cells, blocks, steps]) => { const all = ['#lab-map .plot canvas', '.strip canvas'].map((name) => { const canvas = document.querySelector(name), dpr = devicePixelRatio;
    const wide = (canvas.width / dpr - 48) / steps, high = (canvas.height / dpr - 42) / blocks, ctx = canvas.getContext('2d');
    return ([block, step], x, y) => [...ctx.getImageData(Math.floor((42 + wide * (step + x)) * dpr), Math.floor((4 + high * (block + y)) * dpr), 1, 1).data].join(); });
  return cells.map((cell) => [[0.27, 0.3], [0.73, 0.3], [0.27, 0.72], [0.73, 0.72]].map(([x, y]) => all.map((colour) => colour(cell, x, y)))); }"""


def test_the_map_in_small_shows_the_same_tiles_as_the_map(tab, source):
    page = tab(width=390, height=844, device_scale_factor=3, reduced_motion="reduce")
    page.wait_for_function("document.querySelector('.strip').dataset.drawn > 0 && document.querySelector('.answer')")
    page.wait_for_timeout(300)
    layers = source.trace.layers
    kinds = layers.groupby(["block", "step"])["precision"].nunique()
    marked = page.evaluate("() => { let cell; lab6.on('pin', (pin) => { cell = [pin.block, pin.step]; }); return cell; }")
    mixed = [list(cell) for cell in kinds[kinds > 1].index if list(cell) != marked]
    assert len(mixed) > 20 and page.get_attribute("#lab-map [data-level]", "data-level") == "fine"
    tiles = page.evaluate(TILES, [mixed, 12, 30])
    assert any(len({there for there, _ in cell}) > 1 for cell in tiles)
    assert all(there == here for cell in tiles for there, here in cell)
    page.evaluate("lab6.emit('look', {policy: {...lab6.state.policy, error_threshold: 0.3}, preset: ''})")
    page.wait_for_function("lab6.state.draft && document.querySelector('.strip-undo:not([hidden])')")
    page.wait_for_timeout(300)
    after = page.evaluate(TILES, [mixed, 12, 30])
    assert after != tiles
