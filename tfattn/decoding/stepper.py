"""A cache for a model of one's own: its attention layers keep their keys and values."""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._shared import Past, prompt_of, with_prompt
from tfattn._types import Tensor
from tfattn.decoding.compiling import without_gradients
from tfattn.layers.attention.base import as_array
from tfattn.layers.base import flat_layers, wrapped
from tfattn.layers.stepping import Stepping, stepping
from tfattn.layers.tokens import given_ids, ids_below

_Calls = dict[Any, tuple[list[Any], Any]]  # arrays into and out of each layer
_TOLERANCES = 1e-3, 3e-2  # of the greatest number: of TensorFloat-32, and of half precision


class Stepper:
    """A cache for any Keras model of this package's layers: `encode` and `step` for every search.

    A step runs the model on one token of each row. The attention layers of this package read and
    write a cache meanwhile, and its positional encodings know the position; the model has no code
    for this. Attention over the target has to be causal, and all other layers have to compute each
    token by itself. So a `Stepper` first compares steps on random tokens with a whole pass.

    Args:
        model: a built `keras.Model` from integers `(B, T)` to logits `(B, T, V)`; or, with an
            encoder, from `[source, target]`, integers `(B, S)` and `(B, T)`. A functional model has
            inputs of any length: `keras.Input((None,))`.
    Raises:
        ValueError: steps differ from the whole pass, or fail. The message names the layer.
    Attributes:
        max_source_length, max_target_length: the least number of positions of a layer, or None.
    Example:
        >>> ids = keras.Input((None,), dtype="int32")
        >>> x = keras.layers.Embedding(11, 8, mask_zero=True)(ids)
        >>> attention = MultiHeadAttention(2, key_dim=4, positions=RotaryPositions())
        >>> x = keras.layers.Add()([x, attention(query=x, value=x, use_causal_mask=True)])
        >>> model = keras.Model(ids, keras.layers.Dense(11)(x))
        >>> stepper = tfattn.decoding.Stepper(model)
        >>> state = stepper.encode(np.array([[4, 7, 5], [6, 0, 0]]), max_length=9)
        >>> written = GreedySearch()(stepper.step, state, 2, max_length=9)
        >>> print(np.asarray(written[0, :3]), np.asarray(written[1, :1]))
        [4 7 5] [6]
    """

    def __init__(self, model: keras.Model):
        if not isinstance(model, keras.Model) or not model.built:
            expected = "be a keras.Model that is built: call it once"
            _checks.fail("Stepper", "model", expected, model)
        self.model, self._has_source, layers = model, _has_source(model), flat_layers(model)
        self._checked: Any = None  # the caches after the comparison
        # Most models need no token of the source after `encode`. The second try has another length
        # too, since an encoder may add tokens up to the target's.
        for source_length in (1, None) if self._has_source else (None,):
            self._source_length = source_length
            if (fault := without_gradients(self._fault)(layers)) is None:
                return
        _checks.fail("Stepper", "model", fault, model)

    def build_for_any(self) -> None:
        """Does nothing, since the model is built."""

    def encode(self, source: Any, max_length: int) -> dict[str, Any]:
        """The initial state of `step`.

        Args:
            source: integers `(B, S)`, the encoder's source; without one, the prompts to continue,
                as for `CausalLM.encode`: padding (id 0) on either side is ignored.
            max_length: positive int, maximum number of positions, those of a prompt included.
        Returns:
            dict of tensors with the batch as first axis.
        Raises:
            ValueError: a layer has fewer positions than `max_length`, or a prompt has more tokens,
                or ids outside of the vocabulary.
        """
        limit = self.max_target_length
        if _checks.positive_int("Stepper", "max_length", max_length) > (limit or max_length):
            expected = f"be at most {limit}, the number of positions"
            _checks.fail("Stepper", "max_length", expected, max_length)
        source = ops.cast(given_ids("Stepper", "source", source, "(B, S)"), "int32")
        if not self._has_source and (source.shape[1] or 0) > max_length:
            expected = f"have at most `max_length`={max_length} tokens"
            _checks.fail("Stepper", "source", expected, tuple(source.shape))
        rows = ops.shape(source)[0]
        if self._checked is not None and not self._has_source and "memory" not in self._roles:
            caches = [[_empty(x.tensor, rows, max_length) for x in each] for each in self._checked]
        else:
            run = Stepping(max_length, 0, iter(self._roles))
            self._logits(run, source, ops.ones((rows, 1), "int32"))
            caches = run.kept
        if self._has_source:
            return {"caches": caches, "source": source[:, : self._source_length]}
        ids_below("Stepper", "source", source, self._vocabulary_size)
        return {"caches": caches, "prompt": prompt_of(source)}

    def step(self, tokens: Any, position: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Logits `(B, V)` of the token after `position`, and the state: the step function of
        `tfattn.decoding`. Inside a prompt, its next token has probability 1.
        """
        position = ops.cast(position, "int32")
        run = Stepping(None, position, iter(self._roles), iter(state["caches"]))
        token = ops.take(tokens, ops.reshape(position, (1,)), axis=1)
        logits = self._logits(run, state.get("source"), token)[:, 0]
        if not self._has_source:
            logits = with_prompt(logits, state["prompt"], position)
        return logits, {**state, "caches": run.kept}

    def _logits(self, run: Stepping, source: Any, target: Any) -> Tensor:
        """The logits of a run of the model."""
        token = stepping.set(run)
        try:
            return self.model([source, target] if self._has_source else target, training=False)
        finally:
            stepping.reset(token)

    def _fault(self, layers: list[keras.layers.Layer]) -> str | None:
        """What the model must do for its steps on random tokens to be right; None if they are."""
        limits = (getattr(layer, "max_length", None) for layer in layers)
        length = min([11, *(x for x in limits if isinstance(x, int))])  # of the target
        sizes = [x.input_dim for x in layers if isinstance(x, keras.layers.Embedding)]
        # Ids that every embedding has, but those of one vector or two, which are seldom of tokens.
        size = min([x for x in sizes if x > 2] or sizes, default=2)
        draw, fewer = np.random.default_rng(0), 4 if self._source_length else 5
        source, target = (draw.integers(0, size, (2, max(1, length - n))) for n in (fewer, 0))
        source[0, -1] = target[0, length // 2] = 0  # padding, in most models
        source, target = (ops.convert_to_tensor(ids, "int32") for ids in (source, target))
        close = functools.partial(_close, any("16" in x.compute_dtype for x in layers))
        run, whole = Stepping(length), dict[Any, Any]()
        state: Any = None
        with wrapped((layer, functools.partial(_note, whole, layer)) for layer in layers):
            try:
                logits = self._logits(run, source, target)
            except Exception as raised:
                ids = "[(B, S), (B, T)]" if self._has_source else "(B, T)"
                return f"take integers {ids} alone; {_raises(whole, raised)}"
        if len(getattr(logits, "shape", ())) < 2:
            return "return logits (B, T, V) alone"
        self._vocabulary_size = logits.shape[-1]
        self.max_source_length, self.max_target_length = map(run.limits.get, ("source", "self"))
        self._roles, prompt = run.kept, source if self._has_source else 0 * source
        for at in range(length):
            error, step = None, dict[Any, Any]()
            with wrapped((layer, functools.partial(_note, step, layer)) for layer in layers):
                try:
                    state = state or self.encode(prompt, length)
                    state = self.step(target, at, state)[1]
                except Exception as raised:  # of a layer that needs more tokens
                    error = raised
            if error is None and all(close(at, whole[self.model][1], step[self.model][1])):
                continue
            if error is not None:
                return f"compute single tokens; {_raises(step, error)}"
            for layer, (inputs, outputs) in step.items():
                before = whole.get(layer, ([], []))
                inputs_agree = all(close(at, before[0], inputs))
                if layer is self.model or inputs_agree and False in close(at, before[1], outputs):
                    only = "mix tokens in causal attention layers of tfattn alone"
                    only += ", and hide tokens of a memory from all queries or none"
                    return f"{only}; {_named(layer)} gives other numbers for single tokens"
        self._checked = state["caches"]
        if any(x.shape[0] != 2 for x in keras.tree.flatten(self._checked)):
            return "keep the batch as the first axis in attention: heads are MultiHeadAttention's"
        return None


def _empty(cache: Tensor, rows: Any, length: int) -> Past:
    """A cache `(B, ..., L, P)` of these rows and this length, like another."""
    shape = rows, *cache.shape[1:-2], length, cache.shape[-1]
    return Past(ops.zeros(shape, cache.dtype))


def _named(layer: Any) -> str:
    return f"layer `{layer.name}` ({type(layer).__name__})"


def _raises(calls: _Calls, error: Exception) -> str:
    """The innermost layer that raised the error, and the error."""
    where = next((layer for layer, (_, outputs) in calls.items() if outputs is None), None)
    return f"{'it' if where is None else _named(where)} raises: {error}"


def _note(calls: _Calls, layer: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a layer, and notes the arrays into and out of it; in the order in which calls end."""
    if stepping.get() is None:  # another thread's call
        return call(*args, **kwargs)
    outputs = arrays = None
    try:
        outputs = call(*args, **kwargs)
        arrays = _arrays(outputs)
        return outputs
    finally:
        calls[layer] = _arrays((args, kwargs)), arrays


def _arrays(tensors: Any) -> list[Any]:
    return [as_array(x) for x in keras.tree.flatten(tensors) if ops.is_tensor(x)]


def _close(is_half: bool, at: int, whole: list[Any], step: list[Any]) -> list[bool | None]:
    """Whether arrays of a step have the numbers of a whole pass at that position; None for those of
    other shapes, or without numbers, inside a loop of a layer.
    """
    agree: list[bool | None] = [None] * (len(whole) != len(step))
    for x, y in zip(whole, step, strict=False):
        if x is not None and x.ndim > 1 and np.shape(y)[1:2] == (1,):
            x = x[:, at : at + 1]
        agree.append(None)
        if x is not None and x.shape == np.shape(y):
            x, y = x.astype("float64"), y.astype("float64")
            scale = np.max(np.abs(x), where=np.isfinite(x), initial=0.0)
            is_close = np.isclose(x, y, 0.0, _TOLERANCES[is_half] * scale, equal_nan=True)
            agree[-1] = bool(is_close.all())
    return agree


def _has_source(model: keras.Model) -> bool:
    """Whether the model takes a source and a target."""
    if getattr(model, "inputs", None) is not None:
        return len(model.inputs) == 2
    shape = (model.get_build_config() or {}).get("input_shape") or (None,)
    return len(shape) == 2 and not isinstance(shape[0], int | None)
