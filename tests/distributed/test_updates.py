"""What two processes learn from their rows of each batch, one learns from whole batches."""

import numpy as np
import pytest

from tests.distributed.job import needs
from tests.helpers.processes import printed

pytestmark = [pytest.mark.slow, needs("jax")]

UPDATES = __file__.replace("test_updates", "updates")  # the program


def ran(folder, model):
    """Logs and weights by `processes.process`, and the backup if there is one."""
    printed(UPDATES, folder, model)
    return {path.name: dict(np.load(path)) for path in folder.glob("*.npz")}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates")
    return ran(folder, "transformer") | {"backup": dict(np.load(folder / "split.backup"))}


def assert_two_end_at_weights_and_logs_of_one(found, model):
    one, first, second = (
        {key.partition("/")[2]: x for key, x in found[name].items() if key.startswith(model)}
        for name in ("1.0.npz", "2.0.npz", "2.1.npz")
    )
    weights = [key for key in one if key.isdigit()]
    assert len(weights) > 1 and {"loss", "accuracy"} < one.keys()
    assert one.keys() == first.keys() == second.keys()
    for key in one:
        tolerances = {"rtol": 0, "atol": 1e-5} if key in weights else {"rtol": 1e-6}
        if key != "seen":
            np.testing.assert_allclose(first[key], one[key], **tolerances, err_msg=key)
        np.testing.assert_array_equal(second[key], first[key], err_msg=key)
    # Callbacks see the average, which `fit` leaves in the model.
    seen = sum(float(np.abs(second[key]).sum()) for key in weights)
    assert second["seen"] == pytest.approx(seen, rel=1e-6)


def test_transformer_of_two_processes_ends_at_weights_and_logs_of_one(found):
    assert_two_end_at_weights_and_logs_of_one(found, "transformer")


@pytest.mark.nightly
def test_recurrent_model_of_two_processes_ends_at_weights_and_logs_of_one(tmp_path):
    assert_two_end_at_weights_and_logs_of_one(ran(tmp_path, "bahdanau"), "bahdanau")


def test_backup_of_two_processes_holds_the_whole_and_gives_each_its_part(found):
    parts = [found[name]["split/trained"] for name in ("2.0.npz", "2.1.npz")]
    assert parts[0].shape == parts[1].shape and not np.array_equal(*parts)
    np.testing.assert_array_equal(found["backup"]["model/0"], np.concatenate(parts, axis=1))
    for name, part in zip(("2.0.npz", "2.1.npz"), parts, strict=True):
        np.testing.assert_array_equal(found[name]["split/restored"], part)
