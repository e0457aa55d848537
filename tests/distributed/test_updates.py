"""What two processes learn from their rows of each batch, one learns from whole batches."""

import numpy as np
import pytest

from tests.distributed.job import needs
from tests.helpers.processes import printed

pytestmark = [pytest.mark.slow, needs("jax")]

UPDATES = __file__.replace("test_updates", "updates")  # the program


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Logs and weights by `processes.process`."""
    folder = tmp_path_factory.mktemp("updates")
    printed(UPDATES, folder)
    files = {name: f"{name}.npz" for name in ("1.0", "2.0", "2.1")}
    files["backup"] = "split.backup"
    return {name: dict(np.load(folder / file)) for name, file in files.items()}


@pytest.mark.parametrize("model", ["transformer", "bahdanau"])
def test_two_processes_end_at_the_weights_and_logs_of_one(found, model):
    one, first, second = (
        {key.partition("/")[2]: x for key, x in found[name].items() if key.startswith(model)}
        for name in ("1.0", "2.0", "2.1")
    )
    weights = [key for key in one if key.isdigit()]
    assert len(weights) > 1 and {"token_loss", "accuracy"} < one.keys()
    assert one.keys() == first.keys() == second.keys()
    for key in one:
        tolerances = {"rtol": 0, "atol": 1e-5} if key in weights else {"rtol": 1e-6}
        if key != "seen":
            np.testing.assert_allclose(first[key], one[key], **tolerances, err_msg=key)
        np.testing.assert_array_equal(second[key], first[key], err_msg=key)
    # The callbacks of the first process see the average, which `fit` leaves in the model.
    seen = sum(float(np.abs(second[key]).sum()) for key in weights)
    assert second["seen"] == pytest.approx(seen, rel=1e-6)


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
