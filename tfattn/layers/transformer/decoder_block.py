"""One layer of a Transformer's decoder."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.guard import zero_nonfinite_padding
from tfattn.layers.stepping import written
from tfattn.layers.tokens import AttachMask, mask_of_tokens
from tfattn.layers.transformer.block import TransformerBlock


@keras.saving.register_keras_serializable("tfattn")
class TransformerDecoderBlock(TransformerBlock):
    """Masked self-attention, attention over the encoder's output, and a position-wise network.

        x = add_norm(x, self_attention(query=x, value=x))           sees no later position
        x = add_norm(x, cross_attention(query=x, value=memory))     memory: the encoder's output
        x = add_norm(x, feed_forward(x))

    Built without a memory, as for a language model, a block has no cross-attention.

    Args: those of `TransformerEncoderBlock`. The copy of `attention` over the memory has no
    positions or sliding window: positions of target and memory are unrelated.
    Call arguments:
        inputs: float `(B, T, D)`, the target so far.
        memory: float `(B, S, Dm)`, the encoder's output; in every call or in none.
        inputs_mask, mask: bool `(B, T)`, True = real token; two names of one mask. Keras passes the
            implicit mask of `inputs` here, as `mask` if there is no memory.
        memory_mask: bool `(B, S)`, the same for `memory`.
        attention_mask, use_causal_mask: as for `MultiHeadAttention`, for the self-attention;
            causal by default.
        memory_attention_mask, valid_lens: the same mask and lengths over the memory.
        return_attention_scores: whether to return the weights of both attentions too.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of `inputs`; with `return_attention_scores=True` also the weights
        of the self-attention, `(B, H, T, T)`, and of the attention over the memory, `(B, H, T, S)`.
    Example:
        >>> target, memory = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")
        >>> block = TransformerDecoderBlock(num_heads=2, hidden_dim=16)
        >>> tuple(block(inputs=target, memory=memory).shape)
        (2, 3, 8)
        >>> tuple(TransformerDecoderBlock(num_heads=2, hidden_dim=16)(target).shape)
        (2, 3, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    call_axes = {"inputs": "BTD", "memory": "BSE", "memory_mask": "BS"}
    call_axes |= dict.fromkeys(("inputs_mask", "mask"), "BT")

    cross_attention: Any
    cross_attention_norm: Any

    def build(self, inputs_shape: Shape, memory_shape: Shape | None = None) -> None:
        self.attach_mask = AttachMask(name="attach_mask", dtype=self.dtype_policy)
        self.self_attention = self._make_attention("self_attention", inputs_shape, inputs_shape)
        self.self_attention_norm = self._make_add_norm("self_attention_norm", inputs_shape)
        self.cross_attention = self.cross_attention_norm = None
        if memory_shape is not None:
            self.cross_attention = self._make_attention(
                "cross_attention", inputs_shape, memory_shape, positions=None, sliding_window=None
            )
            self.cross_attention_norm = self._make_add_norm("cross_attention_norm", inputs_shape)
        self.feed_forward = self._make_feed_forward(inputs_shape)
        self.feed_forward_norm = self._make_add_norm("feed_forward_norm", inputs_shape)

    def call(
        self,
        inputs: Any,
        memory: Any = None,
        inputs_mask: Any = None,
        memory_mask: Any = None,
        attention_mask: Any = None,
        memory_attention_mask: Any = None,
        valid_lens: Any = None,
        use_causal_mask: bool = True,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Any = None,
    ) -> Tensor | tuple[Tensor, ...]:
        self._check_memory(memory)
        inputs_mask = mask_of_tokens(inputs, inputs_mask, mask)
        memory_masks = {
            "key_mask": mask_of_tokens(memory, memory_mask),
            "attention_mask": memory_attention_mask,
            "valid_lens": valid_lens,
        }
        options = {"training": training, "return_attention_scores": return_attention_scores}
        weights: list[Tensor] = []

        def pooled(result: Any) -> Tensor:
            if not return_attention_scores:
                return result
            weights.append(result[1])
            return result[0]

        def over_target(x: Tensor) -> Tensor:
            masks = {
                "key_mask": inputs_mask,
                "attention_mask": attention_mask,
                "use_causal_mask": use_causal_mask,
            }
            return pooled(self.self_attention(query=x, value=x, **masks, **options))

        def over_memory(x: Tensor) -> Tensor:
            return pooled(self.cross_attention(query=x, value=memory, **memory_masks, **options))

        if inputs_mask is not None:
            inputs = zero_nonfinite_padding(inputs, inputs_mask)
        output = self._sublayers(inputs, over_target, over_memory, training)
        if inputs_mask is not None:
            output = self.attach_mask((output, inputs_mask))
        return (output, *weights) if weights else output

    def _check_call(self, arguments: dict[str, Any]) -> None:
        if arguments.get("memory") is None:
            for name in ("memory_mask", "memory_attention_mask", "valid_lens"):
                if arguments.get(name) is not None:
                    who = type(self).__name__
                    _checks.fail(who, name, "be omitted without `memory`", arguments[name])
        super()._check_call(arguments)

    def _check_memory(self, memory: Tensor | None) -> None:
        if (memory is None) != (self.cross_attention is None):
            expected = (
                "be passed, since the block was built with a memory"
                if memory is None
                else "be omitted, since the block was built without cross-attention"
            )
            shape = None if memory is None else tuple(memory.shape)
            _checks.fail(type(self).__name__, "memory", expected, shape)

    def _sublayers(
        self,
        inputs: Tensor,
        over_target: Callable[[Tensor], Tensor],
        over_memory: Callable[[Tensor], Tensor],
        training: bool | None,
    ) -> Tensor:
        """All sublayers with their residuals; the attentions are functions of the queries."""
        norm = self.self_attention_norm
        x = norm(inputs, over_target(norm.pre_norm(inputs)), training=training)
        if self.cross_attention is not None:
            norm = self.cross_attention_norm
            x = norm(x, over_memory(norm.pre_norm(x)), training=training)
        norm = self.feed_forward_norm
        return norm(x, self.feed_forward(norm.pre_norm(x), training=training), training=training)

    def new_cache(
        self, memory: Any = None, max_length: int | None = None, batch_size: Any = None
    ) -> dict[str, Any]:
        """The cache of `step`: keys and values of the target, initially 0, and of the memory.

        Args:
            memory: float `(B, S, Dm)`, finite even where hidden; None in a block without a memory.
            max_length: positive int L, maximum number of positions.
            batch_size: int or scalar integer tensor B, in a block without a memory.
        Returns:
            dict with `keys` `(B, G, L, P)` and `values` `(B, G, L, V)`; with a memory also
            `memory_keys` `(B, G, S, P)` and `memory_values`.
        """
        who = type(self).__name__
        self._check_memory(memory)
        _checks.positive_int(who, "max_length", max_length)
        if (memory is None) == (batch_size is None):
            expected = "be passed" if memory is None else "be omitted with `memory`"
            _checks.fail(who, "batch_size", expected, batch_size)
        cache = {}
        if memory is not None:
            memory_keys, memory_values = self.cross_attention.project_keys(memory)
            cache = {"memory_keys": memory_keys, "memory_values": memory_values}
            batch_size = ops.shape(memory_keys)[0]
        attention = self.self_attention
        rows = (batch_size, attention.num_key_value_heads, max_length)
        return {
            "keys": ops.zeros((*rows, attention.key_dim), dtype=self.compute_dtype),
            "values": ops.zeros((*rows, attention.value_dim), dtype=self.compute_dtype),
            **cache,
        }

    def step(
        self,
        inputs: Any,
        position: Any,
        cache: dict[str, Any],
        bias: Any,
        memory_bias: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """The call for one position, whose keys and values are written into the cache.

        Hidden keys and values must be finite, so that a bias of −inf hides them. A mask would need
        a check for NaN, which costs more than the attention of one query.

        Args:
            inputs: float `(B, 1, D)`, the token at `position`.
            position: scalar int32, below the L of `new_cache`.
            cache: from `new_cache` or the previous step.
            bias: float `(B, 1, L)`, 0 at visible positions of the target and −inf elsewhere.
            memory_bias: float `(B, 1, S)`, the same for the memory. Defaults to hiding nothing.
        Returns:
            `(B, 1, D)`, and the cache, in which `memory_keys` and `memory_values` are the same
            objects.
        """
        cache = dict(cache)

        def over_target(x: Tensor) -> Tensor:
            keys, values = self.self_attention.project_keys(x, start=position)  # (B, G, 1, P)
            cache["keys"] = written(cache["keys"], keys, position)
            cache["values"] = written(cache["values"], values, position)
            return self.self_attention.attend_projected(
                x, cache["keys"], cache["values"], bias=bias, start=position
            )

        def over_memory(x: Tensor) -> Tensor:
            keys, values = cache["memory_keys"], cache["memory_values"]
            return self.cross_attention.attend_projected(x, keys, values, bias=memory_bias)

        return self._sublayers(inputs, over_target, over_memory, training=False), cache
