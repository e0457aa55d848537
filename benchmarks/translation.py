"""A Transformer's training step and searches against the same model of KerasHub's layers.

    python benchmarks/translation.py                every case, about half an hour
    python benchmarks/translation.py --quick        whether every case runs, in tiny sizes
    python benchmarks/translation.py --case beam
    python benchmarks/translation.py --data DIR     on real sentences: train.en, train.de,
                                                    test_2016.en, test_2016.de
    python benchmarks/translation.py --model OUT --data DIR
                                                    a trained model of the translator, beside
                                                    CTranslate2 and ONNX Runtime too (extras
                                                    `serve` and `export`)

Needs the extra `bench`. Without `--data` sentences are rows of random ids, as long as those of
Multi30k are in subwords. Both models have the same weights, in float32, and see the same batches.
Before anything is timed, their losses without dropout, or the scores of their best hypotheses, are
compared, and the tokens of greedy search up to the end. Each has its own process, and they take
turns batch by batch. A time is the sum of the medians of the batches.

Training: batches of `token_batches`, up to 4,096 tokens on a side; forward, backward and Adam,
compiled for batches of any size as in `fit`. Both have tfattn's `MaskedCrossentropy`, which does
without the logits of our model. One case holds them, so that the layers alone differ. Two give
KerasHub's model the loss of Keras: `CategoricalCrossentropy` of one-hot rows for smoothed labels,
`SparseCategoricalCrossentropy` for others. A process's growth is that of its peak memory from
before the first batch to after the last, tracing included. KerasHub's layers drop attention weights
at the rate of everything else, so ours do too, but for the case that says otherwise.

Beam search: batches of `translate`, 64 sentences each. Both rank by the sum of log-probabilities.
Untrained weights end no sentence: in both models the logits of the end are set so that a sentence
ends, in all of its beams, where its reference does. (With trained weights the beams of a sentence
end at different lengths, and `BeamSampler` waits until all of them have.) KerasHub's models
generate by XLA unless they are told not to.
"""

import argparse
import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
import trained_translation
from keras import ops
from peers import Failures, Work, measure, print_header, print_row, serve, with_goal

import tfattn
from tfattn import data
from tfattn.decoding import BeamSearch, GreedySearch, Search, translate

Tensor = Any
Batch = Sequence[np.ndarray]

VOCABULARY_SIZE = 9900
SIZES = {
    "num_layers": 4,
    "width": 128,
    "num_heads": 4,
    "hidden_dim": 256,
    "dropout": 0.3,
    "share_embeddings": True,
}
BEAMS = 5


class Case(NamedTuple):
    """One row of the table."""

    name: str
    work: str  # "training" or "decoding"
    goal: float | None = None  # of time
    memory_goal: float | None = None
    jit: bool = False  # XLA for ours
    peer_jit: bool = False
    attention_dropout: float = 0.3  # of ours
    holds_logits: bool = False  # whether ours does
    keras_loss: bool = False  # whether the peer has Keras's loss
    smoothing: float = 0.1  # of the labels, in both
    ends: bool = True  # whether sentences end, or all are written to the greatest length
    every: int = 1  # takes one batch of so many
    beams: int = BEAMS  # 1 is greedy search


STEP_GOALS = 0.85, 1.0  # time and memory
CASES = [
    Case("training step", "training", *STEP_GOALS),
    Case(
        "training step, ours without dropout of attention weights",
        "training",
        *STEP_GOALS,
        attention_dropout=0.0,
    ),
    Case("training step, ours with its logits held", "training", *STEP_GOALS, holds_logits=True),
    Case("training step, KerasHub with Keras's loss", "training", *STEP_GOALS, keras_loss=True),
    Case(
        "training step, labels not smoothed, KerasHub with Keras's loss",
        "training",
        *STEP_GOALS,
        keras_loss=True,
        smoothing=0.0,
    ),
    Case("training step, both by XLA", "training", *STEP_GOALS, jit=True, peer_jit=True, every=4),
    Case("beam search, KerasHub by XLA", "decoding", 0.5, peer_jit=True),
    Case("beam search, none by XLA", "decoding"),
    Case("beam search, both by XLA", "decoding", jit=True, peer_jit=True),
    Case("greedy search, KerasHub by XLA", "decoding", peer_jit=True, beams=1),
    Case("greedy search, none by XLA", "decoding", beams=1),
    Case("greedy search, both by XLA", "decoding", 0.9, jit=True, peer_jit=True, beams=1),
    Case(
        "beam search to the greatest length, KerasHub by XLA", "decoding", peer_jit=True, ends=False
    ),
]


