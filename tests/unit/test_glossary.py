"""The glossary holds the words of the code: of modules and classes, and of what parameters and attributes share."""

import ast
import re
from itertools import combinations
from pathlib import Path

from tests.support.sources import is_written_by_a_program, parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/glossary.md").read_text("utf-8")
TERMS_PART, _, PLAIN_PART = PAGE.partition("## Plain words\n")
TERM = re.compile(r"^- \*\*([a-z][a-z -]*)\*\*: (.+(?:\n  .+)*)$", re.MULTILINE)
TERMS = [term.replace("-", " ") for term, _ in TERM.findall(TERMS_PART)]
PLAIN = {
    heading: re.findall(r"\w+", words)
    for heading, words in re.findall(r"^- (\w+).*?: (.+(?:\n  .+)*)$", PLAIN_PART, re.MULTILINE)
}
NOUNS = {*TERMS, *PLAIN["nouns"], *PLAIN["products"]}
KNOWN = {*NOUNS, *PLAIN["adjectives"]}
KNOWN_TO_HOLDERS = {*KNOWN, *PLAIN["parameters"], *PLAIN["endings"]}
SHARED_BY = 4
"""As many modules use a word for one idea, so a reader must find it; what fewer share is told by its module."""

LINE_MAX = 120

PACKAGES = ("shared", "activities", "workflows", "worker", "starter", "spark", "client/dormice")
PATHS = sorted(
    path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if not is_written_by_a_program(path)
)
TREES = {path: parse(path.read_text("utf-8")) for path in PATHS}
MODULES = {part for path in PATHS for part in path.relative_to(ROOT).with_suffix("").parts if not part.startswith("__")}
CLASSES = [
    node
    for tree in TREES.values()
    for node in tree.body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
]

FACTS = ("is_", "has_", "are_")
"""Begins of names that are sentences and have no noun at their end."""


def _words(name: str) -> list[str]:
    """Split a name of Python, of a module or of a class, into lower-case words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def _singulars(word: str) -> set[str]:
    """Give what a word may be the plural of, and the word itself."""
    return {word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}


def _is_in(known: set[str], words: list[str]) -> bool:
    """Whether some words are together a term or a plain word."""
    return any(" ".join([*words[:-1], word]) in known for word in _singulars(words[-1]))


def _unknown(words: list[str]) -> list[str]:
    """Give the words that no term covers, alone or with its neighbours, and that are not plain; long terms go first."""
    if not words:
        return []
    length = max((n for n in range(1, len(words) + 1) if _is_in(KNOWN, words[:n])), default=0)
    return ([] if length else words[:1]) + _unknown(words[length or 1 :])


def _errors() -> set[str]:
    """Name the classes that are exceptions, by their bases."""
    bases = {node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} for node in CLASSES}
    found: set[str] = set()
    while more := {
        name
        for name, parents in bases.items()
        if name not in found and any(parent in found or parent.endswith(("Error", "Exception")) for parent in parents)
    }:
        found |= more
    return found


def _has_noun(name: str) -> bool:
    """Whether a class's name ends with a known word."""
    words = _words(name)
    return any(_is_in(KNOWN, words[begin:]) for begin in range(len(words)))


def _is_about_something(name: str) -> bool:
    """Whether an error's name has a known noun anywhere; that it is an error says nothing."""
    words = _words(name.removesuffix("Error"))
    return any(_is_in(NOUNS, words[begin:end]) for begin, end in combinations(range(len(words) + 1), 2))


