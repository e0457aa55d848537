"""Layouts of a model's weights over the devices of a mesh."""

import keras


def transformer_layout(
    device_mesh: keras.distribution.DeviceMesh, axis: str = "model", shard_vocabulary: bool = True
) -> keras.distribution.LayoutMap:
    """Splits a Transformer's weights over the devices along one axis of a mesh.

        mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
        layout = training.transformer_layout(mesh)
        distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")

    For `Transformer`, `CausalLM`, `TransformerEncoder` and `TransformerDecoder`. A device has some
    heads, inner units of the feed-forward networks and words; the other weights are replicated.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`.
        axis: name of the axis of the mesh along which weights are split. Its size must divide the
            heads of queries and of keys, and `hidden_dim`. Defaults to "model".
        shard_vocabulary: whether to split embeddings and the output projection over the
            vocabulary, whose size the size of the axis must divide. If False, both are split over
            their width, and all logits are summed over the devices.
    Returns:
        A `keras.distribution.LayoutMap`, which can be extended.
    Example:
        >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
        >>> layout = transformer_layout(mesh)
        >>> layout["transformer/encoder/block_0/self_attention/query/kernel"].axes
        (None, 'model', None)

    Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053, section 3.
    """
    heads, network = r".*attention/(query|key|value|gate)", r".*feed_forward/(inner|gate)"
    embeddings, output = r"(.*/)?embedding/embeddings", r"(.*/)?output"
    axes = {
        f"{heads}/kernel": (None, axis, None),  # (D, H, P)
        f"{heads}/bias": (axis, None),
        r".*attention/attention_output/kernel": (axis, None, None),  # (H, P, D)
        f"{network}/kernel": (None, axis),  # (D, F)
        f"{network}/bias": (axis,),
        r".*feed_forward/outer/kernel": (axis, None),  # (F, D)
        embeddings: (axis, None) if shard_vocabulary else (None, axis),  # (V, D)
        f"{output}/kernel": (None, axis) if shard_vocabulary else (axis, None),  # (D, V)
    }
    if shard_vocabulary:
        axes[f"{output}/bias"] = (axis,)
    layout = keras.distribution.LayoutMap(device_mesh)
    for path, split in axes.items():
        layout[f"^{path}$"] = split  # Keras 3.12 matches a pattern anywhere in a path
    return layout
