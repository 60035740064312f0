#!/bin/sh
# A task in shell: the input comes on standard input, the output goes into a file.
set -eu

activity() { printf '{"type":"%s","stepName":"%s"}\n' "$1" "$2" >> "$LEDGERLINE_ACTIVITY"; }

fail() { # fail CATEGORY ERROR: why, and whether another attempt may succeed
    printf '{"error":"%s","category":"%s"}' "$2" "$1" > "$LEDGERLINE_ERROR"
    exit 1
}

store=$(sed -n 's/.*"storeId":"\([^"]*\)".*/\1/p')
[ -n "$store" ] || fail validation "the input has no storeId"

activity step_running fetch
# Here it would ask a server, and a server that does not answer is worth another attempt:
# curl -fsS "https://example.com/$store" -o page.html || fail network "$store does not answer"

activity step_running colours
printf '{"store":"%s","colors":["teal","sand"]}' "$store" > "$LEDGERLINE_OUTPUT"
