"""The house stays a house: sizes, names and one sentence on top of every module."""

import ast
from pathlib import Path

import pytest

from tests.support.sources import is_written_by_a_program, parse

ROOT = Path(__file__).parent.parent.parent
ROOMS = (
    *("shared", "activities", "workflows", "worker", "starter", "spark", "client/dormice"),
    *("examples", "cluster", "chaos", "bench"),
)
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py") if not is_written_by_a_program(path))
FUNCTION_LINES_MAX = 60
AIRLESS_LINES_MAX = 10
STEPS_MIN = 4
PUBLIC_NAMES_MAX = 12
BOXES_MAX = 10
METHODS_MAX = 20
FIELDS_MAX = 12
RECORD_MAX = 8  # methods of a record
FORBIDDEN_WORDS = {
    *("sight", "desk", "bury", "telling", "alike", "beside", "seldom", "most", "least", "fates", "wish", "wishes"),
    *("strays", "lend", "told", "tell", "tells", "untold", "usual", "unusual", "hear", "hears", "heard", "unheard"),
}
"""Words for which the field has others: view, loop, dead letter, telemetry, options, background, optional, max, min,
outcomes, request, forwarded, share, report, default, notify."""

WHOLE_NAMES = {"at_most", "at_least"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

each_module = pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])


@each_module
def test_a_module_says_on_top_why_it_exists(path: Path) -> None:
    """The first thing in a file is a sentence."""
    docstring = ast.get_docstring(parse(path.read_text())) or ""

    assert docstring.partition("\n")[0].endswith((".", "?", ":"))


@each_module
def test_a_module_and_its_functions_stay_readable(path: Path) -> None:
    """At most 60 lines a function, and a name that says something."""
    text = path.read_text()
    functions = [n for n in ast.walk(parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= FUNCTION_LINES_MAX]

    assert long == []
    assert path.stem not in FORBIDDEN_NAMES


@each_module
def test_a_line_holds_one_thought(path: Path) -> None:
    """No line gives values to several names at once, unless they change places."""
    assignments = [node for node in ast.walk(parse(path.read_text())) if isinstance(node, ast.Assign)]

    assert [ast.unparse(node) for node in assignments if _is_packed(node)] == []


def _is_packed(node: ast.Assign) -> bool:
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    if any(isinstance(part, ast.Starred) for part in target.elts):
        return False
    reads = {ast.unparse(part) for value in node.value.elts[1:] for part in ast.walk(value)}
    return reads.isdisjoint(map(ast.unparse, target.elts))


@each_module
def test_a_broad_except_says_why(path: Path) -> None:
    """What catches or suppresses every error has a comment: on its own line, or on the line below."""
    text = path.read_text()
    lines = [*text.splitlines(), ""]
    nodes = [node for node in ast.walk(parse(text)) if isinstance(node, ast.ExceptHandler | ast.Call)]
    broad = [node.lineno for node in nodes if _is_broad(node)]
    commented = [number for number in broad if "#" in lines[number - 1] or lines[number].lstrip().startswith("#")]

    assert [lines[number - 1].strip() for number in broad if number not in commented] == []


def _is_broad(node: ast.ExceptHandler | ast.Call) -> bool:
    if isinstance(node, ast.ExceptHandler):
        caught = [] if node.type is None else [node.type]
        is_bare = node.type is None
    elif ast.unparse(node.func).endswith("suppress"):
        caught = node.args
        is_bare = False
    else:
        return False

    names = {ast.unparse(part) for each in caught for part in ast.walk(each)}
    return is_bare or not names.isdisjoint({"Exception", "BaseException"})


@each_module
def test_a_class_is_one_idea(path: Path) -> None:
    """At most 20 methods and 12 fields; a record, which has hardly any methods, has a field for each fact."""
    classes = [node for node in ast.walk(parse(path.read_text())) if isinstance(node, ast.ClassDef)]

    assert [node.name for node in classes if len(_methods(node)) > METHODS_MAX] == []
    assert [node.name for node in classes if not _is_record(node) and len(_fields(node)) > FIELDS_MAX] == []


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _is_record(node: ast.ClassDef) -> bool:
    declares = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.bases)]
    return any(text.startswith(("dataclass", "NamedTuple")) for text in declares) and len(_methods(node)) <= RECORD_MAX


