"""A trained model in several engines, for `translation.py --model DIR --data DIR`.

Ours, the same of KerasHub's layers, CTranslate2 in float32 and in int8, and for greedy search ONNX
Runtime, with the loop of docs/serve.md, translate test_2016 in the batches of `translate`, 64
sentences each: by greedy search, and with five beams. Each has all cores, and CTranslate2 a single
thread too. Beams are ranked by the mean log-probability of a token, but KerasHub's by the sum,
since its sampler has no other score; what it writes behind the end of a sentence counts too. BLEU
is that of the first hypotheses, and "same" counts the sentences that are ours, token by token.
"""

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peers import Work, measure_all, print_header, print_row, serve, with_goal

from tfattn import convert, data, training
from tfattn.decoding import BeamSearch, GreedySearch, Search, translate
from tfattn.translator.folder import Folder

CASES = {"greedy": 1, "five beams": 5}  # to beams
GOAL = 0.4  # of KerasHub's time
ONE = ", one thread"
ENGINES = (
    *("tfattn", "keras_hub", "ctranslate2 float32", f"ctranslate2 float32{ONE}"),
    *("ctranslate2 int8", f"ctranslate2 int8{ONE}"),
)
ONNX = "onnxruntime"  # the page's loop is of greedy search
PAUSE = 0.3  # seconds: threads of OpenMP keep a core busy for 0.2 after their work
BEGIN, END = data.Vocabulary.begin_id, data.Vocabulary.end_id


class Batch(NamedTuple):
    """Sentences that are translated together."""

    source: np.ndarray  # (B, S), ids
    max_length: int  # tokens to write at most


def compare(model: Path, corpus: Path, case: str, rounds: int, every: int) -> None:
    """Prints a table for each case with `case` in its name, on one batch of so many."""
    _, words = Folder(model).load_model()
    pairs = data.read_parallel(corpus / "test_2016.en", corpus / "test_2016.de")
    head = "tokens a second", "of tfattn's time", "of KerasHub's time", "BLEU", "same"
    with tempfile.TemporaryDirectory() as folder:
        pairs = _prepare(Path(folder), model, pairs, every)
        for name, beams in CASES.items():
            if case not in name:
                continue
            print_header(f"{name}, {len(pairs)} sentences", "time", *head)
            arguments = ("--worker", f"trained {beams} {model.resolve()}", folder)
            engines = (*ENGINES, ONNX) if beams == 1 else ENGINES
            peers = measure_all(name, engines, arguments, rounds, pause=PAUSE)
            batches = _batches(Path(folder))
            found = [_by_source(batches, peer.sample) for peer in peers]
            for peer, translations in zip(peers, found, strict=True):
                _print(peer, peers, translations, found[0], pairs, words)


def _print(peer, peers, translations, ours, pairs, words) -> None:
    sources = [tuple(words[0].encode(source)) for source, _ in pairs]
    texts = [words[1].decode(translations[source]) for source in sources]
    bleu = training.corpus_bleu(texts, [reference for _, reference in pairs])
    same = sum(translations[source] == ours[source] for source in sources)
    tokens = sum(len(row) for rows in peer.sample for row in rows)
    of_ours, of_hub = (peer.seconds / other.seconds for other in peers[:2])
    print_row(
        peer.name,
        f"{peer.seconds:.2f} s",
        f"{tokens / peer.seconds:.0f}",
        f"{of_ours:.3g}",
        with_goal(of_hub, GOAL if peer is peers[0] else None),
        f"{bleu:.2f}",
        str(same),
    )


def worker(beams: int, model: str, folder: str, name: str) -> None:
    """The process of an engine."""
    batches = _batches(Path(folder))
    translated = _engine(name, beams, Path(model), Path(folder))
    steps = [lambda batch=batch: translated(batch) for batch in batches]
    serve(Work(steps, lambda: [translated(batch) for batch in batches]))


def _engine(name: str, beams: int, model: Path, folder: Path) -> Callable[[Batch], list]:
    """Function of a batch to the tokens of each row, with the end."""
    if name.startswith("ctranslate2"):
        quantization = name.removesuffix(ONE).split()[1]
        threads = 1 if name.endswith(ONE) else os.cpu_count()
        return _of_ctranslate2(folder / quantization, beams, threads)
    if name == ONNX:
        return _of_onnxruntime(folder / ONNX)
    ours, _ = Folder(model).load_model()
    if name == "keras_hub":
        return _of_keras_hub(ours, beams)

    def found(batch):
        state = ours.encode(batch.source, max_length=batch.max_length)
        sizes = (len(batch.source), batch.max_length)
        if beams == 1:
            return _rows(GreedySearch()(ours.step, state, *sizes).numpy())
        return _rows(BeamSearch(num_beams=beams)(ours.step, state, *sizes).tokens[:, 0].numpy())

    return found


