"""Base of the models of token ids: checks, building, export and training."""

from collections.abc import Callable
from os import PathLike
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._shared import LogitFactors
from tfattn._types import Tensor
from tfattn.core.tensors import matmul_shared
from tfattn.layers.base import CheckedCall, flat_layers


class TokenModel(CheckedCall, keras.Model):
    """A model of token ids, for any batch size and lengths."""

    id_names: tuple[str, ...] = ("source", "target_in")
    takes_ids = True

    decoder: Any
    output_dense: Any
    train_function: Any

    def _check_call(self, arguments: dict[str, Any]) -> None:
        others = dict(arguments)
        if "inputs" in others and len(self.id_names) == 2:
            self._check_pair(others.pop("inputs"))
        super()._check_call(others)

    def _check_pair(self, inputs: Any) -> None:
        who, letters = type(self).__name__, "(B, S) and (B, T), of integers"
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            _checks.fail(who, "inputs", f"be a pair (source, target), of shapes {letters}", inputs)
        for ids in inputs:
            _checks.array(who, "inputs", ids, letters)
            _checks.rank(who, "inputs", ids.shape, (2,), letters)
        _checks.same_batch(who, "inputs[1]", inputs[1].shape, "inputs[0]", inputs[0].shape)

    def _keep_vocabularies(self, source: int, target: int | None, shared: bool) -> None:
        """Keeps both sizes, by default one; a shared matrix needs one."""
        who = type(self).__name__
        target = source if target is None else target
        self.source_vocabulary_size = _checks.positive_int(who, "source_vocabulary_size", source)
        self.target_vocabulary_size = _checks.positive_int(who, "target_vocabulary_size", target)
        self.share_embeddings = _checks.boolean(who, "share_embeddings", shared)
        if shared and source != target:
            expected = f"be `source_vocabulary_size`={source} where embeddings are shared"
            _checks.fail(who, "target_vocabulary_size", expected, target)

    def _make_output(self, size: int, shared: bool) -> keras.layers.Dense | None:
        """The output projection; None if it shares the embedding's matrix."""
        return None if shared else keras.layers.Dense(size, dtype=self.dtype_policy, name="output")

    def logits(self, x: Tensor) -> Tensor:
        """Scores over the vocabulary V from the decoder's vectors: `(..., width)` to `(..., V)`.

        In float32, the logits have `LogitFactors`, from which `MaskedCrossentropy` is computed.
        """
        dense, embedding = self.output_dense, self.decoder.embedding
        if dense is None:
            if embedding.quantization_mode is None:
                vectors = embedding.embeddings  # (V, width)
            else:
                # Lookups dequantize the integers of a quantized matrix.
                vectors = embedding(ops.arange(embedding.input_dim))
            vectors, bias = ops.cast(vectors, x.dtype), None
            scores = matmul_shared(x, ops.transpose(vectors))
        else:
            flat = dense(ops.reshape(x, (-1, x.shape[-1])))  # a flat product, not a batched product
            scores = ops.reshape(flat, (*ops.shape(x)[:-1], dense.units))
        dtypes = {keras.backend.standardize_dtype(tensor.dtype) for tensor in (x, scores)}
        if not hasattr(scores, "graph") or dtypes != {"float32"}:  # only a graph can skip them
            return scores
        if dense is not None:
            # Subclasses and changed layers may compute more than a linear map.
            is_linear = dense.activation is keras.activations.linear
            if type(dense) is not keras.layers.Dense or dense.quantization_mode or not is_linear:
                return scores
            # `cast` reads the variables here; a later read could follow an optimizer's step.
            vectors = ops.transpose(ops.cast(dense.kernel, x.dtype))
            bias = None if dense.bias is None else ops.cast(dense.bias, x.dtype)
        return LogitFactors(x, vectors, bias).on(scores)

    def build_for_any(self) -> None:
        """Builds the model, unless built; compiled steps and searches cannot create weights."""
        if not self.built:
            shapes = ((None, None),) * len(self.id_names)
            self.build(shapes if len(shapes) == 2 else shapes[0])

    def export(
        self,
        filepath: str | PathLike[str],
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """`keras.Model.export` with an endpoint for int32 ids of any batch size and lengths, unless
        `input_signature` is passed.

        Formats other than SavedModel hold the dense path only, and raise in the scope
        `tfattn.attention_path("streamed")`.
        """
        if input_signature is None and _is_defined_here(self.call):
            specs = tuple(
                keras.InputSpec(shape=(None, None), dtype="int32", name=name)
                for name in self.id_names
            )
            input_signature = [specs] if len(specs) == 2 else list(specs)
        return super().export(
            filepath, format, verbose=verbose, input_signature=input_signature, **kwargs
        )

    def fit(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        self._refuse_class_weight(class_weight)
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        self._refuse_class_weight(class_weight)
        return super().train_on_batch(*args, **kwargs)

    def _refuse_class_weight(self, class_weight: Any) -> None:
        """Raises for class weights, which Keras applies to the argmax of one-hot targets."""
        if class_weight is not None:
            expected = "be None, since targets are ids (B, T): pass sample_weight=weights[targets]"
            _checks.fail(type(self).__name__, "class_weight", expected, class_weight)

    def make_train_function(self, force: bool = False) -> None:
        before = self.train_function
        super().make_train_function(force)
        step = self.train_function
        if step is before:
            return

        def train_function(*args: Any) -> Any:
            # TensorFlow would trace a step twice that creates variables. Not earlier: `fit` without
            # a step would take the average of no weights.
            if self.optimizer is not None and not self.optimizer.built:
                self._build_optimizer()
            return step(*args)

        self.train_function = train_function

    def _build_optimizer(self) -> None:
        """Not for subclasses that define `build`, or have layers that only a call builds."""
        if _is_defined_here(self.build):
            self.build_for_any()
            if all(layer.built for layer in flat_layers(self)):
                self.optimizer.build(self.trainable_variables)


def _is_defined_here(method: Callable[..., Any]) -> bool:
    """Whether a method is defined in this package, and not in a user's subclass."""
    return method.__module__.startswith("tfattn.models.")
