"""The page of a translator in a real browser: the numbers and translations of Python, and what a
reader does there.
"""

import pathlib
from typing import NamedTuple

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.pages import MODELS, rounded, sentences, varied
from tests.helpers.browser import until
from tests.helpers.searches import eagerly
from tests.helpers.tensors import numpy
from tfattn import data
from tfattn.convert import to_page

pytestmark = pytest.mark.slow


# What the page computes.


class Exported(NamedTuple):
    """A page, the model with its weights, and sentences of four to seven tokens."""

    path: pathlib.Path
    model: tfattn.Transformer
    source: data.Vocabulary | data.SubwordVocabulary
    target: data.Vocabulary | data.SubwordVocabulary
    texts: list[str]


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    keras.utils.set_random_seed(2)  # the weights are the same after any other tests
    model, source, target = MODELS[request.param]()
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    kind = "float16" if request.param == "subwords" else "int8"
    to_page(varied(model), source, target, path, quantization=kind)
    return Exported(path, rounded(model, path), source, target, sentences(source))


@pytest.fixture
def js(exported, open_file):
    """A function of code and the value of `given`, which the page computes."""
    page = open_file(exported.path)
    return lambda code, given: page.evaluate(f"(given) => {code}", given)


# The tokens of greedy search, and the logits of each.
STEPS = """{
  const end = new Tree(model, given, OPTIONS).greedy();
  return [tokensOf(end), pathTo(end.parent).map((node) => [...node.logits])];
}"""
ODD = [
    "  ab\u3000cab \x85 lowest",
    "☃☃ a ☃",
    "ａｂ e\u0301",
    "a\u2581b \u2585",
    "aa \u2581 bb",
    "🙂",
    "<eos> <pad>",
    "\x1cb\0a",
]
SEARCHES = {"tree.greedy()": None, "beams(tree).node": tfattn.BeamSearch(num_beams=5)}
WITHOUT_BEAMS = ("subwords", "characters")  # beams are of every model, and take seconds


@pytest.mark.filterwarnings("ignore:translate. `source_vocabulary` lacks words")
def test_page_computes_and_writes_what_its_model_does(exported, js):
    _, model, *words, texts = exported
    every = [*ODD, *texts]
    segmented = js("given.map((text) => sourceWords.encode(text).map(({ id }) => id))", every)
    assert segmented == [words[0].encode(text) for text in every]

    sources = np.array([[*words[0].encode(text)[:4], 3] for text in texts[:10]])
    found = [js(STEPS.replace("OPTIONS", "{}"), ids[:-1].tolist()) for ids in sources]
    targets = np.zeros((len(found), max(len(tokens) for tokens, _ in found)), int)
    for row, (tokens, _) in zip(targets, found, strict=True):
        row[: len(tokens)] = [2, *tokens[:-1]]
    wanted = numpy(model((sources, targets)))
    for row, (_, logits) in zip(wanted, found, strict=True):
        assert np.ptp(logits) > 1
        np.testing.assert_allclose(logits, row[: len(logits)], atol=1e-4)

    code = """given.map((text) => {
      const beams = (tree) => {
        const search = new BeamSearch(tree, 5);
        while (!search.done) search.step();
        return search.beams[0];
      };
      const tree = new Tree(model, sourceWords.encode(text).map(({ id }) => id));
      return targetWords.decode(tokensOf(SEARCH));
    })"""
    for search, ours in SEARCHES.items():
        if ours and exported.path.stem in WITHOUT_BEAMS:
            continue
        with eagerly():
            wanted = tfattn.translate(model, texts, *words, search=ours, batch_size=len(texts))
        assert len(set(wanted)) > 5
        assert js(code.replace("SEARCH", search), texts) == wanted, search


@pytest.mark.parametrize("exported", ["words", "subwords"], indirect=True)
def test_page_with_heads_off_and_tokens_hidden_leaves_them_out(exported, js):
    model, ids = rounded(exported.model, exported.path), exported.source.encode(exported.texts[0])
    off = ["encoder 0 1", "decoder 1 0", "cross 0 1"]
    options = f"{{ hidden: new Set([1]), off: new Set({off}) }}"
    tokens, logits = js(STEPS.replace("OPTIONS", options), ids)
    for name in off:
        side, layer, head = name.split()
        block = getattr(model, "encoder" if side == "encoder" else "decoder").blocks[int(layer)]
        part = block.cross_attention if side == "cross" else block.self_attention
        kernel = numpy(part.output_dense.kernel).copy()  # (H, P, D)
        kernel[int(head)] = 0
        part.output_dense.kernel.assign(kernel)
    source = np.array([[*ids, 3]])
    source[0, 1] = 0
    wanted = numpy(model((source, np.array([[2, *tokens[:-1]]]))))[0]
    np.testing.assert_allclose(logits, wanted, atol=1e-4)
    _, whole = js(STEPS.replace("OPTIONS", "{}"), ids)
    assert np.abs(np.array(whole[0]) - wanted[0]).max() > 0.1


