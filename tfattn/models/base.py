"""What the models of token ids share: how they come by their variables."""

import keras


class TokenModel(keras.Model):
    """A model of ids of any batch and lengths.

    Attributes:
        any_shape: of the inputs, as `build` takes it: (source, target), unless a subclass has it
            otherwise.
    """

    any_shape: tuple = ((None, None), (None, None))

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
