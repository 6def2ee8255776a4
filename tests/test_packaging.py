"""What is installed equals what is in the tree; imports are light and point one way."""
import ast
import email
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAPPED = {"kernels": "paged_edu/kernels", "data": "paged_edu/data", "notebooks": "paged_edu/notebooks"}
LEFT_OUT = ("__pycache__", ".ipynb_checkpoints", ".egg-info")
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the source tree")


def files(*options: str) -> list[str]:
    return subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def tree() -> set[str]:
    """Installed path of every file that should be in the wheel."""
    names = set()
    for name in files("-co", "--exclude-standard"):
        top, _, rest = name.partition("/")
        if (ROOT / name).is_file() and not any(part in name for part in LEFT_OUT):
            if top == "paged_edu":
                names.add(name)
            elif top in MAPPED:
                names.add(f"{MAPPED[top]}/{rest}")
    return names


def test_the_wheel_holds_the_tree(tmp_path):
    shutil.rmtree(ROOT / "build", ignore_errors=True)      # setuptools packs what an older build left there
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        meta = next(n for n in archive.namelist() if n.endswith("METADATA"))
        headers = email.message_from_string(archive.read(meta).decode())
        assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())
    assert names == tree()
    assert headers["License-Expression"] == "Apache-2.0"
    assert {"lab", "serve", "book", "dev"} <= set(headers.get_all("Provides-Extra"))


def test_every_package_is_listed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"paged_edu." + name.split("/")[0] if name in MAPPED else name.replace("/", ".") for name in MAPPED}
    found |= {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "paged_edu").rglob("__init__.py")}
    found = {MAPPED.get(n.removeprefix("paged_edu."), n).replace("/", ".") for n in found}
    assert listed == found


def test_nothing_else_at_top_level():
    top = {name.split("/")[0] for name in files()}
    allowed = {"pyproject.toml", "README.md", "LICENSE", "paged_edu", "kernels", "notebooks", "book", "data", "tests"}
    assert {name for name in top if not name.startswith(".")} <= allowed


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def loaded(code: str, names: str) -> set[str]:
    """Which of ``names`` a fresh interpreter has imported after ``code``."""
    return set(run(f"import sys; {code}; print(*(set({names.split()!r}) & set(sys.modules)))").split())


def test_import_needs_no_torch_gpu_triton_or_jupyter():
    assert loaded("import paged_edu", "torch triton transformers numpy ipywidgets IPython plotly anywidget") == set()
    # torch itself may import triton where it is installed; nothing else does.
    ours = loaded("import paged_edu.engine.llm", "triton ipywidgets IPython plotly anywidget jupyterlab")
    assert ours <= loaded("import torch", "triton")
    seconds = run("import time; t = time.perf_counter(); import paged_edu; print(time.perf_counter() - t)")
    assert float(seconds) < 4


def test_core_imports_neither_torch_nor_anything_of_ours():
    code = "import sys, paged_edu.core.scheduler, paged_edu.trace; print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    assert run(code) == "[]"


RANK = {"checks": 0, "words": 0, "core": 0, "kernels": 0, "config": 1, "trace": 1, "attention": 1, "model": 2, "sampling": 2, "engine": 3}


@pytest.mark.parametrize("path", sorted((ROOT / "paged_edu").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    """core imports nothing of ours; attention, model and sampling do not import engine; viz, bench, demo and cli sit on top."""
    parts = path.relative_to(ROOT / "paged_edu").with_suffix("").parts
    own = RANK.get(parts[0], 4) if parts != ("__init__",) else 9
    for node in ast.walk(ast.parse(path.read_text())):
        targets: list[str] = []
        if isinstance(node, ast.ImportFrom):
            base = list(("paged_edu", *parts)[: len(parts) + 1 - node.level + (parts[-1] == "__init__")]) if node.level else []
            targets = [".".join([*base, *( [node.module] if node.module else [])])]
            if node.module is None or targets == ["paged_edu"]:
                targets = [f"{targets[0]}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        for target in targets:
            names = target.split(".")
            assert names[0] not in ("kernels", "notebooks", "data"), f"{path} imports the repository's {names[0]}: a second copy of each module"
            if names[0] == "paged_edu" and len(names) > 1:
                other = RANK.get(names[1], 4)
                if parts[0] == "core":
                    assert names[1] == "core", f"{path} imports {target}"
                assert other <= own, f"{path} imports {target}, which sits above it"


def test_core_stays_short_enough_to_read():
    """What one reads to understand the paper, and, counted apart, what came before it; book/design.md says why it is no longer 1,200 in all."""
    code = {"paged": 0, "before": 0}
    for path in (ROOT / "paged_edu" / "core").glob("*.py"):
        lines = path.read_text().splitlines()
        doc: set[int] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                doc |= set(range(node.lineno, node.end_lineno + 1))
        part = "before" if path.stem in ("contiguous", "buddy") else "paged"
        code[part] += sum(bool(line.strip()) and not line.strip().startswith("#") and i not in doc for i, line in enumerate(lines, 1))
    assert code["paged"] < 1400
    assert code["before"] < 300


def test_every_file_opens_with_what_it_holds():
    for path in (ROOT / "paged_edu").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_version_is_said_once_in_agreement():
    import paged_edu

    assert paged_edu.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_readme_commands_are_the_ones_that_ci_runs():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    assert "bash tests/run.sh" in readme
    assert "bash tests/run.sh" in ci
    for target in re.findall(r"\]\(((?!https?://|#)[^)]+)\)", readme):
        assert (ROOT / target.split("#")[0]).exists(), f"README links to {target}"
