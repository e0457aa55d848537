"""The viewer in a real browser."""

import re

import numpy as np
import pytest

from tests.helpers.browser import until
from tests.plot.test_viewer import HOSTILE, SOURCE, TARGET, H, S, T, transformer
from tfattn import plot

pytestmark = pytest.mark.slow

COLOR = "element => getComputedStyle(element).backgroundColor"


def known():
    """A Transformer's weights, uniform but where the tests look."""
    collected = {
        path: np.full_like(value, 1 / value.shape[-1]) for path, value in transformer().items()
    }
    for layer in range(2):
        cross = collected[f"model/decoder/block_{layer}/cross_attention"][0]  # (H, T, S)
        for head in range(H):
            cross[head, 1] = 0.0  # "chat" looks at "cat", and a little to its right
            cross[head, 1, 2] = 0.75
            cross[head, 1, 3 + head] = 0.25
    return collected


READ = ["<begin>", *TARGET[:-1]]


@pytest.fixture
def opened(open_file, tmp_path):
    """Opens a viewer in a new window."""

    def open_page(viewer=None, **options):
        path = tmp_path / "viewer.html"
        (viewer or plot.viewer(known(), SOURCE, TARGET, READ)).save(path)
        return open_file(path, **options)

    open_page.faults = open_file.faults
    return open_page


def word(page, side, text):
    return page.locator(f"#{side} .word", has=page.get_by_text(text, exact=True)).first


def numbers(page, side):
    return page.locator(f"#{side} .number").all_text_contents()


def lines(page):
    return page.locator("#lines path").count()


def choose(page, what, label):
    page.locator(f"#choose-{what} label", has=page.get_by_text(label, exact=True)).click()


def test_viewer_shows_the_weights_of_a_word_of_any_head_layer_and_view(opened):
    collected = known()
    collected["model/decoder/block_0/cross_attention"][0, 2, 1] = np.eye(S)[6]
    page = opened(plot.viewer(collected, SOURCE, TARGET, READ))
    question = page.locator("#question")
    assert question.inner_text() == "Choose a word"
    assert set(numbers(page, "keys")) == {""}
    before = page.locator("#keys .word").nth(2).evaluate(COLOR)
    uniform = lines(page)
    word(page, "queries", "chat").hover()
    assert question.inner_text() == "“chat” attends to"
    assert numbers(page, "keys") == ["", "", "75%", "8.3%", "8.3%", "8.3%", ""]
    assert page.locator("#ranks .name").all_text_contents() == ["cat", "does", "not", "sleep"]
    assert page.locator("#ranks .share").all_text_contents() == ["75%", "8.3%", "8.3%", "8.3%"]
    assert page.locator("#keys .word").nth(2).evaluate(COLOR) != before
    assert lines(page) == 4 < uniform
    widths = page.locator("#lines path").evaluate_all(
        "paths => paths.map((path) => +path.getAttribute('stroke-width'))"
    )
    assert widths[0] == max(widths) > widths[1]
    page.locator("h1").hover()
    assert question.inner_text() == "Choose a word"
    assert set(numbers(page, "keys")) == {""}
    word(page, "keys", "cat").hover()
    assert question.inner_text() == "“cat” is attended to by"
    assert numbers(page, "queries") == ["14%", "75%", "14%", "14%", "14%"]
    assert page.locator("#ranks .name").first.inner_text() == "chat"
    # a cell of the picture
    cell = page.evaluate("[grid.left + 2.5 * grid.cell, grid.top + 1.5 * grid.cell]")
    page.locator("#matrix canvas").hover(position={"x": cell[0], "y": cell[1]})
    assert page.locator("#pair").inner_text() == "chat → cat: 75%"
    assert question.inner_text() == "“chat” attends to"
    # roles and names
    assert page.get_by_role("option").count() == T + S
    assert page.get_by_role("listbox", name="Queries").count() == 1
    assert page.get_by_role("listbox", name="Keys").count() == 1
    assert page.get_by_role("radio", name="Encoder", exact=True).count() == 1
    assert page.get_by_role("group", name="Layer").count() == 1
    assert page.get_by_role("img", name="Weights of Encoder–decoder · Layer 1").count() == 1
    assert page.locator(".head").count() == 2 * H
    # other heads and layers
    heading = page.locator("#matrix h2")
    word(page, "queries", "chat").click()
    choose(page, "head", "0")
    assert numbers(page, "keys") == ["", "", "75%", "25%", "", "", ""]
    choose(page, "head", "2")
    assert numbers(page, "keys") == ["", "", "75%", "", "", "25%", ""]
    assert "Layer 1, head 2" in heading.inner_text()
    choose(page, "layer", "0")
    assert numbers(page, "keys") == ["", "", "", "", "", "", "100%"]
    assert "Layer 0, head 2" in heading.inner_text()
    assert "model/decoder/block_0/cross_attention" in heading.inner_text()
    button = page.get_by_role("button", name="Layer 0, head 1")
    button.click()
    assert page.locator(".head[aria-pressed=true]").count() == 1
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("#choose-layer input:checked + span").inner_text() == "0"
    assert page.locator("#choose-head input:checked + span").inner_text() == "1"
    pixels = page.locator(".head canvas").evaluate_all(
        "all => all.map((canvas) => canvas.toDataURL())"
    )
    assert len(set(pixels)) == H + 1  # both layers have the same heads, but for one
    sentence = {side: page.locator(f"#{side} .text") for side in ("queries", "keys")}
    for name, queries, keys in (
        ("Encoder", SOURCE, SOURCE),
        ("Decoder", TARGET, READ),
        ("Encoder–decoder", TARGET, SOURCE),
    ):
        choose(page, "view", name)
        assert sentence["queries"].all_text_contents() == queries
        assert sentence["keys"].all_text_contents() == keys
    assert "the decoder's input" not in page.locator("#keys-name").inner_text()


