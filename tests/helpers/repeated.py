"""Few examples as many batches, on every backend."""

import keras


class Repeated(keras.utils.PyDataset):
    """One batch after the other, so many of them, again and again from the first."""

    def __init__(self, inputs, targets, batch_size, steps):
        super().__init__()
        self.arrays, self.batch_size, self.steps = (*inputs, targets), batch_size, steps

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        start = index * self.batch_size % len(self.arrays[0])
        *inputs, targets = (x[start : start + self.batch_size] for x in self.arrays)
        return tuple(inputs), targets
