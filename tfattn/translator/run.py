"""The training: starts or resumes a run, validates by BLEU and loads the best weights."""

import argparse
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import keras

from tfattn import data, plot, training
from tfattn.translator import corpus, translating
from tfattn.translator.arguments import recorded
from tfattn.translator.folder import Folder, fingerprint
from tfattn.translator.presets import MODELS, PRESETS

BLEU_EVERY = 5  # epochs
PROGRESS_EVERY = 5.0  # seconds


class Run:
    """A training run, new or resumed."""

    def __init__(self, options: argparse.Namespace):
        # Fail early if an optional package is missing.
        plot.loss_curve([0.0])
        training.corpus_bleu(["a"], ["a"])
        self.options, self.preset = options, PRESETS[options.model][options.preset]
        self.train, self.validation = corpus.training_and_validation(options)
        self.scored = (
            corpus.read(options, options.score, "--score") if options.score else self.validation
        )
        pairs = (*self.train, *self.validation)
        self.sentences = fingerprint(line for pair in pairs for line in pair)
        self._init: keras.Model | None = None
        vocabularies = None
        if options.init:
            self._init, vocabularies = Folder(options.init).load_model()
        published = translating.published_search(options, [options.init or options.out])
        self.search = translating.search(options, published)
        self.folder = Folder(options.out)
        self.folder.lock()
        self.backup = training.Backup(self.folder.backup)
        self._check()
        if self.backup.epoch:
            vocabularies = self.folder.load_vocabularies()
        self.vocabularies = vocabularies or corpus.new_vocabularies(options, self.train)
        # BLEU is 0 if no reference has four words, as in Chinese without spaces.
        references = [target for _, target in self.validation[: options.sentences]]
        measured = training.corpus_bleu(references, references) > 0
        self.monitored: tuple[str, Callable[..., Any]]
        self.monitored = ("val_bleu", max) if measured else ("val_loss", min)
        self.phases = corpus.phases(self.preset, self.train, self.vocabularies, options)
        self.held_out = data.token_batches(
            self.validation,
            *self.vocabularies,
            max(options.tokens, 1024),
            max_length=corpus.MAX_LENGTH,
        )
        self._record()

    def _check(self) -> None:
        """Raises if a run or model would be overwritten, or cannot resume with these options."""
        done, options, path = self.backup.epoch, self.options, self.folder.path
        record = self.folder.read_record() if options.resume else {}
        if done and not options.resume:
            raise ValueError(
                f"{path} already contains a run ({done} epochs). Use --resume to continue it or "
                "--out to choose another folder."
            )
        if not done and self.folder.model.exists():  # a new run would overwrite its vocabularies
            raise ValueError(
                f"{path} already contains a model, and no backup of its training. Use --out to "
                "choose another folder."
            )
        if done and not self.folder.best_weights.exists():
            raise ValueError(
                f"{self.folder.best_weights} is missing. A run cannot be completed without its "
                "best weights. Use --out to choose another folder."
            )
        if options.resume and not record and not done:
            print(f"note: {path} contains no run to resume; starting a new run", file=sys.stderr)
        earlier = record.get("settings", {})
        for name, now in recorded(options).items():
            then = earlier.get(name, now)
            if then != now:
                raise ValueError(f"--{name}: the run in {path} was started with {then}, not {now}")
        if record.get("sentences", self.sentences) != self.sentences:
            raise ValueError(f"the run in {path} was started with different sentences")
        options.epochs = options.epochs or record.get("epochs") or self.preset.epochs

    def _record(self) -> None:
        """Records the settings of the run, and its vocabularies before the first epoch."""
        options = self.options
        origin = Folder(options.init) if options.init else self.folder
        if not self.backup.epoch:
            self.folder.save_vocabularies(self.vocabularies)
        self.folder.add_to_record(
            settings=recorded(options),
            sentences=self.sentences,
            data=options.data and str(options.data.resolve()),
            epochs=options.epochs,
            search=origin.read_record().get("search", {}),
        )

    def fit(self) -> keras.Model:
        """Trains and saves the model, and returns it with its best weights."""
        print(
            f"{len(self.train)} training pairs, {len(self.validation)} held out; "
            f"vocabularies {' + '.join(str(len(each)) for each in self.vocabularies)}"
        )
        self._note_few_updates()
        model = self._compiled_model()
        before = model.evaluate(self.held_out, verbose=0, return_dict=True)["loss"]
        print(f"{model.count_params():,} parameters; validation loss before training {before:.4f}")
        callbacks = self._callbacks()
        for phase in self.phases:
            if self.backup.epoch < phase.epochs.stop or phase is self.phases[-1]:
                model.fit(
                    phase.batches,
                    validation_data=self.held_out,
                    epochs=self.phases[-1].epochs.stop,
                    initial_epoch=self.backup.epoch,
                    shuffle=False,  # `token_batches` shuffles
                    verbose=1 if sys.stdout.isatty() else 2,  # a progress bar, or a line per epoch
                    callbacks=[phase.counter, *callbacks, _Log(phase.epochs.stop)],
                )
        model.load_weights(self.folder.best_weights)
        after = self.backup.history["val_loss"][-1]
        print(f"validation loss {before:.4f} at the start, {after:.4f} in the last epoch")
        # The optimizer's state is three times as large as the weights.
        model.optimizer, model.compiled = None, False
        self.folder.save_model(model)
        return model

    def _note_few_updates(self) -> None:
        """Says so if the model, unless it is trained already, gets too few updates."""
        updates = sum(len(phase.batches) * len(phase.epochs) for phase in self.phases)
        needed = 2 * self.preset.warmup
        if not (self.options.init or self.backup.epoch) and updates < needed:
            print(
                f"note: {updates} updates, and --preset {self.options.preset} is made for {needed} "
                "or more; try more --epochs, a smaller --tokens, or --preset toy",
                file=sys.stderr,
            )

    def _compiled_model(self) -> keras.Model:
        options, preset = self.options, self.preset
        model = self._init
        if model is None:
            model = MODELS[options.model](
                *map(len, self.vocabularies),
                share_embeddings=bool(options.subwords),
                seed=options.seed,
                **preset.sizes,
            )
            model.build(((None, None), (None, None)))
        optimizer = keras.optimizers.Adam(
            preset.learning_rate([len(p.batches) for p in self.phases for _ in p.epochs]),
            beta_2=0.98,
            epsilon=1e-9,
            use_ema=True,
            ema_momentum=1 - 1 / preset.ema_window,
        )
        model.compile(
            optimizer=optimizer,
            loss=training.MaskedCrossentropy(label_smoothing=0.1),
            metrics=[training.MaskedAccuracy(name="accuracy")],
            jit_compile=keras.backend.backend() == "jax",
        )
        return model

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        """Callbacks that score the averaged weights and save the best, the backup, and a table."""
        name, better = self.monitored
        folder, best = self.folder, self.backup.best(name, better)
        sources, references = zip(*self.validation[: self.options.sentences], strict=True)
        scored = training.ValidationBleu(
            lambda model, sources: translating.translate(model, sources, self.vocabularies),
            sources,
            references,
            every=BLEU_EVERY,
        )
        kept = training.BestWeights(folder.best_weights, name, better, best)
        table = keras.callbacks.CSVLogger(folder.epochs, append=True)
        return [training.AveragedWeights([scored, kept]), self.backup, table]


class _Log(keras.callbacks.Callback):
    """Ends `fit` after so many epochs; prints a line every few seconds outside of a terminal."""

    def __init__(self, epochs: int):
        super().__init__()
        self.epochs = epochs

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = self.shown = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if now - self.shown >= PROGRESS_EVERY and not sys.stdout.isatty():
            self.shown = now
            numbers = "".join(f" - {name}: {value:.4f}" for name, value in logs.items())
            steps = self.params["steps"]
            print(f"{batch + 1}/{steps} - {now - self.began:.0f}s{numbers}", flush=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 == self.epochs:
            self.model.stop_training = True
        if math.isnan(logs["val_bleu"]):  # not computed; Keras prints the others after this
            del logs["val_bleu"]


def keep_freed_memory() -> None:
    """Makes glibc keep the memory of freed arrays, unless MALLOC_ variables are set."""
    # By default it gets large arrays back as pages of zeros in every training step.
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # musl has none
        # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h. Older versions reject an
        # M_MMAP_THRESHOLD above 32 MiB and keep the current one.
        for parameter, value in ((-3, 32 << 20), (-3, 1 << 30), (-1, 1 << 30), (-2, 64 << 20)):
            library.mallopt(parameter, value)
