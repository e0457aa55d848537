"""Layouts of a model's weights over the devices of a mesh."""

import keras

from tfattn import _checks


def transformer_layout(
    device_mesh: keras.distribution.DeviceMesh,
    axis: str = "model",
    shard_vocabulary: bool = True,
) -> keras.distribution.LayoutMap:
    """Splits a Transformer's weights over the devices along one axis of a mesh.

        mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
        layout = training.transformer_layout(mesh)
        distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
        with distribution.scope():
            model = tfattn.Transformer(...)
            ...

    For `Transformer`, `CausalLM`, `TransformerEncoder` and `TransformerDecoder`. A device has some
    of the heads and some of the inner units of each feed-forward network. Communication is needed
    only after the output map of either, to sum its products over the devices. Split weights:

        query, key, value, gate     (D, H, P)   over the heads
        output of the heads         (H, P, D)   over the heads
        inner, gate of the network  (D, F)      over the inner units
        outer                       (F, D)      over the inner units
        embeddings                  (V, D)      over the vocabulary
        output projection           (D, V)      over the vocabulary

    and their biases, except biases added after the sum. Norms and all other weights are replicated
    on each device. The optimizer's averages are split like the weights.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`.
        axis: name of the axis of the mesh along which weights are split. Its size must divide the
            heads of queries and of keys, and `hidden_dim`. Defaults to "model".
        shard_vocabulary: whether to split embeddings and the output projection over the
            vocabulary, whose size the size of the axis must divide (choose the `size` of a
            `SubwordVocabulary` accordingly). If False, both are split over their width, and all
            logits are summed over the devices.
    Returns:
        A `keras.distribution.LayoutMap`, which can be extended.
    Raises:
        ValueError: `device_mesh` is not a mesh, or has no axis of this name.
    Example:
        >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
        >>> layout = transformer_layout(mesh)
        >>> layout["transformer/encoder/block_0/self_attention/query/kernel"].axes
        (None, 'model', None)
        >>> layout["transformer/encoder/block_0/feed_forward_norm/norm/gamma"] is None
        True

    Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
    """
    who = "transformer_layout"
    if not isinstance(device_mesh, keras.distribution.DeviceMesh):
        _checks.fail(who, "device_mesh", "be a keras.distribution.DeviceMesh", device_mesh)
    if axis not in device_mesh.axis_names:
        _checks.fail(who, "axis", f"be one of {tuple(device_mesh.axis_names)}", axis)
    shard_vocabulary = _checks.boolean(who, "shard_vocabulary", shard_vocabulary)
    heads, network = r".*attention/(query|key|value|gate)", r".*feed_forward/(inner|gate)"
    embeddings, output = r"(.*/)?embedding/embeddings", r"(.*/)?output"
    axes = {
        f"{heads}/kernel": (None, axis, None),
        f"{heads}/bias": (axis, None),
        r".*attention/attention_output/kernel": (axis, None, None),
        f"{network}/kernel": (None, axis),
        f"{network}/bias": (axis,),
        r".*feed_forward/outer/kernel": (axis, None),
        embeddings: (axis, None) if shard_vocabulary else (None, axis),
        f"{output}/kernel": (None, axis) if shard_vocabulary else (axis, None),
    }
    if shard_vocabulary:
        axes[f"{output}/bias"] = (axis,)
    layout = keras.distribution.LayoutMap(device_mesh)
    for path, split in axes.items():
        layout[f"^{path}$"] = split  # Keras 3.12 matches a pattern anywhere in a path
    return layout
