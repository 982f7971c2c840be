#!/bin/sh
# Runs slim.sql with the columns that namespace.sh wrote down; PGHOST, PGUSER and PGPASSWORD say where.
set -eu

. "$1"
exec psql --quiet --no-psqlrc -v ON_ERROR_STOP=1 -v "due_at=$due_at" -v "state=$state" -d temporal_visibility \
    -f "$(dirname "$0")/slim.sql"
