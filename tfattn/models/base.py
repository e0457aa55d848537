"""What the models of token ids share: how they come by their variables."""

from os import PathLike
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.engine import scope
from tfattn.core.floats import given_tensor
from tfattn.layers.calls import CheckedCall


class TokenModel(CheckedCall, keras.Model):
    """A model of ids of any batch and lengths.

    Attributes:
        any_shape: of the inputs, as `build` takes it: (source, target), unless a subclass has it
            otherwise.
    """

    any_shape: tuple = ((None, None), (None, None))

    def check_call(self, arguments: dict[str, Any]) -> None:
        inputs = arguments.get("inputs", self)
        if inputs is self or not isinstance(self.any_shape[0], tuple):
            super().check_call(arguments)
            return
        who, letters = type(self).__name__, "(B, S) and (B, T), of integers"
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            _checks.fail(who, "inputs", f"be a pair (source, target), of shapes {letters}", inputs)
        for ids in inputs:
            _checks.array(who, "inputs", ids, letters)
            _checks.rank(who, "inputs", ids.shape, (2,), letters)
        _checks.same_batch(who, "inputs", inputs[1].shape, "the source", inputs[0].shape)
        others = {name: value for name, value in arguments.items() if name != "inputs"}
        super().check_call(others)

    def given_ids(self, argument: str, ids: Any, letters: str) -> Tensor:
        """Ids as a tensor, nested lists of them too, if that is what they are."""
        who = type(self).__name__
        ids = given_tensor(who, argument, ids, f"{letters}, of integers")
        _checks.array(who, argument, ids, f"{letters}, of integers")
        _checks.rank(who, argument, ids.shape, (2,), letters)
        return ids

    def build_for_any(self) -> None:
        """Builds the model as a whole, if it is not yet: a step or a search that is compiled must
        make no weights.
        """
        if not self.built:
            self.build(self.any_shape)

    def export(
        self,
        filepath: str | PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.export`; the endpoint takes int32 ids of any batch and lengths, unless
        `input_signature` says otherwise.

        All formats but SavedModel get the dense path alone, unless a scope `tfattn.path` is open.
        """
        if input_signature is None and _is_ours(self.call):
            input_signature = [self._any_ids()]
        with scope.of_export(format):
            return super().export(
                filepath, format, verbose=verbose, input_signature=input_signature, **kwargs
            )

    def _any_ids(self):
        """What the call takes, as a signature."""
        pair = isinstance(self.any_shape[0], tuple)
        shapes = self.any_shape if pair else (self.any_shape,)
        names = ("source", "target_in") if pair else ("ids",)
        specs = tuple(
            keras.InputSpec(shape=shape, dtype="int32", name=name)
            for shape, name in zip(shapes, names, strict=True)
        )
        return specs if pair else specs[0]

    def fit(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        self._refuse_class_weight(class_weight)
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        self._refuse_class_weight(class_weight)
        return super().train_on_batch(*args, **kwargs)

    def _refuse_class_weight(self, class_weight: Any) -> None:
        """Raises for what Keras takes for weights of one-hot rows, whose argmax is a class."""
        if class_weight is not None:
            expected = "be None, since targets are ids (B, T): pass sample_weight=weights[targets]"
            _checks.fail(type(self).__name__, "class_weight", expected, class_weight)

    def make_train_function(self, force: bool = False) -> None:
        before = self.train_function
        super().make_train_function(force)
        if self.train_function is before:
            return
        step = self.train_function

        def train_function(*args):
            self._make_training_variables()
            return step(*args)

        self.train_function = train_function

    def _make_training_variables(self):
        """Makes weights and the optimizer's variables ahead of a step: one that makes them itself,
        TensorFlow traces twice.

        Not in a subclass with layers that only its call can build, or with a `build` for other
        inputs.
        """
        if self.optimizer is None or self.optimizer.built:
            return
        if _is_ours(self.build):
            self.build_for_any()
            if all(layer.built for layer in self._flatten_layers()):
                self.optimizer.build(self.trainable_variables)


def no_coverage(mask: Tensor) -> Tensor:
    """float32 `(B, S)`, how much of a source is looked at before the first step: padding is no part
    of it, and counts as seen.
    """
    return ops.where(mask, 0.0, 1.0)


def _is_ours(method):
    """Whether a model's method is that of the class here, and not of a subclass elsewhere."""
    return method.__module__.startswith("tfattn.models.")
