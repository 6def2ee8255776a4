"""The bundler: one script out of the modules, nothing of `import` and `export` left, and what it cannot read is refused."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paged_edu.viz import bundle as bundles
from paged_edu.viz.bundle import bundle, css, exports, source
from paged_edu.viz.view import View

NODE = shutil.which("node")
JS = Path(bundles.__file__).parent / "js"
MODULES = sorted(path.stem for path in JS.glob("*.js"))
VIEWS = (*sorted(View.kinds), "curves", "layer", "walk")
needs_node = pytest.mark.skipif(NODE is None, reason="no node on this machine to read JavaScript outside a browser")


def node(code: str) -> str:
    done = subprocess.run([NODE, "--input-type=module", "-"], input=code, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("entry", ["widget", "page"])
def test_nothing_of_import_and_export_is_left(entry):
    text = bundle(VIEWS, entry)
    left = re.findall(r"^\s*(?:import|export)\b.*$", text, re.MULTILINE)
    assert left == (["export default " + text.rstrip().rsplit("export default ", 1)[1]] if entry == "widget" else [])
    assert "</script" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/)", text), "no view fetches anything"
    assert len(text) < 200_000
    assert text.count("const $trace = ") == 1


@needs_node
def test_the_bundle_is_a_module_that_runs():
    answer = node(bundle(VIEWS).replace("export default ", "const widget = ") + "console.log(Object.keys(widget))")
    assert "initialize" in answer
    assert "render" in answer


@needs_node
def test_the_bundler_finds_every_export():
    """A `const` that declares two names would lose the second one in the bundle."""
    imports = "".join(f'import * as {name} from "{JS / name}.js";' for name in MODULES)
    found = json.loads(node(f"{imports}console.log(JSON.stringify({{{','.join(f'{n}: Object.keys({n})' for n in MODULES)}}}))"))
    assert found == {name: sorted(exports(source(name))) for name in MODULES}


def test_every_view_has_its_module():
    for name in VIEWS:
        assert "create" in exports(source(name))
    assert ".pe" in css()


@pytest.mark.parametrize("line", [
    'import x from "./trace.js";', 'import { a } from "https://elsewhere/x.js";', 'export { a };', "export default 1;", "export let a = 1;",
    'import {\n  a,\n} from "./trace.js";',
])
def test_what_it_cannot_read_is_refused(monkeypatch, line):
    monkeypatch.setattr(bundles, "source", lambda name: line if name == "x" else "")
    bundle.cache_clear()
    with pytest.raises(ValueError, match=r"x\.js: the bundler does not read"):
        bundle(("x",))
    bundle.cache_clear()


def test_circles_and_missing_modules_are_named(monkeypatch):
    with pytest.raises(ValueError, match=r"no module nothing\.js"):
        bundle(("nothing",))
    monkeypatch.setattr(bundles, "source", lambda name: f'import {{ a }} from "./{"b" if name == "a" else "a"}.js";')
    with pytest.raises(ValueError, match="a -> b -> a"):
        bundle(("a",))


def test_a_page_may_bring_modules_of_its_own():
    own = (("mine", 'import { look } from "./palette.js";\nexport function create(el) { return look(0); }\n'),
           ("begin", 'import { show } from "./page.js";\nexport function start(modules) { show(null, null, modules); }\n'))
    text = bundle(("mine",), "begin", own)
    assert text.index("const $palette = ") < text.index("const $mine = ") < text.index("const $begin = ")
    assert text.rstrip().endswith("$begin.start({ mine: $mine });")
    with pytest.raises(ValueError, match=r"no module gone\.js"):
        bundle(("mine",), "begin", (("mine", 'import { x } from "./gone.js";\n'), own[1]))
