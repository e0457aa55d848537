"""The training: starts or resumes a run, validates by BLEU and loads the best weights."""

import argparse
import csv
import ctypes
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import keras

from tfattn import _optional, data, plot, training
from tfattn._files import replacing
from tfattn.translator import corpus, translating
from tfattn.translator.arguments import COMMANDS, value
from tfattn.translator.folder import Folder, fingerprint
from tfattn.translator.presets import MODELS, PRESETS

BLEU_EVERY = 5  # epochs
PROGRESS_EVERY = 5.0  # seconds


class Run:
    """A training run; if it cannot be made, nothing but the lock file of its folder is written."""

    def __init__(self, options: argparse.Namespace):
        self._began = time.perf_counter()
        # Fail early if an optional package is missing.
        plot.loss_curve([0.0])
        training.corpus_bleu(["a"], ["a"])
        if options.tensorboard:
            _optional.find("tensorboard", "tensorboard", "--tensorboard")
        self.options, self.preset = options, PRESETS[options.model][options.preset]
        self.folder = Folder(options.out)
        self.folder.lock()
        self.backup = training.Backup(self.folder.backup)
        self._seconds_before = sum(self.backup.history.get("seconds", []))  # before --resume
        self.train, self.validation = corpus.training_and_validation(options)
        self.scored = (
            corpus.read(options, options.score, "--score") if options.score else self.validation
        )
        pairs = (*self.train, *self.validation)
        self.sentences = fingerprint(line for pair in pairs for line in pair)
        self._check()
        options.epochs = self._epochs()
        self._init: keras.Model | None = None
        vocabularies = None
        if options.init:
            self._init, vocabularies = Folder(options.init).load_model("--init")
        if self.backup.epoch:
            vocabularies = self.folder.load_vocabularies()
        self.vocabularies = vocabularies or corpus.new_vocabularies(options, self.train)
        # BLEU is 0 if no reference has four words, as in Chinese without spaces.
        references = [target for _, target in self.validation[: options.sentences]]
        measured = training.corpus_bleu(references, references) > 0
        self._monitored: tuple[str, Callable[..., Any]]
        self._monitored = ("val_bleu", max) if measured else ("val_loss", min)
        self.phases, self.held_out = self._batches()
        self._validation = self._validation_callbacks()
        self._record()

    def _settings(self) -> dict[str, Any]:
        """What a resumed run must share: recorded options, and what the preset says beyond them."""
        table = COMMANDS["train"].options
        found = {name[2:]: value(self.options, name) for name in table if table[name].recorded}
        found["init"] = self.options.init and os.path.realpath(self.options.init)
        recipe = self.preset._asdict()
        found["preset settings"] = {name: recipe[name] for name in recipe if name not in found}
        return json.loads(json.dumps(found))  # with the types of the JSON file

    def _check(self) -> None:
        """Raises if a run or model would be overwritten, or cannot resume with these options."""
        done, resumes, path = self.backup.epoch, self.options.resume, self.folder.path
        others = "Use --out to choose another folder."
        if done and not resumes:
            raise ValueError(
                f"{path} already contains a run ({done} epochs). Use --resume to continue it or "
                "--out to choose another folder."
            )
        if not done and self.folder.model.exists():  # a new run would overwrite its vocabularies
            backup = ", and no backup.npz to resume its training from" if resumes else ""
            raise ValueError(f"{path} already contains a model{backup}. {others}")
        if not resumes:
            return
        record = self.folder.read_record()
        if not record and not done:
            print(f"note: {path} contains no run to resume; starting a new run", file=sys.stderr)
        if done and not self.folder.best_weights.exists():
            raise OSError(
                f"{self.folder.best_weights} is missing. A run cannot be completed without its "
                f"best weights. {others}"
            )
        earlier = record.get("settings", {})
        for name, now in self._settings().items():
            then = earlier.get(name, now)
            if then != now:
                started = f"the run in {path} was started with {then}, not with {now}"
                raise ValueError(f"--{name}: {started}")
        if record.get("sentences", self.sentences) != self.sentences:
            raise ValueError(f"the run in {path} was started with different sentences")

    def _epochs(self) -> int:
        """`--epochs`, or the number recorded for a resumed run, or the preset's."""
        options, done, cooldown = self.options, self.backup.epoch, self.preset.cooldown
        earlier = self.folder.read_record().get("epochs", 0) if options.resume else 0
        found = options.epochs or earlier or self.preset.epochs
        jumps = cooldown and earlier and done < found != earlier
        if jumps and min(earlier, found) - cooldown < done:
            print(
                f"note: the run was planned for {earlier} epochs; with {found}, the learning rate "
                "will jump: the cooldown had already started",
                file=sys.stderr,
            )
        return found

    def _record(self) -> None:
        """Records the settings of the run; `--epochs` only if epochs remain to be trained."""
        options, folder, done = self.options, self.folder, self.backup.epoch
        folder.lock(new=True)
        data = None if options.data is None else str(options.data.resolve())
        entries = {"settings": self._settings(), "sentences": self.sentences, "data": data}
        if not done:
            folder.save_vocabularies(self.vocabularies)
            if options.init:
                entries["search"] = Folder(options.init).read_record().get("search", {})
        if done < options.epochs or "epochs" not in folder.read_record():
            entries["epochs"] = options.epochs
        folder.add_to_record(**entries)

    @property
    def seconds(self) -> float:
        """Elapsed seconds, including completed epochs before `--resume`."""
        return self._seconds_before + time.perf_counter() - self._began

    def best_epoch(self, history: dict[str, Any]) -> int:
        """The epoch of the best weights, counted from 0: the earliest, as in `BestWeights`."""
        name, better = self._monitored
        values = history[name]
        return values.index(better((each for each in values if each == each), default=values[0]))

    def fit(self) -> tuple[keras.Model, dict[str, Any]]:
        """Trains and saves the model; returns it with its best weights, and the full history."""
        source_vocabulary, target_vocabulary = self.vocabularies
        learned = len(self.train) - corpus.count_too_long(self.train, self.vocabularies)
        print(
            f"{learned} training pairs, {len(self.validation)} held out; "
            f"vocabulary {len(source_vocabulary)}"
            + ("" if self.options.subwords else f" + {len(target_vocabulary)} words")
        )
        self._note_few_updates(learned)
        model = self._compiled_model()
        before = model.evaluate(self.held_out, verbose=0, return_dict=True)["loss"]
        print(f"{model.count_params():,} parameters; validation loss before training {before:.4f}")
        table, *boards = self._logs()
        callbacks = [self._validation, _Clock(), self.backup, table]
        for phase in self.phases:
            if self.backup.epoch < phase.epochs.stop or phase is self.phases[-1]:
                model.fit(
                    phase.batches,
                    validation_data=self.held_out,
                    epochs=self.phases[-1].epochs.stop,
                    initial_epoch=self.backup.epoch,
                    shuffle=False,  # `token_batches` shuffles
                    verbose=1 if sys.stdout.isatty() else 2,  # a progress bar, or a line per epoch
                    callbacks=[phase.counter, *callbacks, _Log(phase.epochs.stop), *boards],
                )
        model.load_weights(self.folder.best_weights)
        history = self.backup.history  # without gaps, unlike that of `fit`
        after = history["val_loss"][-1]
        print(f"validation loss {before:.4f} at the start, {after:.4f} in the last epoch")
        self.folder.save_model(_without_optimizer(model))
        return model, history

    def _note_few_updates(self, learned: int) -> None:
        """Says so if the model, unless it is trained already, gets too few updates."""
        updates = sum(len(phase.batches) * len(phase.epochs) for phase in self.phases)
        needed = 2 * self.preset.warmup
        if self.options.init or self.backup.epoch or updates >= needed:
            return
        toy, advice = PRESETS[self.options.model]["toy"], "more --epochs, or a smaller --tokens"
        if self.preset != toy:
            tokens = updates / self.options.epochs * self.options.tokens  # per epoch, with padding
            advice = f"--preset toy --epochs {math.ceil(2 * toy.warmup * toy.tokens / tokens)}"
            advice += " --subwords 2000" if self.options.subwords else ""
        print(
            f"note: {learned} pairs in {self.options.epochs} epochs are {updates} updates, and "
            f"--preset {self.options.preset} is made for {needed} or more; try {advice}",
            file=sys.stderr,
        )

    def _batches(self) -> tuple[list[corpus.FitPhase], Any]:
        """The training phases, and the batches for the validation loss."""
        tokens, (source, target) = self.options.tokens, self.vocabularies
        phases = corpus.phases(self.preset, self.train, self.vocabularies, self.options)
        # Validation keeps every line: a row has one special token more than its line, and is
        # padded to a multiple of four.
        longest = max(
            len(side.encode(line))
            for pair in self.validation
            for side, line in zip(self.vocabularies, pair, strict=True)
        )
        tokens = max(tokens, 1024, longest + 4)
        return phases, data.token_batches(self.validation, source, target, tokens)

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

    def _logs(self) -> list[keras.callbacks.Callback]:
        """Callbacks that write the numbers of each epoch, after the backup has them."""

        def write(*_: Any) -> None:
            history = dict(sorted(self.backup.history.items()))
            rows = [
                [epoch, *("" if each != each else each for each in values)]
                for epoch, values in enumerate(zip(*history.values(), strict=True))
            ]
            with replacing(self.folder.epochs) as unfinished:
                with open(unfinished, "w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows([("epoch", *history), *rows])

        table = keras.callbacks.LambdaCallback(on_epoch_end=write, on_train_end=write)
        if not self.options.tensorboard:
            return [table]
        return [table, keras.callbacks.TensorBoard(self.folder.tensorboard, write_graph=False)]

    def _validation_callbacks(self) -> training.AveragedWeights:
        """Callbacks that score the averaged weights by BLEU and save the best."""
        name, better = self._monitored
        sources, references = zip(*self.validation[: self.options.sentences], strict=True)
        return training.AveragedWeights(
            [
                training.ValidationBleu(
                    lambda model, sources: translating.translate(model, sources, self.vocabularies),
                    sources,
                    references,
                    every=BLEU_EVERY,
                ),
                training.BestWeights(
                    self.folder.best_weights, name, better, self.backup.best(name, better)
                ),
            ]
        )


def _without_optimizer(model: keras.Model) -> keras.Model:
    """A copy to be saved. The optimizer's state is three times as large as the weights."""
    copy = type(model).from_config(model.get_config())
    copy.build(((None, None), (None, None)))
    copy.set_weights(model.get_weights())
    return copy


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


class _Clock(keras.callbacks.Callback):
    """Logs the seconds of each epoch, including its validation."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["seconds"] = round(time.perf_counter() - self.began, 1)


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