# What a reader does.

HOSTILE = "<script>alert(1)</script>"
SOURCE = data.Vocabulary([HOSTILE, "the", "cat", "sees", "a", "bird", "."])
TARGET = data.Vocabulary([HOSTILE, "le", "chat", "voit", "un", "oiseau", "鸟", "."])
EXAMPLES = ["the cat sees a bird .", f"{HOSTILE} sees the cat"]
IDS = SOURCE.encode(EXAMPLES[0])
LAYERS, HEADS, WIDTH = 2, 3, 12


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(2)
    sizes = {"num_layers": LAYERS, "width": WIDTH, "num_heads": HEADS, "hidden_dim": 10}
    model = tfattn.Transformer(len(SOURCE), len(TARGET), **sizes)
    varied(model)
    bias = numpy(model.output_dense.bias).copy()
    bias[TARGET.end_id] = -9.0  # translations are long
    model.output_dense.bias.assign(bias)
    for variable in model.weights:  # the page's float16 is exact
        variable.assign(numpy(variable).astype("float16"))
    return model


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    to_page(model, SOURCE, TARGET, path, EXAMPLES, title="<b>title</b>", quantization="float16")
    return path


@pytest.fixture
def opened(open_file, path):
    def open_page(begin=True, **options):
        page = open_file(path, **options)
        if begin:  # before the first token
            page.evaluate("start()")
        return page

    open_page.faults = open_file.faults
    return open_page


def written(page):
    return page.locator("#written .text").all_text_contents()[1:]  # after the begin token


def candidates(page):
    return page.locator("#candidates .text").all_text_contents()


def choose(page, name, label):
    group = page.locator(f"#choose-{name}")
    group.locator("label", has=page.get_by_text(label, exact=True)).click()


@pytest.mark.filterwarnings("ignore:translate. `source_vocabulary` lacks words")
def test_page_translates_sentence_whole_by_keyboard_in_narrow_window(opened, model):
    page = opened(begin=False, width=390, height=844)
    text, notice = page.locator("#text"), page.locator("#notice")
    sentences = [EXAMPLES[0], "zorg a blif, sees the cat or a bird"]
    with eagerly():
        wanted = tfattn.translate(model, sentences, SOURCE, TARGET)
    assert text.inner_text() == wanted[0] != wanted[1]
    for at, keys in ((1, ["Enter"]), (0, ["Tab", "Enter"])):  # in the field, and on the button
        page.locator("#source").focus()
        page.keyboard.press("ControlOrMeta+A")
        page.keyboard.type(sentences[at])
        for key in keys:
            page.keyboard.press(key)
        assert text.inner_text() == wanted[at]
        assert ("“zorg”, “blif,”, “or”." in notice.inner_text()) == bool(at)
        for part in ("#source", "#text", *["#notice"] * at):  # above a keyboard on the screen
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] < 450, part
    assert page.locator("#forward").is_disabled()
    last = candidates(page)  # what else the last step could write
    page.locator("#back").click()
    assert candidates(page) == last
    page.locator("#finish").click()
    page.locator("#candidates button").nth(1).click()
    assert written(page)[-1] == last[1]


def test_page_goes_step_by_step_and_on_from_another_token(opened):
    page = opened()
    assert page.locator("#tokens .text").all_text_contents() == [*EXAMPLES[0].split(), "<eos>"]
    best = []
    for _ in range(3):
        best.append(candidates(page)[0])
        page.locator("#forward").click()
    assert written(page) == best
    shares = page.locator("#candidates .number").all_text_contents()
    assert [float(share[:-1]) for share in shares] == sorted(
        (float(share[:-1]) for share in shares), reverse=True
    )
    page.locator("#back").click()
    assert written(page) == best[:2]
    other = candidates(page)[2]
    page.locator("#candidates button").nth(2).click()
    assert written(page) == [*best[:2], other]
    page.locator("#written .word").nth(1).click()
    assert written(page) == best[:1]
    page.locator("#finish").click()
    assert page.locator("#forward").is_disabled()
    assert page.locator("#text").inner_text() == TARGET.decode(
        [TARGET.words.index(word) for word in written(page)]
    )


