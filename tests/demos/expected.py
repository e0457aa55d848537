"""What each demo has found when it ends: the numbers of its last line, and the variables behind
them.

The demos run where their pages are built, `python docs/build.py`, which calls `check` at the end of
each. A fact that does not hold makes the demo fail there.
"""

import json
import re
import traceback
import types

import numpy as np

import tfattn

near = np.testing.assert_allclose
FACTS = {}


def check(name, variables, folder):
    """Raises where a demo has not shown what it is to show.

    Args:
        variables: the demo's own, at its end.   folder: where it has written.
    """
    numbers = json.loads(json.dumps(variables["result"]))
    files, facts = FACTS[name]
    try:
        written = {path.name for path in folder.iterdir()}
        assert written == files, f"it is to write {sorted(files)}, and has {sorted(written)}"
        for picture in folder.glob("*.png"):
            assert picture.read_bytes().startswith(b"\x89PNG"), f"{picture.name} is no picture"
        facts(numbers, types.SimpleNamespace(**variables))
    except AssertionError as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = [frame.line for frame in frames if frame.filename == __file__][-1]
        said = [f"demos/{name}.py does not show what it is to show: {line}"]
        for number in re.findall(r'numbers\["(\w+)', line):
            said.append(f"{number} is {numbers.get(number)}")
        raise AssertionError("\n".join([*said, str(error).strip()])) from None


def writes(*files):
    """Registers the facts of the demo of that name, which writes these files."""

    def register(facts):
        FACTS[facts.__name__] = set(files), facts
        return facts

    return register


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@writes("keys.png", "table.png")
def attention_cues(numbers, end):
    weights = softmax(end.queries.astype("float64") @ end.keys.T / 2)  # the root of the width
    near(numbers["without_query"], weights[0], rtol=1e-5)
    near(numbers["with_query"], weights[1], rtol=1e-5)
    assert end.things[np.argmax(numbers["without_query"])] == "cup"
    assert end.things[np.argmax(numbers["with_query"])] == "book"
    near(end.outputs, weights @ end.values, rtol=1e-5)


@writes("fits.png", "kernels.png", "weights.png")
def kernel_regression(numbers, end):
    random = np.random.default_rng(end.options.seed)
    x = np.sort(random.uniform(0.0, 5.0, 50))
    y = 2 * np.sin(x) + x**0.8 + random.normal(0.0, 0.5, 50)
    asked = np.linspace(0.0, 4.9, 50)
    truth = 2 * np.sin(asked) + asked**0.8
    between, apart = asked[:, None] - x, x[:, None] - x

    def error_of(kernel):
        return np.mean((kernel @ y / kernel.sum(axis=1) - truth) ** 2)

    def gaussian_error(bandwidth):
        return error_of(np.exp(-((between / bandwidth) ** 2) / 2))

    def left_out(w):
        powers = np.exp(-((apart * w) ** 2) / 2) * (1 - np.eye(50))
        return np.sum((powers @ y / powers.sum(axis=1) - y) ** 2)

    near(numbers["mse_average"], np.mean((y.mean() - truth) ** 2), rtol=1e-6)
    near(numbers["mse_nonparametric"], gaussian_error(1.0), rtol=1e-4)
    near(numbers["mse_parametric"], gaussian_error(numbers["bandwidth"]), rtol=1e-3)
    assert numbers["mse_nonparametric"] < numbers["mse_average"] / 2
    assert 0.05 < numbers["bandwidth"] < 0.5
    # training finds the bandwidth of the least leave-one-out error
    bandwidths = np.geomspace(0.05, 2.0, 60)
    best = bandwidths[np.argmin([left_out(1 / h) for h in bandwidths])]
    step = (2.0 / 0.05) ** (1 / 59)
    assert abs(np.log(numbers["bandwidth"] / best)) < 2 * np.log(step)
    # five steps of gradient descent, as write-ups have them
    w = 1.0
    for _ in range(5):
        w -= 0.5 * (left_out(w + 1e-5) - left_out(w - 1e-5)) / 2e-5
    near(float(end.w), w, rtol=1e-3)
    near(end.mse_noisy, gaussian_error(1 / w), rtol=1e-3)
    near(end.means.ravel(), [4.5, 14.5], rtol=1e-12)
    u = np.abs(between)
    kernels = {
        "Gaussian": np.exp(-(u**2) / 2),
        "boxcar": u <= 1.0,
        "triangular": np.maximum(1 - u, 0),
        "Epanechnikov": np.maximum(1 - u**2, 0),
        "constant": np.ones_like(u),
    }
    assert list(end.mse_kernels) == list(kernels)
    near([*end.mse_kernels.values()], [error_of(kernel) for kernel in kernels.values()], rtol=1e-4)
    near(numbers["own_bandwidth"], numbers["bandwidth"], rtol=1e-3)
    assert len(numbers["own_difference"]) == 3 and max(numbers["own_difference"]) < 1e-5
    # of thirty real points each is predicted from the other 29, and those behind them from 30
    powers = np.exp(-((apart / numbers["own_bandwidth"]) ** 2) / 2) * (1 - np.eye(50))
    powers[:, 30:] = 0
    near(end.both[0][0][0, :, 0], powers @ y / powers.sum(axis=1), rtol=1e-3)


