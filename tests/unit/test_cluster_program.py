"""The cluster's programs and files, as far as they can be told without building anything."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import program as programs
from cluster.__main__ import main
from cluster.cluster import Cluster
from cluster.postgres import without_gin
from cluster.program import VERSION, Program, find_go
from cluster.server import PORTS, choose_ports, write_configuration
from shared.errors import InvalidSetting, Misconfigured

VISIBILITY_TABLES = """\
DO LANGUAGE 'plpgsql' $$
    BEGIN
        IF ( NOT EXISTS (select extname from pg_extension where extname = 'btree_gin') ) THEN
            CREATE EXTENSION btree_gin;
        END IF;
    END
$$;

CREATE FUNCTION convert_ts(s VARCHAR) RETURNS TIMESTAMP AS $$
BEGIN
  RETURN s::timestamptz at time zone 'UTC';
END
$$ LANGUAGE plpgsql IMMUTABLE;

CREATE INDEX by_text_01         ON executions_visibility USING GIN (namespace_id, Text01);
CREATE INDEX by_keyword_01      ON executions_visibility (namespace_id, Keyword01, run_id);
CREATE INDEX by_keyword_list_01 ON executions_visibility USING GIN (namespace_id, KeywordList01 jsonb_path_ops);"""


def test_the_cluster_has_the_version_of_the_embedded_server() -> None:
    """So that what differs is the database alone."""
    said = subprocess.run(
        [Path(sys.executable).with_name("temporal"), "--version"], capture_output=True, text=True, check=True
    ).stdout

    assert f"(Server {VERSION}," in said


def test_tables_need_no_extension_of_postgres() -> None:
    """What goes are the extension and the indexes that need it; all else stays as Temporal ships it."""
    left = without_gin(VISIBILITY_TABLES)

    assert re.findall(r"USING GIN|btree_gin", left) == []
    assert "CREATE FUNCTION convert_ts" in left
    assert [line.split()[2] for line in left.splitlines() if line.startswith("CREATE INDEX")] == ["by_keyword_01"]


def test_every_port_is_another_one() -> None:
    """PostgreSQL's, that of the metrics, and two for each service; all fit the 16 bits that Temporal has for them."""
    ports = choose_ports()

    assert list(ports) == list(PORTS)
    assert len(set(ports.values())) == len(PORTS) == 10
    assert max(ports.values()) < 2**15


def test_the_server_is_told_shards_ports_and_limits(tmp_path: Path) -> None:
    """Everything on loopback, and dynamic values as values: a text is a text, a number a number."""
    ports = choose_ports()
    told = json.loads(write_configuration(tmp_path, ports, 32).read_text())
    dynamic = json.loads((tmp_path / "dynamic.yaml").read_text())

    assert told["persistence"]["numHistoryShards"] == 32
    assert told["services"]["frontend"]["rpc"] == {
        "grpcPort": ports["frontend-rpc"],
        "membershipPort": ports["frontend-membership"],
        "bindOnLocalHost": True,
    }
    assert {store["sql"]["connectAddr"] for store in told["persistence"]["datastores"].values()} == {
        f"127.0.0.1:{ports['postgres']}"
    }
    assert dynamic["matching.TaskQueueInfoByBuildIdTTL"] == [{"value": "500ms"}]
    assert dynamic["matching.enableFairness"] == [{"value": True}]


def test_without_go_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was built before, and nothing is begun."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(programs, "GO_FOLDERS", ())

    with pytest.raises(Misconfigured, match="install Go"):
        find_go()


def test_a_build_counts_once_it_is_whole(tmp_path: Path) -> None:
    """Programs that lie there without the mark may be halves."""
    program = Program(tmp_path)
    for name in ("server", "sql"):
        (tmp_path / name).touch()
    assert not program.is_built

    (tmp_path / "built").write_text('{"temporal": "1.19", "visibility": "1.14"}')
    assert program.is_built
    assert program.schema_version("visibility") == "1.14"


def test_another_process_of_the_same_id_is_not_the_server(tmp_path: Path) -> None:
    """An id that was given to another program since is left alone."""
    cluster = Cluster(tmp_path)
    state = {"version": VERSION, "shards": 4, "ports": choose_ports(), "is_ready": True}
    (tmp_path / "cluster.json").write_text(json.dumps({**state, "process_id": os.getpid(), "process_began": 1.0}))

    assert cluster.state is not None
    assert cluster.state.process_id == os.getpid()
    assert cluster.process is None


def test_what_is_not_a_cluster_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """A file of another make is not guessed at."""
    (tmp_path / "cluster.json").write_text("[]")

    with pytest.raises(InvalidSetting, match=r"--data: .* can't be read"):
        _ = Cluster(tmp_path).state


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["up", "--shards", "0"], 2, "'--shards': is '0'; give a whole number of at least 1"),
        (["sideways"], 2, "No such command 'sideways'"),
        (["status"], 1, ""),
        (["down"], 0, "down"),
    ],
)
def test_the_command_speaks_in_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    """And says by its exit code what came of it; where no cluster is, there is none to end."""
    options = ["--data", str(tmp_path / "none")] if arguments[0] != "sideways" else []

    assert main([*arguments, *options]) == code
    assert sentence in capsys.readouterr().err
