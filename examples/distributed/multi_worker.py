"""Trains a translation model by a custom loop on TensorFlow's MultiWorkerMirroredStrategy.

    python multi_worker.py --processes 2                              # on this machine
    python multi_worker.py --workers HOST:PORT,HOST:PORT --process-id K   # on each of several

Keras's `fit` fails under this strategy, a custom loop works: in `strategy.run`, `optimizer.apply`
sums the gradients over the workers. The loss of a worker is therefore the sum over its tokens,
divided by the number of tokens of all workers.
"""

import argparse
import json
import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from launch import end_with_launcher, free_address, launch  # noqa: E402


def train(options: argparse.Namespace) -> None:
    workers = options.workers.split(",")
    task = {"type": "worker", "index": options.process_id}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any computation
    import keras

    import tfattn
    from tfattn import data

    keras.utils.set_random_seed(options.seed)
    pairs, _ = data.split_pairs(data.toy_translation(options.pairs, seed=options.seed))
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    batches = data.token_batches(pairs, *words, options.tokens, shuffle_seed=options.seed)
    batches = data.shard_batches(batches, len(workers), options.process_id)

    with strategy.scope():
        sizes = {"num_layers": 1, "width": 32, "num_heads": 4, "hidden_dim": 64, "dropout": 0.0}
        model = tfattn.Transformer(*map(len, words), **sizes)
        model.build(((None, None), (None, None)))
        optimizer = keras.optimizers.Adam(0.002, epsilon=1e-5)
        optimizer.build(model.trainable_variables)
    loss = tfattn.MaskedCrossentropy(reduction="sum")

    def step(inputs, target):
        own_tokens = tf.reduce_sum(tf.cast(target != 0, "float32"))
        tokens = tf.distribute.get_replica_context().all_reduce("SUM", own_tokens)
        with tf.GradientTape() as tape:
            mean = loss(target, model(inputs, training=True)) / tokens
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return mean * tokens, own_tokens

    @tf.function(reduce_retracing=True)
    def distributed_step(batch):
        inputs, target = batch
        sums = strategy.run(step, args=(inputs, target))
        return [strategy.reduce("SUM", part, axis=None) for part in sums]

    batches = strategy.distribute_datasets_from_function(lambda context: batches)
    for epoch in range(options.epochs):
        sums = [distributed_step(batch) for batch in batches]
        total, tokens = (sum(map(float, part)) for part in zip(*sums, strict=True))
        if options.process_id == 0:
            print(f"epoch {epoch + 1}: loss {total / tokens:.6f} per token, {tokens:.0f} tokens")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes on this machine"
    )
    parser.add_argument("--workers", metavar="HOST:PORT,...", help="addresses of all processes")
    parser.add_argument(
        "--process-id", type=int, default=0, metavar="K", help="number of this process"
    )
    parser.add_argument("--pairs", type=int, default=2000, help="number of toy sentences")
    parser.add_argument(
        "--tokens", type=int, default=1024, help="tokens per batch, over all processes"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.workers:
        end_with_launcher()
        train(options)
        return 0
    workers = ",".join(free_address() for _ in range(options.processes))
    command = [sys.executable, *sys.argv, "--workers", workers]
    commands = {i: [*command, "--process-id", str(i)] for i in range(options.processes)}
    return launch(commands, options.processes, "Start again: this loop has no backup.")


if __name__ == "__main__":
    sys.exit(main())
