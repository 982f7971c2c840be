"""The registry: which handlers a process has, and why it refuses to start."""

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from activities.handlers.echo import echo
from activities.registry import ENTRY_POINT_GROUP, Registry, envelope_rules, load_registry
from shared.errors import InvalidHandler
from shared.settings import Settings

HANDLER = """
from activities import Again, Context, Done, Message, handler

@handler({kind!r}, lane={lane!r})
async def {name}(message: Message, ctx: Context) -> Done:
    return Done()
"""
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Write modules that can be imported; path and module table are as before afterwards."""
    path = list(sys.path)
    modules = set(sys.modules)
    sys.path.insert(0, str(tmp_path))

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        importlib.invalidate_caches()

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == tmp_path:
            del sys.modules[name]


def declare(kind: str, lane: str = "short", name: str = "run") -> str:
    """Write the text of a module with one handler."""
    return HANDLER.format(kind=kind, lane=lane, name=name)


def refuse(*modules: str) -> str:
    """Give the sentence that a set of modules is refused with."""
    with pytest.raises(InvalidHandler) as caught:
        load_registry(Settings(handlers=modules))
    return str(caught.value)


def test_installed_handlers_are_found_without_any_setting() -> None:
    """What the distribution itself declares is always there."""
    registry = load_registry(Settings())

    assert registry["echo"] is echo
    assert registry.origins["echo"] == "activities.handlers.echo"
    assert {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} <= set(registry)


def test_modules_of_the_setting_are_added(write: Write) -> None:
    """Every handler of every module counts, beside the installed ones."""
    write("dm_first", declare("feed") + declare("order", "long", "watch"))
    write("dm_second", declare("price", "medium"))
    registry = load_registry(Settings(handlers=("dm_first", "dm_second")))
    installed = load_registry(Settings())

    assert list(registry) == [*installed, "feed", "order", "price"]
    assert len(registry) == len(installed) + 3
    assert registry["order"].lane == "long"
    assert registry.origins["price"] == "dm_second"
    assert registry.get("unheard-of") is None


def test_a_handler_that_another_module_imports_counts_once(write: Write) -> None:
    """Sharing a handler is no conflict; it belongs to the module that was named first."""
    write("dm_owner", declare("feed"))
    write("dm_friend", "from dm_owner import run\n" + declare("order", name="watch"))
    registry = load_registry(Settings(handlers=("dm_owner", "dm_friend", "dm_owner")))

    assert registry.origins["feed"] == "dm_owner"
    assert "order" in registry


def test_two_handlers_for_one_kind_are_refused(write: Write) -> None:
    """The process does not start; the sentence names both places."""
    write("dm_one", declare("feed"))
    write("dm_two", declare("feed"))

    assert refuse("dm_one", "dm_two") == "kind 'feed' has two handlers, in dm_one and in dm_two; rename one of them"


def test_a_handler_for_an_installed_kind_is_refused(write: Write) -> None:
    """An installed handler is never replaced in silence."""
    write("dm_echo", declare("echo"))

    assert refuse("dm_echo") == (
        "kind 'echo' has two handlers, in activities.handlers.echo and in dm_echo; rename one of them"
    )


def test_two_handlers_for_one_kind_in_one_module_are_refused(write: Write) -> None:
    """Copying a handler and forgetting its kind is found too."""
    write("dm_twice", declare("feed") + declare("feed", name="again"))

    assert refuse("dm_twice") == "kind 'feed' has two handlers, in dm_twice and in dm_twice; rename one of them"


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "handlers: dm_broken holds no handler; decorate a function with @handler(...)"),
        ("from activities import handler", "handlers: dm_broken holds no handler"),
        ("import dm_missing", "handlers: module 'dm_broken' can't be imported (ModuleNotFoundError("),
        ("1 / 0", "can't be imported (ZeroDivisionError('division by zero')); correct "),
        ("\n1 / 0", "dm_broken.py, line 2"),
        ("def broken(:", "can't be imported (SyntaxError('invalid syntax')); correct "),
        ("\n\ndef broken(:", "dm_broken.py, line 3"),
        ("raise ValueError('two\\nlines')", "can't be imported (ValueError('two\\nlines'))"),
        (declare("Feed"), "can't be imported (handler 'Feed': a kind is 1 to 50 of"),
        (
            "from activities.api.limit import Limit\nLimit(key='a')",
            "can't be imported (Limit: limits nothing; give at_once, per or both); correct ",
        ),
        ("from activities.api.limit import Limit\nLimit(key='a')", "dm_broken.py, line 2"),
        (declare("feed", "express"), "there is no lane 'express'"),
        (declare("feed").replace("async def", "def"), "is no 'async def'; handlers run on one event loop"),
    ],
)
def test_a_module_that_is_no_use_is_refused_in_one_sentence(write: Write, text: str, phrase: str) -> None:
    """The sentence names the module and what happened; nothing starts without one of its handlers."""
    write("dm_broken", text)
    sentence = refuse("dm_broken")

    assert phrase in sentence
    assert len(sentence.splitlines()) == 1


@pytest.mark.parametrize("name", ["dm_nowhere", "dm_nowhere.deeper", ".relative", "no module"])
def test_a_module_that_is_not_there_is_refused(name: str) -> None:
    """The sentence quotes the name as the setting has it."""
    assert refuse(name).startswith(f"handlers: module {name!r} can't be imported (")


def test_senders_are_checked_by_the_kinds_and_lanes_of_the_registry(write: Write) -> None:
    """Envelope rules follow from handlers and settings."""
    write("dm_rules", declare("report", "long"))
    settings = Settings(handlers=("dm_rules",), payload_max_bytes=99)
    rules = envelope_rules(settings, load_registry(settings))

    assert rules.kinds["report"] == "long"
    assert rules.kinds["echo"] == "short"
    assert rules.payload_max_bytes == 99


def test_a_registry_can_be_built_by_hand() -> None:
    """Tests and embedded use name their handlers themselves."""
    registry = Registry([("here", echo), ("there", echo)])

    assert dict(registry) == {"echo": echo}
    assert registry.origins == {"echo": "here"}
