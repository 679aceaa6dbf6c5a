# SPDX-License-Identifier: Apache-2.0
# For every .bats file: `load ../eventually`.

# eventually SECONDS COMMAND...: until it succeeds, or fail.
eventually() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null; do
        [ "$SECONDS" -lt "$end" ] || { echo "in vain: $* ($("$@" 2>&1 || true))" >&2; return 1; }
        sleep 0.1
    done
}