def work_of(case: Case, file: Path | str, name: str) -> Work:
    """The work of a peer."""
    keras.utils.set_random_seed(1)  # the same first weights in each
    ours = name == "tfattn"
    kind = HoldingLogits if case.holds_logits else tfattn.Transformer
    sizes = {name: SIZES[name] for name in ("num_heads", "hidden_dim", "dropout")}
    block = tfattn.TransformerEncoderBlock(**sizes, attention_dropout=case.attention_dropout)
    model = kind(VOCABULARY_SIZE, block=block, **SIZES)
    model.build(((None, None), (None, None)))
    if not ours:
        from keras_hub_transformer import BeamTranslator, GreedyTranslator, KerasHubTransformer

        model = KerasHubTransformer(model)
    with np.load(file) as arrays:
        arrays = [arrays[key] for key in sorted(arrays) if key.startswith(case.work)]
    batches = [arrays[i : i + 3] for i in range(0, len(arrays), 3)][:: case.every]
    jit = case.jit if ours else case.peer_jit
    if case.work == "training":
        losses = _keras_loss if case.keras_loss and not ours else _own_loss
        return _of_training(model, *losses(case.smoothing), jit, batches)
    if ours:
        return _of_decoding(case, Translator(model, case.beams, jit), batches)
    options = {"begin_id": Ids.begin_id, "end_id": Ids.end_id, "adjust": ending, "jit": jit}
    if case.beams == 1:
        return _of_decoding(case, GreedyTranslator(model, **options), batches)
    return _of_decoding(case, BeamTranslator(model, case.beams, **options), batches)


class HoldingLogits(tfattn.Transformer):
    """The copy of the logits is not marked with the product that they are."""

    def logits(self, x: Tensor) -> Tensor:
        return tf.identity(super().logits(x))


def _of_training(
    model: keras.Model,
    loss: keras.losses.Loss,
    labels: Callable[[Tensor], tuple[Tensor, ...]],
    jit: bool,
    batches: list[Batch],
) -> Work:
    optimizer = keras.optimizers.Adam(1e-3, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, loss)
    optimizer.build(model.trainable_variables)
    ids = tf.TensorSpec((None, None), "int32")

    @tf.function(input_signature=[ids, ids, ids], jit_compile=jit)
    def update(source, target_in, target_out):
        return model.train_step(((source, target_in), *labels(target_out)))["loss"]

    def loss_without_dropout(source, target_in, target_out):
        expected, *weights = labels(target_out)
        return float(loss(expected, model((source, target_in)), *weights))

    batches = [[tf.constant(part) for part in batch] for batch in batches]
    steps = [lambda batch=batch: update(*batch).numpy() for batch in batches]
    some = [[part[:32] for part in batch] for batch in (batches[0], batches[-1])]
    return Work(steps, lambda: [loss_without_dropout(*batch) for batch in some])


def _own_loss(smoothing: float) -> tuple[keras.losses.Loss, Callable]:
    """tfattn's loss, and its labels for ids: the ids."""
    return tfattn.MaskedCrossentropy(label_smoothing=smoothing), lambda ids: (ids,)


def _keras_loss(smoothing: float) -> tuple[keras.losses.Loss, Callable]:
    """Keras's loss, and its labels for ids: the ids, or one-hot rows if smoothed, and weights."""
    options = {"from_logits": True, "reduction": "mean_with_sample_weight"}
    if smoothing:
        loss = keras.losses.CategoricalCrossentropy(label_smoothing=smoothing, **options)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(**options)

    def labels(ids):
        words = ops.one_hot(ids, VOCABULARY_SIZE) if smoothing else ids
        return words, ops.cast(ids != Ids.padding_id, "float32")

    return loss, labels


