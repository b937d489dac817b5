"""Learn and Compare in a real browser, served without torch and without any other host."""

import pytest

LESSONS = range(1, 8)
SMALL_TYPE = """() => [...document.querySelectorAll('.course *')].filter(n => n.offsetParent !== null || n.ownerSVGElement)
    .filter(n => [...n.childNodes].some(c => c.nodeType === 3 && c.textContent.trim()) && n.getBoundingClientRect().width)
    .map(n => [parseFloat(getComputedStyle(n).fontSize), n.textContent.trim().slice(0, 40)]).filter(([size]) => size < 19.99)"""
SMALL_TARGETS = """(root) => [...document.querySelectorAll(`${root} :is(button, a, select, summary, .l-chip, input[type=range])`)]
    .filter(n => n.offsetParent !== null && !n.disabled).map(n => [n.getBoundingClientRect(), n.textContent.trim().slice(0, 30)])
    .filter(([r]) => r.height < 23.9 || r.width < 23.9).map(([r, t]) => [r.width, r.height, t])"""


@pytest.fixture(scope="module")
def window(chromium):
    """window(width, height): a browser context that the tests share, so that the page's scripts are fetched once."""
    made = {}

    def sized(width: int, height: int):
        if (width, height) not in made:
            made[width, height] = chromium.new_context(viewport={"width": width, "height": height})
            made[width, height].set_default_timeout(60_000)
        return made[width, height]

    yield sized
    for context in made.values():
        context.close()


@pytest.fixture
def visit(window, page_url):
    """Open the page at a query; errors of its scripts and requests to other hosts fail the test. `before` runs ahead of
    the page's own scripts; with `clock`, the test may move the page's clock on."""
    opened, errors, foreign = [], [], []

    def go(query: str, width: int = 1440, height: int = 900, wait: str = ".course .l-body", before: str = "", clock: bool = False):
        page = window(width, height).new_page()
        opened.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: foreign.append(request.url) if not request.url.startswith(
            (page_url, "data:", "blob:")) else None)
        if before:
            page.add_init_script(before)
        if clock:
            page.clock.install()
        page.goto(page_url + query)
        page.wait_for_selector(wait)
        return page

    yield go
    for page in opened:
        page.close()
    assert not errors and not foreign, (errors, foreign)


def turn_to(page, lesson):
    page.click(f".l-bar li:nth-child({lesson}) button")
    page.wait_for_selector(f".l-bar li:nth-child({lesson}) .l-here")


def plotted(page):
    page.wait_for_selector(".course .l-plot .main-svg")
    page.wait_for_timeout(300)


def test_a_deep_link_opens_its_lesson_in_its_language(visit):
    page = visit("?lesson=4&lang=zh")
    assert page.inner_text(".course h2") == "昨天能预测今天吗？"
    assert page.get_attribute(".course", "lang") == "zh-CN"
    page.click(".language")
    page.wait_for_function("document.querySelector('.course h2').textContent === 'Does yesterday predict today?'")
    assert "lesson=4" in page.url and "lang=en" in page.url


def test_arrow_keys_turn_the_pages_but_not_under_a_slider(visit):
    page = visit("?lesson=1")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".course .l-ruler svg")
    assert "lesson=2" in page.url
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#lesson-step")
    assert "lesson=1" in page.url
    page.focus("#lesson-step")
    before = page.inner_text(".l-facts")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("before => document.querySelector('.l-facts').innerText !== before", arg=before)
    assert "lesson=1" in page.url and page.is_visible("#lesson-step")


def test_one_dragged_value_hurts_its_neighbours(visit):
    page = visit("?lesson=2", wait=".course .l-handle")
    grip = page.locator(".l-handle").first.bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for distance in range(0, 120, 8):
        page.mouse.move(x, y - distance)
    page.mouse.up()
    page.wait_for_function("document.querySelector('.l-aha p').textContent.includes('INT8')")
    assert "An outlier costs its neighbours" in page.inner_text(".l-aha")


def test_the_ruler_works_from_the_keyboard(visit):
    page = visit("?lesson=2", wait=".course .l-handle")
    page.locator(".l-handle").first.focus()
    for _ in range(24):
        page.keyboard.press("Shift+ArrowUp")
    page.wait_for_function("document.querySelector('.l-aha p').textContent.includes('outlier')")
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelector('.l-aha p').textContent.includes('Both rulers fit')")
    assert "lesson=2" in page.url


def test_the_latest_position_of_a_slider_wins(visit):
    page = visit("?lesson=5")
    page.evaluate("""() => { const s = document.querySelector('#lesson-tolerance');
        for (let i = 0; i <= 40; i++) { s.value = i * 0.005; s.dispatchEvent(new Event('input', {bubbles: true})); } }""")
    page.wait_for_function("document.querySelector('.l-control output').textContent.startsWith('20')")
    page.wait_for_timeout(500)
    assert page.inner_text(".l-control output").startswith("20")


def test_presenter_mode_shows_nothing_below_twenty_pixels(visit):
    page = visit("?lesson=1&present=1")
    for lesson in LESSONS:
        turn_to(page, lesson)
        if lesson != 2:
            plotted(page)
        assert page.evaluate(SMALL_TYPE) == [], lesson
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), lesson
    assert "present=1" in page.url
    page.keyboard.press("p")
    assert page.get_attribute(".l-present", "aria-pressed") == "false"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_phone_needs_no_sideways_scrolling(visit, lang):
    page = visit(f"?lesson=1&lang={lang}", width=390, height=844)
    for lesson in LESSONS:
        turn_to(page, lesson)
        if lesson != 2:
            plotted(page)
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390], lesson
        assert page.evaluate(SMALL_TARGETS, ".course") == [], lesson


