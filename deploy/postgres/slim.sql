-- Drops the indexes of Temporal's visibility table that messages never use: 74 are written on every start and close, nine
-- are needed. Nothing is lost by it but the speed of queries that dormice does not make. Definitions are kept:
-- restore.sql makes the indexes anew, which is needed before a newer server's schema is applied.
--
--   psql -v ON_ERROR_STOP=1 -v due_at=Datetime01 -v state=Keyword01 -d temporal_visibility -f slim.sql
--
-- The server chooses the columns; `temporal operator namespace describe` tells which. With several namespaces, give one
-- after the other what slim.sql must keep, after restore.sql. Dropping takes a lock for a moment: the server may run.
BEGIN;

CREATE TABLE IF NOT EXISTS dormice_dropped_indexes (name text PRIMARY KEY, definition text NOT NULL);

CREATE TEMPORARY TABLE unneeded ON COMMIT DROP AS
SELECT indexname AS name, indexdef AS definition
FROM pg_indexes
WHERE schemaname = current_schema() AND tablename = 'executions_visibility'
    AND indexname NOT IN (
        'executions_visibility_pkey',
        'default_idx',
        'by_execution_time',
        'by_workflow_id',
        'by_workflow_type',
        'by_status',
        'by_temporal_namespace_division',
        'by_' || lower(regexp_replace(:'due_at', '(\d\d)$', '_\1')),
        'by_' || lower(regexp_replace(:'state', '(\d\d)$', '_\1'))
    );

INSERT INTO dormice_dropped_indexes SELECT name, definition FROM unneeded
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition;

SELECT format('DROP INDEX %I', name) FROM unneeded ORDER BY name
\gexec

COMMIT;