@writes("band.png", "bandwidths.png", "consistency.png", "diabetes.png", "surface.png")
def kernel_regression_tool(numbers, end):
    assert end.model.search_errors[-1] <= min(end.errors["leave-one-out"])
    step = (2.0 / 0.05) ** (1 / 59)
    assert abs(np.log(numbers["bandwidth"] / numbers["best_bandwidth"])) < np.log(step)
    # least where neither noise nor bias rules
    against = end.errors["against the truth"]
    assert min(against) < 0.3 * against[0] and min(against) < 0.1 * against[-1]
    assert numbers["covered"] > 0.8
    # the band is wide where few points count
    assert np.corrcoef(end.band.high - end.band.low, end.neighbors)[0, 1] < 0
    assert end.neighbors.min() > 1 and end.neighbors.max() < 50
    first, second = numbers["bandwidths_of_two_inputs"]
    assert 1.3 * first < second, f"{first} and {second}, the slower input's"
    assert numbers["rmse_surface"] < 0.15  # of noise of 0.3
    near(end.smooth[30, 12], end.plane.predict([[-0.6, 0]])[0])
    assert list(numbers["r2"]) == ["local linear", "a plane", "20 neighbors"]
    assert numbers["r2"]["local linear"] > numbers["r2"]["20 neighbors"]
    assert abs(numbers["r2"]["local linear"] - numbers["r2"]["a plane"]) < 0.03
    # The limit is −2/5. Twenty draws have a relative standard error of 0.1 or so, and the slope
    # through seven of them one of 0.03.
    assert abs(numbers["slope"] + 0.4) < 0.1
    assert end.rmse[-1] < 0.3 * end.rmse[0]


@writes("bandwidths.png", "errors.png", "slopes.png", "task.png")
def learned_bandwidth(numbers, end):
    # scores of up to 16 in float32, and a weight's relative error is its score's error
    assert numbers["difference"] < 4 * 16 * 2.0**-23
    matrix = np.array(numbers["matrix"])
    scale = np.trace(matrix) / 3
    near(matrix, scale * np.eye(3), atol=0.05 * scale)
    near([scale**-0.5, numbers["leave_one_out"]], numbers["learned"], rtol=0.12)
    # On tasks that nothing was trained on, no other bandwidth has a lower error.
    (query, key, value), target = end.tasks(128)

    def error(h):
        return np.mean((softmax(query @ np.swapaxes(key, 1, 2) / h**2) @ value - target) ** 2)

    learned = numbers["learned"]
    assert error(learned) < min(error(learned / 1.3), error(learned * 1.3))
    signs = {"n": -1, "noise": 1, "steepness": -1}
    for name, sign in signs.items():
        heights, powers = end.measured[name], numbers["slopes"][name]
        near(heights[:, 0], heights[:, 2], rtol=0.25, err_msg=name)
        assert (sign * np.array([powers["learned"], powers["leave-one-out"]]) > 0).all(), name
        near(powers["learned"], powers["leave-one-out"], atol=0.15, err_msg=name)
    # A plane over the circle is a constant, a cosine and a sine.
    basis = np.stack([np.ones_like(end.angles), np.cos(end.angles), np.sin(end.angles)], axis=1)
    plane = end.predictions["linear attention"]
    near(basis @ np.linalg.lstsq(basis, plane, rcond=None)[0], plane, atol=1e-4)
    # what a plane leaves of a wave stays, however many points there are
    linear, softmax_errors = numbers["linear_errors"], numbers["softmax_errors"]
    assert linear[-1] > 0.75 * linear[0], f"{linear}"
    assert softmax_errors[-1] < min(0.25 * linear[-1], 0.3 * softmax_errors[0])
    table = numbers["elsewhere"]
    for steepness in ("1.0", "4.0"):
        fixed, chosen = table[steepness]
        assert chosen < fixed, f"steepness {steepness}: {fixed}, {chosen}"
    fixed, chosen = table["2.0"]
    assert fixed < 1.05 * chosen


