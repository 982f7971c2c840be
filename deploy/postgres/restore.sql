-- Makes the indexes anew that slim.sql has dropped. It locks the visibility table against writes meanwhile: with many
-- messages, stop the server first.
--
--   psql -v ON_ERROR_STOP=1 -d temporal_visibility -f restore.sql
BEGIN;

CREATE TABLE IF NOT EXISTS dormice_dropped_indexes (name text PRIMARY KEY, definition text NOT NULL);

SELECT definition FROM dormice_dropped_indexes
WHERE name NOT IN (SELECT indexname FROM pg_indexes WHERE schemaname = current_schema())
ORDER BY name
\gexec

DROP TABLE dormice_dropped_indexes;

COMMIT;
