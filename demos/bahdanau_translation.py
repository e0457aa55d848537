"""A recurrent translator with Bahdanau's attention, as it was before the Transformer.

Without `--data` it learns English to French from a small grammar, in which adjectives change sides,
articles agree and negation wraps the verb; that takes a few minutes on two cores. With `--data DIR`
it learns from real files, `train.en`, `train.de`, `val.en`, `val.de` (plain or .gz), source
language first. A run can be stopped at any time: `--resume` goes on with it. `--translate` reads
lines from standard input, and writes their translations by the model in `--out`.
"""

from course import Preset
from translation import run

import tfattn

PRESETS = {
    "toy": Preset(
        {"width": 64, "units": 128, "dropout": 0.1},
        subwords=0, tokens=768, epochs=5, peak=0.003, warmup=200, look_back=100,
    ),
    "tiny": Preset(
        {"width": 128, "units": 256, "dropout": 0.4},
        subwords=9900, tokens=2048, epochs=28, peak=0.002, warmup=1000, look_back=500, cooldown=6,
    ),
    # The paper's sizes: embeddings of 620, states of 1000.
    "base": Preset(
        {"dropout": 0.2},
        subwords=32_000, tokens=4096, epochs=20, peak=0.0007, warmup=4000, look_back=500,
    ),
}  # fmt: skip


def alignment(model, source, target_in):
    """The decoder's weights over the source."""
    (weights,) = tfattn.attention_weights(model, (source, target_in)).values()
    return weights[:, None], ["alignment"]


if __name__ == "__main__":
    run(__doc__, "bahdanau_translation", tfattn.BahdanauSeq2Seq, PRESETS, alignment)
