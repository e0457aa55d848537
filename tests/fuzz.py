"""Draws many random cases of the properties of which `core/test_properties.py` tests a few hundred.

    python tests/fuzz.py --cases 10000 --seed 0
    python tests/fuzz.py --check mask            # of one property alone
    python tests/fuzz.py --seed 0 --only 1234    # a single case, with its choices

Prints the number of cases, the failures, and for each failure the command that repeats it.
"""

import argparse
import collections
import gc
import os
import pathlib
import sys
import time
import traceback
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import keras

from tests import test_invalid_arguments
from tests.helpers import properties
from tests.helpers.tensors import tf


def check_invalid_arguments(choose):
    """A call with two invalid arguments refuses one by name, or accepts both."""
    row = choose(test_invalid_arguments.TABLE)
    tried = _tried(row)
    if not tried or row.name.startswith(("plot.", "training.Backup")):
        row = next(row for row in test_invalid_arguments.TABLE if row.name == "attend")
        tried = _tried(row)
    arguments, names = test_invalid_arguments.arguments_of(row), []
    for argument in (choose(list(tried)), choose(list(tried))):
        found = test_invalid_arguments.cases(row, argument)
        name, value = choose([each for each in found if each[0] in tried[argument]])
        arguments[argument] = value
        names.append((argument, name))
    fault = test_invalid_arguments.fault_of(row, arguments)
    assert fault in (None, "taken"), f"{row.name} with {names}: {fault}"


def _tried(row):
    """The names of the invalid values of each argument that the table tries."""
    every = test_invalid_arguments.ALL
    found = {name: (every if row.whole else kind.tried) for name, kind in row.arguments.items()}
    found = {name: values - row.allowed[name] for name, values in found.items()}
    return {
        name: values
        for name, values in found.items()
        if any(case in values for case, _ in test_invalid_arguments.cases(row, name))
    }


CHECKS = {**properties.CHECKS, "invalid": check_invalid_arguments}
SHARES = ["attend"] * 6 + ["layer"] * 2 + ["mask", "invalid"]  # case by case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", choices=[*CHECKS], help="draw cases of this property only")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="draw only this case, and show its choices")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    test_invalid_arguments.enter_a_folder()
    cases = range(options.first, options.first + options.cases)
    cases = cases if options.only is None else [options.only]
    failures, start = collections.Counter(), time.time()
    for number, case in enumerate(cases, start=1):
        log, name = [], options.check or SHARES[case % len(SHARES)]
        try:
            CHECKS[name](properties.chooser(options.seed, case, log))
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            failures[name] += 1
            again = f"--check {name} --seed {options.seed} --only {case}"
            print(f"FAILED python tests/fuzz.py {again}", flush=True)
            print(f"    {type(error).__name__}: {words}", flush=True)
            if options.only is not None:
                traceback.print_exc()
        if options.only is not None:
            print(log)
        if number % 200 == 0:  # free traced functions
            keras.backend.clear_session()
            if tf:
                tf.keras.backend.clear_session()
            gc.collect()
        if number % 1000 == 0:
            drawn = f"{number} cases, {sum(failures.values())} failures"
            print(f"{drawn}, {time.time() - start:.0f} s", flush=True)
    print(f"cases drawn: {len(cases)}  failures: {sum(failures.values())}  {dict(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