def _of_decoding(case: Case, translator: Callable, batches: list[Batch]) -> Work:
    def step(source, lengths, max_length):
        lengths = lengths if case.ends else (lengths + max_length).astype(lengths.dtype)
        return translator(source, lengths, int(max_length))

    def sample():
        source, lengths, max_length = batches[-1]
        tokens, scores = step(source, lengths, max_length)
        if case.beams > 1:
            return scores.tolist()
        return [token for row, n in zip(tokens, lengths, strict=True) for token in row[:n].tolist()]

    return Work([lambda batch=batch: step(*batch) for batch in batches], sample)


class Translator:
    """Tokens `(B, max_length)` of the best hypotheses, and their scores `(B,)` by beam search."""

    def __init__(self, model: tfattn.Transformer, beams: int, jit: bool):
        self.model = model
        self.encode = tf.function(model.encode, jit_compile=jit)
        if beams == 1:
            self.search = GreedySearch(jit_compile=jit)
        else:
            self.search = BeamSearch(beams, length_penalty=0.0, jit_compile=jit)

    def __call__(
        self, source: Tensor, lengths: Tensor, max_length: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        state = {"model": self.encode(source, max_length=max_length), "lengths": lengths}
        found = self.search(self.step, state, len(source), max_length)
        if isinstance(self.search, GreedySearch):
            return found.numpy(), None
        return found.tokens[:, 0].numpy(), found.scores[:, 0].numpy()

    def step(
        self, tokens: Tensor, position: Tensor, state: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        logits, after = self.model.step(tokens, position, state["model"])
        return ending(logits, position + 1, state["lengths"]), {**state, "model": after}


def ending(logits: Tensor, length: Tensor, lengths: Tensor) -> Tensor:
    """Logits `(R, V)` that end each sentence at its length of `lengths`, `(R,)`."""
    end = ops.where(length >= lengths, 1e4, -1e4)
    return ops.where(ops.arange(VOCABULARY_SIZE) == Ids.end_id, end[:, None], logits)


class Ids:
    """A vocabulary for sentences that are ids, written as numbers."""

    padding_id, unknown_id, begin_id, end_id = 0, 1, 2, 3

    def __len__(self) -> int:
        return VOCABULARY_SIZE

    def encode(self, sentence: str) -> list[int]:
        return [int(word) for word in sentence.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class Recorder(Search):
    """A model and its search that only record the batches of `translate`.

    Args:
        lengths: dict, ids of a sentence to the length of its translation.
    """

    def __init__(self, lengths: dict[tuple[int, ...], int]):
        super().__init__()
        self.lengths, self.batches = lengths, []

    def encode(self, source: np.ndarray, max_length: Any) -> np.ndarray:
        return source

    def step(self, tokens: Any, position: Any, state: Any) -> None:
        """Not called."""

    def __call__(
        self, step: Any, source: np.ndarray, batch_size: int, max_length: Any, **ids: int
    ) -> np.ndarray:
        lengths = [self.lengths[tuple(row[: row.tolist().index(Ids.end_id)])] for row in source]
        self.batches.append((source, np.array(lengths, "int32"), np.max(max_length)))
        return np.zeros((batch_size, 1), "int32")


def prepare(file: Path, folder: Path | None, quick: bool = False) -> None:
    """Writes the batches for all processes to a file.

    `training_i_j` and `decoding_i_j` are part j of batch i.
    """
    if folder is None:
        generator = np.random.default_rng(5)
        sizes = (40, 12) if quick else (29_000, 1000)
        (train, test), words = (_made_up(size, generator) for size in sizes), Ids()
    else:
        train, test = (
            data.read_parallel(folder / f"{part}.en", folder / f"{part}.de")
            for part in ("train", "test_2016")
        )
        words = data.SubwordVocabulary.from_sentences(
            [s for pair in train for s in pair], VOCABULARY_SIZE
        )
    training = [
        (*inputs, target_out)
        for inputs, target_out in data.token_batches(train, words, words, 4096).as_numpy_iterator()
    ]
    # Batches go from long sentences to short ones: the middle of each part of that range.
    parts = 1 if quick else 12
    training = [training[(2 * i + 1) * len(training) // (2 * parts)] for i in range(parts)]
    recorder = Recorder(
        {tuple(words.encode(source)): len(words.encode(target)) + 1 for source, target in test}
    )
    sentences = [source for source, _ in test]
    translate(recorder, sentences, words, words, recorder, batch_size=64)
    work = {"training": training, "decoding": recorder.batches}
    np.savez(
        file,
        **{
            f"{name}_{i:03}_{j}": part
            for name, batches in work.items()
            for i, batch in enumerate(batches)
            for j, part in enumerate(batch)
        },
    )


def _made_up(count: int, generator: np.random.Generator) -> list[tuple[str, str]]:
    """Pairs of sentences whose lengths are distributed as in Multi30k."""
    source = generator.normal(2.57, 0.31, size=count)
    target = source + generator.normal(0.0, 0.17, size=count)
    lengths = np.exp([source, target]).round().astype(int).clip(4, 45)

    def sentence(length):
        return " ".join(map(str, generator.integers(Ids.end_id + 1, VOCABULARY_SIZE, size=length)))

    return [tuple(map(sentence, pair)) for pair in lengths.T]


def shrink() -> None:
    """A model so small that every case runs in seconds."""
    global VOCABULARY_SIZE
    VOCABULARY_SIZE = 60
    SIZES.update(num_layers=1, width=8, num_heads=2, hidden_dim=8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="every case, in tiny sizes")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the sentences")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="folder of a trained translator, in several engines, on test_2016 of --data; cases "
        "are greedy and five beams",
    )
    parser.add_argument("--rounds", type=int, help="how often each batch is taken by each peer")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker and options.worker[0].startswith("trained"):
        _, beams, model = options.worker[0].split(" ", 2)
        return trained_translation.worker(int(beams), model, *options.worker[1:])
    if options.worker:
        index, file, name = options.worker
        return serve(work_of(CASES[int(index)], file, name))
    if importlib.util.find_spec("keras_hub") is None:
        parser.error('KerasHub is not installed: pip install ".[bench]"')
    if options.model:
        if not options.data:
            parser.error("--model needs --data, for the sentences that it translates")
        rounds, every = (options.rounds or 2, 4) if options.quick else (options.rounds or 3, 1)
        return trained_translation.compare(options.model, options.data, options.case, rounds, every)
    if options.quick:
        shrink()
    failures = Failures()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "batches.npz")
        prepare(file, options.data, options.quick)
        growth = "tfattn grows", "KerasHub grows", "memory ratio"
        print_header("case", "batches", "tfattn", "KerasHub", "time ratio", *growth)
        for index, case in enumerate(CASES):
            if options.case in case.name:
                with failures.of(case.name):
                    compare(case, index, file, options)
    failures.end()


def compare(case: Case, index: int, file: Path, options: argparse.Namespace) -> None:
    """Prints the case's row."""
    here = functools.partial(work_of, case, file) if options.quick else None
    arguments, rounds = ("--worker", index, file), options.rounds or 3
    ours, peer = measure(case.name, ("tfattn", "keras_hub"), arguments, rounds, 1e-5, here)
    goals = (None, None) if options.quick else (case.goal, case.memory_goal)
    cells = [str(len(ours.times)), f"{ours.seconds:.2f} s", f"{peer.seconds:.2f} s"]
    ratio = with_goal(ours.seconds / peer.seconds, goals[0])
    memory = with_goal(ours.growth / max(peer.growth, 1e-3), goals[1])
    growth = [f"{ours.growth:.2f} GB", f"{peer.growth:.2f} GB", memory]
    print_row(case.name, *cells, ratio, *growth)


if __name__ == "__main__":
    main()
