"""What two processes learn from their rows of each batch, one learns from whole batches."""

import numpy as np
import pytest

from tests.processes import printed

pytestmark = pytest.mark.slow

pytest.importorskip("jax")

MODELS = ("dense", "transformer", "bahdanau")
UPDATES = __file__.replace("test_updates", "updates")  # the program


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Logs and weights by `processes.process`."""
    folder = tmp_path_factory.mktemp("updates")
    printed(UPDATES, folder)
    files = {name: f"{name}.npz" for name in ("1.0", "2.0", "2.1")}
    files["backup"] = "split.backup"
    return {name: dict(np.load(folder / file)) for name, file in files.items()}


def of(model, found, logs):
    """The logs of a model, or its weights."""
    return {
        name: value
        for name, value in found.items()
        if name.startswith(f"{model}/") and name.rpartition("/")[2].isdigit() != logs
    }


@pytest.mark.parametrize("model", MODELS)
def test_two_processes_end_at_the_weights_of_one(found, model):
    one, two = (of(model, found[name], logs=False) for name in ("1.0", "2.0"))
    assert one.keys() == two.keys() and len(one) > 1
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_both_processes_have_the_same_weights_and_logs_to_the_bit(found, model):
    for name, value in found["2.0"].items():
        if name.startswith(f"{model}/"):
            np.testing.assert_array_equal(found["2.1"][name], value, err_msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_losses_and_metrics_count_all_tokens(found, model):
    one, two = (of(model, found[name], logs=True) for name in ("1.0", "2.0"))
    assert {f"{model}/token_loss", f"{model}/accuracy"} < one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_the_callbacks_of_the_first_process_see_the_average_and_log_for_all(found, model):
    # `fit` leaves the average in the model.
    weights = of(model, found["2.1"], logs=False).values()
    seen = sum(float(np.abs(weight).sum()) for weight in weights)
    assert found["2.1"][f"{model}/seen"] == pytest.approx(seen, rel=1e-6)


def test_a_backup_holds_the_whole_of_what_processes_share_and_gives_each_its_part(found):
    parts = [found[name]["split/trained"] for name in ("2.0", "2.1")]
    assert parts[0].shape == parts[1].shape and not np.array_equal(*parts)
    np.testing.assert_array_equal(found["backup"]["model/0"], np.concatenate(parts, axis=1))
    for name, part in zip(("2.0", "2.1"), parts, strict=True):
        np.testing.assert_array_equal(found[name]["split/restored"], part)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("callback", "FirstProcess: the first process failed with ZeroDivisionError: division by"),
        ("backup", "Backup: the first process failed with FileExistsError: [Errno 17] File exists"),
    ],
)
def test_what_the_first_process_cannot_do_is_told_in_both(found, name, said):
    first, second = (str(found[process][f"told/{name}"]) for process in ("2.0", "2.1"))
    assert first == second and first.startswith(said)
