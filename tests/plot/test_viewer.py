"""The viewer: what its page holds, and what it refuses. `test_viewer_in_browser.py` uses it."""

import html.parser
import json
import re

import numpy as np
import pytest

import tfattn
from tfattn import plot
from tfattn.convert.page import page as translator_page
from tfattn.plot import page

B, H, T, S = 2, 3, 5, 7
VIEWS = ["encoder", "cross", "decoder"]
SOURCE = ["the", "small", "cat", "does", "not", "sleep", "."]  # S words
TARGET = ["le", "chat", "ne", "dort", "pas"]  # T words


def weights(*shape):
    random = np.random.default_rng(11).uniform(0.1, 1.0, shape)
    return random / random.sum(axis=-1, keepdims=True)


def transformer(layers=2, queries=T, keys=S):
    """Weights as a Transformer has them, in the order of its calls."""
    collected = {
        f"model/encoder/block_{i}/self_attention": weights(B, H, keys, keys) for i in range(layers)
    }
    for i in range(layers):
        block = f"model/decoder/block_{i}"
        collected[f"{block}/self_attention"] = weights(B, H, queries, queries)
        collected[f"{block}/cross_attention"] = weights(B, H, queries, keys)
    return collected


class Elements(html.parser.HTMLParser):
    """The elements of a page, as (tag, attributes), and the text of its scripts and its title."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts, self.inside = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag if tag in ("script", "title") else None

    def handle_data(self, data):
        if self.inside:
            self.texts.append((self.inside, data))
            self.inside = None

    def of(self, tag):
        return [text for found, text in self.texts if found == tag]


def data(viewer):
    """What the page's script reads."""
    return json.loads(Elements(viewer.page).of("script")[0])


def views(viewer):
    """View to the paths of its layers."""
    return {v["kind"]: [layer["path"] for layer in v["layers"]] for v in data(viewer)["views"]}


def ends(paths):
    return [path.split("/", 1)[1] for path in paths]


# Which weights belong where


@pytest.mark.parametrize("queries, keys", [(T, S), (S, S), (T + 4, S + 2), (S + 2, S + 2)])
def test_viewer_of_a_transformer_tells_its_layers_apart(queries, keys):
    shown = views(plot.viewer(transformer(2, queries, keys), SOURCE, TARGET))
    assert list(shown) == VIEWS
    assert ends(shown["encoder"]) == [f"encoder/block_{i}/self_attention" for i in (0, 1)]
    assert ends(shown["cross"]) == [f"decoder/block_{i}/cross_attention" for i in (0, 1)]
    assert ends(shown["decoder"]) == [f"decoder/block_{i}/self_attention" for i in (0, 1)]


def test_viewer_of_layers_without_names_goes_by_size_or_else_by_order():
    collected = {
        "a": weights(B, H, S, S),
        "b": weights(B, H, T, T),
        "c": weights(B, H, T, S),
        "d": weights(B, T, S),
    }
    shown = views(plot.viewer(collected, SOURCE, TARGET))
    assert shown == {"encoder": ["a"], "cross": ["c", "d"], "decoder": ["b"]}
    # in the order of a Transformer
    collected = {name: weights(B, H, S, S) for name in "abcdef"}
    shown = views(plot.viewer(collected, SOURCE, SOURCE[::-1]))
    assert shown == {"encoder": ["a", "b"], "cross": ["d", "f"], "decoder": ["c", "e"]}


@pytest.mark.parametrize(
    "path, shape, has_target, kind, sides",
    [
        ("seq2seq/decoder", (B, T, S), True, "cross", ("target", "source")),
        ("seq2seq/decoder", (B, S, S), True, "cross", ("target", "source")),
        ("lm/decoder/block_0/self_attention", (B, H, S, S), False, "decoder", ("source",) * 2),
        ("encoder/block_0/self_attention", (B, H, S, S), False, "encoder", ("source",) * 2),
        ("multi_head_attention", (B, H, S, S), False, "self", ("source",) * 2),
    ],
)
def test_viewer_of_one_layer_has_one_view(path, shape, has_target, kind, sides):
    viewer = plot.viewer({path: weights(*shape)}, SOURCE, *[TARGET] * has_target)
    assert views(viewer) == {kind: [path]}
    (view,) = data(viewer)["views"]
    assert (view["queries"], view["keys"]) == sides
    assert len(view["layers"][0]["heads"]) == (H if len(shape) == 4 else 1)
    words = {"source": SOURCE} | ({"target": TARGET} if has_target else {})
    assert data(viewer)["words"] == words


@pytest.mark.parametrize("queries", [(1,), (2, 2), (S + 3, 1)])
def test_viewer_numbers_learned_queries_beside_the_words(queries):
    collected = {f"pooling_{i}": weights(B, count, S + 2) for i, count in enumerate(queries)}
    viewer = plot.viewer({**collected, "self": weights(B, H, S + 2, S + 2)}, SOURCE[:5])
    first, *pools = data(viewer)["views"]
    assert (first["kind"], first["queries"]) == ("self", "source")
    shown = [(view["queries"], layer) for view in pools for layer in view["layers"]]
    assert {view["kind"] for view in pools} == {"pooling"} and len(pools) == len({*queries})
    for (numbers, layer), count in zip(shown, queries, strict=True):
        assert data(viewer)["words"][numbers] == [str(place) for place in range(count)]
        assert len(layer["heads"][0]) == count * 5


