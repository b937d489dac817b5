"""The Lab in a real browser, on recorded races: no torch, no run."""

import re

import pytest

from app.i18n import plain

VIEWS = ("gamma", "drift", "outliers", "verdict", "decision")
# How often the page has drawn its map, and the pixel in the middle of a pane's canvas.
ZOOM = "document.querySelector('.plot').dataset.x.split(',').map(Number)"
DRAWN = "Number(document.querySelector('#lab-map [data-drawn]').dataset.drawn)"


@pytest.fixture(scope="module")
def shared(lasting):
    """One page for all tests that need no special window."""
    page = lasting()
    page.wait_for_function("window.lab6.state.sid")
    return page


@pytest.fixture
def page(shared):
    """The shared page as it was on arrival."""
    yield shared
    shared.evaluate("""() => { const all = document.querySelector('.unzoom'); if (!all.hidden) all.click();
        lab6.emit('look', {source: 'recording:red-star', policy: null, preset: null, view: 'decision', versus: 'draft', undo: true}); }""")
    shared.wait_for_function("lab6.state.source === 'recording:red-star' && lab6.state.view === 'decision' && lab6.state.preset === 'sixbit'")


def settle(page):
    page.wait_for_timeout(300)
    page.wait_for_function(f"(n => new Promise(r => setTimeout(() => r({DRAWN} === n), 250)))({DRAWN})")


def move_knob(page, name, value):
    page.evaluate("""([name, value]) => { const k = document.querySelector(`#knob-${name}`); k.value = value;
                     k.dispatchEvent(new Event('input', {bubbles: true})); }""", [name, value])


def test_a_recorded_race_plays_on_arrival_and_never_blanks(tab):
    page = tab()
    page.wait_for_function("document.querySelector('.pane .clock').textContent.includes('/30')")
    marks = page.evaluate("""() => new Promise(done => {
        const canvases = [...document.querySelectorAll('.pane canvas')], first = canvases.slice(); let blank = 0, seen = 0, kept = true;
        const look = () => {
            document.querySelectorAll('.pane canvas').forEach((c, i) => { kept &&= c === first[i];
                const d = c.getContext('2d').getImageData(c.width / 2 | 0, c.height / 4 | 0, 1, 1).data; if (d[3] === 0) blank++; });
            if (++seen < 60) requestAnimationFrame(look); else done({blank, kept});
        }; look(); })""")
    assert marks == {"blank": 0, "kept": True}


def test_ticks_wait_for_the_finished_clip(tab):
    page = tab()
    page.wait_for_function("/^[1-9]\\d?\\//.test(document.querySelector('[data-pane=b] .clock').textContent)")
    assert not page.locator("[data-pane=b] .ticks li:visible").count()
    page.evaluate("() => { const s = document.querySelector('.scrub'); s.value = s.max; s.dispatchEvent(new Event('input', {bubbles: true})); }")
    page.wait_for_selector("[data-pane=b] .ticks li:visible")
    page.click(".intro a")
    page.wait_for_selector("#tab-learn[aria-selected=true]")


def test_a_knob_redraws_the_map_and_says_what_it_buys(page):
    before = page.evaluate(DRAWN)
    move_knob(page, "tdc_threshold", 0.2)
    page.wait_for_function(f"{DRAWN} > {before}")
    page.wait_for_selector(".draft:not([hidden])")
    settle(page)
    assert re.search(r"Draft, estimated: \d+ cells would change", page.inner_text(".draft-line"))
    assert re.search(r"\d", page.inner_text(".net s >> nth=0"))
    page.click(".undo")
    page.wait_for_selector(".draft[hidden]", state="attached")


def test_the_latest_knob_position_wins(page):
    for i in range(60):
        move_knob(page, "tdc_threshold", 0.1 + 0.002 * i)
    page.wait_for_function("Math.abs(window.lab6.state.policy.tdc_threshold - 0.218) < 1e-6")
    settle(page)
    assert page.input_value("#knob-tdc_threshold") == "0.218" and "21.8 %" in page.inner_text(".knob.tdc_threshold output")


def test_zoom_survives_updates(page):
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(".plot-frame").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 320, box["y"] + 120, steps=4)
    page.mouse.move(box["x"] + 420, box["y"] + 170, steps=4)
    page.mouse.up()
    page.wait_for_selector(".unzoom:not([hidden])")
    page.wait_for_function(f"(x => x[1] - x[0] < 15)({ZOOM})")
    zoomed = page.evaluate(ZOOM)
    node = page.evaluate_handle("document.querySelector('.plot canvas')")
    before = page.evaluate(DRAWN)
    move_knob(page, "tdc_threshold", 0.25)
    page.wait_for_function(f"{DRAWN} > {before}")
    assert page.evaluate(ZOOM) == zoomed
    assert page.evaluate("n => n.isConnected", node)


