"""The rules that the library's source keeps: layers, sizes, and no hidden state."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ebbtide"

# A module may import its own package and packages of a lower rank, never one of the same rank.
RANKS = MappingProxyType(
    {
        "__main__": 15,
        "cli": 14,
        "petsc": 13,
        "demo": 13,
        "mpi": 12,
        "nn": 12,
        "numpy": 11,
        "optimize": 11,
        "scipy": 11,
        "testing": 11,
        "torch": 11,
        "transforms": 10,
        "loop": 9,
        "program": 8,
        "tape": 7,
        "rules": 6,
        "agree": 5,
        "profiling": 5,
        "arrays": 4,
        "machine": 3,
        "schedules": 3,
        "storage": 3,
        "ledger": 2,
        "bound": 1,
        "lender": 0,
        "entry": 0,
        "timeline": 1,
        "quota": 0,
        "unfinished": 1,
        "budget": 1,
        "errors": 0,
    }
)
# The same for the packages inside of a package; its own modules, which are above them, import any.
PARTS = MappingProxyType(
    {
        "loop": MappingProxyType(
            {
                "derivatives": 3,
                "measuring": 3,
                "resuming": 3,
                "holding": 2,
                "planning": 1,
                "stepping": 1,
                "values": 0,
            }
        ),
    }
)
# Those that use the library as its users do.
MAY_IMPORT_TOP = frozenset({"cli", "demo", "testing"})
EXTRAS = frozenset(
    {"blosc2", "checkpoint_schedules", "firedrake", "matplotlib", "mpi4py", "numba", "petsc4py", "torch", "zfpy"}
)
# `collect_every=` is there for the cycles of users' code; our own code makes none.
MAY_COLLECT = frozenset({"loop"})
FILE_LINES = 400
FUNCTION_LINES = 60

# The only module-level mutable state: (module, name) -> why.
ALLOWED_STATE: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("ebbtide.arrays.registry", "HANDLERS"): "the registry of rules, which only `register` lets grow",
        ("ebbtide.arrays.spaces", "SPACES"): "the registry of vector spaces, which only `register_space` lets grow",
    }
)

# Functions that hold themselves and are made once.
ALLOWED_CLOSURES: Mapping[tuple[str, str], str] = MappingProxyType(
    {("ebbtide.arrays.constants", "handler"): "one for each function of the registry, made when it is imported"}
)

MUTABLE_NODES = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
MUTABLE_TYPES = frozenset(
    {
        "bytearray",
        "Counter",
        "defaultdict",
        "deque",
        "dict",
        "list",
        "OrderedDict",
        "set",
        "WeakKeyDictionary",
        "WeakSet",
        "WeakValueDictionary",
    }
)
TYPE_CHECKING = frozenset({"TYPE_CHECKING", "typing.TYPE_CHECKING"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Functions that return iterators of no known length.
ITERATORS = frozenset({"map", "zip", "filter", "enumerate", "islice", "chain", "from_iterable", "product", "takewhile"})


# ------------------------------------------------------------------------------------------------
# Reading the source


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed file; `package` is the key of its row in RANKS, or empty for `ebbtide` itself."""

    name: str
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[2].partition(".")[0]

    @property
    def part(self) -> str:
        """The package inside of that package, or empty for its own modules."""
        _, _, *inner = self.name.split(".") if self.name.count(".") else ("", "")
        return inner[0] if len(inner) > 1 or (inner and self.is_package) else ""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module; `place` is "module", "function" or "typing" (under `if TYPE_CHECKING`)."""

    target: str
    place: str
    line: int

    @property
    def root(self) -> str:
        return self.target.partition(".")[0]


def read_modules(source: Path) -> tuple[Module, ...]:
    """Parse every file of the package at *source*."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, is_package, text, ast.parse(text, str(path))))
    return tuple(modules)


