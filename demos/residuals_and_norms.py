"""
Residuals and layer normalization
=================================

Each sublayer F of a Transformer is wrapped in two small things: its input is added to its output,
H(x) = F(x) + x (the residual), and the sum is normalized. First we see why the norm is taken over
the features of a token and not over the batch. Then a gradient is propagated down through 24
layers, with and without both. In the end we write a whole block of an encoder from scratch, and
residual and norm as a Keras layer.
"""

# %%
# What you will learn
# -------------------
# - why sequence models normalize the features of a token, and not the batch;
# - how residuals and norms keep the gradient, and the tokens apart, through 24 layers;
# - how to write a block of the encoder from scratch: attention, residual, norm, feed-forward;
# - how to write residual and norm as a layer that Keras trains and saves.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`Multi-head attention <multi_head>`; the chain rule.
# - Time: 20 minutes to read, half a minute to run.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 3
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
import tensorflow as tf

import tfattn

# sphinx_gallery_start_ignore
from _figures import bars, curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/residuals_and_norms", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)
random = np.random.default_rng(options.seed)

# %%
# Two norms
# ---------
# Both keep numbers from drifting as they pass from layer to layer. They take a mean away, divide by
# a standard deviation, and then scale and shift by what they learn (fresh layers have
# :math:`\gamma = 1` and :math:`\beta = 0`; the small :math:`\epsilon` keeps them from 0 / 0):
#
# .. math:: \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta
#
# Layer normalization takes :math:`\mu` and :math:`\sigma` over the features of one token: a row of
# the picture. Batch normalization, which is usual in vision, takes them over all tokens of the
# batch, one feature at a time: a column. Sentence a has two words and two places of padding, which
# are 0; sentence b has four words. See the padding in the right picture: it is 0 in the batch, and
# yet it takes part.
#
# The paper on batch normalization (Ioffe, Szegedy 2015, arXiv:1502.03167) explains its use by
# *internal covariate shift*: the distribution of a layer's inputs changes whenever the layers below
# it learn, and the layer has to follow. Later measurements did not confirm this explanation:
# networks with a norm learn equally well when the distributions are shifted on purpose. A smoother
# loss explains more (Santurkar et al. 2018, arXiv:1805.11604).
batch = random.normal([1.0, -1.0, 0.0, 2.0], [1.0, 2.0, 0.5, 1.0], (2, 4, 4)).astype("float32")
batch[0, 2:] = 0.0
real = np.array([[True, True, False, False], [True, True, True, True]])
norms = {
    "layer norm": lambda x, real: keras.layers.LayerNormalization(epsilon=1e-5)(x),
    "batch norm": lambda x, real: keras.layers.BatchNormalization(epsilon=1e-5)(x, training=True),
    "batch norm, masked": lambda x, real: keras.layers.BatchNormalization(epsilon=1e-5)(
        x, training=True, mask=real
    ),
}
normalized = {name: np.asarray(norm(batch, real)) for name, norm in norms.items()}  # (2, 4, 4) each
pictures = {"the batch": batch, **normalized}
figure = tfattn.plot.heatmaps(
    [picture.reshape(8, 4) for name, picture in pictures.items() if "masked" not in name],
    row_labels=["a: word 1", "a: word 2", "a: pad", "a: pad", *(f"b: word {n}" for n in "1234")],
    titles=[name for name in pictures if "masked" not in name],
    x_label="Feature",
    y_label="Token",
    bar_label="Value",
    number_format=".1f",
    color_map="RdBu_r",
    center=0.0,
)
figure.savefig(options.out / "norms.png", dpi=150)
figure

