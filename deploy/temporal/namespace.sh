#!/bin/sh
# Makes the namespace that messages live in, with their search attributes, and writes down in which columns of the
# visibility table the server keeps two of them, for slim.sh. A second run finds nothing to do.
#
# TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE say which; RETENTION is for how long the server remembers messages that have
# finished, and so for how long a repeated start is recognised.
set -eu

columns=$1

tries=0
until temporal operator cluster health >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "the server at $TEMPORAL_ADDRESS does not answer" >&2; exit 1; }
    sleep 1
done

describe() {
    temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" --output json
}

create_namespace() {
    describe >/dev/null 2>&1 ||
        temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "${RETENTION:-72h}" 2>&1
}

create_attributes() {
    temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" \
        --name Kind --type Keyword --name Lane --type Keyword --name State --type Keyword \
        --name DueAt --type Datetime --name EarliestAt --type Datetime 2>&1
}

# it takes the server a moment to know a namespace everywhere; what it says until then is no error
tries=0
until said=$(create_namespace && create_attributes); do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || { echo "$said" >&2; exit 1; }
    sleep 1
done

column() {
    describe 2>/dev/null | sed -n "s/.*\"\([A-Za-z]*[0-9][0-9]\)\": \"$1\".*/\1/p"
}

tries=0
until due_at=$(column DueAt) && state=$(column State) && [ -n "$due_at" ] && [ -n "$state" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || { echo "the server does not say where it keeps DueAt and State" >&2; exit 1; }
    sleep 1
done
printf 'due_at=%s\nstate=%s\n' "$due_at" "$state" >"$columns"