def _fields(node: ast.ClassDef) -> set[str]:
    """Give what a class's objects hold: the fields that it declares, and those that its methods set."""
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    inside = [each for method in _methods(node) for each in ast.walk(method)]
    targets = [each for each in inside if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return declared | {each.attr for each in targets if ast.unparse(each.value) == "self"}


@each_module
def test_variables_have_the_words_of_the_field(path: Path) -> None:
    """Functions, parameters, attributes and variables, like modules and classes; the glossary has a test of its own."""
    names: set[str] = set()
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)

    assert [name for name in names - WHOLE_NAMES if FORBIDDEN_WORDS & set(name.lower().split("_"))] == []


@each_module
def test_no_argument_is_a_choice(path: Path) -> None:
    """A value that depends on something has a name before it is handed over or written into a text."""
    given: list[ast.expr] = []
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.Call):
            given += [*node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.FormattedValue):
            given.append(node.value)
    values = [each.value if isinstance(each, ast.Starred) else each for each in given]

    assert [ast.unparse(value) for value in values if isinstance(value, ast.IfExp)] == []


@each_module
def test_steps_of_a_function_are_set_apart(path: Path) -> None:
    """A function of more than ten lines, with four or more steps and a block among them, has a blank line."""
    text = path.read_text()
    lines = text.splitlines()
    functions = [n for n in ast.walk(parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f for f in functions if (f.end_lineno or 0) - f.lineno >= AIRLESS_LINES_MAX]

    assert [f.name for f in long if _has_steps(f) and all(_body_lines(f, lines))] == []


def _has_steps(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    steps = function.body[ast.get_docstring(function) is not None :]
    return len(steps) >= STEPS_MIN and any(hasattr(step, "body") for step in steps)


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> list[str]:
    first = function.body[ast.get_docstring(function) is not None]
    return [line.strip() for line in lines[first.lineno - 1 : function.end_lineno]]


@pytest.mark.parametrize("room", ROOMS[: ROOMS.index("bench")])
def test_a_folder_holds_few_boxes_and_says_what_lives_there(room: str) -> None:
    """Modules and folders of a folder fit one glance; its first line says what they are."""
    folders = [path.parent for path in (ROOT / room).rglob("__init__.py")]
    boxes = {
        folder: {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
        for folder in folders
    }

    crowded = {
        str(folder): len(names) for folder, names in boxes.items() if len(names - {"__init__", "__main__"}) > BOXES_MAX
    }
    assert crowded == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_shows_few_names(room: str) -> None:
    """What a package exports fits one glance."""
    tree = parse((ROOT / room / "__init__.py").read_text())
    exported = [
        element
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        for element in getattr(node.value, "elts", [])
    ]

    assert len(exported) <= PUBLIC_NAMES_MAX


def test_only_one_place_connects_and_only_one_starts_workflows() -> None:
    """Nothing bypasses `shared.temporal.connect.connect` and the bulk starter."""
    callers = {
        "Client.connect(": {"shared/temporal/connect.py", "starter/local/embedded.py"},  # its own server's client
        # a repair starts what is there already in its place
        ".start_workflow_execution(": {"starter/starting/solo.py", "starter/steering/status/repairs.py"},
        # a pack sends on what belongs to another one; what the others begin is no message
        ".start_workflow(": {
            "activities/admission/limits.py",
            "activities/server_calls.py",
            "shared/temporal/workflow_calls.py",
            "starter/insight/doctor/server.py",
            "starter/starting/layouts.py",
            "worker/lanes/starting.py",
        },
    }
    product = [p for p in MODULES if p.relative_to(ROOT).parts[0] not in ("examples", "cluster", "chaos", "bench")]

    for call, allowed in callers.items():
        found = {str(p.relative_to(ROOT)) for p in product if _calls(p, call)}
        assert found <= allowed, call


def _calls(path: Path, call: str) -> bool:
    name = call.strip(".(").rpartition(".")[2]
    is_method = "." in call
    for node in ast.walk(parse(path.read_text())):
        # a method may also be handed over, to be called elsewhere
        if is_method and isinstance(node, ast.Attribute) and ast.unparse(node).endswith(call.strip("(")):
            return True
        if not is_method and isinstance(node, ast.Call | ast.FunctionDef) and _name_of(node) == name:
            return True
    return False


def _name_of(node: ast.Call | ast.FunctionDef) -> str:
    if isinstance(node, ast.FunctionDef):
        return node.name
    return node.func.id if isinstance(node.func, ast.Name) else ""
