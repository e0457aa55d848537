"""Trains a translation model on several processes, each with its own rows of every batch.

    python train.py --processes 2                                       # on this machine
    python train.py --coordinator HOST:PORT --processes 2 --process-id K   # on each of several
    srun python train.py                                                # in a Slurm job

Processes communicate by `keras.distribution` on JAX. The default is one process, unless a launcher
sets the environment. The model, its batches and its results do not depend on the number of
processes.
"""

import argparse
import json
import os
import shlex
import sys
import time
import traceback
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from launch import LOST, end_with_launcher, free_address, launch  # noqa: E402

# Environment variables of Keras and of Slurm's `srun`: the size of a job, and the process's number.
JOB_SIZES = ("KERAS_DISTRIBUTION_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS")
PLACES = ("KERAS_DISTRIBUTION_PROCESS_ID", "SLURM_PROCID")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, help="size of the job; all on this machine by default"
    )
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    parser.add_argument(
        "--process-id", type=int, metavar="K", help="number of this process, from 0"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="train.en, train.de, val.en, ...")
    parser.add_argument(
        "--languages", nargs=2, default=["en", "de"], help="file name extensions in DIR"
    )
    parser.add_argument("--subwords", type=int, default=0, help="vocabulary size; 0 for words")
    parser.add_argument(
        "--pairs", type=int, default=4000, help="number of toy sentences, without --data"
    )
    parser.add_argument(
        "--tokens", type=int, default=2048, help="tokens per batch, over all processes"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--sentences", type=int, default=200, help="number of sentences for BLEU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/distributed"), metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.coordinator and None in (options.processes, options.process_id):
        parser.error("--coordinator needs --processes and --process-id")
    if options.process_id is not None and not options.coordinator:
        parser.error("--process-id needs --coordinator")
    if options.process_id is not None and not 0 <= options.process_id < options.processes:
        parser.error(f"--process-id must be from 0 to {options.processes - 1}")
    backup = options.out / "run.backup"
    if backup.exists() and not options.resume and not options.worker:
        parser.error(f"{backup} exists: use --resume to continue it or --out for another folder")
    return options


def launched() -> tuple[int, int] | None:
    """(number of this process, size of the job) from a launcher's environment, or None."""
    sizes = [int(os.environ[name]) for name in JOB_SIZES if name in os.environ]
    places = [int(os.environ[name]) for name in PLACES if name in os.environ]
    size = max(sizes, default=1)
    return (places[0], size) if places and size > 1 else None


def join(options: argparse.Namespace) -> None:
    """Joins the job, if there is one."""
    import jax
    import keras

    if options.coordinator or launched():
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # Keras or JAX replaces None by values of the environment.
        keras.distribution.initialize(options.coordinator, options.processes, options.process_id)
    if jax.device_count() > 1:
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)


def read_pairs(options):
    """Training pairs and held-out pairs."""
    from tfattn import data

    if options.data is None:
        return data.split_pairs(data.toy_translation(options.pairs, seed=options.seed))
    return [
        data.read_parallel(*(options.data / f"{part}.{language}" for language in options.languages))
        for part in ("train", "val")
    ]


def new_vocabularies(options, train):
    from tfattn import data

    if options.subwords:
        sentences = [sentence for pair in train for sentence in pair]
        return [data.SubwordVocabulary.from_sentences(sentences, options.subwords)] * 2
    return [data.Vocabulary.from_sentences(side) for side in zip(*train, strict=True)]


def train(options: argparse.Namespace) -> None:
    began = time.perf_counter()
    join(options)
    import jax
    import keras

    import tfattn
    from tfattn import data, training

    keras.utils.set_random_seed(options.seed)
    first, processes = jax.process_index() == 0, jax.process_count()
    pairs, held_out = read_pairs(options)
    words = new_vocabularies(options, pairs)
    counter = data.EpochCounter()

    def batches(pairs, **shuffling):
        # A large length multiple, since XLA compiles each shape of a batch once.
        found = data.token_batches(pairs, *words, options.tokens, length_multiple=16, **shuffling)
        return data.shard_batches(
            found, processes, jax.process_index(), row_multiple=jax.local_device_count()
        )

    model = tfattn.Transformer(
        *map(len, words),
        num_layers=options.layers,
        width=options.width,
        num_heads=4,
        hidden_dim=2 * options.width,
        dropout=options.dropout,
        share_embeddings=bool(options.subwords),
        seed=options.seed,
    )
    model.build(((None, None), (None, None)))
    rate = tfattn.InverseSquareRootSchedule(peak=0.0018, warmup_steps=100)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, use_ema=True, ema_momentum=0.99),
        loss=tfattn.MaskedCrossentropy(label_smoothing=0.1),
        metrics=[tfattn.MaskedAccuracy(name="accuracy")],
    )

    backup, best_file = training.Backup(options.out / "run.backup"), options.out / "best.weights.h5"
    options.out.mkdir(parents=True, exist_ok=True)
    keep = training.BestWeights(best_file, best=backup.best("val_loss", min))
    if first:
        print(f"{processes} processes with {jax.local_device_count()} devices each; ", end="")
        print(f"{len(pairs)} pairs, {model.count_params():,} parameters; from epoch {backup.epoch}")
    history = model.fit(
        batches(pairs, shuffle_seed=options.seed, epoch_counter=counter),
        validation_data=batches(held_out),
        initial_epoch=backup.epoch,
        epochs=options.epochs,
        shuffle=False,  # `token_batches` shuffles
        verbose=2 if first else 0,
        callbacks=[counter, training.AveragedWeights([keep]), backup],
    ).history
    if first:
        keras.distribution.set_distribution(None)  # the others take no part in translating
        best = type(model).from_config(model.get_config())
        best.build(((None, None), (None, None)))
        best.load_weights(best_file)
        sources, references = zip(*held_out[: options.sentences], strict=True)
        bleu = training.corpus_bleu(tfattn.translate(best, sources, *words), references)
        result = {
            "processes": processes,
            "updates": int(model.optimizer.iterations),
            "val_loss": round(history["val_loss"][-1], 4),
            "val_bleu": round(bleu, 2),
            "seconds": round(time.perf_counter() - began, 1),
        }
        print("result:", json.dumps(result), flush=True)


def main() -> int:
    options = read_options()
    if options.worker:
        end_with_launcher()
        try:
            train(options)
        except Exception as error:
            traceback.print_exc()
            # Without cleanup, in which JAX would wait for the other processes.
            os._exit(LOST if "Gloo" in str(error) else 1)
        return 0
    # This process watches child processes that train, since JAX may abort a process without peers.
    command = [sys.executable, *sys.argv, "--worker"]
    processes = options.processes or 1
    if options.coordinator:
        commands = {options.process_id: command}
    elif job := launched():
        place, processes = job
        commands = {place: command}
    elif processes == 1:
        commands = {0: command}
    else:
        address = ["--coordinator", free_address()]
        commands = {i: [*command, *address, "--process-id", str(i)] for i in range(processes)}
    again = [argument for argument in sys.argv if argument != "--resume"]
    again = shlex.join(["python", *again, "--resume"])
    advice = f"{options.out} has the last completed epoch. To continue:\n    {again}"
    return launch(commands, processes, advice)


if __name__ == "__main__":
    sys.exit(main())
