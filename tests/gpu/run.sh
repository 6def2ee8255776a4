#!/usr/bin/env bash
# On a machine with a GPU: the gpu tests, the lessons' cells and the engine's own numbers. Writes JSON under $OUT, prints a short table last.
#   OUT=results bash tests/gpu/run.sh
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-gpu_results}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
"$PYTHON" -m pytest -q -m gpu tests --junitxml="$OUT/gpu_tests.xml" -rs
tests=$?
"$PYTHON" tests/gpu/run_cells.py > "$OUT/lessons.txt" 2>&1
cells=$?
tail -n 1 "$OUT/lessons.txt"
"$PYTHON" tests/gpu/measure.py --json "$OUT/gpu_engine.json"
measured=$?
echo "gpu tests: exit $tests, lessons: exit $cells, measurements: exit $measured"
exit $((tests || cells || measured))