def test_a_click_explains_a_cell_and_moves_the_videos_there(page):
    settle(page)
    page.evaluate("scrollTo(0, 0)")
    box = page.locator(".plot-frame").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.45)
    page.wait_for_function("/Block \\d+, step (1[5-9]|2[0-2])/.test(document.querySelector('.explain h2').textContent)")
    assert page.locator(".explain p").count() >= 2
    assert re.search(r"step (1[5-9]|2[0-2]) of 30", page.inner_text(".step-label"))
    step = re.search(r"step (\d+)", page.inner_text(".step-label")).group(1)
    assert all(clock.startswith(f"{step}/30 · ") for clock in page.locator(".pane .clock").all_inner_texts())
    assert not page.locator(".pane .badge:visible").count() and not page.locator(".ticks li:visible").count()
    page.click(".numbers summary")
    assert page.locator(".explain table").count() == 3


def test_the_map_works_from_the_keyboard_and_speaks(page):
    page.focus(".plot-frame")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".map [aria-live]").startswith("Block")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.explain h2').textContent.includes('step 2')")


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_draws(page, view):
    before = page.evaluate(DRAWN)
    page.click(f"#lab-map [data-view={view}]")
    page.wait_for_function(f"{DRAWN} > {before}")
    page.wait_for_function(f"document.querySelector('#lab-map [data-view={view}]').getAttribute('aria-pressed') === 'true'")
    assert page.locator(".legend li").count() >= 1


def test_the_map_as_a_table(page):
    page.click(".as-table")
    assert page.locator(".table-frame tbody tr").count() == 12 and page.locator(".table-frame thead th").count() == 31
    assert "Scroll sideways for all 30 steps →" in page.inner_text(".table-frame caption")
    for steps in (1, 2):
        assert page.evaluate("steps => lab6.t('lab.map.caption', {steps, groups: 'qkv'})", steps) == plain("en", "lab.map.caption", steps=steps, groups="qkv")


def test_presets_and_break_it(page):
    page.click("[data-preset=break]")
    page.wait_for_function("document.querySelector('.knob.error_threshold').classList.contains('off')")
    assert "smear" in page.inner_text(".band") and page.is_visible(".run-draft")
    assert page.inner_text(".call") == "Run to see it break" and page.inner_text(".run").startswith("Run draft")
    assert "made to fail" in page.inner_text(".preset-what")
    page.click(".undo")
    page.wait_for_selector(".call[hidden]", state="attached")
    assert page.inner_text(".run").startswith("Run ·")


def test_a_large_recording_opens_and_answers(page):
    page.select_option(".runs-pick", "recording:large")
    page.wait_for_function("window.lab6.state.source === 'recording:large'")
    page.wait_for_function(f"{ZOOM}[1] === 49.5")
    before = page.evaluate(DRAWN)
    move_knob(page, "tdc_threshold", 0.3)
    page.wait_for_function(f"{DRAWN} > {before}")


OUTSIDE = """() => {
        const scrolls = (e) => { for (let p = e.parentElement; p; p = p.parentElement) if (/auto|scroll|hidden/.test(getComputedStyle(p).overflowX)) return true; return false; };
        const wide = [...document.querySelectorAll('#place-lab *, .top *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && e.offsetParent && !scrolls(e)).map(e => e.className || e.tagName);
        const small = [...document.querySelectorAll('#place-lab :is(button, select, input, summary), .top button')].filter(e => e.offsetParent && (e.offsetWidth < 24 || e.offsetHeight < 24)).map(e => e.className || e.id || e.textContent);
        return {wide, small, scroll: document.documentElement.scrollWidth - innerWidth}; }"""


