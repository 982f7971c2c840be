"""The glossary holds the words of the code: each module and class is named with a term of the page or a plain word."""

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


def test_every_plain_word_is_the_word_of_a_name() -> None:
    """The list of plain words holds none that no module and no class needs."""
    names = [*MODULES, *(node.name for node in CLASSES)]
    used = {single for name in names for word in _words(name) for single in _singulars(word)}

    assert [word for words in PLAIN.values() for word in words if word not in used] == []


def test_every_term_is_used_by_the_code() -> None:
    """In a name, in a comment or in a docstring; a term that nothing uses any more leaves the page."""
    used = " ".join(["", *_words(" ".join(path.read_text("utf-8") for path in PATHS)), ""])
    missing = [term for term in TERMS if not re.search(rf" {term}e?s? ", used)]

    assert missing == []


def test_a_word_has_one_line() -> None:
    """No term twice, none that is called plain as well; each list is in the order of the alphabet."""
    lists = [[term for term, _ in TERM.findall(part)] for part in TERMS_PART.split("\n## ")[1:]]

    assert len(KNOWN) == len(TERMS) + sum(map(len, PLAIN.values()))
    assert [terms for terms in lists if terms != sorted(terms)] == []


def test_each_line_is_a_sentence() -> None:
    """Everything that looks like a term is one, its text ends with a full stop, and no line is too long to read."""
    assert len(TERMS) == TERMS_PART.count("\n- ")
    assert [term for term, text in TERM.findall(TERMS_PART) if not text.endswith((".", ".)"))] == []
    assert [line for line in PAGE.splitlines() if len(line) > LINE_MAX] == []
