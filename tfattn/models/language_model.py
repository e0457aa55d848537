"""A causal language model: from token ids to logits of the next token."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._shared import prompt_of, with_prompt
from tfattn._types import Shape
from tfattn.layers.configs import checked_layer, copy_of
from tfattn.layers.tokens import given_ids, ids_below
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.models.base import TokenModel
from tfattn.models.stacks import TransformerDecoder


@keras.saving.register_keras_serializable("tfattn")
class CausalLM(TokenModel):
    """A decoder-only Transformer, which predicts each token from the earlier tokens.

        p(token_t | tokens before t) = softmax(W · decoder(tokens)_{t−1})

        model.compile(optimizer, MaskedCrossentropy())
        model.fit(batches)                                  # of (ids_in, ids_out)
        state = model.encode(prompts, max_length)
        written = GreedySearch()(model.step, state, batch_size, max_length)

    Padding (id 0) is masked everywhere. `ids_in` begins with the begin token, and `ids_out` is the
    same text shifted by one token. The output of a search begins with the prompt.

    Args:
        vocabulary_size: positive int V, number of ids, padding included.
        num_layers: positive int, number of blocks.
        width, num_heads, hidden_dim, dropout, positions, seed: see `TransformerEncoder`.
        block: see `TransformerEncoder`. It is built without cross-attention.
        tie_embeddings: whether the embedding matrix is also the output projection W.
    Call arguments:
        ids: integers `(B, T)`.
        training: whether dropout is active.
    Returns:
        Scores before softmax (logits) of the next token at each position, `(B, T, V)`.
    Example:
        >>> model = CausalLM(11, num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> tuple(model(np.array([[2, 4, 7]])).shape)
        (1, 3, 11)
        >>> prompts = np.array([[4, 7, 5], [6, 0, 0]])
        >>> state = model.encode(prompts, max_length=9)
        >>> written = GreedySearch()(model.step, state, 2, max_length=9)
        >>> print(np.asarray(written[0, :3]), np.asarray(written[1, :1]))
        [4 7 5] [6]

    Source: Radford et al. 2018, Improving Language Understanding by Generative Pre-Training; tied
    embeddings, Press, Wolf 2017, arXiv:1608.05859. The defaults are those of `Transformer`.
    """

    id_names = ("ids",)
    call_axes = {"ids": "BT"}

    decoder: TransformerDecoder

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        width: int = 512,
        num_heads: int | None = None,
        hidden_dim: int | None = None,
        dropout: float | None = None,
        block: TransformerBlock | None = None,
        positions: keras.layers.Layer | None = None,
        tie_embeddings: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = "CausalLM"
        self.vocabulary_size = _checks.positive_int(who, "vocabulary_size", vocabulary_size)
        self.tie_embeddings = _checks.boolean(who, "tie_embeddings", tie_embeddings)
        self.seed = _checks.seed(who, seed)
        self.decoder = TransformerDecoder(
            vocabulary_size,
            num_layers=num_layers,
            width=width,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            dropout=dropout,
            block=block,
            positions=copy_of(checked_layer(who, "positions", positions)),
            **self._part_options("decoder"),
        )
        self.num_layers, self.width = self.decoder.num_layers, self.decoder.width
        self.num_heads, self.hidden_dim = self.decoder.num_heads, self.decoder.hidden_dim
        self.dropout = self.decoder.dropout
        self.output_dense = self._make_output(vocabulary_size, tie_embeddings)

    @property
    def block(self) -> TransformerBlock | None:
        """A copy of the block that was passed in, or None."""
        return self.decoder.block

    @property
    def positions(self) -> keras.layers.Layer:
        """The decoder's positional encoding."""
        return self.decoder.positions

    def build(self, ids_shape: Shape) -> None:
        self.decoder.build(ids_shape)
        if self.output_dense is not None:
            self.output_dense.build((None, self.width))

    def call(self, ids: Any, training: bool | None = None) -> Any:
        return self.logits(self.decoder(ids, training=training))

    def encode(self, prompt: Any, max_length: int | None = None) -> dict[str, Any]:
        """The initial state of `step` for a search that continues a prompt.

        Args:
            prompt: integers `(B, P)`, the text after the begin token. Each row is continued after
                its own last token, unless that is an end token; padding on either side is ignored.
            max_length: as for `Transformer.encode`; the positions include the prompt.
        Returns:
            dict of tensors with the batch as first axis.
        """
        self.build_for_any()
        prompt = given_ids(type(self).__name__, "prompt", prompt, "(B, P)")
        ids_below("CausalLM", "prompt", prompt, self.vocabulary_size)
        state = {"prompt": prompt_of(prompt)}  # (B, P + 1)
        if max_length is None:
            return state
        _checks.positive_int("CausalLM", "max_length", max_length)
        if prompt.shape[1] is not None and prompt.shape[1] > max_length:
            expected = f"have at most `max_length`={max_length} tokens"
            _checks.fail("CausalLM", "prompt", expected, tuple(prompt.shape))
        batch_size = ops.shape(prompt)[0]
        caches = self.decoder.new_caches(None, None, max_length, batch_size=batch_size)
        return {**state, "caches": caches}

    def step(self, tokens: Any, position: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Logits of the token after `position`: the step function of `tfattn.decoding`.

        Inside the prompt, the prompt's next token has probability 1. Arguments, results and errors
        are those of `Transformer.step`; `tokens` are the begin token and the text so far.
        """
        if "caches" in state:
            x, caches = self.decoder.step(tokens, position, state["caches"])
            state, x = {**state, "caches": caches}, x[:, 0]
        else:
            x = ops.take(self.decoder(tokens, training=False), position, axis=1)
        return with_prompt(self.logits(x), state["prompt"], position), state

    @property
    def max_length(self) -> int | None:
        """The maximum number of positions; None if there is no limit."""
        return self.decoder.max_length

    def compute_output_shape(self, ids_shape: Shape) -> Shape:
        return (*ids_shape, self.vocabulary_size)
