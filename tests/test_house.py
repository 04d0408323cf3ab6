"""The structure of the repository: imports point one way, files stay short, the README lists the folders."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from tests.kept_files import kept_files

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("regard", "regard_fast", "regard_workbench")
SOURCES = [ROOT / "src" / package for package in PACKAGES]

# Lower floors know nothing of higher ones. A new room says here where it stands.
LIBRARY = [
    ["errors", "registry"],
    ["support"],
    ["values"],
    ["masks", "scores", "biases", "normalizers"],
    ["formula"],
    ["implementations"],
    ["dispatch"],
    ["parallel"],
    ["nn"],
    ["interop", "decoding", "operators"],
    ["observation"],
]
WORKBENCH = [
    ["workbench.files", "workbench.csv_text", "workbench.extras", "workbench.plugins"],
    ["workbench.models", "workbench.tasks"],
    ["workbench.training"],
    ["workbench.inspection"],
    ["workbench.figures"],
    ["workbench.comparison"],
    ["workbench.viewer", "workbench.bench", "workbench.attacks"],
    ["workbench.cli"],
    ["workbench.arguments", "workbench.notebook_view"],
    ["workbench.verbs"],
]
DOORS = [["models", "tasks", "training", "viewer"], ["__main__"]]  # public names of the workbench in `regard`
GUEST = ["fast.fused_rows", "fast.fused_memory", "fast.mechanisms", "fast.takers", "fast.guest"]
FLOOR = {room: level for level, rooms in enumerate([*LIBRARY, *WORKBENCH, *DOORS, GUEST]) for room in rooms}
# What the guest takes over and is made of. Nobody imports it: it stands above all.
HOSTS = {room for rooms in LIBRARY[:-1] for room in rooms} | {"workbench.models", "workbench.tasks"}
FORBIDDEN = [("workbench.tasks", "workbench.models"), ("workbench.viewer", "nn")]
# Imports whose module cannot be read here, and why each has to exist.
UNREADABLE = {
    "regard.registry": "a name is looked up in the file that is called so",
    "regard_workbench.models.parts.embedding": "a kind of stream names the module of its embedding",
    "regard_fast.guest": "what it takes over is named, so that no model is loaded for a table",
}


def modules():
    paths = (path for source in SOURCES for path in source.rglob("*.py"))
    return sorted(path for path in paths if "__pycache__" not in path.parts)


def room(path):
    return room_of(path.relative_to(ROOT / "src").with_suffix("").parts)


def room_of(parts):
    """The first folder or file inside a package; `workbench.` or `fast.` stands before those of the other packages."""
    return parts[1] if parts[0] == "regard" else f"{parts[0].removeprefix('regard_')}.{parts[1]}"


def module_name(path):
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def imported_rooms(text, module, package):
    """(room, line) of every import of regard in a source text, those inside functions included.

    `import_module` and `__import__` count too: by their constant, or by the constant beginning of an f-string. The room
    is None where that does not tell.
    """
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            names = (
                [".".join([*base, alias.name]) for alias in node.names]
                if base in [[package] for package in PACKAGES]
                else [".".join(base)]
            )
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__"):
            name = constant_beginning(node.args[0], module)
            if name in ("", *PACKAGES):
                yield None, node.lineno
            names = [name]
        for name in names:
            parts = name.split(".")
            if parts[0] in PACKAGES and len(parts) > 1:
                yield room_of(parts), node.lineno


def called_name(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def constant_beginning(node, module):
    """The dotted name an expression is, or begins with; `__name__` is that of the module it stands in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    beginning = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            beginning += part.value
        elif isinstance(part.value, ast.Name) and part.value.id == "__name__":
            beginning += module
        else:
            return beginning.rpartition(".")[0]  # what follows the last dot may go on
    return beginning


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("import regard_workbench.viewer.export", "workbench.viewer"),
        ("from regard import viewer", "viewer"),
        ("from ..viewer import show", "viewer"),
        ("from regard.dispatch.plan import Plan", "dispatch"),
        ("def show():\n    from regard_workbench.viewer import show", "workbench.viewer"),
        ("import_module('regard_workbench.viewer').show()", "workbench.viewer"),
        ("importlib.import_module('regard.dispatch.plan')", "dispatch"),
        ("__import__('regard_workbench.viewer')", "workbench.viewer"),
        ("import_module(f'regard_workbench.viewer.{name}')", "workbench.viewer"),
        ("import_module(f'{__name__}.{name}')", "observation"),
        ("import_module(f'regard.{name}')", None),
        ("import_module(f'regard.view{name}')", None),
        ("import_module(name)", None),
        ("from regard_fast import guest", "fast.guest"),
        ("from regard_fast.fused_rows import op", "fast.fused_rows"),
    ],
)
def test_every_way_to_import_is_seen(line, room):
    assert [found for found, _ in imported_rooms(line, "regard.observation", "regard.observation")] == [room]


def test_imports_of_other_packages_are_not_counted():
    lines = "import torch\nfrom importlib import import_module\nimport_module('torch.nn')\nimport_module(f'torch.{x}')"
    assert not list(imported_rooms(lines, "regard.nn.linear", "regard.nn"))


def test_imports_point_one_way():
    wrong, used = [], set()
    for path in modules():
        here = room(path)
        if here in ("__init__", "workbench.__init__", "fast.__init__"):
            continue
        name, where = module_name(path), path.relative_to(ROOT)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        assert here in FLOOR, f"{where}: say in FLOORS on which floor {here} stands"
        for there, line in imported_rooms(path.read_text(), name, package):
            if there is None and name in UNREADABLE:
                used.add(name)
            elif there is None and FLOOR[here] < FLOOR["workbench.cli"]:
                wrong.append(f"{where}:{line} imports by a name that cannot be read here; begin it with its room")
            elif there in FLOOR and FLOOR[there] > FLOOR[here]:
                wrong.append(f"{where}:{line} imports {there}, which stands above {here}")
            elif (here, there) in FORBIDDEN or (here in GUEST and there not in HOSTS | set(GUEST)):
                wrong.append(f"{where}:{line} imports {there}, which {here} may not import")
    assert not wrong, "\n".join(wrong)
    assert used == set(UNREADABLE), "UNREADABLE lists imports that no longer exist"


