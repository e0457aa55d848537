"""What the models of token ids share: how they come by their variables."""

from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Tensor
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
        if inputs is self:
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
        if type(self).build.__module__.startswith("tfattn.models."):
            self.build_for_any()
            if all(layer.built for layer in self._flatten_layers()):
                self.optimizer.build(self.trainable_variables)