def test_nothing_is_wider_than_the_page_and_targets_are_large(tab):
    page = tab(width=390)
    page.click(".advanced summary")
    page.click('[data-do="python"]')
    for width, height in ((390, 844), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        for lang in ("en", "zh-CN"):
            page.evaluate("lang => lab6.setLanguage(lang)", lang)
            settle(page)
            assert page.evaluate(OUTSIDE) == {"wide": [], "small": [], "scroll": 0}, (width, lang)


def test_a_map_drawn_in_a_hidden_place_has_its_width_when_shown(tab):
    page = tab(query="?tab=compare")
    page.click("#tab-lab")
    page.wait_for_function("document.querySelector('.plot canvas')?.getBoundingClientRect().width > 400")


def test_no_two_regions_of_the_page_have_one_name(page):
    names = page.evaluate("[...document.querySelectorAll('#place-lab [role=region]')].map((region) => region.getAttribute('aria-label'))")
    assert len(names) > 6 and all(names) and len(set(names)) == len(names)


# For every selector within @media: what it means in the file, and what the page's own sheets reach under the same condition.
REACH = """(text) => {
  const sheet = new CSSStyleSheet(), own = {}, lost = [], media = (rules) => [...rules].filter((rule) => rule instanceof CSSMediaRule);
  sheet.replaceSync(text);
  for (const shown of document.styleSheets) for (const block of media(shown.cssRules)) for (const rule of block.cssRules) (own[block.media.mediaText] ??= []).push(rule);
  for (const block of media(sheet.cssRules)) for (const rule of block.cssRules) for (const node of document.querySelectorAll(rule.selectorText))
    if (!(own[block.media.mediaText] ?? []).some((there) => there.style.cssText === rule.style.cssText && node.matches(there.selectorText))) lost.push([rule.selectorText, node.className]);
  return lost; }"""


def test_what_the_style_sheet_says_for_some_windows_reaches_what_it_names(page):
    """Gradio writes its own ancestors before every selector within @media, and after every comma of it."""
    from app.settings import ROOT

    text = (ROOT / "app" / "static" / "lab.css").read_text(encoding="utf-8")
    assert page.evaluate(REACH, text) == []
    assert not re.findall(r":(?:is|where|not|has)\([^)]*,[^)]*\)", text)
    page.set_viewport_size({"width": 1280, "height": 720})
    assert page.evaluate("['.words', '.do'].map((name) => getComputedStyle(document.querySelector(`.sentence ${name}`)).gap)") == ["6px", "6px"]
    assert page.evaluate("getComputedStyle(document.querySelector('.lab-left')).gap") == "8px"
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("scrollTo(0, 1e6)")
    page.wait_for_timeout(100)
    assert page.evaluate("document.querySelector('.take').getBoundingClientRect().bottom <= document.querySelector('.go-wrap').getBoundingClientRect().top")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.evaluate("scrollTo(0, 0)")


def test_dark_mode_is_dark_everywhere(tab):
    page = tab(dark=True)
    settle(page)
    from io import BytesIO

    from PIL import Image

    picture = Image.open(BytesIO(page.screenshot())).convert("L")
    width, height = picture.size
    corners = [picture.getpixel(at) for at in ((3, 3), (width - 4, 3), (3, height - 4), (width - 4, height - 4))]
    assert max(corners) < 60
    box = page.locator(".plot-frame").bounding_box()
    assert picture.getpixel((int(box["x"]) + 3, int(box["y"] + box["height"]) - 3)) < 60


def test_the_language_changes_without_a_reload(page):
    page.click(".language")
    page.wait_for_function("document.querySelector('.map h2').textContent.includes('模块')")
    page.wait_for_function("document.querySelector('.says').textContent.includes('误差')")
    assert page.evaluate("document.documentElement.lang") == "zh-CN" and "lang=zh" in page.url
    page.click(".language")
    page.wait_for_function("document.querySelector('.map h2').textContent.includes('block')")


def test_hostile_text_stays_text(page):
    page.click(".free")
    page.fill(".free-text", '<img src=x onerror="window.bad=1"><script>window.bad=1</script>"\'../' + "a" * 3000)
    page.click(".run")
    page.wait_for_selector(".status[data-tone=bad]")
    page.wait_for_selector(".run:visible")
    page.click(".free")
    assert "knows these words" in page.inner_text(".status") and not page.evaluate("window.bad")


def test_a_shared_link_opens_its_policy(page, tab):
    move_knob(page, "error_threshold", 0.1)
    page.wait_for_function("window.lab6.state.policy.error_threshold === 0.1 && window.lab6.state.preset === ''")
    other = tab(query="?" + page.evaluate("window.lab6.link()").split("?")[1])
    other.wait_for_function("window.lab6.state.policy.error_threshold === 0.1")


def test_reduced_motion_stands_still(tab):
    page = tab(reduced_motion="reduce")
    assert page.get_attribute(".play", "aria-label") == "Play the clips"


def test_axe_finds_nothing_serious(tab):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = tab()
    move_knob(page, "tdc_threshold", 0.25)
    page.wait_for_selector(".draft:not([hidden])")
    for part in (".advanced summary", ".numbers summary", '[data-do="python"]', ".model summary", ".as-table"):
        page.click(part)
    for theme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):      # only the colours differ
        settle(page)
        found = axe.Axe().run(page, options=options).response["violations"]
        assert not [v["id"] for v in found if v["impact"] in ("serious", "critical")], theme
        page.click(".theme")


def test_the_file_route_refuses_the_outside(page, page_url):
    for path in ("/etc/passwd", "app/shell.py", "../../etc/passwd"):
        assert page.request.get(f"{page_url}gradio_api/file={path}").status in (403, 404)


def test_only_the_documented_end_points_are_exposed(page, page_url):
    info = page.request.get(f"{page_url}gradio_api/info").json()
    assert sorted(info["named_endpoints"]) == ["/generate", "/replay", "/trace"] and not info["unnamed_endpoints"]


def test_downloads_come_from_the_page(page):
    with page.expect_download() as got:
        page.click("[data-file=policy]")
    assert got.value.suggested_filename == "policy.json"


def test_an_opened_policy_moves_the_knobs(page, tmp_path):
    from engine.settings import Policy

    (tmp_path / "mine.json").write_text(Policy(error_threshold=0.09).to_json())
    page.set_input_files(".picker", str(tmp_path / "mine.json"))
    page.wait_for_function("window.lab6.state.policy.error_threshold === 0.09")
    (tmp_path / "bad.json").write_text("{")
    page.set_input_files(".picker", str(tmp_path / "bad.json"))
    page.wait_for_selector(".status[data-tone=bad]")
    assert page.evaluate("window.lab6.state.policy.error_threshold") == 0.09
