#!/bin/sh
# Gives PostgreSQL the tables of Temporal's server, or those of a newer version; a second run finds nothing to do.
# What it connects to is said by the tool's own variables: SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER, SQL_PASSWORD.
set -eu

# the database may answer its health check and still refuse for a moment
tries=0
until said=$(temporal-sql-tool --db temporal create-database 2>&1); do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || { echo "$said" >&2; exit 1; }
    sleep 1
done

for name in temporal visibility; do
    [ "$name" = temporal ] && database=temporal || database=temporal_visibility
    temporal-sql-tool --db "$database" create-database
    temporal-sql-tool --db "$database" setup-schema -v 0.0
    temporal-sql-tool --db "$database" update-schema --schema-name "postgresql/v12/$name"
done