def test_viewer_of_a_decoder_attends_to_its_inputs():
    read = ["<begin>", *TARGET[:-1]]
    shown = data(plot.viewer(transformer(), SOURCE, TARGET, read))
    sides = {view["kind"]: (view["queries"], view["keys"]) for view in shown["views"]}
    assert sides["decoder"] == ("target", "target_in")
    assert sides["cross"] == ("target", "source")
    assert shown["words"]["target_in"] == read


@pytest.mark.slow
def test_viewer_takes_the_weights_of_a_model():
    model = tfattn.Transformer(11, 13, num_layers=1, width=8, num_heads=2, hidden_dim=8)
    collected = tfattn.attention_weights(model, (np.ones((1, S), int), np.ones((1, T), int)))
    shown = views(plot.viewer(collected, SOURCE, TARGET))
    assert [*map(len, shown.values())] == [1, 1, 1] and list(shown) == VIEWS


# What the page holds


@pytest.mark.parametrize("queries, keys", [(T, S), (T + 4, S + 2)])
def test_viewer_weights_are_exact_to_a_thousandth_without_padding(queries, keys):
    collected = transformer(2, queries, keys)
    for view in data(plot.viewer(collected, SOURCE, TARGET))["views"]:
        rows, columns = (len({"source": SOURCE}.get(view[s], TARGET)) for s in ("queries", "keys"))
        for layer in view["layers"]:
            wanted = collected[layer["path"]][0, :, :rows, :columns]
            heads = np.reshape(layer["heads"], wanted.shape) / 1000
            np.testing.assert_allclose(heads, wanted, rtol=0, atol=0.0005001)


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x>",
    "&lt;",
    "{{data}}",
    "\\u003c",
]


def test_viewer_words_and_titles_do_not_end_an_element(tmp_path):
    sentence, title = [*HOSTILE, "黑'\"\u2028"], "<b>{{data}} & 注意力</b>"
    plain = Elements(plot.viewer({"a": weights(1, S, S)}, SOURCE).page)
    viewer = plot.viewer({"a": weights(1, S, S)}, sentence, title=title)
    assert Elements(viewer.page).elements == plain.elements
    assert Elements(viewer.page).of("title") == [title]
    assert data(viewer)["words"]["source"] == sentence
    viewer.save(tmp_path / "viewer.html")
    text = (tmp_path / "viewer.html").read_text("utf-8")
    assert text == viewer.page and "黑" in text and "注意力" in text


def test_viewer_page_names_no_other_file():
    viewer = plot.viewer(transformer(), SOURCE, TARGET)
    for tag, attributes in Elements(viewer.page).elements:
        for name in ("src", "href", "srcset", "action"):
            assert attributes.get(name, "data:,") == "data:,", tag
    assert not re.search(r"url\(|@import|fetch\(|https?://(?!www\.w3\.org/2000/svg)", viewer.page)


@pytest.mark.parametrize(
    "write",
    [
        lambda: page.fill(page.read("viewer.html"), [], "title"),
        lambda: page.fill(translator_page._template(), {}, "title"),
    ],
    ids=["viewer", "translator"],
)
def test_pages_have_the_common_styles_once(write):
    common = page.read("page.css")
    own, again = write().split(common)
    declarations = {line for line in common.splitlines() if ": " in line and "@" not in line}
    assert not declarations & {*own.splitlines(), *again.splitlines()}


def test_viewer_in_a_notebook_is_a_frame():
    viewer = plot.viewer(transformer(), HOSTILE + SOURCE[:1], TARGET)
    ((tag, attributes),) = Elements(viewer._repr_html_()).elements
    assert tag == "iframe"
    assert attributes["srcdoc"] == viewer.page
    assert attributes["sandbox"] == "allow-scripts"


@pytest.mark.slow
def test_viewer_of_six_layers_of_eight_heads_and_sixty_words_takes_two_megabytes():
    rng = np.random.default_rng(3)
    collected = {}
    for path, value in transformer(6, 60, 60).items():
        logits = rng.normal(size=(1, 8, *value.shape[2:]), scale=2.0)
        collected[path] = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    words = [f"word{i}" for i in range(60)]
    assert len(plot.viewer(collected, words, words).page.encode()) < 2e6


# What it refuses


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"weights": {}}, "`weights` must be a dict from path to an array (B, T, S) or (B, H, T,"),
        ({"weights": {"a": np.ones((T, S))}}, "`weights['a']` must have shape (B, T, S) or (B, H,"),
        (
            {"weights": {"a": np.full((B, T, S), np.nan)}},
            "`weights['a']` must hold finite numbers of at least 0. Received: weights['a']=nan",
        ),
        (
            {"weights": {"a": np.full((B, T, S), -0.5)}},
            "`weights['a']` must hold finite numbers of at least 0. Received: weights['a']=-0.5",
        ),
        (
            {"weights": {"a": np.ones((B, 0, T, S))}},  # no heads
            "`weights['a']` must hold at least one number. Received: weights['a']=(2, 0, 5, 7)",
        ),
        ({"language": "fr"}, '`language` must be "en" or "zh". Received: language=\'fr\''),
        ({"source": []}, "`source` must hold at least one word"),
        ({"target_in": ["le"]}, "`target_in` must have as many words as `target`, which has 5"),
        (
            {"target": ["le"] * 6},
            "`target` must have at most 5 words, to fit the weights of",
        ),
    ],
)
def test_viewer_with_invalid_arguments_is_refused(changes, message):
    given = {"weights": {"a": weights(B, T, S)}, "source": SOURCE, "target": TARGET} | changes
    with pytest.raises(ValueError, match=re.escape(f"viewer: {message}")):
        plot.viewer(**given)