def test_a_lesson_opens_its_setting_in_the_lab(visit):
    page = visit("?lesson=5")
    page.evaluate("""() => { const s = document.querySelector('#lesson-tolerance');
        s.value = 0.2; s.dispatchEvent(new Event('input', {bubbles: true})); }""")
    page.wait_for_function("document.querySelector('.l-control output').textContent.startsWith('20')")
    page.click(".l-lab")
    page.wait_for_function("window.lab6.state.policy && Math.abs(window.lab6.state.policy.tdc_threshold - 0.2) < 1e-9")
    assert page.is_visible("#place-lab") and "lesson" not in page.url


def test_compare_without_measurements_shows_titles_and_sentences(chromium, tmp_path):
    import gradio as gr

    from app.views import compare

    with gr.Blocks(analytics_enabled=False) as demo:
        compare.build(tmp_path)
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, footer_links=[])
    try:
        page = chromium.new_page()
        page.goto(url)
        page.wait_for_selector(".v-card h3", timeout=60_000)
        assert "not been run yet" in page.inner_text(".versus")
        assert page.is_hidden(".v-plot")           # no empty picture where there is nothing to show
        page.close()
    finally:
        demo.close()


def test_a_link_opens_the_words_and_closing_them_leaves_the_address(visit):
    page = visit("?lesson=2&words=1", wait=".course .l-words[open] dd")
    assert page.is_visible(".l-words dt >> nth=0")
    assert page.get_attribute(".l-words a", "href") == "https://arxiv.org/abs/2603.18742"
    page.click(".l-words summary")
    page.wait_for_function("!location.search.includes('words')")
    assert "lesson=2" in page.url



LOST = """(mode) => {       // the first answer to a lesson is lost, or never comes, or comes a second late
    const stock = window.fetch;
    window.lost = 0;
    window.fetch = (url, options) => {
        if (!String(options?.body).includes('"open_lesson"') || window.lost++) return stock(url, options);
        if (mode === 'refused') return Promise.reject(new TypeError('Failed to fetch'));
        if (mode === 'broken') return Promise.resolve(new Response('{}', { status: 502 }));
        if (mode === 'silent') return new Promise(() => {});
        return new Promise((done) => setTimeout(() => done(stock(url, options)), 1000));
    };
}"""
# Every answer is kept; asked for again it is there at once, before the browser turns to anything else.
AT_ONCE = """() => {
    const stock = window.fetch, held = {};
    window.fetch = async (url, options) => {
        if (!String(options?.body).includes('"open_lesson"')) return stock(url, options);
        const wish = JSON.stringify(JSON.parse(options.body).data);
        held[wish] ??= await (await stock(url, options)).text();
        return { ok: true, json: async () => JSON.parse(held[wish]) };
    };
}"""
NO_PAINT = "window.IntersectionObserver = class { observe() {} unobserve() {} disconnect() {} }"


@pytest.mark.parametrize("mode", ["refused", "broken", "silent"])
def test_a_lesson_whose_answer_is_lost_is_asked_for_again(visit, mode):
    page = visit("?lesson=2&words=1", wait=".language", before=f"({LOST})({mode!r})", clock=mode == "silent")
    page.wait_for_function("window.lost")
    if mode == "silent":
        page.clock.fast_forward(20_000)
    page.wait_for_selector(".course .l-words[open] dd")
    assert page.evaluate("window.lost") == 2 and page.inner_text(".course .l-trouble") == ""
    assert "lesson=2" in page.url and "words=1" in page.url


@pytest.mark.parametrize("query, there", [("?lesson=2&words=1", ".course .l-words[open] dd"), ("?tab=compare", ".v-card h3")])
def test_a_place_does_not_wait_for_the_window_to_be_painted(visit, query, there):
    visit(query, wait=there, before=NO_PAINT)


def test_a_language_chosen_before_the_first_answer_is_kept(visit):
    page = visit("?lesson=4", wait=".language", before=f"({LOST})('late')")
    page.wait_for_function("window.lost")
    page.click(".language")
    page.wait_for_function("document.querySelector('.course h2')?.textContent === '昨天能预测今天吗？'")


def test_a_fold_closed_while_the_lesson_is_drawn_anew_stays_closed(visit):
    """A fold tells that it was closed a moment after it was; the same lesson in the other language may come before."""
    page = visit("?lesson=2&words=1", wait=".course .l-words[open] dd", before=f"({AT_ONCE})()")
    for lang in ("zh-CN", "en"):
        page.evaluate("lang => lab6.setLanguage(lang)", lang)
        page.wait_for_function("lang => document.querySelector('.l-words[open]') && document.querySelector('.course').lang === lang", arg=lang)
    page.evaluate("() => { document.querySelector('.l-words summary').click(); lab6.setLanguage('zh-CN'); }")
    page.wait_for_function("document.querySelector('.course').lang === 'zh-CN'")
    assert not page.locator(".l-words").evaluate("fold => fold.open") and "words" not in page.url