def test_viewer_is_used_by_the_keyboard_alone(opened):
    page = opened()
    question = page.locator("#question")
    focused = "document.activeElement.closest('fieldset, .sentence, .head')?.id"
    reached, outlines = [], []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(focused))
        if reached[-1] == "choose-layer":  # arrows change the layer, and the focus stays
            page.keyboard.press("ArrowLeft")
            layer = page.locator("#choose-layer input:checked + span")
            assert layer.inner_text() == "0" and page.evaluate(focused) == "choose-layer"
            assert layer.evaluate("it => getComputedStyle(it).outlineStyle") == "solid"
            page.keyboard.press("ArrowRight")
        outlines.append(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert reached == ["choose-view", "choose-layer", "choose-head", "queries", "keys"]
    assert outlines[3:] == ["solid", "solid"]
    page.keyboard.press("Shift+Tab")
    assert question.inner_text() == "“le” attends to"
    page.keyboard.press("ArrowRight")
    assert question.inner_text() == "“chat” attends to"
    assert page.locator("#spoken").text_content() == "chat attends to cat 75%, does 8.3%, not 8.3%"
    assert page.locator("[aria-selected=true] .text").all_text_contents() == ["chat"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "head 1" in page.locator("#matrix h2").inner_text()
    assert numbers(page, "keys") == ["", "", "75%", "", "25%", "", ""]
    page.keyboard.press("End")
    assert question.inner_text() == "“pas” attends to"
    page.keyboard.press("Escape")
    assert question.inner_text() == "Choose a word"


def test_viewer_in_a_narrow_window_has_columns_and_takes_taps(opened):
    page = opened(width=375, height=720, has_touch=True, is_mobile=True)
    words_of = {side: page.locator(f"#{side} .word") for side in ("queries", "keys")}
    boxes = {side: [it.bounding_box() for it in words.all()] for side, words in words_of.items()}
    right = max(box["x"] + box["width"] for box in boxes["queries"])
    left = min(box["x"] for box in boxes["keys"])
    assert right < left
    word(page, "queries", "chat").tap()
    assert page.locator("#question").inner_text() == "“chat” attends to"
    assert lines(page) == 4
    ends = page.locator("#lines path").evaluate_all("""paths => paths.map((path) => {
      const start = path.ownerSVGElement.getBoundingClientRect().left + path.getBBox().x;
      return [start, start + path.getBBox().width];
    })""")
    np.testing.assert_allclose(ends, [[right, left]] * 4, atol=1)
    word(page, "queries", "chat").tap()
    assert page.locator("#question").inner_text() == "Choose a word"
    page.set_viewport_size({"width": 1280, "height": 720})
    until(page, "!document.querySelector('.columns')")
    tops = {it.bounding_box()["y"] for it in words_of["queries"].all()}
    assert len(tops) == 1


def test_viewer_of_long_words_scrolls_down_and_not_aside(opened):
    long_words = [f"{'extraordinary' * (1 + i % 5)}{i}" for i in range(60)]
    collected = {
        f"m/encoder/block_{i}/self_attention": np.ones((1, 16, 60, 60)) / 60 for i in (1, 2)
    }
    page = opened(plot.viewer(collected, long_words, title="long" * 50), width=320, height=720)
    for width, number in ((320, 7), (768, 8)):
        page.set_viewport_size({"width": width, "height": 720})
        until(page, f"document.documentElement.scrollWidth === {width}")
        word(page, "queries", long_words[number]).click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        answer = page.locator("#answer").bounding_box()
        assert answer["y"] < 720  # in sight, far as the end of the sentences is


def test_viewer_in_dark_mode_has_colors_of_its_own(opened):
    page = opened(color_scheme="dark")
    ground, canvas = page.locator("body"), "document.querySelector('.head canvas').toDataURL()"
    dark, picture = ground.evaluate(COLOR), page.evaluate(canvas)
    page.emulate_media(color_scheme="light")
    until(page, f"dark => {canvas} !== dark", picture)
    assert ground.evaluate(COLOR) != dark
    page.emulate_media(color_scheme="dark")
    until(page, f"dark => {canvas} === dark", picture)


def test_viewer_of_hostile_and_chinese_words_shows_them_and_runs_no_other_script(opened):
    words, title = [*HOSTILE, "猫"], "<script>alert(2)</script>"
    viewer = plot.viewer({"m/self_attention": np.full((1, S, S), 1 / S)}, words, title=title)
    planted = viewer.page.replace("<main>", "<script>window.ran = true</script><main>")
    page = opened(plot.Viewer(planted))
    assert page.evaluate("window.ran") is None
    (fault,) = opened.faults
    assert "Content Security Policy" in fault  # which the browser tells
    opened.faults.clear()
    assert page.locator("#queries .text").all_text_contents() == words
    assert page.locator("h1").inner_text() == title
    assert page.locator("script").count() == 3  # the data, the page's own, and the planted one
    assert page.locator("img").count() == 0
    assert page.locator("#choices fieldset:visible").count() == 0  # one matrix: nothing to choose
    assert not page.locator("#overview").is_visible()
    word(page, "queries", HOSTILE[0]).hover()
    assert page.locator("#ranks .name").all_text_contents() == words
    word(page, "keys", "猫").hover()
    assert page.locator("#question").inner_text() == "“猫” is attended to by"


def test_viewer_of_learned_queries_has_numbers(opened):
    pool = np.full((1, 2, S), 0.05)
    pool[0, 1, 2] = 0.7
    page = opened(plot.viewer({"self": np.full((1, S, S), 1 / S), "pooling": pool}, SOURCE))
    assert page.locator("#queries-name").inner_text() == "Queries: the sentence"
    choose(page, "view", "Pooling")
    assert page.locator("#queries .text").all_text_contents() == ["0", "1"]
    assert page.locator("#queries-name").inner_text() == "Queries: learned"
    assert page.locator("#keys-name").inner_text() == "Keys: the sentence"
    word(page, "keys", "cat").hover()
    assert numbers(page, "queries") == ["5.0%", "70%"]


def test_viewer_in_chinese_has_no_english_label(opened):
    page = opened(plot.viewer(known(), SOURCE, TARGET, READ, language="zh"))
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    assert page.get_by_role("radio", name="编码器-解码器").is_checked()
    word(page, "queries", "chat").hover()
    assert page.locator("#question").inner_text() == "“chat”所注意的词"
    assert page.locator("#spoken").text_content() == "“chat”注意 cat 75%、does 8.3%、not 8.3%"
    choose(page, "view", "解码器")
    own = {*SOURCE, *TARGET, *READ, "Attention weights by word", "Esc"}
    english = page.evaluate("""() => [
      ...document.querySelectorAll("[aria-label]")].map((it) => it.ariaLabel
    ).concat(document.body.innerText.split("\\n"))""")
    paths = [text for text in english if "decoder/" not in text]
    left = {word for text in paths for word in re.findall("[A-Za-z]{2,}", text)}
    assert left <= {part for text in own for part in re.findall("[A-Za-z]{2,}", text)}


def test_viewer_in_a_frame_works_and_tells_the_page_around_its_height(opened):
    frame = plot.viewer(known(), SOURCE, TARGET)._repr_html_()  # as in a notebook
    around = f"""<!doctype html><title>around</title>{frame}
    <script>addEventListener("message", ({{data}}) => (window.told = data.viewerHeight))</script>"""
    page = opened(plot.Viewer(around))
    assert set(opened.faults) <= {"about:srcdoc"}  # the frame's own address
    opened.faults.clear()
    until(page, "window.told > 500")
    inside = page.frame_locator("iframe")
    inside.locator("#queries .word").nth(1).hover()
    assert inside.locator("#question").inner_text() == "“chat” attends to"
