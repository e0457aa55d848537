"""Pooling of sequences of any length by attention."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.biases import Bias
from tfattn.core.masks import Mask, chunks
from tfattn.core.tensors import shape_of
from tfattn.layers.attention.base import AttentionLayer
from tfattn.layers.attention.single_head import Attention
from tfattn.layers.base import CheckedCall, spec_of_call
from tfattn.layers.configs import LayerTemplate, checked_layer, serialized
from tfattn.layers.tokens import mask_of_tokens


@keras.saving.register_keras_serializable("tfattn")
class AttentionPooling(CheckedCall, keras.layers.Layer):
    """A sequence as one vector, or as K vectors: attention whose queries are weights of the layer.

        output = attention(query=learned, value=value)

    It takes the place of `keras.layers.GlobalAveragePooling1D`, and learns which tokens count.

    Args:
        num_queries: positive int, K. None for one query, and an output without the axis of queries.
        attention: an attention layer, which is copied, for another score, heads or normalizer. It
            must have no `positions` and no `sliding_window`, since learned queries have no
            position. Defaults to `Attention()`.
        query_initializer: initializer of the queries `(K, Dk)`.
    Call arguments:
        value: float `(B, S, Dv)`.
        key: float `(B, S, Dk)`. Defaults to `value`.
        value_mask, key_mask, mask: bool `(B, S)`, True = real token. `mask` is another name of
            `value_mask`. Keras passes implicit masks here, under `TimeDistributed` too.
        attention_mask, valid_lens, bias, return_attention_scores, training: as for `Attention`; a
            mask or bias object must not depend on the position of the query.
    Returns:
        `(B, Dv)`, or `(B, K, Dv)` with `num_queries`, without a mask; with
        `return_attention_scores=True` also the weights `(B, K, S)`, or `(B, H, K, S)` with heads,
        where K is 1 without `num_queries`. `MultiHeadAttention` has its `output_shape`, or the
        width of the keys, in place of Dv. Where every token is masked, the mean is 0.
    Example:
        >>> tokens = np.ones((2, 7, 8), "float32")
        >>> tuple(AttentionPooling()(tokens, valid_lens=[7, 3]).shape)
        (2, 8)
        >>> layer = AttentionPooling(3, attention=MultiHeadAttention(num_heads=4, key_dim=2))
        >>> tuple(layer(tokens).shape)  # three summaries, each by four heads
        (2, 3, 8)

    Source: one query, Yang et al. 2016, Hierarchical Attention Networks, section 2.2, there with an
    additive score; K queries and heads, Lee et al. 2019, arXiv:1810.00825, section 3.2, there with
    a residual and a feed-forward network around them.
    """

    call_axes = {"value": "BSD", "key": "BSE"}
    call_axes |= dict.fromkeys(("value_mask", "key_mask", "mask"), "BS")

    def __init__(
        self,
        num_queries: int | None = None,
        attention: AttentionLayer | None = None,
        query_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        if num_queries is not None:
            _checks.positive_int(who, "num_queries", num_queries)
        expected = "be an attention layer, such as tfattn.AdditiveAttention(units=8)"
        checked_layer(who, "attention", attention, AttentionLayer, expected)
        for name in ("positions", "sliding_window"):
            if getattr(attention, name, None) is not None:
                expected = f"have no `{name}`, since learned queries have no position"
                _checks.fail(who, "attention", expected, attention)
        self.num_queries = num_queries
        self.query_initializer = keras.initializers.get(query_initializer)
        self._template = LayerTemplate(attention or Attention())
        self._attention: Any = None  # created in `build`
        self.supports_masking = True

    @property
    def attention(self) -> AttentionLayer:
        """The attention layer: a copy of the one that was passed in."""
        return self._attention or self._template.layer

    def _check_call(self, arguments: dict[str, Any]) -> None:
        super()._check_call(arguments)
        for name in ("attention_mask", "bias"):
            if _depends_on_position(arguments.get(name)):
                expected = "not depend on the position of a query, since learned queries have none"
                _checks.fail(type(self).__name__, name, expected, arguments[name])

    def build(self, value_shape: Shape, key_shape: Shape | None = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        name = "value" if key_shape is value_shape else "key"
        _checks.known_width(type(self).__name__, name, key_shape)
        queries = (self.num_queries or 1, key_shape[-1])
        self.query = self.add_weight(
            shape=queries, initializer=self.query_initializer, name="query"
        )
        self._attention = self._template.copy(name="attention", dtype=self.dtype_policy)
        self._attention.build((value_shape[0], *queries), value_shape, key_shape)

    def call(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | Mask | None = None,
        valid_lens: Tensor | None = None,
        bias: Tensor | Bias | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        query = ops.expand_dims(self.query, 0)
        query = ops.broadcast_to(query, (shape_of(value)[0], *self.query.shape))
        result = self._attention(
            query=query,
            value=value,
            key=key,
            value_mask=mask_of_tokens(value, value_mask, mask),
            key_mask=key_mask,
            attention_mask=attention_mask,
            valid_lens=valid_lens,
            bias=bias,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        output, *weights = result if return_attention_scores else (result,)
        if self.num_queries is None:
            output = ops.squeeze(output, axis=1)  # (B, 1, Dv) to (B, Dv)
        return (output, *weights) if weights else output

    def compute_mask(self, *args: Any, **kwargs: Any) -> None:
        """None: the tokens' mask does not fit the output."""

    def compute_output_shape(self, value_shape: Shape, key_shape: Shape | None = None) -> Shape:
        key_shape = value_shape if key_shape is None else key_shape
        query_shape = (value_shape[0], self.num_queries or 1, key_shape[-1])
        shape = self.attention.compute_output_shape(query_shape, value_shape, key_shape)
        return shape if self.num_queries else (shape[0], *shape[2:])

    compute_output_spec = spec_of_call

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "attention": serialized(self._template.layer)}


def _depends_on_position(part: Any) -> bool:
    """Whether a mask or bias, or one that it joins, depends on the position of the query."""
    if isinstance(part, Bias):
        depends = part.is_of_distance
    elif isinstance(part, Mask):
        depends = part.is_relative or isinstance(part, chunks)
    else:
        return False
    return depends or any(map(_depends_on_position, keras.tree.flatten(vars(part))))