def _of_keras_hub(ours: Any, beams: int) -> Callable[[Batch], list]:
    from keras_hub_transformer import BeamTranslator, GreedyTranslator, KerasHubTransformer

    model = KerasHubTransformer(ours)
    options = {"adjust": lambda logits, *_: logits, "jit": True}
    if beams == 1:
        translator = GreedyTranslator(model, BEGIN, END, **options)
    else:
        translator = BeamTranslator(model, beams, BEGIN, END, **options)

    def found(batch):
        lengths = np.zeros(len(batch.source), "int32")  # unused
        return _rows(translator(batch.source, lengths, batch.max_length)[0])

    return found


def _of_ctranslate2(folder: Path, beams: int, threads: int) -> Callable[[Batch], list]:
    served = convert.CTranslate2(folder, intra_threads=threads)
    source, target = served.source_vocabulary.words, served.target_vocabulary.words
    ids = {word: i for i, word in enumerate(target)}

    def found(batch):
        results = served.translator.translate_batch(
            [[source[i] for i in row[:-1]] for row in _rows(batch.source)],  # it adds the end
            beam_size=beams,
            min_decoding_length=0,
            max_decoding_length=batch.max_length,
            return_end_token=True,
        )
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    return found


def _of_onnxruntime(folder: Path) -> Callable[[Batch], list]:
    import onnxruntime

    encoder, step = (
        onnxruntime.InferenceSession(folder / f"{part}.onnx") for part in ("encoder", "step")
    )
    greedy = loop_of_the_page()
    return lambda batch: _rows(greedy(encoder, step, batch.source, batch.max_length, BEGIN, END))


def loop_of_the_page() -> Callable[..., np.ndarray]:
    """`greedy` of docs/serve.md, as readers copy it."""
    page = (Path(__file__).parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^def greedy\(.*?(?=^\S)", page, re.MULTILINE | re.DOTALL)
    variables = {"np": np}
    exec(code, variables)
    return variables["greedy"]


def _rows(tokens: np.ndarray) -> list[list[int]]:
    """Each row up to its end, or as far as it goes."""
    rows = tokens.astype("int32").tolist()  # floats from KerasHub
    return [row[: row.index(END) + 1] if END in row else row for row in rows]


def _prepare(
    folder: Path, model: Path, pairs: Sequence[tuple[str, str]], every: int
) -> list[tuple[str, str]]:
    """Writes the batches and the files of other engines; returns the pairs of the batches."""
    ours, words = Folder(model).load_model()
    for quantization in ("float32", "int8"):
        convert.to_ctranslate2(ours, words, folder / quantization, quantization)
    convert.to_onnx(ours, words, folder / ONNX)
    recorder = _Recorder()
    translate(recorder, [source for source, _ in pairs], *words, recorder)
    batches = recorder.batches[every // 2 :: every]
    arrays = {f"source_{i:03}": batch.source for i, batch in enumerate(batches)}
    lengths = np.array([batch.max_length for batch in batches])
    np.savez(folder / "batches.npz", lengths=lengths, **arrays)
    held = {tuple(row[:-1]) for batch in batches for row in _rows(batch.source)}
    return [pair for pair in pairs if tuple(words[0].encode(pair[0])) in held]


def _batches(folder: Path) -> list[Batch]:
    with np.load(folder / "batches.npz") as arrays:
        lengths = arrays["lengths"].tolist()
        return [Batch(arrays[f"source_{i:03}"], length) for i, length in enumerate(lengths)]


def _by_source(batches: Sequence[Batch], found: Sequence) -> dict[tuple[int, ...], list[int]]:
    """The tokens of each source, the end of both left out."""
    return {
        tuple(source[:-1]): [token for token in tokens if token != END]
        for batch, rows in zip(batches, found, strict=True)
        for source, tokens in zip(_rows(batch.source), rows, strict=True)
    }


class _Recorder(Search):
    """A model and its search that only record the batches of `translate`."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def encode(self, source: np.ndarray, max_length: int) -> np.ndarray:
        return source

    def step(self, tokens: Any, position: Any, state: Any) -> None:
        """Not called."""

    def __call__(
        self, step: Any, source: np.ndarray, batch_size: int, max_length: Any, **ids: int
    ) -> np.ndarray:
        self.batches.append(Batch(source, int(np.max(max_length))))
        return np.zeros((batch_size, 1), "int32")
