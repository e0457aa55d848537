"""What the models that translate share: how they come by their variables."""

import keras


class TranslationModel(keras.Model):
    """A model of (source, target) ids of any batch and lengths."""

    def build_for_any(self):
        """Builds the model as a whole, if it is not yet: a step or a search that is compiled must
        make no weights.
        """
        if not self.built:
            self.build(((None, None), (None, None)))

    def make_train_function(self, force=False):
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
