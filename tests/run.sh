#!/usr/bin/env bash
# The whole test suite, from a fresh clone: sets up a virtual environment of its own, then runs each stage and prints its time.
#   bash tests/run.sh              everything
#   bash tests/run.sh unit lint    only these stages (install lint pull unit kernels notebooks wheel browser book)
# PYTHON picks the interpreter, TEST_WORKERS the number of processes for the tests (2), VENV the folder of the environment, PIP_CONSTRAINT pins versions.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
known="install lint pull unit kernels notebooks wheel browser book"
stages=${*:-$known}
for stage in $stages; do                           # before the first one runs: it may take minutes
  case " $known " in *" $stage "*) ;; *) echo "no such stage: $stage; there are: $known" >&2; exit 2 ;; esac
done
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONDONTWRITEBYTECODE                      # a hundred tests start a Python of their own: each would compile the package again
summary=""
trap 'printf "\nstage       time\n%s" "$summary"' EXIT

install() {
  "$PYTHON" -c 'import sys; sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}" if sys.version_info < (3, 11) else 0)'
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  "$VENV/bin/pip" install -q -e '.[dev]'
}

lint() {
  "$VENV/bin/ruff" check .
  "$VENV/bin/mypy"
}

# SmolLM2 for the tests that compare it with transformers: they run where it could be had, and only there.
pull() {
  if "$VENV/bin/paged-edu" pull smollm2-135m-instruct; then
    export PAGED_EDU_TEST_SMOLLM2=required
  else
    echo "NOTE: smollm2-135m-instruct could not be pulled (see above); its tests are skipped" >&2
  fi
}

# Two workers, whole files each: some files count over all their tests what took part. The order is tests/conftest.py's: long files first.
# nbval, which takes seconds to import, comes in where a test asks for it.
spread="-n ${TEST_WORKERS:-2} --dist loadfile --no-loadscope-reorder"
unit() { "$VENV/bin/python" -m pytest -q -p no:nbval -m 'not browser' $spread tests --ignore=tests/kernels --durations=10; }

# The Triton kernels: on a GPU where there is one, under Triton's interpreter elsewhere. Processes of their own, since the interpreter is
# switched on before anything is imported, and for good.
kernels() { "$VENV/bin/python" -m pytest -q -p no:nbval $spread tests/kernels --durations=10 -rs; }

notebooks() {
  CUDA_VISIBLE_DEVICES="" "$VENV/bin/python" -m pytest -q -p no:cacheprovider -n "${TEST_WORKERS:-2}" --dist loadfile \
    --nbval notebooks --nbval-sanitize-with tests/notebooks/sanitize.cfg --nbval-cell-timeout=60
}

# The wheel in an environment of its own, and the demo from another folder: what a user gets who never sees the repository.
wheel() {
  local work; work=$(mktemp -d)
  rm -rf build                                     # setuptools packs what an older build left there
  "$VENV/bin/pip" wheel -q --no-deps -w "$work/dist" .
  "$PYTHON" -m venv "$work/venv"
  "$work/venv/bin/pip" install -q "$work"/dist/*.whl
  (cd "$work" && "$work/venv/bin/paged-edu" --version && "$work/venv/bin/paged-edu" demo --no-live --json demo.json && test -s demo.json)
  rm -rf "$work"
}

browser() { "$VENV/bin/python" -m pytest -q -p no:nbval -m browser $spread tests/browser --durations=10 -rs; }

# The book: warnings are errors; then every link inside it, then its pages in the browser.
book() {
  "$VENV/bin/jupyter-book" clean book >/dev/null
  "$VENV/bin/jupyter-book" build -W --keep-going -q book
  "$VENV/bin/python" tests/book/links.py book/_build/html
  "$VENV/bin/python" -m pytest -q -p no:nbval -n "${TEST_WORKERS:-2}" tests/browser/test_book_pages.py --durations=5 -rs
}

for stage in $stages; do
  echo "== $stage"
  start=$SECONDS
  summary+="$stage"$'\t'"    began, did not end"$'\n'
  "$stage"
  summary=${summary%"$stage"$'\t'*}$(printf '%-10s %5d s' "$stage" $((SECONDS - start)))$'\n'
done
