"""The picture of the frontier is well-formed and shows what was measured."""

from xml.etree import ElementTree

import pandas as pd

from engine import frontier_plot

SVG = "{http://www.w3.org/2000/svg}"


def rows(method, costs, **more):
    return [
        {"method": method, "setting": f'{{"t":{cost}}}', "prompt": f"p{n}", "seed": n, "skipped": cost, "bits_computed": 8.0,
         "psnr_same_weights": 45.0 - 10 * cost + n, **more}
        for cost in costs for n in range(4)
    ]  # fmt: skip


def test_every_setting_is_a_dot_with_its_interval():
    table = pd.DataFrame(rows("tdc", [0.3, 0.5]) + rows("int8_tdc", [0.4]) + rows("unknown", [0.4]))
    root = ElementTree.fromstring(frontier_plot.draw(table))
    dots = [dot for dot in root.iter(f"{SVG}circle") if dot.get("stroke")]
    assert len(dots) == 3 and len(list(root.iter(f"{SVG}polyline"))) == 2
    words = [node.text for node in root.iter(f"{SVG}text")]
    assert "tdc" in words and "int8_tdc" in words and "unknown" not in words
    for dot in dots:
        assert 0 < float(dot.get("cx")) < frontier_plot.WIDTH and 0 < float(dot.get("cy")) < frontier_plot.HEIGHT


def test_exact_copies_are_no_quality_and_nothing_measured_is_an_empty_picture():
    exact = pd.DataFrame(rows("w4a8", [0.0], psnr_same_weights=float("inf")))
    for table in (exact, exact.iloc[:0], exact.drop(columns="psnr_same_weights")):
        root = ElementTree.fromstring(frontier_plot.draw(table))
        assert not list(root.iter(f"{SVG}circle"))
