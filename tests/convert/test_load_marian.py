"""Published translators: what a folder must contain, and what is read from it."""

import json
import pickle
import zipfile

import numpy as np
import pytest

import tfattn
from tests.convert import marian_folders as theirs
from tests.convert.parity import refused
from tests.convert.published import write_published
from tfattn.convert import load_marian, marian_search, to_marian
from tfattn.data import MarianVocabulary, load_vocabulary
from tfattn.decoding import GreedySearch, PooledBeamSearch


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def change(name, **entries):
    def changed(folder):
        path = folder / name
        write(folder, name, {**(json.loads(path.read_text()) if path.exists() else {}), **entries})

    return changed


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The files of a folder, without PyTorch and transformers."""
    folder = write_published(tmp_path_factory.mktemp("marian"))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(published, tmp_path):
    for name, content in published.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_load_marian_needs_no_settings_of_generation_and_tokenizer(folder):
    for name in ("generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    model, source, target = load_marian(folder)
    assert source.words == target.words and len(source) == model.source_vocabulary_size
    padding = target.begin_id
    assert target.words[padding] == "<bos>" and model.output_dense.bias.numpy()[padding] == 0


@pytest.mark.parametrize(
    "entries, wanted",
    [
        ({}, PooledBeamSearch(theirs.NUM_BEAMS)),
        (
            {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
            PooledBeamSearch(4, length_penalty=0.6, early_stopping=True),
        ),
        ({"num_beams": 1}, GreedySearch()),
        ({"num_beams": None}, GreedySearch()),
        (
            {"num_beams": 2, "forced_bos_token_id": 4},
            PooledBeamSearch(2, rules=[tfattn.rules.TargetPrefix([5], scored=False)]),
        ),
    ],
)
def test_marian_search_is_that_of_the_folder(folder, entries, wanted):
    change(SETTINGS, **entries)(folder)
    assert repr(marian_search(folder)) == repr(wanted)


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"do_sample": True}, "marian_search: `do_sample` cannot be converted"),
        ({"num_beam_groups": 3}, "marian_search: `num_beam_groups` cannot be converted"),
        ({"penalty_alpha": 0.6}, "marian_search: `penalty_alpha` cannot be converted"),
        ({"early_stopping": "never"}, "PooledBeamSearch: `early_stopping` must be True or False"),
        ({"forced_bos_token_id": "a"}, "marian_search: `forced_bos_token_id` must be an integer"),
    ],
)
def test_marian_search_refuses_other_searches(folder, entries, message):
    change(SETTINGS, **entries)(folder)
    with pytest.raises(ValueError, match=message):
        marian_search(folder)


@pytest.mark.slow
@pytest.mark.parametrize("renormalize", [True, False])
def test_load_marian_of_forbidden_padding_shares_or_keeps_its_probability(folder, renormalize):
    change("generation_config.json", renormalize_logits=renormalize)(folder)
    model, source, target = load_marian(folder)
    state = model.encode(np.array([[5, 6, source.end_id]]), max_length=4)
    logits = np.asarray(model.step(np.array([[target.begin_id, 0, 0, 0]]), 0, state)[0])[0]
    assert logits[target.begin_id] < -99
    assert (logits[target.padding_id] < -99) == renormalize
    if renormalize:
        state = to_marian(model)
        assert state["final_logits_bias"][0, target.begin_id - 1] == -100
        return
    with refused("logit of padding"):  # the way back would lose weights
        to_marian(model)


@pytest.mark.slow
def test_marian_vocabulary_comes_back_from_a_file(folder, tmp_path):
    change("tokenizer_config.json", clean_up_tokenization_spaces=True)(folder)
    _, source, target = load_marian(folder)
    for each in (source, target):
        each.save(tmp_path / "vocabulary")
        back = load_vocabulary(tmp_path / "vocabulary")
        assert type(back) is MarianVocabulary and back.words == each.words
        assert back.clean_up and (back.unknown_id, back.end_id) == (each.unknown_id, each.end_id)
        text = ">>fra<< béka. \ud800☃"
        assert back.encode(text) == each.encode(text) != [each.unknown_id]
        assert back.decode(range(1, 9)) == each.decode(range(1, 9))
    with pytest.raises(ValueError, match="`tokenizer` must be omitted"):
        load_vocabulary(tmp_path / "vocabulary", tokenizer=str.split)


@pytest.mark.slow
def test_marian_vocabulary_takes_no_text_for_special(folder):
    _, source, _ = load_marian(folder)
    special = {source.padding_id, source.begin_id, source.end_id}
    for text in ("</s>", "ba <pad> ba", "☃</s>", "<bos>", ">></s><<"):
        assert not special & set(source.encode(text))
    (*_, end) = source.encode("ba")
    ids = {"unknown_id": source.unknown_id, "begin_id": source.begin_id, "end_id": end}
    odd = MarianVocabulary((folder / "source.spm").read_bytes(), source.words, **ids)
    assert odd.encode("ba")[-1] == odd.unknown_id
    code = source.words.index(">>fra<<")
    assert source.encode(">>fra<<ba")[0] == code not in source.encode("ba >>fra<<")


def remove(name):
    return lambda folder: (folder / name).unlink()


def cut(name):
    def cutting(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])

    return cutting


def fill(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def renumber(folder):
    table = json.loads((folder / "vocab.json").read_text())
    write(folder, "vocab.json", {piece: 2 * i for piece, i in table.items()})


def rename_end(folder):
    path = folder / "vocab.json"
    path.write_text(path.read_text().replace('"</s>"', '"<end>"'))


def move_ids(folder):
    """Padding, also where `generate` forbids it."""
    change(CONFIG, pad_token_id=7, decoder_start_token_id=7)(folder)
    change(SETTINGS, bad_words_ids=None)(folder)


def poison(folder):
    numpy = pytest.importorskip("safetensors.numpy")
    state = numpy.load_file(folder / "model.safetensors")
    numpy.save_file(
        {name: np.nan * array for name, array in state.items()}, folder / "model.safetensors"
    )


INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def shard(damage=None, **entries):
    """Writes two shards in place of the file."""

    def sharded(folder):
        numpy = pytest.importorskip("safetensors.numpy")
        state = numpy.load_file(folder / "model.safetensors")
        names = {name: SHARDS[i % 2] for i, name in enumerate(state)}
        for file in SHARDS:
            own = {name: array for name, array in state.items() if names[name] == file}
            numpy.save_file(own, folder / file)
        write(folder, INDEX, {"metadata": {}, "weight_map": {**names, **entries}})
        remove("model.safetensors")(folder)
        if damage:
            damage(folder)

    return sharded


CONFIG, SETTINGS, TOKENS = "config.json", "generation_config.json", "tokenizer_config.json"
DAMAGE = {
    "other end": (change(CONFIG, eos_token_id=5), "`eos_token_id` must be 0, as in vocab.json"),
    "other begin": (move_ids, "as in vocab.json. Received: pad_token_id=7"),
    "no config": (remove(CONFIG), "config.json"),
    "no weights": (remove("model.safetensors"), "`model.safetensors` must be in the folder, or"),
    "cut weights": (cut("model.safetensors"), "`model.safetensors` must be a file of weights"),
    "no shard": (shard(remove(SHARDS[1])), f"`{SHARDS[1]}` must be in the folder, as {INDEX}"),
    "cut shard": (shard(cut(SHARDS[1])), f"`{SHARDS[1]}` must be a file of weights alone"),
    "shard elsewhere": (shard(more="../a.bin"), f"`{INDEX}` must name files in the folder. Rec"),
    "shard of Windows": (shard(more="..\\a"), f"`{INDEX}` must name files in the folder. Rec"),
    "shard of no name": (shard(more=3), f"`{INDEX}` must name files in the folder. Received"),
    "no map": (shard(fill(INDEX, b"{}")), f"`weight_map of {INDEX}` must be a dict"),
    "cut config": (cut(CONFIG), "`config.json` must contain a JSON object"),
    "a list": (fill(SETTINGS, b"[]"), "`generation_config.json` must contain a JSON object"),
    "no bytes": (fill("target.spm", b""), "MarianVocabulary: `model`"),
    "another end": (change(SETTINGS, eos_token_id=[0, 5]), "`eos_token_id` must be 0 in gen"),
    "another begin": (
        change(SETTINGS, decoder_start_token_id=5),
        "`decoder_start_token_id` must be",
    ),
    "another last": (change(SETTINGS, forced_eos_token_id=7), "`forced_eos_token_id` must be 0 in"),
    "NaN": (poison, "`weights` must be finite numbers. Received: weights='"),
    "other model": (change(CONFIG, model_type="bart"), "`model_type` must be 'marian'"),
    "a gap": (renumber, "`vocab.json` must number its entries from 0 to "),
    "no end": (rename_end, "`vocab.json` must have the entry '</s>'"),
    "bad words": (change(SETTINGS, bad_words_ids=[[3]]), "`bad_words_ids` cannot be converted"),
    "n-grams": (change(SETTINGS, no_repeat_ngram_size=2), "`no_repeat_ngram_size` cannot be conv"),
    "begin": (change(CONFIG, decoder_start_token_id=1), "`decoder_start_token_id` cannot be conv"),
    "added": (
        change(TOKENS, added_tokens_decoder=dict.fromkeys("0123", {})),
        "`added_tokens_decoder` cannot be converted",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", ["safetensors", "bin"])
def test_load_marian_reads_shards(folder, file):
    wanted = load_marian(folder)[0].get_weights()
    if file == "safetensors":
        shard()(folder)
    else:
        torch = pytest.importorskip("torch")
        state = pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")
        torch.save(state, folder / "pytorch_model-00001-of-00001.bin")
        names = dict.fromkeys(state, "pytorch_model-00001-of-00001.bin")
        write(folder, "pytorch_model.bin.index.json", {"weight_map": names})
        remove("model.safetensors")(folder)
    for one, other in zip(load_marian(folder)[0].get_weights(), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", DAMAGE)
def test_load_marian_refuses_a_damaged_folder_in_one_sentence(folder, case):
    damage, message = DAMAGE[case]
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load_marian(folder)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 400


def test_load_marian_runs_no_code_of_a_pickle(folder, tmp_path):
    pytest.importorskip("torch")
    remove("model.safetensors")(folder)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Writes(tmp_path / "written"), protocol=2))
        archive.writestr("archive/version", "3")
    with pytest.raises(ValueError, match="`pytorch_model.bin` must be a file of weights alone"):
        load_marian(folder)
    assert not (tmp_path / "written").exists()


class Writes:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_load_marian_refuses_what_is_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="load_marian: `folder` must be a folder"):
        load_marian(tmp_path / "none")
