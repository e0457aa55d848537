"""What the models that translate share: they are built before they are trained."""

import keras


class TranslationModel(keras.Model):
    """A model of (source, target) ids of any batch and lengths."""

    def make_train_function(self, force=False):
        # What a compiled step makes itself, weights and the optimizer's variables, TensorFlow traces twice.
        self.build_for_any()
        if self.compiled and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def build_for_any(self):
        """Builds the model as a whole, if it is not yet: a step or a search that is compiled must make no weights."""
        if not self.built:
            self.build(((None, None), (None, None)))
