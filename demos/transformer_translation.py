"""A Transformer that translates: trained with `model.fit`, asked about sentences that it has never
seen.

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
        {"num_layers": 2, "width": 128, "num_heads": 4, "hidden_dim": 256, "dropout": 0.1},
        subwords=0, tokens=768, epochs=5, peak=0.0018, warmup=400, look_back=100,
    ),
    # Wu et al. 2021 («Good for Misconceived Reasons»), 41.02 BLEU on the test set of 2016 of
    # Multi30k, English to German.
    "tiny": Preset(
        {"num_layers": 4, "width": 128, "num_heads": 4, "hidden_dim": 256, "dropout": 0.3},
        subwords=9900, tokens=4096, epochs=95, peak=0.005, warmup=2000, look_back=500, cooldown=15,
        course=(("plain", 50), ("cut", 75)),
    ),
    # Vaswani et al. 2017, table 3, base.
    "base": Preset(
        {"num_layers": 6, "width": 512, "num_heads": 8, "hidden_dim": 2048, "dropout": 0.1},
        subwords=32_000, tokens=4096, epochs=20, peak=0.0007, warmup=4000, look_back=500,
    ),
}  # fmt: skip


def alignment(model, source, target_in):
    """The heads of the last decoder block's attention over the source."""
    weights = tfattn.attention_weights(model, (source, target_in))
    last = [name for name in weights if name.endswith("cross_attention")][-1]
    heads = weights[last]  # (B, H, T, S)
    return heads, [f"head {h + 1}" for h in range(heads.shape[1])]


if __name__ == "__main__":
    run(__doc__, "transformer_translation", tfattn.Transformer, PRESETS, alignment)
