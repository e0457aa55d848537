"""Self-attention by hand: three inputs, three matrices, every number on the way, then the layer in
one call.

Nothing is random here; --seed is taken as by every demo, and changes nothing. The products are not
scaled by 1 / sqrt of the width, so that they stay whole numbers.

The well-known walk-through of this example writes the weights with one decimal, and the 0.063 of
its first row as 0.0: it then finds 2.0, 7.0, 1.5 for the first output. With all digits that is
1.9366, 6.6831, 1.5951.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

import tfattn
from tfattn import plot

INPUTS = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]], "float32")  # three tokens of width 4
W_KEY = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]], "float32")
W_QUERY = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]], "float32")
W_VALUE = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]], "float32")
# the weights as the walk-through has them
ONE_DECIMAL = np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.9, 0.1]])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="changes nothing")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/self_attention_by_hand"),
        metavar="DIR",
        help="folder for the figure (default: %(default)s)",
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    weights, output = by_hand()
    layer_weights, layer_output = by_layer()
    np.testing.assert_allclose(layer_weights, weights, rtol=1e-5)
    np.testing.assert_allclose(layer_output, output, rtol=1e-5)
    print("   Weights and outputs are those from above.\n")

    tokens = ["input 1", "input 2", "input 3"]
    figure = plot.heatmaps(
        layer_weights,
        tokens,
        tokens,
        titles="Who looks at whom",
        x_label="Keys",
        y_label="Queries",
        number_format=".4f",
    )
    figure.savefig(options.out / "weights.png", dpi=150)
    print(f"Figure: weights.png in {options.out}")
    result = {"weights": layer_weights.tolist(), "output": layer_output.tolist()}
    print("result:", json.dumps(result))


def by_hand():
    """The weights and the outputs, `(3, 3)` both, every step printed."""
    show("1. Three inputs of width 4, one a row", INPUTS)
    show("2. A matrix for keys, one for queries, one for values: key matrix", W_KEY)
    show("   query matrix", W_QUERY)
    show("   value matrix", W_VALUE)

    keys, queries, values = INPUTS @ W_KEY, INPUTS @ W_QUERY, INPUTS @ W_VALUE  # (3, 3) each
    show("3. Keys: inputs times key matrix", keys)
    show("   Queries: inputs times query matrix", queries)
    show("   Values: inputs times value matrix", values)

    scores = queries @ keys.T  # (3, 3)
    show("4. Scores: each query (row) with each key (column), dot products", scores)

    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = powers / powers.sum(axis=1, keepdims=True)
    show("5. Weights: softmax of each row; it sums to 1", weights, ".4e")

    weighted = weights[0][:, None] * values
    show("6. For the first query: each value (row) times its weight", weighted, ".4f")
    print(
        f"7. The first output is their sum: {', '.join(f'{x:.4f}' for x in weighted.sum(axis=0))}\n"
    )

    output = weights @ values
    show("8. And so for every query: weights times values", output, ".4f")
    show(
        "   With the weights to one decimal, as 0.0 0.5 0.5, 0.0 1.0 0.0 and 0.0 0.9 0.1",
        ONE_DECIMAL @ values,
        ".1f",
    )
    return weights, output


def by_layer():
    """The same from the inputs in one call of the layer."""
    layer = tfattn.MultiHeadAttention(
        num_heads=1,
        key_dim=3,
        output_shape=3,
        use_bias=False,
        score=tfattn.DotProductScore(scale=1.0),
    )
    tokens = INPUTS[None]  # (1, 3, 4)
    layer.build(tokens.shape, tokens.shape)
    # The layer's matrices have an axis for the heads, here one; the last matrix, which joins the
    # heads, changes nothing.
    layer.set_weights([W_QUERY[:, None], W_KEY[:, None], W_VALUE[:, None], np.eye(3)[None]])
    # (1, 3, 3), (1, 1, 3, 3)
    output, weights = layer(query=tokens, value=tokens, return_attention_scores=True)
    print("9. tfattn.MultiHeadAttention with these matrices, one head and scale 1,")
    print("   in one call on the inputs.")
    return keras.ops.convert_to_numpy(weights)[0, 0], keras.ops.convert_to_numpy(output)[0]


def show(title, matrix, number_format=".0f"):
    print(title)
    for row in matrix:
        print("    ", "  ".join(f"{number:{number_format}}" for number in row))
    print()


if __name__ == "__main__":
    main()
