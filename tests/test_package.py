"""The package as a whole: what importing it costs, what it offers, and that no module imports upward."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import numpy_gpt as ng
import torch_gpt
from numpy_gpt import __main__
from numpy_gpt.ops import Ops

PACKAGE = Path(ng.__file__).parent
TWIN = Path(torch_gpt.__file__).parent
PROJECT = Path(__file__).parents[1]

# Lowest first, each floor a list of places, each place a set of files or folders that are neighbours. "" is
# `import numpy_gpt` itself: it offers everything below it, so only the command line may stand on it.
COMMAND_LINE = {"cli", "__main__", "output", "tables"}
FLOORS: list[list[set[str]]] = [
    [{"arrays"}, {"extras"}, {"whole_files"}],
    [{"config"}, {"parallel"}],
    [{"ops"}, {"parameters"}, {"cache"}],
    [{"kernels"}],
    [{"model"}],
    [{"text"}, {"generation"}],
    [{"training"}],
    [{"interop"}, {"verify"}],
    [{"learn"}],
    [{""}],
    [COMMAND_LINE],
]
VERSION = "numpy_gpt.__version__"  # a constant that stands on no floor: checkpoints record it
HEAVY = {
    "torch",
    "torch_gpt",
    "tiktoken",
    "rustbpe",
    "safetensors",
    "threadpoolctl",
    "rich",
    "tyro",
    "matplotlib",
    "jinja2",
    "pygments",
    "playwright",
}


class Import(NamedTuple):
    """One imported name, where it stands, and when the import runs."""

    importer: str  # a path below the package
    line: int
    module: str
    at_once: bool  # as soon as its module is loaded
    for_types: bool  # never: only a type checker reads it

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: {self.module}"


def imports_of(package: Path) -> Iterator[Import]:
    """Yield every import statement of a package, inside functions too."""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        in_functions, for_types = set(), set()
        for outer in ast.walk(tree):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                in_functions |= set(ast.walk(outer))
            elif isinstance(outer, ast.If) and ast.unparse(outer.test).endswith("TYPE_CHECKING"):
                for_types |= set(ast.walk(outer))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}, line {node.lineno}: write out whence this is imported"
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            at_once = node not in in_functions | for_types
            for module in modules:
                importer = str(path.relative_to(package))
                yield Import(importer, node.lineno, module, at_once, node in for_types)


IMPORTS = list(imports_of(PACKAGE))


def top(module: str) -> str:
    return module.partition(".")[0]


def place_of(name: str) -> tuple[int, set[str]]:
    """Return the floor and the place of a file or folder directly below the package, "" for the root."""
    found = [(floor, place) for floor, places in enumerate(FLOORS) for place in places if name in place]
    assert found, f"numpy_gpt/{name} stands on no floor"
    return found[0]


def place_imported(module: str) -> str:
    """Return what of the package a dotted name imports: `numpy_gpt.ops.gelu` is of `ops`."""
    _, _, below = module.partition(".")
    name = below.split(".")[0]
    is_part = (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()
    return name if is_part else ""


def place_containing(importer: str) -> str:
    """Return the place of a file of the package: `ops/gelu.py` is of `ops`."""
    name = Path(importer).parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


def test_every_module_stands_on_a_floor() -> None:
    for path in PACKAGE.iterdir():
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__"):
            place_of(place_containing(path.name))


def test_no_module_imports_upward() -> None:
    inside = [i for i in IMPORTS if top(i.module) == "numpy_gpt" and i.module != VERSION]
    assert len(inside) > 20, "hardly any import was found: the walk itself is broken"
    for found in inside:
        own_floor, own_place = place_of(place_containing(found.importer))
        floor, place = place_of(place_imported(found.module))
        assert floor < own_floor or place is own_place, f"{found} stands too high"


def test_what_is_heavy_is_imported_where_it_is_used() -> None:
    for found in IMPORTS:
        if place_containing(found.importer) not in COMMAND_LINE:
            allowed = not found.at_once or top(found.module) in {
                *sys.stdlib_module_names,
                "numpy",
                "numpy_gpt",
            }
            assert allowed, f"{found} is loaded with the module"


def test_only_the_command_line_knows_the_terminal() -> None:
    for found in IMPORTS:
        if place_containing(found.importer) not in COMMAND_LINE and not found.for_types:
            assert top(found.module) != "tyro", str(found)
            assert not found.module.startswith(("rich.console", "rich.progress")), str(found)


def test_only_verification_knows_torch() -> None:
    for found in IMPORTS:
        if top(found.module) in ("torch", "torch_gpt"):
            assert place_containing(found.importer) in ("verify", "interop"), str(found)


def test_the_twin_takes_no_mathematics_from_numpy_gpt() -> None:
    for found in imports_of(TWIN):
        if top(found.module) == "numpy_gpt":
            assert place_imported(found.module) in ("", "config"), str(found)
            if found.importer == "model.py":
                assert found.module == "numpy_gpt.config.GPTConfig", str(found)


def modules_after(statement: str) -> set[str]:
    """Return the top-level names of all modules that are loaded after a statement, in a new interpreter."""
    script = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {statement}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {top(module) for module in result.stdout.split()}


def test_importing_the_package_loads_numpy_alone() -> None:
    before = modules_after("import numpy, sys")
    after = modules_after("import numpy_gpt")
    assert not after & HEAVY
    assert after - before - sys.stdlib_module_names == {"numpy_gpt"}


def test_the_public_names_are_there() -> None:
    promised = {
        "GPT",
        "GPTConfig",
        "AdamW",
        "clip_gradients",
        "generate",
        "save_checkpoint",
        "load_checkpoint",
    }
    assert promised <= set(ng.__all__)
    for package in (ng, torch_gpt):
        for name in package.__all__:
            assert getattr(package, name).__doc__, f"{name} has no docstring"
    assert {"GPT", "from_numpy", "to_numpy"} <= set(torch_gpt.__all__)


@pytest.mark.parametrize("package", [PACKAGE, TWIN], ids=lambda package: package.name)
def test_the_packages_say_that_they_are_typed(package: Path) -> None:
    assert (package / "py.typed").is_file()


def test_the_metadata_agree_with_the_code() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == ng.__version__
    assert project["scripts"]["numpy-gpt"] == f"{__main__.__name__}:{__main__.main.__name__}"


LESSON = ("Equation", "Shapes", "Derivation", "Saved", "The bug that looks right")


@pytest.mark.parametrize("name", Ops._fields)
def test_every_operation_of_the_book_is_a_lesson_in_one_order(name: str) -> None:
    module = importlib.import_module(f"numpy_gpt.ops.{name}")
    title, *sections = re.split(r"^(?=\S.*$\n    )", module.__doc__ or "", flags=re.MULTILINE)
    assert re.fullmatch(r"[A-Z][^\n]*: [^\n]+\.\n\n", title), "a title and what it does come first"
    headings = [section.partition("\n")[0] for section in sections]
    assert headings in ([*LESSON], [*LESSON, "Source"])
    for section in sections:
        assert len(section.split()) > 8, section
    equation, derivation = sections[0], sections[2]
    assert "=" in equation
    assert "d_" in derivation, "a derivation ends in a gradient"
    assert re.search(r"d_[A-Za-z]\w*_[a-z]{1,3}\b|d_x = ", derivation), "in index form"


def test_only_one_place_spells_out_how_to_install_an_extra() -> None:
    found = [path.name for path in PACKAGE.rglob("*.py") if "pip install" in path.read_text(encoding="utf-8")]
    assert found == ["extras.py"]
