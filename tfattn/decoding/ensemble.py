"""Several models as one: the mean of their probabilities at each step."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor

__all__ = ["Ensemble"]


class Ensemble:
    """Several models with the same vocabularies as one model, for any search and for `translate`.

        p(token) = 1/M · Σ_m p_m(token)

    The models may be of any kinds and sizes. Each has a state of its own, with its caches. An
    ensemble has no search of its own: where models were published with different searches, the
    search passed to `translate` is used for all of them.

    Args:
        models: sequence of models with `encode` and `step`, see `translate`. A model may
            occur more than once, for more weight.
    Call arguments:
        inputs: those of each model, such as (source, target_in), integers `(B, S)` and `(B, T)`.
        training: whether dropout is active.
    Returns:
        float32, the log of the mean of the probabilities, `(B, T, V)`.
    Raises:
        ValueError: `models` is empty or has an object without `encode` and `step`; the models have
            vocabularies of different sizes.
    Attributes:
        source_vocabulary_size, target_vocabulary_size: those of the models, or None if unknown.
        max_source_length, max_target_length: the least of the models, or None for no limit.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
        >>> models = [Transformer(len(words), **sizes) for _ in range(2)]
        >>> ensemble = tfattn.decoding.Ensemble(models)
        >>> len(translate(ensemble, ["a bird"], words, words, max_length=5))
        1

    Source: Sutskever, Vinyals, Le 2014, arXiv:1409.3215, section 3.6.
    """

    source_vocabulary_size: int | None
    target_vocabulary_size: int | None
    max_source_length: int | None
    max_target_length: int | None

    def __init__(self, models: Sequence[Any]):
        who = "Ensemble"
        if not isinstance(models, list | tuple) or not models:
            _checks.fail(who, "models", "be a sequence of models", models)
        for model in models:
            if not all(callable(getattr(model, name, None)) for name in ("encode", "step")):
                _checks.fail(who, "models", "hold models with `encode` and `step`", model)
        self.models = tuple(models)
        for name in ("source_vocabulary_size", "target_vocabulary_size"):
            sizes = [getattr(model, name, None) for model in models]
            known = {size for size in sizes if size is not None}
            if len(known) > 1:
                _checks.fail(who, "models", f"have the same `{name}`", sizes)
            setattr(self, name, next(iter(known), None))
        for name in ("max_source_length", "max_target_length"):
            limits = [getattr(model, name, None) for model in models]
            setattr(self, name, min((each for each in limits if each is not None), default=None))

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of the models, for compiled searches."""
        return [variable for model in self.models for variable in model.variables]

    def build_for_any(self) -> None:
        """Builds the models, unless built."""
        for model in self.models:
            if hasattr(model, "build_for_any"):
                model.build_for_any()

    def __call__(self, inputs: Any, training: bool | None = None) -> Tensor:
        return _mean([model(inputs, training=training) for model in self.models])

    def encode(
        self, source: Any, max_length: int | None = None, coverage: bool = False
    ) -> dict[str, Any]:
        """The initial state of `step`: a dict with the tuple of the models' states, "models".

        Arguments are those of the models' `encode`; `state["coverage"]` is their mean.
        """
        options = {"max_length": max_length, **({"coverage": True} if coverage else {})}
        return _joined(tuple(model.encode(source, **options) for model in self.models))

    def step(
        self, tokens: Any, position: Any, state: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """The log of the mean of the probabilities of the token after `position`, float32 `(B, V)`,
        and the state: the step function of `tfattn.decoding`.
        """
        pairs = zip(self.models, state["models"], strict=True)
        logits, states = zip(
            *(model.step(tokens, position, own) for model, own in pairs), strict=True
        )
        return _mean(logits), _joined(states)


def _mean(logits: Sequence[Tensor]) -> Tensor:
    log_p = [ops.log_softmax(ops.cast(each, "float32"), axis=-1) for each in logits]
    return ops.logsumexp(ops.stack(log_p), axis=0) - math.log(len(log_p))


def _joined(states: tuple[Any, ...]) -> dict[str, Any]:
    """The state of all models, with the entries that a search reads."""
    state, first = {"models": states}, states[0] if isinstance(states[0], dict) else {}
    if "prompt" in first:
        state["prompt"] = first["prompt"]
    if "coverage" in first:
        state["coverage"] = sum(each["coverage"] for each in states) / len(states)
    return state