def test_only_the_seam_knows_that_there_are_guests():
    """`regard.nn.fast_path` asks them; nobody else names them, or imports them in any way."""
    names = re.compile(r"regard_fast|regard\.fast_paths|\bfused_(rows|memory)\b")
    naming = [path for path in modules() if "regard_fast" not in path.parts and names.search(path.read_text())]
    assert [module_name(path) for path in naming] == ["regard.nn.fast_path"]
    assert not re.search(r"\bfused_", naming[0].read_text())


def test_no_two_modules_import_each_other_at_the_top():
    edges = {}
    for path in modules():
        name = module_name(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
                module = ".".join(x for x in (base, node.module) if x)
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        edges[name] = found
    circles = [(a, b) for a in edges for b in edges[a] if a < b and b in edges and a in edges[b]]
    circles = [(a, b) for a, b in circles if not (a.startswith(b + ".") or b.startswith(a + "."))]
    assert not circles


def test_no_folder_inside_tasks_imports_a_task():
    tasks = ROOT / "src" / "regard_workbench" / "tasks"
    names = {path.stem for path in tasks.glob("*.py") if re.search(r"^@task\(", path.read_text(), flags=re.M)}
    assert len(names) > 10
    wrong = []
    for path in modules():
        if tasks not in path.parents or path.parent == tasks:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.relative_to(ROOT)}:{node.lineno}: write the whole name of the module"
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            inside = [name.split(".")[2] for name in found if name.startswith("regard_workbench.tasks.")]
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno} imports {name}" for name in inside if name in names]
    assert not wrong, "\n".join(wrong)


def test_every_folder_says_what_belongs_there():
    silent = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def rooms(package):
    return sorted(path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py")))


@pytest.mark.parametrize("package", SOURCES, ids=PACKAGES)
def test_the_readme_of_a_package_names_every_room_once(package):
    table = (package / "README.md").read_text().split("\n\n| to add")[0]
    columns = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    assert sorted(re.findall(r"`(\w+)/`", " ".join(columns))) == rooms(package)


@pytest.mark.parametrize("package", SOURCES, ids=PACKAGES)
def test_every_room_has_a_readme_of_at_most_300_words_that_names_its_tests(package):
    for name in rooms(package):
        text = (package / name / "README.md").read_text()
        assert len(text.split()) <= 300, name
        for path in re.findall(r"`(tests/[\w/.*]+)`", text):
            assert any(ROOT.glob(path)), f"{name}: there is no {path}"
        assert "tests/" in text, name


def test_the_readme_names_every_package():
    text = (ROOT / "README.md").read_text()
    assert all(f"\nsrc/{package}/ " in text for package in PACKAGES)


def test_the_readme_has_at_most_two_hundred_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("folder", ["src", "tests", "examples"])
def test_no_file_is_longer_than_four_hundred_lines(folder):
    long = {}
    for path in (ROOT / folder).rglob("*.py"):
        count = len(path.read_text().splitlines())
        if count > 400:
            long[str(path.relative_to(ROOT))] = count
    assert not long, f"look for the seam: {long}"


def test_no_file_names_a_place_on_one_machine():
    places = re.compile("|".join(("/wor" + "k/", "/ho" + "me/", "/Use" + "rs/", "/ro" + "ot/", r"C:\\\\Use" + "rs")))
    found = []
    for path in kept_files():
        if path.suffix in (".pyc", ".png", ".svg", ".pdf") or path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1):
            if places.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


def test_no_class_name_is_used_twice():
    """A name that two rooms use for different things has to be read twice.

    `interop` is left out: its classes take the place of those of other libraries, and so carry their names.
    """
    found = {}
    for path in modules():
        if room(path) == "interop":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not twice, f"rename the less general one: {twice}"


def test_no_file_is_called_utils():
    assert not [path for path in modules() if path.stem in ("utils", "util", "helpers", "misc")]


def test_the_public_names_exist_and_are_explained():
    for name in ("attend", "weights", "summarize", "explain", "masks", "scores", "biases", "normalizers"):
        assert name in regard.__all__
    for name in ("RegardError", "Unsupported"):
        assert name in regard.__all__
    missing = [name for name in regard.__all__ if not hasattr(regard, name)]
    assert not missing
    silent = [name for name in regard.__all__ if not name.startswith("__") and not getattr(regard, name).__doc__]
    assert not silent, f"without a docstring: {silent}"


@pytest.mark.parametrize("module", ["masks", "scores", "biases", "normalizers"])
def test_every_value_says_what_it_computes(module):
    place = getattr(regard, module)
    names = getattr(place, "__all__", None)
    assert names, f"regard.{module} has an __all__"
    for name in names:
        thing = getattr(place, name)
        assert not callable(thing) or (thing.__doc__ and thing.__doc__.strip()), f"{module}.{name} has no docstring"


def test_the_package_is_marked_as_typed():
    assert all((source / "py.typed").exists() for source in SOURCES)


def test_importing_regard_loads_no_implementation_that_was_not_asked_for():
    code = "import sys, regard; print(sorted(m for m in sys.modules if m.startswith(('triton', 'regard.impl'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = done.stdout
    assert "triton" not in loaded
    assert "flex" not in loaded
