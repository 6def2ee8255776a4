#!/usr/bin/env bash
# On a machine with a GPU: the kernels' and the engine's tests on it, the lessons' code cells, the kernel benchmark, the engine's own numbers.
#   python -m pip wheel --no-deps -w dist .     (where there is a network)
#   OUT=results bash tests/gpu/run.sh           (nothing is installed: every wheel in dist/ is unpacked beside the repository's tests)
# Writes at most four files under $OUT, prints a short table last. Each part has a time limit; all of them together stay under 8 minutes.
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-gpu_results}
PYTHON=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
mkdir -p "$OUT"
wheels=(dist/*.whl)
[ -e "${wheels[0]}" ] || { echo "no wheel in dist/: python -m pip wheel --no-deps -w dist ." >&2; exit 2; }
for wheel in "${wheels[@]}"; do "$PYTHON" -m zipfile -e "$wheel" "$site" || exit 2; done
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
unset TRITON_INTERPRET
"$PYTHON" -c 'import paged_edu.kernels, torch; print(torch.cuda.get_device_name(), "torch", torch.__version__)' || exit 2

table=""
part() {                                            # part NAME SECONDS COMMAND ...
  local name=$1 limit=$2 start=$SECONDS; shift 2
  timeout -k 5 "$limit" "$@"                        # what hangs in the driver may not hear the first signal
  local code=$?
  table+=$(printf '%-12s %5d s  %s' "$name" $((SECONDS - start)) "$([ $code = 0 ] && echo ok || echo "exit $code")")$'\n'
  worst=$((worst || code))
}
worst=0
part tests 190 "$PYTHON" -m pytest -q -p no:cacheprovider --continue-on-collection-errors tests/gpu tests/kernels \
  --ignore tests/kernels/test_ahead_of_time.py --ignore tests/kernels/test_warm_up.py \
  --junitxml="$OUT/gpu_tests.xml" -rs
part lessons 100 "$PYTHON" tests/gpu/run_cells.py "$OUT/lessons.txt"
part kernels 100 "$PYTHON" -m paged_edu bench kernels --quick --json "$OUT/kernels.json"
part engine 50 "$PYTHON" tests/gpu/measure.py --json "$OUT/engine.json"
printf '\n%s' "$table"
exit $worst