@writes("means.png")
def batched_matmul(numbers, end):
    assert numbers["product_shape"] == [2, 1, 6] and numbers["product"] == 4
    assert numbers["means_shape"] == numbers["attended_shape"] == [2, 1, 1]
    # ten roundings of float32
    near(numbers["means"], [4.5, 14.5], rtol=1e-6)
    near(numbers["attended"], [4.5, 14.5], rtol=1e-6)


@writes("gradient.png", "masked_softmax.png", "scores.png", "variance.png", "weights.png")
def scoring_functions(numbers, end):
    assert list(numbers["outputs"]) == ["additive", "scaled dot product", "bilinear", "cosine"]
    for score in numbers["outputs"]:  # the means of the values that count
        expected = [[2, 3, 4, 5], [10, 11, 12, 13]]
        near(numbers["outputs"][score], expected, atol=1e-4, err_msg=score)
    assert numbers["widths"] == [4, 8, 16, 32, 64, 128, 256, 512]
    widths = np.array(numbers["widths"])
    # Relative standard error of the variance of n queries by ten keys. Given a query, a product is
    # normal with variance |q|², which itself varies by 2/d.
    error = np.sqrt((2 / widths + (2 + 6 / widths) / 10) / 2000)
    assert np.all(np.abs(numbers["variances"]["unscaled"] / widths - 1) < 5 * error)
    near(numbers["variances"]["scaled"], numbers["variances"]["unscaled"] / widths, rtol=1e-4)
    assert np.all(np.diff(numbers["slopes"]["unscaled"]) < 0)
    # The mean of α(1 − α) over ten standard normal scores, by simulation.
    weights = softmax(np.random.default_rng(1).normal(size=(20_000, 10)))
    near(numbers["slopes"]["scaled"], np.mean(weights * (1 - weights)), rtol=0.03)
    assert numbers["slopes"]["unscaled"][-1] < numbers["slopes"]["scaled"][-1] / 10
    for name, (first, last) in numbers["own_losses"].items():
        assert last < first / 3 and last < 0.25, f"{name}: {first}, {last}"
    counts = {name: len(each) for name, each in numbers["own_differences"].items()}
    assert counts == {"additive": 1 + 3 + 3, "dot product": 1 + 3}  # outputs, weights, inputs
    assert max(map(max, numbers["own_differences"].values())) < 1e-5
    assert numbers["additive_over_dot_product"] > 1.5  # 10 and more on a quiet machine
    asks = {"additive": end.q, "dot product": end.q[..., :2]}
    w_q, w_k, w_v = end.trained["additive"].get_weights()
    scores = {
        "additive": (np.tanh((end.q @ w_q)[:, :, None] + (end.k @ w_k)[:, None]) @ w_v)[..., 0],
        "dot product": asks["dot product"] @ end.k.swapaxes(1, 2) / np.sqrt(2),
    }
    visible = np.arange(10) < np.array(end.lengths)[:, :, None]
    for name, own in end.trained.items():
        weights = softmax(np.where(visible, scores[name], -np.inf))
        pooled = own(query=asks[name], key=end.k, value=end.v, valid_lens=end.lengths)
        near(pooled, weights @ end.v, rtol=1e-4, atol=1e-5, err_msg=name)


@writes("attention.png", "flow.png", "live.html", "loss.png", "viewer.html")
def bahdanau_translation(numbers, end):
    translates(numbers, end)
    assert end.alignment.shape == (len(end.written), len(end.read))


@writes("heads.png", "loss.png")
def multi_head(numbers, end):
    # sums of 12 products of numbers of about 1, in float32
    bound = 128 * 2.0**-24 * np.abs(end.from_scratch).max()
    assert numbers["difference"] <= bound
    assert numbers["keras_difference"] <= bound
    assert (end.marks.sum(axis=1) == 1).all()
    for row in range(5):  # the letter before, and the marked one
        letters, mark = end.ids[row].tolist(), end.marks[row].tolist().index(1)
        before = [letters[0], *letters[:-1]]
        assert end.answers[row].tolist() == [[letter, letters[mark]] for letter in before]
    # A mean of two different letters leaves two orders, so one head alone does not reach them all.
    assert 0.4 < numbers["accuracy"]["one head"] < 0.9
    assert numbers["accuracy"]["two heads"] > 0.99
    assert numbers["accuracy"]["two additive heads"] > 0.99
    assert numbers["own_accuracy"] > 0.99 and max(numbers["own_difference"]) < 1e-5
    assert 0.1 < np.abs(end.moves[0]).max()  # the gradients that were compared are none of 0
    agreement = {name: np.array(each) for name, each in numbers["head_agreement"].items()}
    shares = agreement["one head"]
    assert shares.shape == (1, 2) and shares.max() < 0.75, f"agreement of one head: {shares}"
    for name in ("two heads", "two additive heads"):
        shares, said = agreement[name], f"agreement of {name}: {agreement[name]}"
        assert shares.shape == (2, 2) and sorted(shares.argmax(axis=1)) == [0, 1], said
        assert (shares >= 0).all() and (shares.sum(axis=1) <= 1 + 1e-6).all(), said
        assert shares.max(axis=1).min() > 0.75 and shares.min(axis=1).max() < 0.1, said