# %%
# What a neighbor does
# ---------------------
# The two words of sentence a stay the same. Once the batch gets four more places of padding; once
# sentence b goes on for four more words. How far do the normalized words of sentence a move? With
# layer normalization not at all: a sentence gives the same outputs in every batch, alone too, in
# training and in use. With batch normalization the padding counts as words. Masked, it no longer
# does, but a longer neighbor still moves everybody.
nothing, more_words = np.zeros((2, 4, 4), "float32"), random.normal(size=(4, 4))
padded = np.concatenate([batch, nothing], axis=1)  # (2, 8, 4)
longer = padded.copy()
longer[1, 4:] = more_words
still_real = np.concatenate([real, np.zeros((2, 4), bool)], axis=1)
longer_real = still_real.copy()
longer_real[1, 4:] = True
moved = {
    name: [
        float(np.abs(np.asarray(norm(x, mask))[0, :2] - normalized[name][0, :2]).max())
        for x, mask in ((padded, still_real), (longer, longer_real))
    ]
    for name, norm in norms.items()
}
for name, (by_padding, by_words) in moved.items():
    print(f"{name:18} moved by padding {by_padding:.3f}, by the neighbor's words {by_words:.3f}")
figure = bars(
    list(moved),
    {
        "more padding": [by_padding for by_padding, _ in moved.values()],
        "a longer neighbor": [by_words for _, by_words in moved.values()],
    },
    "Normalization",
    "How far sentence a moves",
    number_format=".2f",
)
figure.savefig(options.out / "moved.png", dpi=150)
figure

# %%
# Down through 24 layers
# ----------------------
# Deep networks suffer from gradients that vanish or explode on their way down, and from
# *degradation*: with more layers the accuracy saturates and then falls, on the training data too,
# so that it is not overfitting. A residual helps with both. If more layers are of no use, F only
# has to be close to 0, and H is the identity. And the derivative of :math:`H(x) = F(x) + x` is that
# of F plus the identity, so the gradient has a way past F. ResNet, which introduced residuals, was
# trained with 152 layers on ImageNet and with 1202 on CIFAR-10, where its training error was as low
# as with 110 layers (He et al. 2015, arXiv:1512.03385). The norm keeps the numbers in bounds.
#
# The sum needs two vectors of one width. So in a Transformer every sublayer, and the embedding,
# has outputs of the width of its inputs: for :math:`x \in \mathbb{R}^d` also
# :math:`\mathrm{sublayer}(x) \in \mathbb{R}^d`.
#
# Each layer :math:`F` is a position-wise network with fresh weights. There are five ways to stack
# 24 of them; the last two are those of the Transformer: post-norm as in the paper, and pre-norm as
# most models since. A forward pass takes 32 random tokens up, a backward pass takes one random
# gradient down, and we measure the norm of the gradient at each layer.
DEPTH, WIDTH = 24, 128
ways = {
    "plain": lambda x, layer, norm: layer(x),
    "norm": lambda x, layer, norm: norm(layer(x)),
    "residual": lambda x, layer, norm: x + layer(x),
    "residual, norm (post-norm)": lambda x, layer, norm: norm(x + layer(x)),
    "norm, residual (pre-norm)": lambda x, layer, norm: x + layer(norm(x)),
}
tokens = random.normal(size=(1, 32, WIDTH)).astype("float32")
direction = random.normal(size=(1, 32, WIDTH)).astype("float32")  # the gradient at the top
layers = [tfattn.PositionwiseFeedForward(hidden_dim=4 * WIDTH) for _ in range(DEPTH)]
norm = keras.layers.LayerNormalization(epsilon=1e-5)
gradients, alike = {}, {}
for name, way in ways.items():
    states = [tf.constant(tokens)]
    with tf.GradientTape() as tape:
        tape.watch(states[0])
        for layer in layers:
            states.append(way(states[-1], layer, norm))
        top = tf.reduce_sum(states[-1] * direction)
    lengths = np.array([np.linalg.norm(g) for g in tape.gradient(top, states)])  # (25,)
    gradients[name] = lengths / lengths[-1]
    units = [x[0] / np.linalg.norm(x[0], axis=1, keepdims=True) for x in states]
    alike[name] = np.array([np.mean((u @ tf.transpose(u))[~np.eye(32, dtype=bool)]) for u in units])
    print(f"{name:27} gradient at the bottom {gradients[name][0]:9.2e} of that at the top")

# %%
# Read the curves from right to left, as the gradient goes. A plain layer keeps about 0.57 of its
# norm (with Glorot's weights and ReLU, the square root of 8/25), so that one part in a million
# arrives at the bottom: the lower layers do not learn. The residual alone makes each layer multiply
# it by 1.15, so it arrives 30 times as long. With a norm it stays between 1 and about 3.
figure = curves(
    np.arange(DEPTH + 1),
    gradients,
    "Height (layers from the bottom)",
    "Length of the gradient, 1 at the top",
    log_y=True,
)
figure.savefig(options.out / "gradients.png", dpi=150)
figure

