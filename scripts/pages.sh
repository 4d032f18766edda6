#!/usr/bin/env bash
# Opens the pages that Azekura writes in a headless Chromium: no script of a page fails, the contents are
# displayed, and tables are sorted when their headings are clicked.
#
#   scripts/pages.sh [--pictures DIR] [AZEKURA] [PAGE...]
#
# Opens the given pages, and those of a recording that it makes. AZEKURA: target/release/azekura unless given.
#
# Leaves only the pictures behind. Exit code 0: all pages are as expected, or Chromium is not installed.
set -euo pipefail

pictures=
[ "${1:-}" != --pictures ] || { mkdir -p "$2"; pictures=$(realpath "$2"); shift 2; }
azekura=$(realpath "${1:-$(dirname "$0")/../target/release/azekura}")
shift || true
command -v chromium >/dev/null || { echo "skipped: no chromium here"; exit 0; }
[ -x "$azekura" ] || { echo "no command $azekura: cargo build --release -p azekura-cli" >&2; exit 2; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/pages.XXXXXX")
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# browse PAGE OPTIONS...: runs a browser with a profile of its own and without background requests.
browse() {
    local page=$1
    shift
    timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync \
        --user-data-dir="$dir/profile" --window-size=1400,1600 --virtual-time-budget=5000 "$@" \
        "file://$page" 2>"$dir/log"
}

# opened PAGE: writes the page as changed by its scripts to $dir/dom; fails if a script fails.
opened() {
    browse "$1" --enable-logging=stderr --v=0 --dump-dom >"$dir/dom" ||
        fail "chromium does not open $1: $(tail -n 3 "$dir/log")"
    ! grep -E 'Uncaught|CONSOLE.*[Ee]rror' "$dir/log" || fail "a script of $1 fails"
}

# A report of a trace. Each heading of its tables is clicked twice. For the table of operations, the order of
# the first column is read after each click of the first heading.
report() {
    local page=$1 probe="$dir/probe.html" seen
    cp "$page" "$probe"
    cat >>"$probe" <<'SCRIPT'
<script>
const tables = [...document.querySelectorAll("#page table")], orders = [];
const order = () => [...tables[0].tBodies[0].rows].map(row => row.cells[0].textContent).join(" ");
for (const way of ["ascending", "descending"]) {
  tables[0].querySelector("th button").click();
  orders.push(order());
}
for (const button of document.querySelectorAll("#page th button")) { button.click(); button.click(); }
document.body.append(Object.assign(document.createElement("output"), { id: "probe", textContent:
  [tables.length, document.querySelectorAll("#page .bar .track div").length,
   orders[0] === orders[1] ? "unsorted" : "sorted",
   document.querySelectorAll("#page canvas").length].join(" ") }));
</script>
SCRIPT
    opened "$probe"
    seen=$(sed -n 's/.*<output id="probe">\([^<]*\)<.*/\1/p' "$dir/dom")
    read -r tables bars order canvases <<<"$seen" || fail "nothing is shown by $page"
    [ "$tables" -ge 2 ] && [ "$bars" -ge 1 ] && [ "$canvases" = 1 ] ||
        fail "$page shows $tables tables, $bars bars and $canvases timelines"
    [ "$order" = sorted ] || fail "the table of operations of $page does not sort"
    echo "$(basename "$page"): $tables tables that sort, $bars bars, a timeline"
}

# A page of the lab or a benchmark: must have a heading, and charts with contents.
lab() {
    local charts shapes
    opened "$1"
    charts=$(grep -o '<svg' "$dir/dom" | wc -l)
    shapes=$(grep -oE '<(path|polyline|circle|rect|line)' "$dir/dom" | wc -l)
    grep -q '<h1' "$dir/dom" && [ "$charts" -ge 1 ] && [ "$shapes" -ge $((4 * charts)) ] ||
        fail "$1 shows $charts charts of $shapes shapes"
    echo "$(basename "$1"): $charts charts"
}

"$azekura" demo --rounds 1 --seconds-per-round 1 --trace "$dir/kv.trace" >/dev/null
"$azekura" trace report "$dir/kv.trace" --format html -o "$dir/trace.html"
for page in "$dir/trace.html" "$@"; do
    page=$(realpath "$page")
    if grep -q 'id="page"' "$page"; then report "$page"; else lab "$page"; fi
    [ -z "$pictures" ] || browse "$page" --screenshot="$pictures/$(basename "$page" .html).png" >/dev/null
done
