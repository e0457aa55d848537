"""Trains the example model again: `python -m tfattn.examples`, in two minutes on two cores.

Writes its vocabularies and its weights in float16 to `out/examples`, and prints their score.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from tfattn import data, training
from tfattn.decoding import translate
from tfattn.examples import SIZES
from tfattn.models.transformer import Transformer
from tfattn.translator.__main__ import main
from tfattn.translator.folder import Folder

PAIRS = 8_000


def write(run: Path, folder: Path) -> None:
    """Writes the files of the example from a run of the translator."""
    model, (source, target) = Folder(run).load_model()
    sizes = SIZES["grammar"]
    half = Transformer(len(source), len(target), dropout=0.1, **sizes, dtype="float16")
    half.build_for_any()
    half.set_weights(model.get_weights())
    half.save_weights(folder / "grammar.weights.h5", overwrite=True)
    for side, vocabulary in (("source", source), ("target", target)):
        vocabulary.save(folder / f"grammar.{side}.json")
    model.set_weights(half.get_weights())
    _, held_out = data.split_pairs(data.toy_translation(PAIRS))
    sources, references = zip(*held_out, strict=True)
    found = translate(model, sources, source, target)
    exact = np.mean([ours == theirs for ours, theirs in zip(found, references, strict=True)])
    bleu = training.corpus_bleu(found, references)
    print(f"BLEU {bleu:.2f}, {exact:.1%} of {len(found)} held-out sentences to the letter")


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m tfattn.examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    out = Path("out/examples")
    settings = ("--preset", "toy", "--pairs", str(PAIRS), "--sentences", "200", "--seed", "0")
    if status := main(["train", *settings, "--out", str(out / "run")]):
        sys.exit(status)
    write(out / "run", out)
