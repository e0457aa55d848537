#!/usr/bin/env bash
# The suite on another backend than the newest TensorFlow:
#
#   bash tests/backends.sh jax|torch|oldest [all | install | what pytest is to run]
#
#   jax     without TensorFlow
#   torch   without TensorFlow
#   oldest  on TensorFlow, with the lowest versions of what setup.cfg installs
#
# Alone it runs the contracts: conformance, a file for each engine, search, loss, one training, and
# models compared with TensorFlow's numbers. `all` runs everything. `install` makes the environment
# and no more.
#
# Environments are made once, in .venv-NAME. With the variable PYTHON it takes the environment of that
# interpreter instead; for jax and torch a TensorFlow that is installed there is hidden. The status
# is 77 where `oldest` finds no Python that its packages are made for. (nox would have to be installed
# first, and neither hides TensorFlow nor reads the lowest versions from setup.cfg.)
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?jax, torch or oldest}
shift

case $name in
  jax | torch) backend=$name ;;
  oldest) backend=tensorflow ;;
  *) echo "jax, torch or oldest? Received: $name" >&2 && exit 2 ;;
esac

requirements() { # what setup.cfg states, and what the suite needs besides
  python3 - "$1" <<'PYTHON'
import configparser
import sys

config = configparser.ConfigParser()
config.read("setup.cfg")
installed = config["options"]["install_requires"].split()
if sys.argv[1] == "oldest":
    installed = [line.replace(">=", "==") for line in installed]
else:
    installed = [line for line in installed if not line.startswith("tensorflow")] + [sys.argv[1]]
extras = config["options.extras_require"]
extras = [line for extra in ("plot", "text", "sklearn") for line in extras[extra].split()]
print(*installed, *extras, "hypothesis", "pytest", "pytest-xdist")
PYTHON
}

an_old_python() {
  local each
  for each in python3 python3.11 python3.10; do
    if "$each" -c "import sys; sys.exit(sys.version_info >= (3, 12))" 2>/dev/null; then
      echo "$each"
      return 0
    fi
  done
  return 1
}

install() { # whole, or not at all
  local folder=.venv-$name wanted
  wanted=$(requirements "$name")
  [ "$(cat "$folder/made-of" 2>/dev/null || true)" != "$wanted" ] || return 0
  local base=python3
  if [ "$name" = oldest ] && ! base=$(an_old_python); then
    echo "oldest: left out, for the lowest SciPy needs Python 3.11 or less" >&2
    exit 77 # which pytest never has
  fi
  rm -rf "$folder"
  trap 'rm -rf ".venv-$name"' EXIT
  "$base" -m venv "$folder"
  # Without tfattn itself, of whose requirements TensorFlow is one: it is found by PYTHONPATH.
  read -ra packages <<<"$wanted"
  "$folder/bin/python" -m pip install --quiet --no-compile "${packages[@]}"
  echo "$wanted" >"$folder/made-of"
  trap - EXIT
}

python=${PYTHON:-}
if [ -z "$python" ]; then
  install
  python=.venv-$name/bin/python
fi
[ "${1:-}" != install ] || exit 0

export KERAS_BACKEND=$backend PYTHONPATH=$PWD
tensorflow=TensorFlow
if [ "$backend" != tensorflow ]; then
  tensorflow="no TensorFlow"
  if "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)"; then
    tensorflow="TensorFlow hidden" hiding=$(mktemp -d)
    trap 'rm -rf "$hiding"' EXIT
    # Python runs a module of this name as it starts, in the processes that tests start too. Keras
    # takes a name among sys.modules, be it None, for a TensorFlow that is there.
    cat >"$hiding/sitecustomize.py" <<'PYTHON'
import sys
from importlib.machinery import PathFinder


class WithoutTensorFlow(PathFinder):
    @classmethod
    def find_spec(cls, name, *arguments):
        is_hidden = name.partition(".")[0] == "tensorflow"
        return None if is_hidden else super().find_spec(name, *arguments)


sys.meta_path[:] = [WithoutTensorFlow if each is PathFinder else each for each in sys.meta_path]
PYTHON
    export PYTHONPATH=$hiding:$PYTHONPATH
  fi
  "$python" -c "import importlib.util as u; assert u.find_spec('tensorflow') is None"
fi
echo "$name: $("$python" -c "import keras; print('Keras', keras.__version__)") on $backend, $tensorflow"
if [ $# -eq 0 ]; then
  # Compiling takes most of the time on JAX. These flags save a third; XLA ends at a flag that it lacks.
  flags="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
  if [ "$name" = jax ] && XLA_FLAGS=$flags "$python" -c "import jax; jax.numpy.ones(1)"; then
    export XLA_FLAGS=$flags
  fi
  contracts=(tests/conformance tests/core/test_{attend,guard,masks,scan,streamed}.py
    tests/decoding/test_search.py tests/kernel_regression/test_regression.py
    tests/layers/test_{multi_head,recurrent}.py tests/training/test_losses.py tests/test_without_tensorflow.py)
  models=(tests/models/test_trained.py::test_model_learns_and_its_training_step_is_traced_once)
  [ "$name" = oldest ] || models+=(tests/test_backends.py) # whose numbers are of a newer Keras
  "$python" -m pytest --quiet -rs --numprocesses 2 --dist loadfile --quick "${contracts[@]}"
  set -- --numprocesses 2 "${models[@]}"
elif [ "$1" = all ]; then
  shift
  set -- --full --numprocesses 2 --dist loadfile tests tfattn "$@"
fi
"$python" -m pytest --quiet -rs "$@"
