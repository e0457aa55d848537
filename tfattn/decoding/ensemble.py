"""Several models as one: the mean of their probabilities at each step."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Tensor


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
        ValueError: `models` is no sequence of models, or they have vocabularies of other sizes.
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
        is_sequence = isinstance(models, list | tuple) and models
        if not is_sequence or not all(hasattr(model, "encode") for model in models):
            _checks.fail(who, "models", "be a sequence of models with `encode` and `step`", models)
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

    def build_for_any(self) -> None:
        """Builds the models, unless built."""
        for model in self.models:
            model.build_for_any()

    def __call__(self, inputs: Any, training: bool | None = None) -> Tensor:
        return _mean([model(inputs, training=training) for model in self.models])

    def encode(self, source: Any, max_length: int | None = None) -> dict[str, Any]:
        """The initial state of `step`: a dict with the tuple of the models' states, "models"."""
        return _joined(tuple(model.encode(source, max_length) for model in self.models))

    def step(
        self, tokens: Any, position: Any, state: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """The log of the mean of the probabilities of the token after `position`, float32 `(B, V)`,
        and the state: the step function of `tfattn.decoding`.
        """
        pairs = zip(self.models, state["models"], strict=True)
        results = [model.step(tokens, position, own) for model, own in pairs]
        logits, states = zip(*results, strict=True)
        return _mean(logits), _joined(states)


def _mean(logits: Sequence[Tensor]) -> Tensor:
    log_p = [ops.log_softmax(ops.cast(each, "float32"), axis=-1) for each in logits]
    return ops.logsumexp(ops.stack(log_p), axis=0) - math.log(len(log_p))


def _joined(states: tuple[Any, ...]) -> dict[str, Any]:
    """The state of all models, with the prompt, which a search reads."""
    prompted = isinstance(states[0], dict) and "prompt" in states[0]
    return {"models": states, **({"prompt": states[0]["prompt"]} if prompted else {})}
