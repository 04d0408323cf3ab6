"""The page's modules bundled into one script."""

import json
import re
import shutil
import subprocess

import pytest

from regard_workbench.viewer import bundle
from regard_workbench.viewer.bundle import NotBundled

MODULES = {
    "main.js": 'import { twice, Box as Case } from "./parts/sums.js";\nimport { name } from "./words.js";\n'
    "export const result = [twice(4), new Case(name).inside];\nglobalThis.result = result;\n",
    "parts/sums.js": '// sums\nimport { name } from "../words.js";\nconst two = 2;\n'
    "export function twice(x) {\n  return two * x;\n}\n"
    "export class Box {\n  constructor(inside) {\n    this.inside = `${inside} of ${name}`;\n  }\n}\n",
    "words.js": 'export const name = "</script><!--";\nconst two = "not that one";\nvoid two;\n',
}


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript outside of the browser here")
def test_the_bundle_computes_what_the_modules_would(tmp_path):
    script = tmp_path / "bundle.cjs"
    script.write_text(bundle.bundle(MODULES, "main.js") + "console.log(JSON.stringify(globalThis.result));")
    done = subprocess.run(["node", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [8, "</script><!-- of </script><!--"]


def test_each_module_runs_once_after_its_imports():
    made = bundle.bundle(MODULES, "main.js")
    assert made.count("return two * x;") == 1 and made.count("not that one") == 1
    assert made.index("not that one") < made.index("return two * x;") < made.index("globalThis.result")


def test_nothing_in_a_script_can_end_its_element():
    made = bundle.bundle(MODULES, "main.js")
    assert "</script" not in made and "<!--" not in made


@pytest.mark.parametrize(
    "line",
    [
        "export default 1;",
        'export { a } from "./b.js";',
        'import * as b from "./b.js";',
        'import b from "./b.js";',
        "export let a = 1;",
        "const a = await import('./b.js');",
        'import "./b.js";',
    ],
)
def test_forms_that_are_not_bundled_are_refused(line):
    with pytest.raises(NotBundled):
        bundle.bundle({"main.js": line + "\n", "b.js": "export const a = 1;\n"}, "main.js")


def test_a_circle_and_a_missing_file_are_named():
    modules = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    with pytest.raises(NotBundled, match=r"a\.js → b\.js → a\.js"):
        bundle.bundle(modules, "a.js")
    with pytest.raises(NotBundled, match=r"c\.js"):
        bundle.bundle({"a.js": 'import { c } from "./c.js";\n'}, "a.js")
    with pytest.raises(NotBundled, match="not a file of the page"):
        bundle.bundle({"a.js": 'import { c } from "https://elsewhere.example/c.js";\n'}, "a.js")


def test_the_page_itself_is_bundled_whole():
    made = bundle.page_script()
    assert not re.search(r"^\s*(import|export)\b", made, re.MULTILINE)
    for word in ("overviewView", "matrixView", "tokensView", "embeddedSource"):
        assert word in made
    assert "</style" not in bundle.page_style()


def test_the_page_fetches_nothing_from_elsewhere():
    for name, text in bundle.read_page().items():
        strange = [
            address
            for address in re.findall(r"https?://[^\s\"'`)]+", text)
            if not address.startswith("http://www.w3.org/")
        ]
        assert not strange, f"{name}: {strange}"
