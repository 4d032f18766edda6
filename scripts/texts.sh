#!/usr/bin/env bash
# Prints every text of the command that users read, for a review: the help of all commands, then all error
# messages of all crates with their places.
#
#   scripts/texts.sh target/debug/azekura | less
set -euo pipefail
azekura=$(realpath "$1")
cd "$(dirname "$0")/.."

help_of() {
    local text command
    text=$("$azekura" "$@" --help)
    printf '== azekura %s\n%s\n\n' "$*" "$text"
    local list='/^Commands:/ { on = 1; next } /^[A-Z]/ { on = 0 } on && /^  [a-z]/ { print $1 }'
    for command in $(awk "$list" <<<"$text"); do
        [ "$command" = help ] || help_of "$@" "$command"
    done
}

help_of
echo "== error messages"
places='#\[error\(|bail!\(|anyhow!\(|\.(with_)?context\(|UsageError\('
grep -rnE -A2 "$places" crates/*/src --include='*.rs' | grep '"' | grep -v transparent
