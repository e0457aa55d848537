"""What a translation demo keeps in its `--out`, so that a run goes on as it was begun and a model
meets its own words.
"""

import contextlib
import hashlib
import json
import os
import sys

import keras

from tfattn import data

# What a run is made of: who goes on with it must ask for the same.
SETTINGS = ("preset", "seed", "languages", "pairs", "subwords", "tokens", "sentences")


def choose_epochs(options, preset, backup):
    """Puts the number of epochs into the options where it was not given: the earlier life's, else
    the preset's.
    """
    earlier = kept(options).get("epochs") if options.resume else None
    options.epochs = options.epochs or earlier or preset.epochs
    if earlier and preset.cooldown and backup.epoch < options.epochs != earlier:
        if backup.epoch > min(earlier, options.epochs) - preset.cooldown:
            print(
                f"note: the run was to end after {earlier} epochs; with {options.epochs} its rate, of whose way down a part "
                "lies behind it, makes a jump",
                file=sys.stderr,
            )


def check_run(options, preset, backup, sentences):
    """Refuses to write over a run or a model, and to go on with one that was made otherwise or of
    which a part is gone.

    Args:
        sentences: their `fingerprint`.
    """
    if not options.resume:
        if backup.epoch:
            raise ValueError(
                f"{options.out} holds a run of {backup.epoch} epochs: --resume goes on with it, or scores it where "
                "--epochs is reached; --out names another folder"
            )
        if (options.out / "model.keras").exists():  # which would lose its vocabularies
            raise ValueError(f"{options.out} holds a model: --out names another folder")
        return
    record = kept(options)
    if not record and not backup.epoch:
        print(f"note: {options.out} holds no run to go on with; a new one begins", file=sys.stderr)
    if backup.epoch and not best_weights(options).exists():
        raise ValueError(
            f"{best_weights(options)} is not there: a run cannot be ended without its best weights; --out names another folder"
        )
    earlier = record.get("settings", {})
    for name, value in settings(options).items():
        if name in earlier and earlier[name] != value:
            raise ValueError(
                f"--{name}: the run in {options.out} was begun with {earlier[name]}, and not with {value}"
            )
    if record.get("sentences", sentences) != sentences:
        raise ValueError(
            f"the sentences are not those that the run in {options.out} was begun with"
        )
    if record.get("recipe", recipe(preset)) != recipe(preset):
        raise ValueError(
            f"--preset {options.preset}: the run in {options.out} was begun when that stood for something else, "
            f"{record['recipe']}, and not {recipe(preset)}"
        )


def record_run(options, preset, backup, sentences, words):
    """Keeps what the run is made of. An `--epochs` that is reached already asks for a score, and
    changes nothing.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    if not backup.epoch:
        for vocabulary, path in zip(words, vocabulary_paths(options), strict=True):
            with replacing(path) as unfinished:
                vocabulary.save(unfinished)
    made_of = {"settings": settings(options), "recipe": recipe(preset), "sentences": sentences}
    entries = {**made_of, "run": fingerprints(words)}
    if backup.epoch < options.epochs or "epochs" not in kept(options):
        entries["epochs"] = options.epochs
    keep(options, **entries)


def settings(options):
    return {name: getattr(options, name) for name in SETTINGS} | {
        "languages": list(options.languages)
    }


def recipe(preset):
    """What a preset's name stands for, but for what options may say otherwise."""
    found = {
        name: value
        for name, value in preset._asdict().items()
        if name not in ("subwords", "tokens", "epochs")
    }
    return json.loads(json.dumps(found))  # as the file gives it back


def check_vocabularies(options, owner, words):
    """Refuses other vocabularies than those of the `owner`, "run" or "model"."""
    earlier = kept(options).get(owner)
    if earlier is None:
        print(
            f"note: no record in {options.out} tells which vocabularies its {owner} was trained with",
            file=sys.stderr,
        )
    elif earlier != fingerprints(words):
        raise ValueError(
            f"the vocabularies in {options.out} are not those that its {owner} was trained with"
        )


def keep(options, **entries):
    """Adds to what `run.json` holds."""
    with replacing(options.out / "run.json") as path:
        path.write_text(json.dumps({**kept(options), **entries}, indent=1), encoding="utf-8")


def kept(options):
    path = options.out / "run.json"
    if not path.exists():
        return {}
    with contextlib.suppress(ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    raise ValueError(
        f"{path} is damaged: what its run was begun with cannot be told; delete this file to go on unchecked, or name "
        "another folder with --out"
    )


@contextlib.contextmanager
def replacing(path):
    """A path to write to, beside `path` and of its ending; what is written then takes the old
    file's place at once.
    """
    unfinished = path.with_name(f"unfinished.{path.name}")
    yield unfinished
    with open(unfinished, "rb+") as file:
        os.fsync(file.fileno())  # on disk before the old one is given up
    os.replace(unfinished, path)


def fingerprint(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fingerprints(vocabularies):
    """Tell vocabularies apart that have the same number of entries."""
    return [fingerprint(each.words) for each in vocabularies]


def vocabularies(options, backup, train):
    """Those of the run in `--out` where it goes on, otherwise new ones."""
    if backup.epoch:
        found = [data.load_vocabulary(path) for path in vocabulary_paths(options)]
        check_vocabularies(options, "run", found)
        return found
    if not options.subwords:
        rarest = 2 if options.data else 1
        return [data.Vocabulary.from_sentences(side, rarest) for side in zip(*train, strict=True)]
    try:
        return [
            data.SubwordVocabulary.from_sentences(
                [s for pair in train for s in pair], options.subwords
            )
        ] * 2
    except ValueError as error:
        raise ValueError(f"--subwords {options.subwords}: {error}") from None


def vocabulary_paths(options):
    return [options.out / "source.vocabulary", options.out / "target.vocabulary"]


def best_weights(options):
    return options.out / "best.weights.h5"


class BestWeights(keras.callbacks.Callback):
    """Keras's `ModelCheckpoint(save_best_only=True)`, but that a kill in the middle of writing
    leaves the old weights.
    """

    def __init__(self, path, monitor, best):
        super().__init__()
        self.path, self.monitor, self.best = path, monitor, best

    def on_epoch_end(self, epoch, logs=None):
        if self.best is None or logs[self.monitor] > self.best:
            with replacing(self.path) as path:
                self.model.save_weights(path)
            self.best = logs[self.monitor]