def test_page_shows_the_weights_of_the_model(opened, model):
    page = opened()
    for _ in range(3):
        page.locator("#forward").click()
    target = [TARGET.words.index(word) for word in written(page)]
    wanted = tfattn.attention_weights(model, (np.array([[*IDS, 3]]), np.array([[2, *target]])))
    for view, part in (
        ("encoder", "encoder/block_{}/self_attention"),
        ("decoder", "decoder/block_{}/self_attention"),
        ("cross", "decoder/block_{}/cross_attention"),
    ):
        for layer in range(LAYERS):
            found = page.evaluate(f"attentionOf('{view}', {layer}).weights")  # (T, H, S)
            [known] = [w for name, w in wanted.items() if name.endswith(part.format(layer))]
            np.testing.assert_allclose(np.swapaxes(found, 0, 1), numpy(known)[0], atol=1e-4)
    assert page.locator(".head").count() == LAYERS * HEADS
    page.locator("#back").click()
    choose(page, "view", "in the decoder")
    page.locator("#queries .word").first.click()  # later tokens are hidden from it
    assert page.locator("#numbers tbody tr.hidden").count() == 2
    assert page.locator("#keys .number").all_text_contents() == ["100%", "", ""]


def test_page_shows_the_numbers_of_a_query(opened):
    page = opened()
    choose(page, "view", "in the encoder")
    choose(page, "head", "2")
    page.locator("#queries .word").nth(1).click()
    weights = page.evaluate("attentionOf('encoder', 1).weights[1][2]")
    shown = page.locator("#keys .number").all_text_contents()
    assert shown == page.evaluate("all => all.map((w) => w < 0.0005 ? '' : percent(w))", weights)
    assert page.locator("#lines path").count() == sum(weight >= 0.005 for weight in weights)
    page.locator("#place").fill("3")
    cells = page.locator("#numbers tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.innerText))"
    )
    numbers = [[float(row[i].replace("−", "-")) for i in (0, 1, 3, 5, 6)] for row in cells]
    products, scores, powers, values, parts = np.transpose(numbers)
    np.testing.assert_allclose(scores, products / np.sqrt(WIDTH / HEADS), atol=0.011)
    np.testing.assert_allclose(powers, np.exp(scores - scores.max()), atol=0.02)
    np.testing.assert_allclose(parts, weights * values, atol=0.03)
    total = page.locator("#numbers tfoot td").last.inner_text()
    assert float(total.replace("−", "-")) == pytest.approx(parts.sum(), abs=0.05)


def test_page_switches_heads_off_and_undoes_it(opened):
    page = opened()
    page.locator("#finish").click()
    whole = page.locator("#text").inner_text()
    assert page.locator("#effect").inner_text() == ""
    for head in range(HEADS):
        page.get_by_label(f"Layer 1, head {head} is on").uncheck()
    assert page.locator("#effect").inner_text().startswith("With the changes, the translation is")
    assert "from decoder to encoder, layer 1, head 0" in page.locator("#changed").inner_text()
    page.locator("#tokens .word").nth(1).click()
    assert page.locator("#tokens .word").nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator("#before").inner_text() == whole
    changed = page.evaluate(
        """() => targetWords.decode(tokensOf(new Tree(model, state.source.map(({ id }) => id), {
          hidden: new Set([1]), off: new Set(["cross 1 0", "cross 1 1", "cross 1 2"]),
        }).greedy()))"""
    )
    assert page.locator("#after").inner_text() == changed
    assert page.locator("#text").inner_text() == changed
    page.locator("#start").click()
    assert "was" in page.locator("#candidates .soft").first.inner_text()
    page.locator("#finish").click()
    page.locator("#undo").click()
    assert page.locator("#text").inner_text() == whole
    assert not page.locator("#changes").is_visible()


def test_page_with_beams_draws_their_tree(opened):
    page = opened()
    choose(page, "search", "5 beams")
    for count in (5, 10):
        page.locator("#forward").click()
        assert page.locator("#tree .box").count() <= count
    assert page.locator("#tree .best").count() == 0
    page.locator("#finish").click()
    best = written(page)
    assert page.locator("#tree .box.best").count() == len(best)
    page.locator("#tree .box:not(.best)").last.click()
    assert written(page) != best
    page.locator("#start").click()
    page.locator("#candidates button").first.click()  # goes on without beams
    assert not page.locator("#beams").is_visible()