def imported_modules(statement: ast.stmt, module: Module, names: frozenset[str]) -> Iterator[str]:
    """Yield the absolute names of the modules that an import statement names."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        base = statement.module or ""
        if statement.level:
            parts = module.name.split(".")
            parents = parts[: len(parts) - statement.level + module.is_package]
            base = ".".join([*parents, *([base] if base else [])])
        # `from package import module` depends on the module, `from module import name` on the module too.
        for target in dict.fromkeys(f"{base}.{alias.name}" for alias in statement.names):
            yield target if target in names else base


def find_imports(module: Module, names: frozenset[str]) -> list[Import]:
    """Return all imports of *module*, wherever they stand."""
    found = []

    def visit(node: ast.AST, place: str) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            targets = dict.fromkeys(imported_modules(node, module, names))
            found.extend(Import(target, place, node.lineno) for target in targets)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKING:
            for child in node.body:
                visit(child, "typing")
            for child in node.orelse:
                visit(child, place)
        else:
            inner = "function" if isinstance(node, FUNCTIONS) else place
            for child in ast.iter_child_nodes(node):
                visit(child, inner)

    visit(module.tree, "module")
    return found


def all_imports(modules: tuple[Module, ...]) -> Iterator[tuple[Module, Import]]:
    """Yield each import of each module."""
    names = frozenset(module.name for module in modules)
    for module in modules:
        for item in find_imports(module, names):
            yield module, item


def module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, those inside `if`, `try`, `with` and `for` too."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from module_statements(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from module_statements(handler.body)


# ------------------------------------------------------------------------------------------------
# The checks: each returns one line for each violation


def find_layer_violations(modules: tuple[Module, ...]) -> list[str]:
    """Imports go down only; imports for annotations count, as they are dependencies too."""
    found = [
        f"{module.name}: the package {module.package!r} has no rank; add it to RANKS in {Path(__file__).name}"
        for module in modules
        if module.package and module.package not in RANKS
    ]
    for module, item in all_imports(modules):
        if item.root != "ebbtide" or not module.package or module.package not in RANKS:
            continue
        where = f"{module.name}:{item.line}: imports {item.target}"
        target = item.target.partition(".")[2].partition(".")[0]
        if not target:
            if module.package not in MAY_IMPORT_TOP:
                found.append(f"{where}, the top; import the module that defines the name")
        elif target not in RANKS:
            found.append(f"{where}, which has no rank; add it to RANKS in {Path(__file__).name}")
        elif target != module.package and RANKS[target] >= RANKS[module.package]:
            ranks = f"{RANKS[target]} from rank {RANKS[module.package]}"
            found.append(f"{where}, of rank {ranks}; imports go down only")
    return found


def find_part_violations(modules: tuple[Module, ...]) -> list[str]:
    """Imports go down only inside of a package, too."""
    parts = {(module.package, module.part) for module in modules if module.package in PARTS and module.part}
    found = [f"{package}/{part} has no rank; add it to PARTS" for package, part in parts if part not in PARTS[package]]
    for module, item in all_imports(modules):
        ranks = PARTS.get(module.package, {})
        package, part = [*item.target.split("."), "", ""][1:3]
        if package != module.package or module.part not in ranks or part == module.part:
            continue
        if part not in ranks or ranks[part] >= ranks[module.part]:
            found.append(f"{module.name}:{item.line}: imports {item.target}, which is above it or beside it")
    return found


def find_cycles(modules: tuple[Module, ...]) -> list[str]:
    """No module imports itself by way of others while it is being imported."""
    graph: dict[str, list[str]] = {module.name: [] for module in modules}
    for module, item in all_imports(modules):
        if item.place == "module" and item.target in graph:
            graph[module.name].append(item.target)
    found = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            found.append("import cycle: " + " -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    return found


def find_global_statements(modules: tuple[Module, ...]) -> list[str]:
    """State belongs to a call, so nothing needs `global`."""
    return [
        f"{module.name}:{node.lineno}: global {', '.join(node.names)}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]


def find_star_imports(modules: tuple[Module, ...]) -> list[str]:
    """Every name in a file can be found in that file."""
    return [
        f"{module.name}:{node.lineno}: star import"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines from `def` to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def find_long_code(modules: tuple[Module, ...]) -> list[str]:
    """A file is read in one sitting and a function on one screen."""
    found = []
    for module in modules:
        lines = len(module.text.splitlines())
        if lines > FILE_LINES:
            found.append(f"{module.name}: {lines} lines in a file, {FILE_LINES} at most")
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS) and function_lines(node) > FUNCTION_LINES:
                count = f"{function_lines(node)} lines, {FUNCTION_LINES} at most"
                found.append(f"{module.name}:{node.lineno}: the function {node.name} has {count}")
    return found


def find_eager_extras(modules: tuple[Module, ...]) -> list[str]:
    """`import ebbtide` needs none of the extras."""
    return [
        f"{module.name}:{item.line}: imports the extra {item.root} at module level, not where it is used"
        for module, item in all_imports(modules)
        if item.place == "module" and item.root in EXTRAS
    ]


def find_lazy_imports(modules: tuple[Module, ...]) -> list[str]:
    """An import inside a function hides a dependency that the layers forbid."""
    return [
        f"{module.name}:{item.line}: imports {item.target} inside a function; import it at module level"
        for module, item in all_imports(modules)
        if item.place == "function" and item.root == "ebbtide"
    ]


def assigned_names(statement: ast.Assign | ast.AnnAssign) -> tuple[str, ...]:
    """Return what an assignment assigns to, as it is written."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return tuple(ast.unparse(target) for target in targets)