@writes("weights.png")
def self_attention_by_hand(numbers, end):
    known = [
        [6.3379e-02, 4.6831e-01, 4.6831e-01],
        [6.0337e-06, 9.8201e-01, 1.7986e-02],
        [2.9539e-04, 8.8054e-01, 1.1917e-01],
    ]
    near(numbers["weights"], known, rtol=5e-5)
    values = np.array([[1.0, 2.0, 3.0], [2.0, 8.0, 0.0], [2.0, 6.0, 3.0]])
    near(numbers["output"], np.array(numbers["weights"]) @ values, rtol=1e-5)
    near(numbers["output"][0], [1.9366, 6.6831, 1.5951], atol=5e-5)
    short = end.one_decimal @ end.values  # with the walk-through's short weights
    near(short, [[2.0, 7.0, 1.5], [2.0, 8.0, 0.0], [2.0, 7.8, 0.3]], atol=1e-6)


@writes("operations.png", "paths.png", "times.png")
def convolution_recurrence_attention(numbers, end):
    n, d, k, r = 1024, 128, 3, 127
    assert numbers["complexity"] == {
        "self-attention": [n**2 * d, 1, 1],
        "recurrence": [n * d**2, n, n],
        "convolution": [k * n * d**2, 1, 342],
        "dilated convolution": [k * n * d**2, 1, 7],
        "separable convolution": [k * n * d + n * d**2, 1, 342],
        "windowed self-attention": [r * n * d, 1, 9],
    }
    assert list(numbers["predicted_slopes"]) == list(numbers["complexity"])
    near(list(numbers["predicted_slopes"].values()), [2, 1, 1, 1, 1, 1])
    assert list(numbers["measured_slopes"]) == list(numbers["complexity"])
    assert np.isfinite(list(numbers["measured_slopes"].values())).all()
    # self-attention and recurrence meet where the length is the width
    attention, recurrence = (end.operations[name] for name in ("self-attention", "recurrence"))
    signs = np.sign(np.subtract(attention, recurrence))
    assert (signs == np.sign(end.lengths - 512)).all()
    square = np.asarray(end.masks["windowed self-attention"].dense(300, 300))
    assert square.sum(axis=-1).max() == r