def _holders(tree: ast.Module) -> set[str]:
    """Name the parameters of a module's public functions, and the parameters and attributes of its public classes."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= _parameters(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for part in node.body:
                names |= _held_by(part)
    return {name for name in names if not name.startswith("_")} - {"self", "cls"}


def _held_by(part: ast.stmt) -> set[str]:
    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
        return {part.target.id}
    if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()

    inside = [each for each in ast.walk(part) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    return _parameters(part) | {each.attr for each in inside if ast.unparse(each.value) == "self"}


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    if function.name.startswith("_") and function.name != "__init__":
        return set()
    arguments = function.args
    others = filter(None, [arguments.vararg, arguments.kwarg])
    return {each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *others]}


def _shared_words() -> dict[str, list[str]]:
    """Give the names by their last word, for words that many modules have at the end of a parameter or attribute."""
    names: dict[str, set[str]] = {}
    modules: dict[str, set[Path]] = {}
    for path, tree in TREES.items():
        for name in _holders(tree):
            if words := _words(name):
                names.setdefault(words[-1], set()).add(name)
                modules.setdefault(words[-1], set()).add(path)
    return {word: sorted(names[word]) for word, paths in modules.items() if len(paths) >= SHARED_BY}


def _is_known(name: str) -> bool:
    """Whether a parameter or attribute ends with a word of the page, or is a sentence."""
    words = _words(name)
    return name.startswith(FACTS) or any(_is_in(KNOWN_TO_HOLDERS, words[begin:]) for begin in range(len(words)))


def test_every_word_of_a_modules_name_is_in_the_glossary() -> None:
    """As a term, as a part of a term of several words, or as a plain word; folders are modules, too."""
    unknown = {name: words for name in sorted(MODULES) if (words := _unknown(_words(name)))}

    assert unknown == {}


def test_the_noun_of_every_class_is_in_the_glossary() -> None:
    """The noun is the end of the name; an error is judged by what its name is about."""
    errors = _errors()
    names = [node.name for node in CLASSES]
    unknown = [name for name in names if not (_is_about_something if name in errors else _has_noun)(name)]

    assert {"DormiceError", "MessageNotFound"} <= errors
    assert unknown == []


def test_what_parameters_and_attributes_share_is_in_the_glossary() -> None:
    """A word at the end of a public parameter or attribute that four modules have is one idea, so it is on the page."""
    unknown = {word: [name for name in names if not _is_known(name)] for word, names in _shared_words().items()}

    assert {word: names for word, names in unknown.items() if names} == {}


def test_each_word_of_parameters_is_shared() -> None:
    """The words that only parameters and attributes have are as few as can be: each is shared by several modules."""
    shared = {single for word in _shared_words() for single in _singulars(word)}

    assert [word for word in [*PLAIN["parameters"], *PLAIN["endings"]] if word not in shared] == []


def test_every_plain_word_is_the_word_of_a_name() -> None:
    """The list of plain words holds none that no module and no class needs."""
    names = [*MODULES, *(node.name for node in CLASSES)]
    used = {single for name in names for word in _words(name) for single in _singulars(word)}

    named = [word for heading in ("nouns", "products", "adjectives") for word in PLAIN[heading]]
    assert [word for word in named if word not in used] == []


def test_every_term_is_used_by_the_code() -> None:
    """In a name, in a comment or in a docstring; a term that nothing uses any more leaves the page."""
    used = " ".join(["", *_words(" ".join(path.read_text("utf-8") for path in PATHS)), ""])
    missing = [term for term in TERMS if not re.search(rf" {term}e?s? ", used)]

    assert missing == []


def test_a_word_has_one_line() -> None:
    """No term twice, none that is called plain as well; each list is in the order of the alphabet."""
    lists = [[term for term, _ in TERM.findall(part)] for part in TERMS_PART.split("\n## ")[1:]]

    assert len(KNOWN_TO_HOLDERS) == len(TERMS) + sum(map(len, PLAIN.values()))
    assert [terms for terms in lists if terms != sorted(terms)] == []


def test_each_line_is_a_sentence() -> None:
    """Everything that looks like a term is one, its text ends with a full stop, and no line is too long to read."""
    assert len(TERMS) == TERMS_PART.count("\n- ")
    assert [term for term, text in TERM.findall(TERMS_PART) if not text.endswith((".", ".)"))] == []
    assert [line for line in PAGE.splitlines() if len(line) > LINE_MAX] == []