def is_mutable(value: ast.expr | None) -> bool:
    """Whether an expression makes a container that can be changed."""
    if isinstance(value, ast.Call):
        function = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in MUTABLE_TYPES
    return isinstance(value, MUTABLE_NODES)


def find_module_state(modules: tuple[Module, ...]) -> list[str]:
    """State belongs to a call; a table is a tuple, a frozenset or a MappingProxyType."""
    found = []
    for module in modules:
        for statement in module_statements(module.tree.body):
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not is_mutable(statement.value):
                continue
            names = assigned_names(statement)
            # `__all__` is a list by convention.
            if names != ("__all__",) and any((module.name, name) not in ALLOWED_STATE for name in names):
                found.append(
                    f"{module.name}:{statement.lineno}: {' = '.join(names)} is mutable state of a module; "
                    "freeze it with tuple, frozenset or MappingProxyType"
                )
    return found


def find_collector_use(modules: tuple[Module, ...]) -> list[str]:
    """Lifetimes follow from the plan, never from reference counts or the garbage collector."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Attribute):
                used = {ast.unparse(node)}
            else:
                continue
            if "sys.getrefcount" in used:
                found.append(f"{module.name}:{node.lineno}: sys.getrefcount")
            if "gc.collect" in used and module.package not in MAY_COLLECT:
                found.append(f"{module.name}:{node.lineno}: gc.collect")
    return found


def find_cyclic_closures(modules: tuple[Module, ...]) -> list[str]:
    """A function inside of another one that calls itself, or comes back to itself, is left to the collector."""
    found = []
    for module in modules:
        for outer in ast.walk(module.tree):
            if not isinstance(outer, FUNCTIONS):
                continue
            inner = {node.name: node for node in ast.walk(outer) if isinstance(node, FUNCTIONS) and node is not outer}
            calls = {
                name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in inner}
                for name, function in inner.items()
            }
            cyclic = [name for name in calls if name in reached_from(name, calls)]
            if any((module.name, name) not in ALLOWED_CLOSURES for name in cyclic):
                found.append(f"{module.name}:{outer.lineno}: {outer.name} has cycles of {', '.join(cyclic)}")
    return found


def reached_from(name: str, calls: Mapping[str, set[str]]) -> set[str]:
    """Return the functions that one comes to."""
    reached, waiting = set[str](), set(calls[name])
    while waiting:
        reached |= waiting
        waiting = set[str]().union(*[calls[other] for other in waiting]) - reached
    return reached


def find_tuples_of_iterators(modules: tuple[Module, ...]) -> list[str]:
    """A tuple of an iterator whose length is not known leaves one more dead tuple to CPython: make it of a list."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "tuple" and node.args):
                continue
            given = node.args[0]
            name = ast.unparse(given.func).rpartition(".")[2] if isinstance(given, ast.Call) else ""
            if isinstance(given, ast.GeneratorExp) or name in ITERATORS:
                found.append(f"{module.name}:{node.lineno}: {ast.unparse(node)}")
    return found


# ------------------------------------------------------------------------------------------------
# The tests

Check = Callable[[tuple[Module, ...]], list[str]]

CHECKS: tuple[Check, ...] = (
    find_layer_violations,
    find_part_violations,
    find_cycles,
    find_global_statements,
    find_star_imports,
    find_long_code,
    find_eager_extras,
    find_lazy_imports,
    find_module_state,
    find_collector_use,
    find_cyclic_closures,
    find_tuples_of_iterators,
)


def lines(count: int) -> str:
    """Return *count* lines of a function's body."""
    return "    x = 1\n" * count


