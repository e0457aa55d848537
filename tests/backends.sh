#!/usr/bin/env bash
# The suite on another backend than the newest TensorFlow:
#
#   bash tests/backends.sh jax|torch|oldest [all | install | what pytest is to run]
#
#   jax     without TensorFlow
#   torch   without TensorFlow
#   oldest  on TensorFlow, with the lowest versions of what setup.cfg installs
#
# Alone it runs what is quick: conformance, masks and a part of the rest, of each the quick tier. `all`
# runs everything, whole; on `oldest` every file that is listed here. `install` makes the environment
# and no more.
#
# Environments are made once, in .venv-NAME. With the variable PYTHON it takes the environment of that
# interpreter instead; for jax and torch a TensorFlow that is installed there is hidden. The status
# is 77 where `oldest` finds no Python that its packages are made for.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?jax, torch or oldest}
shift

core="tests/test_attend.py tests/test_softmax.py tests/test_scores.py tests/test_kernels.py
  tests/test_masks.py tests/test_masks_of_integers.py tests/test_biases.py tests/test_normalizers.py
  tests/test_merging.py"
layers="tests/test_multi_head.py tests/test_attention_layers.py tests/test_attention_positions.py
  tests/test_blocks.py tests/test_parts.py tests/test_dropout.py"
models="tests/test_transformer.py tests/test_language_model.py tests/test_seq2seq.py
  tests/test_kernel_regression_model.py"
training="tests/test_training.py tests/test_rdrop.py tests/test_schedules.py tests/test_resume.py
  tests/test_backup_refusals.py tests/test_data_batches.py tests/test_data_epochs.py
  tests/test_data_shards.py tests/test_first_process.py tests/test_training_layouts.py"
decoding="tests/test_decoding.py tests/test_decoding_beams.py tests/test_decoding_sampling.py
  tests/test_decoding_rules.py tests/test_decoding_rules_compiled.py
  tests/test_decoding_rules_refused.py tests/test_decoding_required.py
  tests/test_decoding_beam_rules.py tests/test_decoding_stream.py
  tests/test_decoding_translate.py tests/test_transformer_decoding.py"
streaming="tests/test_checkpointed.py tests/test_path_scope.py tests/test_log_sum_exp.py
  tests/test_benchmark_gpu.py"
story="tests/test_without_tensorflow.py tests/test_plot.py"
small="tests/test_errors.py tests/test_nonsense.py tests/test_order_of_arguments.py
  tests/test_keras_arguments.py tests/test_keras_promises.py tests/test_guard.py
  tests/test_ranges.py tests/test_recording.py tests/test_feed_forward.py tests/test_norm.py
  tests/test_nadaraya_watson.py tests/test_positional.py tests/test_recurrent.py
  tests/test_models_trained.py tests/test_quantization.py
  tests/test_decoding_best.py tests/test_decoding_past.py tests/test_simcut.py
  tests/test_training_averaging.py tests/test_training_bleu.py tests/test_training_files.py
  tests/test_training_metrics.py tests/test_step_cost.py"
every="tests/conformance $core $layers $models $training $decoding"
case $name in
  jax | torch) backend=$name every+=" $streaming $story $small" everything="tests tfattn" ;;
  oldest) backend=tensorflow everything=$every ;;
  *) echo "jax, torch or oldest? Received: $name" >&2 && exit 2 ;;
esac

# What is left out then: what takes longest beside what it tells of a backend.
left_out="tests/test_attention_positions.py tests/test_language_model.py
  tests/test_transformer_decoding.py tests/test_multi_head.py tests/test_blocks.py
  tests/test_parts.py tests/test_decoding_rules_compiled.py"
if [ "$name" = jax ]; then # which compiles whatever it computes
  left_out+=" tests/test_biases.py tests/test_merging.py tests/test_normalizers.py
    tests/test_log_sum_exp.py tests/test_decoding_beam_rules.py tests/test_benchmark_gpu.py
    tests/test_nonsense.py tests/test_order_of_arguments.py tests/test_keras_arguments.py
    tests/test_keras_promises.py tests/test_feed_forward.py tests/test_norm.py
    tests/test_nadaraya_watson.py tests/test_positional.py tests/test_recurrent.py
    tests/test_simcut.py tests/test_training_metrics.py"
elif [ "$name" = oldest ]; then # TensorFlow, on whose newest everything runs
  left_out+=" tests/test_biases.py tests/test_merging.py tests/test_normalizers.py
    tests/test_decoding_rules.py tests/test_decoding_required.py tests/test_decoding_beam_rules.py"
fi

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
  tests=()
  for file in $every; do
    [[ " "$(echo $left_out)" " == *" $file "* ]] || tests+=("$file")
  done
  # Compiling takes most of the time on JAX, and another run finds what this one compiled.
  export JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_COMPILATION_CACHE_DIR=$PWD/out/compiled
  export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
  # The quick tier has one row a class of the conformance table.
  set -- --quick --numprocesses 2 --dist loadfile "${tests[@]}"
elif [ "$1" = all ]; then
  shift
  read -ra tests <<<"$(echo $everything)"
  set -- --full --numprocesses 2 --dist loadfile "${tests[@]}" "$@"
fi
"$python" -m pytest --quiet -rs "$@"
