"""What went wrong in other people's video demos, tried on this page: files, names, reloads, a public deployment."""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.settings import ROOT

HOSTILE = '<img src=x onerror="window.bad=1"><script>window.bad=1</script>"\'../'


def test_a_downloaded_video_is_h264_at_the_right_speed_and_plays(tab, tmp_path):
    page = tab()
    with page.expect_download() as got:
        page.click("[data-file=video]")
    path = tmp_path / got.value.suggested_filename
    got.value.save_as(path)
    probe = shutil.which("ffprobe")
    if probe is None:
        pytest.skip("needs the ffprobe program")
    said = subprocess.run([probe, "-v", "error", "-count_frames", "-select_streams", "v:0", "-of", "json", "-show_entries",
                           "stream=codec_name,pix_fmt,r_frame_rate,nb_read_frames", path], capture_output=True, check=True)
    stream = json.loads(said.stdout)["streams"][0]
    assert stream == {"codec_name": "h264", "pix_fmt": "yuv420p", "r_frame_rate": "8/1", "nb_read_frames": "17"}
    played = page.evaluate("""src => new Promise((done, fail) => {
        const video = Object.assign(document.createElement('video'), {muted: true, src});
        video.ontimeupdate = () => video.currentTime > 0.2 && done([video.videoWidth, video.duration]);
        video.onerror = () => fail(new Error(video.error.message)); video.play(); })""",
        "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode())
    assert played[0] == 128 and abs(played[1] - 17 / 8) < 0.15


def test_a_hostile_file_shows_as_text_everywhere(tab, large, tmp_path):
    page = tab()
    page.wait_for_function("window.lab6.state.sid")
    path = tmp_path / "trace.parquet"
    large.trace.with_meta(prompt=HOSTILE).save(path)
    page.set_input_files(".picker", {"name": HOSTILE.replace("/", "_") + ".parquet", "mimeType": "application/octet-stream",
                                     "buffer": path.read_bytes()})
    page.wait_for_function("lab6.state.source.startsWith('file:')")
    page.wait_for_function("document.querySelector('.plot').dataset.x === '-0.5,49.5'")
    assert "<script>" in page.inner_text(".runs-pick option:checked")
    page.hover(".plot-frame", position={"x": 300, "y": 100})
    page.click('[data-do="python"]')
    page.wait_for_function("document.querySelector('.code code').textContent.includes('<script>')")
    assert not page.evaluate("window.bad") and page.locator("img[src=x]").count() == 0


def test_downloads_and_uploads_do_not_fill_the_disk(tab, tmp_path):
    from gradio.utils import get_upload_folder

    def held():
        return sum(f.is_file() for f in Path(get_upload_folder()).rglob("*"))

    from engine.settings import Policy

    page = tab()
    page.wait_for_function("window.lab6.state.sid")
    before = held()
    for kind in ("video", "reference", "parquet", "csv", "policy"):
        with page.expect_download():
            page.click(f"[data-file={kind}]")
    assert held() == before
    (tmp_path / "mine.json").write_text(Policy(error_threshold=0.07).to_json())
    for _ in range(4):
        page.set_input_files(".picker", str(tmp_path / "mine.json"))
        page.wait_for_function("window.lab6.state.policy?.error_threshold === 0.07")
        page.click(".undo")
        page.wait_for_function("window.lab6.state.preset === 'sixbit'")
    assert held() <= before + 1          # the same file again takes no more room


@pytest.fixture(scope="module")
def public(recordings):
    """The address of a public page in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "GRADIO_SERVER_PORT": str(port), "LAB_PUBLIC": "1", "LAB_MODELS": "some/model", "LAB_PRELOAD": "0",
           "LAB_RECORDINGS": str(recordings), "LAB_MAX_STEPS": "40"}
    server = subprocess.Popen([sys.executable, "app.py"], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    for _ in range(600):
        with socket.socket() as probe:
            if server.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/"
    server.terminate()
    server.wait()


def test_a_public_page_opens_no_folder_and_bounds_a_run(chromium, public):
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(public)
    page.wait_for_function("window.lab6?.state.sid && document.querySelector('#lab-map [data-drawn]')")
    page.click(".model summary")
    assert page.locator("#model-list option").evaluate_all("all => all.map(o => o.value)") == ["tiny", "some/model"]
    for wish in ("/etc", "../..", "someone/else"):
        page.evaluate("lab6.say('')")
        page.fill("#model-in", wish)
        page.click(".check")
        page.wait_for_selector(".status[data-tone=bad]")
        assert "Expected one of tiny, some/model on this public page" in page.inner_text(".status")
    page.evaluate("Object.assign(lab6.state, {steps: 41})")
    page.click(".run")
    page.wait_for_function("document.querySelector('.status').textContent.includes('steps must be a whole number from 1 to 40')")
    for path in ("/etc/passwd", str(ROOT / "app" / "shell.py"), str(ROOT / "assets" / "tiny" / "model_index.json")):
        assert page.request.get(f"{public}gradio_api/file={path}").status in (403, 404)
    context.close()