# Text that is parsed and never run, so that each check is seen to fail: (check, files, a part of the report).
BAD_SOURCES = (
    (find_layer_violations, {"budget.py": "from ebbtide.ledger import Ledger"}, "down only"),
    (find_layer_violations, {"tape/a.py": "from ..loop import b", "loop/b.py": ""}, "down only"),
    (find_layer_violations, {"storage/a.py": "import ebbtide.schedules.b"}, "schedules.b, of rank 3"),
    (find_layer_violations, {"budget.py": "if TYPE_CHECKING:\n    import ebbtide.tape"}, "down only"),
    (find_layer_violations, {"tape.py": "import ebbtide"}, "the top"),
    (find_layer_violations, {"tape.py": "from . import grad"}, "the top"),
    (find_layer_violations, {"surprise.py": ""}, "add it to RANKS"),
    (find_layer_violations, {"cli.py": "import ebbtide.surprise"}, "add it to RANKS"),
    (find_part_violations, {"loop/values/a.py": "import ebbtide.loop.planning.b", "loop/planning/b.py": ""}, "above"),
    (find_part_violations, {"loop/planning/a.py": "from ..stepping import b", "loop/stepping/b.py": ""}, "beside"),
    (find_part_violations, {"loop/values/a.py": "from ebbtide.loop import run", "loop/run.py": ""}, "above"),
    (find_part_violations, {"loop/surprise/a.py": ""}, "loop/surprise has no rank"),
    (find_cycles, {"tape/a.py": "from . import b", "tape/b.py": "from ebbtide.tape import a"}, "a -> ebb"),
    (find_cycles, {"a.py": "from . import b", "b.py": "from . import c", "c.py": "from . import a"}, "c -> "),
    (find_cycles, {"a.py": "import ebbtide.a"}, "ebbtide.a -> ebbtide.a"),
    (find_cycles, {"a.py": "if not TYPE_CHECKING:\n    from . import b", "b.py": "from . import a"}, "cycle"),
    (find_cycles, {"tape/__init__.py": "from . import a", "tape/a.py": "from . import grad"}, "cycle"),
    (find_global_statements, {"a.py": "def f():\n    global x\n    x = 1"}, "ebbtide.a:2: global x"),
    (find_star_imports, {"a.py": "from numpy import *"}, "ebbtide.a:1"),  # text, which the check has to find
    (find_long_code, {"a.py": "\n" * (FILE_LINES + 1)}, "401 lines"),
    (find_long_code, {"a.py": "def f():\n" + lines(FUNCTION_LINES)}, "f has 61 lines"),
    (find_long_code, {"a.py": "class A:\n  async def f():\n" + lines(FUNCTION_LINES)}, "f has 61 lines"),
    (find_eager_extras, {"a.py": "import matplotlib.pyplot as plt"}, "the extra matplotlib"),
    (find_eager_extras, {"a.py": "try:\n    from mpi4py import MPI\nfinally:\n    pass"}, "mpi4py"),
    (find_eager_extras, {"a.py": "class A:\n    import torch"}, "the extra torch"),
    (find_lazy_imports, {"a.py": "def f():\n    from .budget import Budget"}, "imports ebbtide.budget"),
    (find_lazy_imports, {"a.py": "async def f():\n    if True:\n        import ebbtide"}, "inside"),
    (find_module_state, {"a.py": "CACHE = {}"}, "CACHE"),
    (find_module_state, {"a.py": "cache: list[int] = []"}, "cache"),
    (find_module_state, {"a.py": "a = b = {1}"}, "a = b is mutable"),
    (find_module_state, {"a.py": "if True:\n    A = dict[str, int]()"}, "A is mutable"),
    (find_module_state, {"a.py": "try:\n    a()\nexcept OSError:\n    A = weakref.WeakSet()"}, "A is"),
    (find_module_state, {"a.py": "A = {i: i for i in range(3)}"}, "A is mutable"),
    (find_collector_use, {"a.py": "import sys\nsys.getrefcount(1)"}, "ebbtide.a:2: sys.getrefcount"),
    (find_collector_use, {"a.py": "from sys import getrefcount"}, "sys.getrefcount"),
    (find_collector_use, {"tape/a.py": "import gc\ngc.collect()"}, "ebbtide.tape.a:2: gc.collect"),
    (find_collector_use, {"a.py": "from gc import collect"}, "gc.collect"),
    (find_cyclic_closures, {"a.py": "def f():\n  def g(n):\n    return g(n - 1)\n  return g(1)"}, "f has cycles of g"),
    (find_cyclic_closures, {"a.py": "def f():\n  def g(): return h()\n  def h(): return g()"}, "cycles of g, h"),
    (find_tuples_of_iterators, {"a.py": "tuple(2 * k for k in x)"}, "ebbtide.a:1: tuple("),
    (find_tuples_of_iterators, {"a.py": "tuple(map(f, x))"}, "tuple(map"),
    (find_tuples_of_iterators, {"a.py": "tuple(itertools.islice(x, 3))"}, "islice"),
)

