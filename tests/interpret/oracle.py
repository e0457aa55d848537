"""What `tfattn.interpret` computes, in float64 NumPy: a stack of layers x + attention(x)."""

import numpy as np


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def stack(x, layers, gates=None, added=None):
    """The output of a stack, `(B, T, D)`.

    Args:
        x: `(B, T, D)`.
        layers: for each layer its arrays by name: query, key, value, gate, output `(D, H, P)` or
            `(H, P, D)`, with the bias as "query_bias" and so on.
        gates: for each layer `(B, H)`, by which its heads are multiplied.
        added: for each layer `(B, H, T, T)`, added to its weights.
    """
    for number, layer in enumerate(layers):

        def project(name, layer=layer, x=x):
            return np.einsum("btd,dhp->bhtp", x, layer[name]) + layer[f"{name}_bias"][:, None]

        query, key, value = map(project, ("query", "key", "value"))
        groups = query.shape[1] // key.shape[1]
        key, value = np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)
        weights = softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]))
        if added is not None:
            weights = weights + added[number]
        heads = weights @ value  # (B, H, T, P)
        if "gate" in layer:
            heads = heads / (1 + np.exp(-project("gate")))
        if gates is not None:
            heads = heads * gates[number][:, :, None, None]
        x = x + np.einsum("bhtp,hpd->btd", heads, layer["output"]) + layer["output_bias"]
    return x


def weights_of(layer):
    """The arrays of a multi-head attention, of this package or of Keras."""
    names = ["query", "key", "gate", "value", "output"]
    arrays = [np.asarray(x, "float64") for x in layer.get_weights()]
    if len(arrays) == 8:
        names.remove("gate")
    return {
        **dict(zip(names, arrays[::2], strict=True)),
        **{f"{name}_bias": bias for name, bias in zip(names, arrays[1::2], strict=True)},
    }


def slopes(function, shape, step=1e-5):
    """The derivative of `function` of an array of this shape at 0, by central differences."""
    found = np.zeros(shape)
    for index in np.ndindex(*shape):
        moved = np.zeros(shape)
        moved[index] = step
        found[index] = (function(moved) - function(-moved)) / (2 * step)
    return found


def rollout(layers, residual):
    """Sums over all ways from token t down to input s, of the product of their shares."""
    (batch, _, tokens, _), found = layers[0].shape, []
    for row in range(batch):
        shares = np.eye(tokens)
        for layer in layers:
            next_shares = np.zeros((tokens, tokens))
            for t in range(tokens):
                mean = layer[row, :, t].mean(axis=0)
                for s in range(tokens):
                    share = (1 - residual) * mean[s] + (residual if s == t else 0.0)
                    next_shares[t] += share * shares[s]
            shares = next_shares
        found.append(shares)
    return np.array(found)


def entropy(layer, real):
    """`(H,)`: the mean of the entropies of the queries that are real, `(B, T)`."""
    found = []
    for head in range(layer.shape[1]):
        each = [
            -sum(w * np.log(w) for w in layer[b, head, t] if w > 0)
            for b, t in zip(*np.nonzero(real), strict=True)
        ]
        found.append(np.mean(each))
    return np.array(found)