def test_page_is_played_and_stepped_by_the_keyboard(opened):
    page = opened()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert len(written(page)) == 1
    page.keyboard.press(" ")
    assert page.locator("#play").inner_text() == "Pause"
    until(page, "document.querySelectorAll('#written .word').length >= 3")
    page.keyboard.press(" ")
    assert page.evaluate("state.timer") is None
    assert page.locator("#play").inner_text() == "Play"
    page.locator("#source").fill("a cat")
    page.keyboard.press("Enter")
    assert page.locator("#tokens .text").all_text_contents() == ["a", "cat", "<eos>"]
    page.locator("#start").press("Enter")
    page.locator("#candidates button").nth(1).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")  # the focus stays on a candidate
    assert len(written(page)) == 2


def test_page_keeps_the_focus_when_its_control_is_gone(opened):
    page = opened()
    page.locator("#finish").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator("#finish").is_disabled()
    assert page.evaluate("document.activeElement === find('#written .active')")
    page.locator("#tokens .word").first.click()
    page.locator("#undo").focus()
    page.keyboard.press("Enter")
    assert page.locator("#written :focus").count() == 1
    choose(page, "search", "5 beams")
    assert page.locator("#finish").is_disabled()  # another search translates whole again
    page.locator("#tree .box").nth(2).focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement === document.querySelectorAll('#tree .box')[2]")


def test_page_tells_unknown_words_and_lists_the_known(opened):
    page = opened()
    page.locator("#source").fill("The cat, a dog.")
    page.get_by_role("button", name="Translate").click()
    assert "“The”, “cat,”, “dog.”." in page.locator("#notice").inner_text()
    page.locator("#notice button").click()
    assert page.locator("#source").input_value() == "the cat , a dog ."
    assert "“,”, “dog”." in page.locator("#notice").inner_text()
    page.locator("#source").fill("  ")
    page.get_by_role("button", name="Translate").click()
    assert "Type a sentence" in page.locator("#notice").inner_text()
    page.locator("#known summary").focus()
    page.keyboard.press(" ")
    assert page.locator("#known p").inner_text() == " ".join(sorted(SOURCE.words[4:]))


def test_page_speaks_chinese(opened, path):
    page = opened(locale="zh-CN")
    assert page.locator("#play").inner_text() == "播放"
    for language, play in (("zh", "播放"), ("en", "Play")):  # as a page that embeds this one asks
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}#{language}")
        assert page.locator("#play").inner_text() == play
    opened.faults.clear()
    page = opened(locale="zh-CN")
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    keys = page.evaluate("Object.values(TEXTS).map((texts) => Object.keys(texts))")
    assert keys[0] == keys[1]
    choose(page, "language", "English")
    assert page.locator("#play").inner_text() == "Play"


def test_page_shows_a_script_as_text_and_loads_nothing(opened):
    page = opened()
    page.locator("#examples button").nth(1).click()
    assert page.locator("#tokens .text").first.inner_text() == HOSTILE
    page.locator("#start").click()
    page.evaluate(f"pick({TARGET.words.index(HOSTILE)})")
    assert written(page) == [HOSTILE]
    assert page.locator("h1").inner_text() == "<b>title</b>"
    assert page.locator("script").count() == 2 and page.locator("h1 b").count() == 0
    blocked = "fetch('https://example.org').then(() => 'loaded', () => 'blocked')"
    assert page.evaluate(blocked) == "blocked"
    assert any("Content Security Policy" in fault for fault in opened.faults)
    opened.faults.clear()


def test_page_in_a_narrow_window_scrolls_a_table_alone(opened):
    page = opened(width=320, height=720)
    page.get_by_role("group", name="One number, step by step").focus()
    page.keyboard.press("ArrowRight")
    until(page, "find('#numbers').parentElement.scrollLeft > 0")
    assert written(page) == []
    choose(page, "search", "5 beams")
    page.locator("#finish").click()
    for width in (320, 768):
        page.set_viewport_size({"width": width, "height": 720})
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_page_in_dark_mode_has_other_colors(opened):
    color = "it => getComputedStyle(it).backgroundColor"
    light, dark = (
        opened(color_scheme=scheme).locator("body").evaluate(color) for scheme in ("light", "dark")
    )
    assert light != dark