# (check, files)
GOOD_SOURCES = (
    (find_layer_violations, {"__init__.py": "from ebbtide.cli import main", "cli.py": "import ebbtide"}),
    (find_layer_violations, {"tape/a.py": "from .b import c\nfrom ..errors import E", "tape/b.py": ""}),
    (
        find_layer_violations,
        {"loop/a.py": "from ebbtide import ledger, budget", "ledger.py": "", "budget.py": ""},
    ),
    (find_part_violations, {"loop/run.py": "import ebbtide.loop.values.a", "loop/values/a.py": ""}),
    (find_part_violations, {"loop/holding/a.py": "from ..values import b", "loop/values/b.py": ""}),
    (find_part_violations, {"loop/holding/a.py": "from .c import d", "loop/holding/c.py": ""}),
    (find_cycles, {"tape/__init__.py": "from .a import c", "tape/a.py": "from .b import d", "tape/b.py": ""}),
    (find_cycles, {"a.py": "import ebbtide.b", "b.py": "if typing.TYPE_CHECKING:\n    import ebbtide.a"}),
    (find_long_code, {"a.py": "def f():\n" + lines(FUNCTION_LINES - 1)}),
    (find_long_code, {"a.py": "def f():\n    '''One.\n\n    Two.\n    '''\n" + lines(FUNCTION_LINES - 1)}),
    (find_eager_extras, {"a.py": "if TYPE_CHECKING:\n    import torch\ndef f():\n    import matplotlib"}),
    (find_lazy_imports, {"a.py": "import ebbtide.b\ndef f():\n    import torch"}),
    (find_module_state, {"a.py": "__all__ = ['A']\nA = (1,)\nB = frozenset({1})"}),
    (find_module_state, {"a.py": "A = types.MappingProxyType({1: 2})"}),
    (find_module_state, {"a.py": "def f():\n    a = []\ndef g(self):\n    self.a = {}"}),
    (find_collector_use, {"loop/a.py": "import gc\ngc.collect()", "a.py": "gc.disable()\nstorage.collect()"}),
    (find_cyclic_closures, {"a.py": "def f():\n  def g():\n    return f()\n  def h():\n    return g()"}),
    (find_tuples_of_iterators, {"a.py": "tuple([2 * k for k in x])\ntuple(x)\ntuple(sorted(x))\ntuple(range(3))"}),
)


def name_of(value: object) -> str:
    """Return the name of a check, for the name of its test."""
    return getattr(value, "__name__", "")


def write_package(directory: Path, files: Mapping[str, str]) -> Path:
    """Write *files* as a package named ebbtide and return its directory."""
    source = directory / "ebbtide"
    for name, text in {"__init__.py": "", **files}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def library() -> tuple[Module, ...]:
    """Return the parsed source of the library."""
    return read_modules(SOURCE)


def test_source_is_found(library):
    """The checks read the library itself, not an empty folder."""
    assert {"ebbtide.errors", "ebbtide.budget"} <= {module.name for module in library}


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_library(library, check):
    """The library's source keeps every rule of its architecture."""
    assert not (found := check(library)), "\n".join([check.__doc__, *found])


@pytest.mark.parametrize(("check", "files", "report"), BAD_SOURCES, ids=name_of)
def test_check_reports_bad_source(tmp_path, check, files, report):
    """Every check finds the violation that it is there for, and names it."""
    found = check(read_modules(write_package(tmp_path, files)))
    assert report in "\n".join(found)
    assert len(found) == 1


@pytest.mark.parametrize(("check", "files"), GOOD_SOURCES, ids=name_of)
def test_check_accepts_good_source(tmp_path, check, files):
    """No check complains about source that keeps its rule."""
    assert check(read_modules(write_package(tmp_path, files))) == []


def test_every_check_can_fail():
    """There is no check that has never been seen to report something."""
    assert {check for check, _, _ in BAD_SOURCES} == set(CHECKS)


def test_allowed_state_is_there(library):
    """An allowance for module-level state goes when the state goes."""
    assigned = {
        (module.name, name)
        for module in library
        for statement in module_statements(module.tree.body)
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        for name in assigned_names(statement)
    }
    assert set(ALLOWED_STATE) <= assigned
