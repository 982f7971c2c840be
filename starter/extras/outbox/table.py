"""The outbox's table: its name, the DDL that makes it, and every statement that is sent to it."""

from dataclasses import dataclass
from typing import Self

TABLE = "dormice_outbox"
CHANNEL = "dormice_outbox"
"""What outboxes listen to, for every table: the notification's payload is the table's oid."""

NAME_BYTES_MAX = 50
"""PostgreSQL takes 63; the names of the table's indexes, functions and triggers are a little longer than its own."""

_COLUMNS = """\
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action text NOT NULL DEFAULT 'start' CHECK (action IN ('start', 'upsert', 'stop')),
    kind text NOT NULL,
    id text NOT NULL,
    payload json,
    scheduled_at timestamptz,
    expires_at timestamptz,
    tolerance_seconds double precision,
    lane text,
    priority smallint,
    tenant text,
    correlation_id text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    failed_at timestamptz,
    problem text"""

_DDL = """\
-- The outbox of dormice, see its docs/outbox.md. This may be run again, and has to be after a backup is restored.
CREATE TABLE IF NOT EXISTS {table} (
{columns}
);

-- Rows come and go all day: each thousand that are gone are vacuumed away, without pauses.
ALTER TABLE {table} SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- Whether an older row of the same message waits, and which rows have failed.
CREATE INDEX IF NOT EXISTS {order_name} ON {table} (kind, id, seq);
CREATE INDEX IF NOT EXISTS {failed_name} ON {table} (failed_at) WHERE failed_at IS NOT NULL;

-- New rows are told to outboxes that listen; without this trigger these find them when they look next.
CREATE OR REPLACE FUNCTION {notify}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{channel}', TG_RELID::text);
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS {notify_name} ON {table};
CREATE TRIGGER {notify_name} AFTER INSERT OR UPDATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {notify}();

-- A failed row that is changed in any way is taken again.
CREATE OR REPLACE FUNCTION {retry}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failed_at := NULL;
    NEW.problem := NULL;
    RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS {retry_name} ON {table};
CREATE TRIGGER {retry_name} BEFORE UPDATE ON {table}
    FOR EACH ROW WHEN (OLD.failed_at IS NOT NULL AND NEW.failed_at IS NOT DISTINCT FROM OLD.failed_at)
    EXECUTE FUNCTION {retry}();

-- Messages remember the highest seq that was applied to them. So seq begins at the microseconds since 1970, beyond all
-- that a table of this name, or its restored backup, has given out before.
SELECT setval(seq, now_us) AS next_seq
FROM (SELECT pg_get_serial_sequence('{literal}', 'seq')::regclass AS seq,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS numbers
WHERE coalesce(pg_sequence_last_value(seq), 0) < now_us;
"""

_CHECK = """\
SELECT format('%s %I %I.%I', system_identifier, current_database(), nspname, relname), c.oid::text
FROM pg_control_system(), pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
WHERE c.oid = '{literal}'::regclass"""

# A scalar subquery is looked up in the index for each row; the planner might make a join of all rows of another one.
# Moments come as JSON has them, because infinity and years after 9999 are none that Python can read.
_TAKE = """\
SELECT seq, action, kind, id,
    CASE WHEN octet_length(payload::text) <= %(bytes_max)s THEN payload::text END, octet_length(payload::text),
    to_json(scheduled_at) #>> '{{}}', to_json(expires_at) #>> '{{}}',
    tolerance_seconds, lane, priority, tenant, correlation_id
FROM {table} AS new
WHERE failed_at IS NULL AND (action = 'start') = %(is_start)s AND kind <> ALL(%(resting)s)
    AND seq = (SELECT min(older.seq) FROM {table} AS older WHERE older.kind = new.kind AND older.id = new.id)
ORDER BY seq LIMIT %(count)s FOR UPDATE SKIP LOCKED"""

_DELETE = "DELETE FROM {table} WHERE seq = ANY(%s)"

_FAIL = """\
UPDATE {table} AS row SET failed_at = clock_timestamp(), problem = failed.problem
FROM unnest(%s::bigint[], %s::text[]) AS failed (seq, problem) WHERE row.seq = failed.seq"""

_COUNT = """\
SELECT count(*) FILTER (WHERE failed_at IS NULL), count(failed_at),
    extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE failed_at IS NULL))::float
FROM {table}"""

_FAILED = """\
SELECT seq, action, kind, id, to_json(created_at) #>> '{{}}', to_json(failed_at) #>> '{{}}', problem
FROM {table} WHERE failed_at IS NOT NULL ORDER BY seq LIMIT %s"""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """A table by name, in a schema unless the search path finds it; names count as they are written, never folded.

    Statements are bytes, because psycopg takes no text that is put together.
    """

    name: str = TABLE
    schema: str = ""

    @classmethod
    def read(cls, text: str) -> Self:
        """Read NAME or SCHEMA.NAME; raises ValueError with half a sentence."""
        *schemas, name = text.split(".")
        parts = [*schemas, name]
        is_right = all(0 < len(part.encode()) <= NAME_BYTES_MAX and part.isprintable() for part in parts)
        if not is_right or len(parts) > 2:
            raise ValueError(f"is {text[:80]!r}; write NAME or SCHEMA.NAME, each of at most {NAME_BYTES_MAX} bytes")
        return cls(name, *schemas)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def ddl(self) -> str:
        """The statements that make the table, which may be run again."""
        return self._write(_DDL)

    @property
    def check(self) -> bytes:
        """Gives a name that no other table has, not even one of another server, and the table's oid."""
        return self._write(_CHECK).encode()

    @property
    def take(self) -> bytes:
        """Locks and gives the oldest rows of messages for which nothing older waits; passes over what others hold."""
        return self._write(_TAKE).encode()

    @property
    def delete(self) -> bytes:
        """Deletes rows by their `seq`."""
        return self._write(_DELETE).encode()

    @property
    def fail(self) -> bytes:
        """Marks rows by their `seq` as failed, each with its problem."""
        return self._write(_FAIL).encode()

    @property
    def count(self) -> bytes:
        """Counts the rows that wait and those that have failed, and gives the seconds that the oldest has waited."""
        return self._write(_COUNT).encode()

    @property
    def failed(self) -> bytes:
        """Gives the oldest rows that have failed."""
        return self._write(_FAILED).encode()

    def _write(self, statement: str) -> str:
        own = {"table": self.name}
        kinds = ("order", "failed", "notify", "retry")
        own |= {what: f"{self.name}_{what}" for what in ("notify", "retry")}
        names = {what: _quote(*filter(None, (self.schema, name))) for what, name in own.items()}
        names |= {f"{what}_name": _quote(f"{self.name}_{what}") for what in kinds}
        literal = names["table"].replace("'", "''")
        return statement.format(columns=_COLUMNS, literal=literal, channel=CHANNEL, **names)


def _quote(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