@writes("alike.png", "clocks.png", "counter.png", "waves.png", "weights.png")
def positions(numbers, end):
    # A frequency and its product with a position are each rounded to 24 bits, in both tables.
    assert numbers["rotation_error"] < 2 * 2 * 59 * 2.0**-24
    # 59 · 10000^(−2j/d) < 0.1 where 2j/d > log 590 / log 10000
    first = np.log(590) / np.log(10_000)
    for width, share in numbers["still"].items():
        near(share, 1 - first, atol=2 / int(width), err_msg=f"still at width {width}")
    # both kinds of position find the weights that made the data
    assert list(numbers["weight_errors"]) == ["sines and cosines", "learned"]
    wanted = softmax(-((np.arange(40)[:, None] - np.arange(40)) ** 2) / 8)
    for name, error in numbers["weight_errors"].items():
        found = end.found[name]
        near(np.abs(found - wanted).max(), error, rtol=1e-5, err_msg=name)
        assert error < wanted.max() / 5, f"{name}: {error}"
        assert (np.abs(found.argmax(axis=1) - wanted.argmax(axis=1)) <= 1).all(), name
        assert numbers["own_errors"][name] < wanted.max() / 5, name
        assert max(numbers["own_differences"][name]) < 1e-5, name
    counts = {name: len(each) for name, each in numbers["own_differences"].items()}
    assert counts == {"sines and cosines": 2, "learned": 3}  # outputs, the table, inputs
    angles = np.arange(40)[:, None] / 10_000.0 ** (np.arange(16) // 2 * 2 / 16)
    near(
        end.ours["sines and cosines"].table,
        np.sin(angles + np.arange(16) % 2 * np.pi / 2),
        atol=4e-6,
    )
    assert numbers["padding_weight"] == 0.0
    # sines and cosines are as alike as their distance says
    alike, learned = end.alike
    frequencies = 10_000 ** (-2 * np.arange(8) / 16)
    for offset in range(40):
        near(np.diagonal(alike, offset), np.cos(offset * frequencies).mean(), atol=1e-5)
    assert np.diagonal(learned, 1).min() > 0.8
    assert (2 ** np.arange(4) @ end.bits == np.arange(16)).all()


@writes("alike.png", "gradients.png", "moved.png", "norms.png")
def residuals_and_norms(numbers, end):
    # only batch normalization moves a sentence with its batch
    near(numbers["moved"]["layer norm"], [0.0, 0.0], atol=1e-6)
    assert min(numbers["moved"]["batch norm"]) > 0.1
    by_padding, by_words = numbers["moved"]["batch norm, masked"]
    assert by_padding < 1e-5 and by_words > 0.1, f"{by_padding} by padding, {by_words} by words"
    # The share of a token's or a gradient's squared length that a fresh network of Glorot's weights
    # passes on: the maps are D by 4 D, so a weight has variance 2 / (D + 4 D), and ReLU halves.
    depth, share = 24, 0.5 * 4 * (2 / 5) ** 2
    expected = {
        "plain": share ** (depth / 2),
        "residual": (1 + share) ** (depth / 2),
        # the stream grows below a pre-norm, so that each layer weighs less than the one before
        "norm, residual (pre-norm)": np.sqrt(1 + share * depth),
        # and a norm after the sum divides by what the sum has multiplied
        "residual, norm (post-norm)": 1.0,
    }
    for name, length in expected.items():
        # 48 random matrices, each as wide as 128 or more: a squared length strays by about a fifth
        near(numbers["gradients"][name], length, rtol=0.35, err_msg=name)
    assert 0.5 < numbers["gradients"]["norm"] < 2.0
    for name, lengths in end.gradients.items():
        assert len(lengths) == depth + 1 and lengths[-1] == 1.0, name
    assert (np.diff(end.gradients["plain"]) > 0).all()

    def relu_cosine(cosine):  # Cho, Saul 2009: the cosine after a wide layer of ReLUs
        angle = np.arccos(cosine)
        return (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi

    plain, residual = 0.0, 0.0
    for _ in range(depth):
        plain = relu_cosine(plain)
        residual = (residual + share * relu_cosine(residual)) / (1 + share)
    near(numbers["alike"]["plain"], plain, atol=0.1)
    near(numbers["alike"]["norm"], plain, atol=0.1)
    near(numbers["alike"]["residual"], residual, atol=0.15)
    pre_norm = numbers["alike"]["norm, residual (pre-norm)"]
    assert pre_norm < numbers["alike"]["residual"] < numbers["alike"]["plain"]
    assert numbers["add_norm_difference"] < 1e-5
    losses = numbers["own_losses"]
    near(losses["ours"], losses["package"], rtol=0.02)
    assert losses["ours"][1] < 0.5 * np.log(32)  # half of what guessing has
    assert list(numbers["own_differences"]) == ["post-norm", "pre-norm"]
    for order, apart in numbers["own_differences"].items():
        assert len(apart) == 4 and max(apart) < 1e-5, order
    x = np.asarray(end.sentences)
    outer = np.asarray(end.sublayer(end.layer_norm(x, end.scale, end.shift)))
    mean = np.where(end.real[..., None], x + outer, 0).sum(axis=1) / end.real.sum(axis=1)[:, None]
    (pooled, *_, by_inputs), _ = end.both
    near(pooled, mean, rtol=1e-9)
    assert not np.asarray(by_inputs)[2, 3:].any()  # at padding


@writes("masks.png", "moved.png", "padding.png", "triangle.png")
def masked_attention(numbers, end):
    assert numbers["leak"] == 0.0
    assert (end.causal[5:] > 0).all()  # the word itself and those after it do move
    assert numbers["moved_without_mask"] > 1e-3
    assert (end.without > 1e-3).all()
    assert numbers["pairs"] == {
        "causal()": 36,
        "window(3)": 34,
        "prefix(3)": 24,
        "segments(...)": 34,
        "causal() & window(3)": 21,
        "causal() | prefix(3)": 39,
        "causal() & segments(...)": 21,
        "~window(3)": 30,
        "window(4) & EverySecond()": 20,
        "chunks(4)": 32,
        "chunks(4) | ChunkEnds()": 40,
        "window(2) | prefix(2)": 33,
    }
    assert numbers["sees_nothing"] == 0.0
    assert numbers["lost_to_nan"] == {"by hand": 8 * 16, "masked": 0}
    near(end.guarded, end.short, rtol=1e-5, atol=1e-6)


def translates(numbers, end):
    """A model has learned to translate, and where to look."""
    assert numbers["bleu"] >= 90
    # who has learned looks at the words that change places
    pairs = [pair for pair in end.held_out if "black" in pair[0] and "noir" in pair[1]][:50]
    found = []
    for source, target in pairs:
        read, written = source.split(), target.split()
        (t, *_) = [t for t, word in enumerate(written) if word.startswith("noir")]
        ids = [*end.english.encode(source), 3], [2, *end.french.encode(target)]
        weights = tfattn.attention_weights(end.model, tuple(map(np.atleast_2d, ids)))
        across = [each for path, each in weights.items() if "cross" in path]
        last = (across or [*weights.values()])[-1][0]  # (H, T, S), or (T, S) without heads
        found.append(last[..., t, :].argmax(axis=-1) == read.index("black"))  # (H,) or ()
    swaps = np.mean(found, axis=0).max()
    assert swaps >= 0.9, f"of the words that change places, it looks at {swaps}"
    # the viewer holds the sentence that the figures show, and every layer's weights
    page = end.viewer.page
    assert " ".join(end.read[:-1]) == end.source
    assert " ".join(end.written[:-1]) == end.translation
    assert all(word in page for word in [*end.read[:-1], *end.written[:-1]])
    for path, weights in end.weights.items():
        assert path in page
        near(weights.sum(axis=-1), 1.0, rtol=1e-5, err_msg=path)


@writes(
    "between.png", "decoder.png", "encoder.png", "flow.png", "live.html", "loss.png", "viewer.html"
)
def transformer_translation(numbers, end):
    translates(numbers, end)
    read, written = len(end.read), len(end.written)
    for kind, shape in (
        (end.encoder, (4, read, read)),
        (end.decoder, (4, written, written)),
        (end.between, (4, written, read)),
    ):
        assert [layer.shape for layer in kind.values()] == [shape] * 2  # two layers
    for layer in end.decoder.values():
        assert (np.triu(layer, 1) == 0.0).all()  # no word looks ahead
    assert list(numbers["block_differences"]) == ["outputs", "gradients"]
    assert max(numbers["block_differences"].values()) < 1e-5
    assert max(np.abs(each).max() for each in end.gradients[0]) > 0.01
    assert not end.real.all() and (np.asarray(end.few[0]) == 0).any()  # both sides have padding
    ours, package = (numbers["block_losses"][name] for name in ("ours", "package"))
    near(ours, package, rtol=0.02)
    assert ours[1] < 0.7 * ours[0]


@writes("heads.png", "loss.png", "model.keras")
def transformer_from_scratch(numbers, end):
    assert numbers["difference"] < 1e-4 and numbers["loaded"] < 1e-5
    assert list(numbers["exact_match"]) == ["from scratch", "package"]
    assert min(numbers["exact_match"].values()) >= 0.95
    assert not [each for each in end.ours._flatten_layers() if "tfattn" in type(each).__module__]
    near(end.weights.sum(axis=-1), 1.0, rtol=1e-5)  # nothing on padding
    with_dropout = np.asarray(end.ours(end.few, training=True))
    assert np.abs(with_dropout - np.asarray(end.ours(end.few))).max() > 0.01


@writes("heads.png")
def find_a_head(numbers, end):
    assert numbers["exact_match"] >= 0.95
    assert min(numbers["weight_on_noun"]) > 0.5
    importance = dict(numbers["importance"])
    between = importance.pop(end.between)
    assert min(between) > max(max(heads) for heads in importance.values())
    # none of them is missed alone
    for pairs in numbers["alone"].values():
        errors, right = np.transpose(pairs)
        assert errors.max() < 0.05 and right.min() > 0.9
    # without all of them the words are gone, and the order is not
    errors, right = numbers["without_four"]
    assert errors < 0.05 and right < 0.5
    near(numbers["right_named"][3], right, atol=1e-4)
    assert min(numbers["right_random"][:4]) > 0.8
    near(numbers["p_values"][3], 1 / 21, atol=1e-4)
    assert end.counted({}) == end.intact  # every head is on again


@writes("accuracy.png", "noise.png", "weights.png")
def hard_attention(numbers, end):
    asked, digits = end.test
    query, keys, values, digits = (
        np.asarray(x) for x in (asked["query"], asked["key"], asked["value"], digits)
    )
    blind = (values.argmax(axis=2) == digits[:, None]).mean()  # every card as likely
    near(numbers["chance"], blind, atol=4 * (blind * (1 - blind) / len(digits)) ** 0.5)
    assert list(numbers["accuracy"]) == ["soft", "score function", "straight-through"]
    # the best that can be had: the card whose look is the nearest to the one that was asked for
    distances = np.linalg.norm(query[:, 0, None] - end.names, axis=2)  # (B, colors)
    look = end.looks[distances.argmin(axis=1)][:, None]
    nearest = np.linalg.norm(keys - look, axis=2).argmin(axis=1)
    best = (values[np.arange(len(digits)), nearest].argmax(axis=1) == digits).mean()
    for kind, accuracy in numbers["accuracy"].items():
        assert end.accuracies[kind][0] < 0.45, f"{kind} begins at {end.accuracies[kind][0]}"
        assert 0.85 < accuracy <= best + 0.01, f"{kind} reaches {accuracy}, the best is {best}"
    noise, error = numbers["noise"], numbers["error"]
    for name in ("with baseline", "without baseline"):
        # the mean of 300 draws strays by the noise of one over √300, give or take a half
        near(error[name], noise[name] / 300**0.5, rtol=0.6, err_msg=f"error {name}")
    biased = error["straight-through"]
    assert biased > 3 * noise["straight-through"] / 300**0.5, f"{biased}, straight-through"
    assert numbers["noise"]["with baseline"] < 0.7 * numbers["noise"]["without baseline"]


@writes("errors.png", "weights.png")
def sets(numbers, end):
    near(numbers["query"], -2.0, atol=0.05)  # weights of 1 / σ²
    with_padding = np.where(end.new_real, np.exp(-2.0 * end.new[..., 1]), 0.0)
    best = with_padding / with_padding.sum(axis=1, keepdims=True)
    near(end.weights[0, 0], best[end.row], atol=0.02)
    assert len(numbers["errors"]) == 3
    for part, errors in numbers["errors"].items():
        best, least = errors["1/σ²"], errors["1/σ² and 0 ± 1"]
        assert least < best < 0.5 * errors["plain mean"], part
        near(errors["one weight"], best, rtol=0.02, err_msg=part)
        assert least < errors["Transformer"] < best, part
    # without positions the order moves roundings, and with them what is said
    for name, moved in numbers["moved"].items():
        if name == "with positions":
            assert moved > 0.1, f"{name}: {moved}"
        else:
            assert moved < 1e-5, f"{name}: {moved}"
    sorted_, shuffled, _ = (by["with positions"] for by in numbers["errors"].values())
    assert shuffled > 1.2 * sorted_, f"shuffled {shuffled}, sorted {sorted_}"
    assert not any(numbers["padding"].values())


@writes("accuracy.png", "covered.png", "patches.png", "weights.png")
def image_patches(numbers, end):
    near(end.patches_of(end.test)[:, 5, 3], end.test.reshape(-1, 8, 8)[:, 3, 3], rtol=0)
    near(end.weights.sum(axis=1), 1.0, rtol=1e-5)
    accuracy = numbers["accuracy"]
    assert min(accuracy["attention"], accuracy["logistic regression"]) > 0.94
    # without places it knows which patches there are, and not where
    assert accuracy["without positions"] < accuracy["attention"] - 0.03
    assert list(numbers["covered"]) == ["at random", "greatest weight", "most ink"]
    for name, left in numbers["covered"].items():
        assert left[0] == accuracy["attention"] and left[-1] < 0.6, f"{name}: {left}"
    drop = {name: left[0] - np.array(left[1:5]) for name, left in numbers["covered"].items()}
    assert (drop["greatest weight"] < drop["most ink"] - 0.1).all(), f"{drop}"
    assert (np.abs(drop["greatest weight"] - drop["at random"]) < 0.15).all(), f"{drop}"


@writes("errors.png", "forecast.png", "weights.png")
def time_series(numbers, end):
    for name, errors in numbers["errors"].items():
        assert list(errors) == ["last value", "linear", "attention", "told the period"]
        least = 0.2 * (1 + 8 / 64) ** 0.5  # of the noise, and of eight numbers fitted to 64
        near(errors["told the period"], least, rtol=0.1, err_msg=name)
        assert max(errors["linear"], errors["attention"]) < 0.7 * errors["last value"], name
    one, each = numbers["errors"].values()
    assert one["linear"] < one["attention"] and each["attention"] < 0.9 * each["linear"]
    assert (np.triu(end.all_weights[0, 0], 1) == 0).all()  # no step looks ahead
    assert max(numbers["near"]) > 2 * numbers["by_chance"]  # one head at least
    heads = end.below.get_legend().get_texts()
    assert [each.get_text() for each in heads] == ["head 0", "head 1"]
    assert numbers["far"]["attention"] < numbers["far"]["linear"] < numbers["far"]["last value"]


@writes(
    *("bandwidth.png", "copy.png", "edge.png", "features.png"),
    *("norms.png", "risk.png", "scale.png"),
)
def laws(numbers, end):
    # The scale: given a query, its products are normal with the variance |q|², which is about d.
    normal = np.random.default_rng(1).normal(size=(20_000, 64))
    for width, unscaled, scaled in zip(end.widths, *numbers["largest"].values(), strict=True):
        near(unscaled, softmax(width**0.5 * normal).max(axis=1).mean(), atol=0.05)
        near(scaled, softmax(normal).max(axis=1).mean(), rtol=0.12)
    # The norms: a length strays by a tenth, a slope through four means of two of them by 0.05.
    slopes = numbers["depth_slopes"]
    assert abs(slopes["post-norm"]) < 0.2 and -0.1 < slopes["pre-norm, no last norm"] < 0.3
    assert abs(slopes["pre-norm"] + 0.5) < 0.2
    assert slopes["pre-norm"] < slopes["pre-norm, larger inputs"] < -0.15
    # The edge: Taylor's series with the moments of half a normal distribution, and of a whole one.
    first, third = (2 / np.pi) ** 0.5, 2 * (2 / np.pi) ** 0.5
    h, off = end.bandwidths, end.biases
    near(off["mean, edge"][:2], first * h[:2], rtol=0.03)
    line = (1 - first * third) / (1 - first**2)  # (μ₂² − μ₁ μ₃) / (μ₀ μ₂ − μ₁²)
    near(off["line, edge"][:2], np.abs(line) * h[:2] ** 2 / 2, rtol=0.06)
    for name in ("mean, middle", "line, middle"):
        near(off[name][:2], np.exp(0.5) * h[:2] ** 2 / 2, rtol=0.03, err_msg=name)
    # Bandwidth and risk, to a standard error of 0.03 or so of a slope through six means of twenty
    slopes = numbers["bandwidth_slopes"]
    assert abs(slopes["cosine"] + 1 / 5) < 0.07 and slopes["sine"] < slopes["cosine"]
    risks = numbers["risk_slopes"]
    assert abs(risks["cosine"] + 4 / 5) < 0.25 and risks["cosine"] + 0.2 < risks["cosine, kept"]
    # Random features: both are unbiased, with the variances of Choromanski et al. 2021, lemma 2.
    random = np.random.default_rng(1)
    query, key = random.normal(size=(2, 1, 16)) / 6
    w = random.normal(size=(200_000, 16))
    product = (query @ key.T).item()
    plus, minus = np.exp(((query + key) ** 2).sum()), np.exp(((query - key) ** 2).sum())
    for name, relative in (
        ("trigonometric", minus * (1 - 1 / minus) ** 2 / 2),
        ("positive", plus - 1),
    ):
        pairs = getattr(end, name)(query, w) * getattr(end, name)(key, w) * len(w)
        each = pairs.reshape(-1, len(w)).sum(axis=0)  # of one random vector
        near(each.mean(), np.exp(product), rtol=0.01, err_msg=name)
        near(each.var(), relative * np.exp(2 * product), rtol=0.05, err_msg=name)
    assert min(end.least["positive", norm] for norm in (1, 3)) >= 0 > end.least["trigonometric", 3]
    slopes, errors = numbers["feature_slopes"], numbers["feature_errors"]
    for name in ("trigonometric", "positive"):
        assert abs(slopes[f"{name}, norm 1"] + 0.5) < 0.1, name
        assert errors[f"{name}, norm 1"] < 0.3 * errors["equal weights, norm 1"], name
        assert errors[f"{name}, norm 3"] > 0.7 * errors["equal weights, norm 3"], name
    # Copies: short texts are learned in part, and no model is better beyond its training.
    assert list(numbers["accuracies"]) == ["sinusoid", "learned", "rotary", "ALiBi", "T5", "none"]
    for name, seeds in numbers["accuracies"].items():
        for right in np.array(seeds):
            assert right[0] > 0.3, f"{name} has not learned: {right}"  # by guessing 0.02
            assert right[-1] < right[3] + 0.05, f"{name} goes on: {right}"
    for name in ("sinusoid", "learned"):
        assert max(right[-1] for right in numbers["accuracies"][name]) < 0.5, name