# %%
# A norm without residuals, then? It mends the size of the gradient and not what is in it. Here is
# how alike two tokens are on average, as the cosine between them. Without residuals all 32 tokens
# turn into nearly the same vector on their way up, whatever they were. Residuals carry a token past
# the layers, and it stays itself for longer, longest with pre-norm. So deep stacks have both.
figure = curves(
    np.arange(DEPTH + 1), alike, "Height (layers from the bottom)", "Cosine between two tokens"
)
figure.savefig(options.out / "alike.png", dpi=150)
figure

# %%
# A block from scratch
# --------------------
# A block of the encoder is two sublayers, self-attention and the feed-forward network, each with
# its residual and norm. In plain NumPy and float64, with B = 2 sentences of T = 5 tokens, D = 32
# features, H = 4 heads of p = 8 and an inner width of 64. The weights are random, biases and norms
# too. First the weights of a block of the package, and two functions.
block = tfattn.TransformerEncoderBlock(num_heads=4, hidden_dim=64, dtype="float64")
inputs = random.normal(size=(2, 5, 32))  # (B, T, D)
block.build(inputs.shape)
block.set_weights([random.normal(0.0, 0.3, w.shape) for w in block.weights])
given = block.get_weights()
w_query, b_query, w_key, b_key, w_value, b_value = given[:6]  # (D, H, p), (H, p)
w_joined, b_joined, gamma_1, beta_1 = given[6:10]  # (H, p, D), (D,), (D,), (D,)
w_1, b_1, w_2, b_2 = given[10:14]  # (D, 64), (64,), (64, D), (D,)
gamma_2, beta_2 = given[14:]  # (D,), (D,)


def project(x, weight, bias):
    x = np.einsum("btd,dhp->bthp", x, weight) + bias  # (B, T, D) -> (B, T, H, p)
    return x.transpose(0, 2, 1, 3)  # (B, H, T, p)


def layer_norm(x, gamma, beta):
    mean = x.mean(axis=-1, keepdims=True)  # (B, T, D) -> (B, T, 1)
    variance = x.var(axis=-1, keepdims=True)  # (B, T, 1)
    return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta  # (B, T, D)


# %%
# Then the block, line by line. The last one asserts that the package's block has the same output.
queries = project(inputs, w_query, b_query)  # (B, H, T, p)
keys = project(inputs, w_key, b_key)  # (B, H, T, p)
values = project(inputs, w_value, b_value)  # (B, H, T, p)
scores = queries @ keys.swapaxes(2, 3)  # (B, H, T, p) @ (B, H, p, T) -> (B, H, T, T)
scores = scores / np.sqrt(8)  # (B, H, T, T)
powers = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (B, H, T, T)
weights = powers / powers.sum(axis=-1, keepdims=True)  # (B, H, T, T)
pooled = weights @ values  # (B, H, T, T) @ (B, H, T, p) -> (B, H, T, p)
attended = np.einsum("bhtp,hpd->btd", pooled, w_joined) + b_joined  # (B, T, D)
x = layer_norm(inputs + attended, gamma_1, beta_1)  # (B, T, D)
inner = np.maximum(x @ w_1 + b_1, 0)  # (B, T, D) @ (D, 64) -> (B, T, 64)
outer = inner @ w_2 + b_2  # (B, T, 64) @ (64, D) -> (B, T, D)
x = layer_norm(x + outer, gamma_2, beta_2)  # (B, T, D)
np.testing.assert_allclose(x, block(inputs), rtol=0, atol=1e-12)

# %%
# The block of the package differs in its options. It is built of layers, so that attention,
# feed-forward network and norm can be others. It takes a mask, and padding that holds NaN does not
# reach the other tokens. In training it drops features of each sublayer's output before the sum;
# and ``norm_first=True`` moves the norms.


