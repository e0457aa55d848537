"""Multi-head attention over any score."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.biases import Bias
from tfattn.core.masks import Grid, Mask
from tfattn.layers.attention.base import AttentionLayer
from tfattn.layers.attention.projection import FromHeads, ToHeads
from tfattn.layers.attention.scores import Score
from tfattn.layers.attention.single_head import score_or_default
from tfattn.layers.parts import deserialized, serialized
from tfattn.layers.positions.base import HeadPositions

__all__ = ["MultiHeadAttention"]

# Arguments of Keras's layer that this one refuses by name, each with what to do instead.
_REFUSED = {
    "attention_axes": "sequences have one axis here; fold others into the batch",
    "sliding_window": "pass `attention_mask=tfattn.masks.window(size)` in the call",
    "flash_attention": "the engine picks its path by itself",
    "use_gate": "multiply the output by a gate of your own",
}


@keras.saving.register_keras_serializable("tfattn")
class MultiHeadAttention(AttentionLayer):
    """Several attentions side by side, each over its own projections of query, key and value.

        head_h = attention(query · W_h^q, key · W_h^k, value · W_h^v)
        output = concat(head_1 … head_H) · W_o

    With the default score it computes what `keras.layers.MultiHeadAttention` computes, with the
    same names, and takes that layer's `get_weights()`. The maps are `query_dense`, `key_dense`,
    `value_dense` and `output_dense`.

    Args:
        num_heads: positive int H, heads of the query.
        key_dim: positive int, width of each head's query and key.
        value_dim: positive int, width of each head's value. Defaults to `key_dim`.
        dropout: probability in [0, 1) of dropping a weight in training.
        use_bias: whether the four linear maps have a bias.
        output_shape: positive int, width of the output. Defaults to the query's width.
        score: a score layer, one attention function for all heads, with weights of its own for each
            where it has any. Defaults to `DotProductScore()`.
        num_key_value_heads: positive int G that divides H: heads of key and value, each shared by
            H/G heads of the query. Defaults to H. 1 is multi-query attention.
        positions: a layer that turns the heads of queries and keys by their positions or biases
            their scores, such as `tfattn.RotaryPositions`; see `tfattn.HeadPositions`. Defaults to
            none. With fewer queries than keys the queries are the last ones.
        kernel_initializer, kernel_regularizer, kernel_constraint: as in Keras, for the matrices of
            the four linear maps.
        bias_initializer, bias_regularizer, bias_constraint: likewise, for their biases.
        output_kernel_initializer: for the output map. Defaults to `kernel_initializer`.
        seed: int, for the dropout.
    Call arguments: those of every attention layer, see
    `tfattn.layers.attention.base.AttentionLayer`; the main ones:
        query: float `(B, T, Dq)`.
        value: float `(B, S, Dv)`.
        key: float `(B, S, Dk)`. Defaults to `value`.
        attention_mask: bool `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, or a mask object; True = may
            attend.
        bias: float `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, with 1 where it repeats, added to the
            scores before the softmax; or a bias object. `tfattn.biases.alibi(num_heads)` is ALiBi,
            a penalty on distance that is steeper in some heads than in others.
    Returns:
        `(B, T, E)`, E the query's width or `output_shape`; on request also the weights
        `(B, H, T, S)`: each row sums to 1, or to 0 where every key is masked (the output there is
        the bias of the output map).
    Raises:
        ValueError: sizes are no positive ints, heads do not divide, `bias` is for another number of
            heads, or an argument of Keras's layer is not covered.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> MultiHeadAttention(num_heads=4, key_dim=4)(tokens, tokens, use_causal_mask=True).shape
        TensorShape([2, 7, 16])
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=4)
        >>> layer(tokens, tokens, use_causal_mask=True, bias=tfattn.biases.alibi(4)).shape
        TensorShape([2, 7, 16])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; shared key heads, Ainslie et al.
    2023, arXiv:2305.13245. Differs from Keras's layer in its first weights, which follow the
    paper's 2-D matrices; in `use_causal_mask` with T < S, which lines up at the end here and at the
    start there; and in fully masked queries.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | None = None,
        score: Score | None = None,
        num_key_value_heads: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        output_kernel_initializer: Any = None,
        positions: HeadPositions | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        who = "MultiHeadAttention"
        for name, instead in _REFUSED.items():
            given = kwargs.pop(name, None)
            if given not in (None, False):
                _checks.fail(who, name, f"not be given: {instead}", given)
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.num_heads = _checks.positive_int(who, "num_heads", num_heads)
        self.key_dim = _checks.positive_int(who, "key_dim", key_dim)
        value_dim = key_dim if value_dim is None else value_dim
        self.value_dim = _checks.positive_int(who, "value_dim", value_dim)
        groups = num_heads if num_key_value_heads is None else num_key_value_heads
        self.num_key_value_heads = _checks.positive_int(who, "num_key_value_heads", groups)
        _checks.divides(who, "num_key_value_heads", groups, "num_heads", num_heads)
        if isinstance(output_shape, (tuple, list)) and len(output_shape) == 1:
            output_shape = output_shape[0]  # Keras's layer takes it so
        if output_shape is not None:
            output_shape = _checks.positive_int(who, "output_shape", output_shape)
        # Not `self.output_shape`, which Keras's models look for and read as another thing.
        self._output_shape = output_shape
        self.use_bias = _checks.boolean(who, "use_bias", use_bias)
        self.score = score_or_default(who, score, self.dtype_policy)
        if positions is not None and not isinstance(positions, HeadPositions):
            expected = "be a HeadPositions layer, or None (what is added to inputs stands before)"
            _checks.fail(who, "positions", expected, positions)
        self.positions = positions
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_kernel_initializer = keras.initializers.get(output_kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        heads, groups = self.num_heads, self.num_key_value_heads
        options = {
            "use_bias": self.use_bias,
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "bias_constraint": self.bias_constraint,
            "dtype": self.dtype_policy,
        }
        self.query_dense = ToHeads(heads, self.key_dim, name="query", **options)
        self.key_dense = ToHeads(groups, self.key_dim, name="key", **options)
        self.value_dense = ToHeads(groups, self.value_dim, name="value", **options)
        if self.output_kernel_initializer is not None:
            options["kernel_initializer"] = self.output_kernel_initializer
        width = self._output_shape or query_shape[-1]
        self.output_dense = FromHeads(width, name="attention_output", **options)
        # In this order, which is that of `get_weights()` in Keras's layer.
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape)
        self.value_dense.build(value_shape)
        self.output_dense.build((query_shape[0], heads, query_shape[1], self.value_dim))
        query_heads = (query_shape[0], heads, query_shape[1], self.key_dim)
        key_heads = (key_shape[0], groups, key_shape[1], self.key_dim)
        for part in (self.score, self.positions):
            if part is not None and not part.built:
                part.build(query_heads, key_heads)

    def pool(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        dropout: float,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        keys, values = self.project_keys(value, key)
        return self.attend_projected(query, keys, values, mask, bias, dropout, return_weights)

    def project_keys(
        self, value: Tensor, key: Tensor | None = None, start: int | Tensor = 0
    ) -> tuple[Tensor, Tensor]:
        """Keys and values in heads: what a token needs once, whichever query asks.

        Decoding keeps them between steps.

        Args:
            value: float `(B, S, Dv)`.
            key: float `(B, S, Dk)`. Defaults to `value`.
            start: position of the first key, int or scalar integer tensor.
        Returns:
            keys `(B, G, S, P)` and values `(B, G, S, V)`, G key heads.
        """
        keys = self.key_dense(value if key is None else key)
        if self.positions is not None:
            keys = self.positions.turn(keys, start)
        return keys, self.value_dense(value)

    def attend_projected(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | Mask | None = None,
        bias: Tensor | Bias | None = None,
        dropout: float = 0.0,
        return_weights: bool = False,
        start: int | Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention over what `project_keys` has made: the rest of a call.

        Args:
            query: float `(B, T, Dq)`.   keys, values: of `project_keys`.
            mask: a mask object or a bool array, as in `tfattn.attend`.
            bias: a bias object or a float array, likewise.
            dropout: probability in [0, 1) of dropping a weight.
            return_weights: whether weights are wanted.
            start: position of the first query on the keys' axis, for positions and bias objects:
                int or scalar integer tensor. Defaults to S − T: the last query meets the last key.
        Returns:
            (output, weights), as in a call; weights are None where they are not wanted.
        """
        query = self.query_dense(query)  # (B, H, T, P)
        num_queries, num_keys = ops.shape(query)[2], ops.shape(keys)[2]
        if self.positions is not None:
            first = num_keys - num_queries if start is None else start
            query = self.positions.turn(query, first)
            added = self.positions.bias()
            if added is not None:
                bias = added if bias is None else added + bias
        if start is not None and isinstance(bias, Bias):
            # The engine lines queries up at the end; these stand elsewhere.
            bias = bias.on(Grid.whole(num_queries, num_keys, offset=start), *bias.parameters())
        output, weights = self.attend(
            query, values, keys, self.score, mask, bias, dropout, return_weights
        )
        return self.output_dense(output), weights

    def score_shape(self, query_shape: Shape, key_shape: Shape) -> Shape:
        return (query_shape[0], self.num_heads, query_shape[1], key_shape[1])

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], self._output_shape or query_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "score": serialized(self.score),
            "num_key_value_heads": self.num_key_value_heads,
            "positions": serialized(self.positions),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "output_kernel_initializer": keras.initializers.serialize(
                self.output_kernel_initializer
            ),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MultiHeadAttention":
        return cls(**deserialized(config, "score", "positions"))