# %%
# Write the layer yourself
# ------------------------
# Residual, dropout and norm in a Keras layer. It makes :math:`\gamma` and :math:`\beta` in
# ``build``, with ``add_weight``, so that Keras trains and saves them, and computes in ``call``.
# ``pre_norm`` is for the inputs of the sublayer, so the same line serves both orders:
# ``add_norm(x, sublayer(add_norm.pre_norm(x)))``. ``get_config`` has the arguments to make the
# layer anew when a model is loaded.
@keras.saving.register_keras_serializable("tutorials")
class AddNorm(keras.layers.Layer):
    def __init__(self, dropout=0.0, norm_first=False, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.dropout, self.norm_first, self.epsilon = dropout, norm_first, epsilon
        self.output_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        # A token is normalized by itself, so the mask of padding still holds for the outputs.
        self.supports_masking = True

    def build(self, inputs_shape, outputs_shape=None):
        width = inputs_shape[-1:]
        self.gamma = self.add_weight(name="gamma", shape=width, initializer="ones")
        self.beta = self.add_weight(name="beta", shape=width, initializer="zeros")

    def normalize(self, x):
        mean = keras.ops.mean(x, axis=-1, keepdims=True)  # (B, T, D) -> (B, T, 1)
        variance = keras.ops.var(x, axis=-1, keepdims=True)  # (B, T, 1)
        h = (x - mean) / keras.ops.sqrt(variance + self.epsilon)  # (B, T, D)
        return self.gamma * h + self.beta  # (B, T, D)

    def pre_norm(self, inputs):
        return self(inputs) if self.norm_first else inputs

    def call(self, inputs, outputs=None, training=None):
        if outputs is None:  # called by `pre_norm`
            return self.normalize(inputs)
        total = inputs + self.output_dropout(outputs, training=training)  # (B, T, D)
        return total if self.norm_first else self.normalize(total)

    def get_config(self):
        own = {"dropout": self.dropout, "norm_first": self.norm_first, "epsilon": self.epsilon}
        return {**super().get_config(), **own}


# %%
# A stack of six sublayers, each with our layer around it, is to say which of the 32 tokens above it
# was given, in 20 steps of Adam; to guess would be a loss of log 32, 3.47. The package's layer has
# its weights in the same order: from the same weights it comes to the same loss.
stacks = {}
for name, layer_class in (("ours", AddNorm), ("package", tfattn.AddNorm)):
    x = asked = keras.Input((32, WIDTH))
    for _ in range(6):
        add_norm = layer_class(norm_first=True)
        x = add_norm(x, tfattn.PositionwiseFeedForward(hidden_dim=WIDTH)(add_norm.pre_norm(x)))
    stacks[name] = keras.Model(asked, keras.layers.Dense(32)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    stacks[name].compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
stacks["package"].set_weights(stacks["ours"].get_weights())
which, losses = np.arange(32)[None], {}  # (1, 32)
for name, model in stacks.items():
    losses[name] = model.fit(tokens, which, epochs=20, verbose=0).history["loss"]
    print(f"{name:7} loss {losses[name][0]:.3f} -> {losses[name][-1]:.3f}")

# %%
# With the same weights both layers give the same, and the same gradients: of a mean square by
# :math:`\gamma`, by :math:`\beta` and by the inputs, in both orders. The third sentence has three
# tokens of padding. Both layers hand its mask on to the mean over tokens, which leaves padding out.
# Both are in float64, where rounding hides nothing; the config makes our layer anew.
real = np.arange(6) < np.array([[6], [6], [3]])  # (3, 6), False at padding
sentences = tf.constant(random.normal(size=(3, 6, WIDTH)) * real[..., None])  # (3, 6, D)
scale, shift = random.normal(size=(2, WIDTH))  # as after training
hide = keras.layers.Masking(dtype="float64")
sublayer = tfattn.PositionwiseFeedForward(hidden_dim=WIDTH, dtype="float64")
mean_of_tokens = keras.layers.GlobalAveragePooling1D(dtype="float64")
own_differences = {}
for order, norm_first in (("post-norm", False), ("pre-norm", True)):
    config = {**AddNorm(0.1, norm_first).get_config(), "dtype": "float64"}
    mine, package, both = AddNorm.from_config(config), tfattn.AddNorm.from_config(config), []
    for each in (mine, package):
        each.build(sentences.shape)
        each.set_weights([scale, shift])
        with tf.GradientTape() as tape:
            tape.watch(sentences)
            x = hide(sentences)
            pooled = mean_of_tokens(each(x, sublayer(each.pre_norm(x))))  # (3, D)
            error = tf.reduce_mean(pooled**2)
        both.append([pooled, *tape.gradient(error, [*each.trainable_variables, sentences])])
    apart = [float(np.abs(a - b).max()) for a, b in zip(*both, strict=True)]
    own_differences[order] = apart
    print(f"{order:9} largest differences", ", ".join(f"{number:.0e}" for number in apart))
    assert max(apart) < 1e-5

# %%
# What the package's layer does beyond it:
#
# - another norm can be passed in, such as RMS normalization, and the dropout has a seed;
# - on TensorFlow it has an explicit gradient, with fewer passes over the tokens;
# - in half precision, means and variances are in float32;
# - it checks shapes and arguments, with errors that name them.
#
# Now write one: ``python -m exercises open AddNorm`` writes the task of such a layer, and ``check
# AddNorm`` trains, saves and loads yours (:doc:`exercises </exercises>`).

# %%
# With this package
# -----------------
# :class:`tfattn.AddNorm` is residual, dropout and norm in one, in two steps for both orders. Every
# Transformer block of the package uses it; ``norm_first=True`` makes pre-norm.
add_norm = tfattn.AddNorm(norm_first=False)
output = add_norm(tokens, layers[0](add_norm.pre_norm(tokens)))
post_norm = ways["residual, norm (post-norm)"](tokens, layers[0], norm)
difference = float(np.abs(output - post_norm).max())
print(f"Difference between AddNorm and post-norm by hand: {difference:.1e}")

# %%
# Summary
# -------
# - Layer normalization takes mean and variance over the features of one token, and does not depend
#   on padding or on other sentences. Batch normalization depends on both.
# - Residuals give the gradient a way past each layer, and keep tokens apart. Norms keep the size of
#   numbers and gradients in bounds. Deep stacks need both.
# - Post-norm is LN(x + F(x)), pre-norm is x + F(LN(x)). A block of the encoder has it twice.
#
# Questions
# ---------
# **1.** What does layer normalization do to a token whose features are all the same?
#
# .. dropdown:: Answer
#
#    Mean and features are equal, so the difference is 0, and the output is :math:`\beta`. The
#    :math:`\epsilon` under the root keeps it from being 0 / 0.
#
# **2.** Why does the residual alone multiply the gradient by about 1.15 at each layer?
#
# .. dropdown:: Answer
#
#    The two ways are uncorrelated, so the squares of their norms add up:
#    :math:`\sqrt{1 + 8/25} = 1.149`, and :math:`1.149^{24}` is about 28.
#
# **3.** A pre-norm stack needs one more norm at its end. Why?
#
# .. dropdown:: Answer
#
#    Its blocks add to the stream of residuals and never normalize it, so it grows with each layer.
#    The last norm brings it to the scale that the next map expects. Post-norm ends with a norm.
#
# **4.** ``inner`` has 64 features, ``x`` has 32. May a sublayer have an output of 64?
#
# .. dropdown:: Answer
#
#    Not with a residual: 32 and 64 features do not add up. The second map brings the 64 back to 32.
#
# **5.** Write ``layer_norm`` and ``add_norm`` yourself.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open layer_norm`` writes the task,
#    ``python -m exercises check layer_norm`` checks your function:
#    :doc:`all exercises </exercises>`.
#
# Where to go next
# ----------------
# - :doc:`Masked attention <masked_attention>`: which token may look at which.
# - :doc:`A Transformer that translates <transformer_translation>`: blocks stacked to a model.

# sphinx_gallery_start_ignore
result = {
    "moved": moved,
    "gradients": {name: float(lengths[0]) for name, lengths in gradients.items()},
    "alike": {name: float(cosines[-1]) for name, cosines in alike.items()},
    "add_norm_difference": difference,
    "own_losses": {name: [each[0], each[-1]] for name, each in losses.items()},
    "own_differences": own_differences,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
