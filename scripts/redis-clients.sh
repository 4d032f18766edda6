#!/usr/bin/env bash
# Runs unmodified Redis clients against `azekura serve`: redis-cli, redis-benchmark and redis-py. Clients that
# are not installed are reported.
#
#   scripts/redis-clients.sh [AZEKURA]             compares replies; target/release/azekura unless given
#   scripts/redis-clients.sh --bench [AZEKURA]     requests per second, with redis-server and kvrocks
#   scripts/redis-clients.sh --costs [AZEKURA]     processor time per request, alternating with redis-server
#   scripts/redis-clients.sh --ceiling [AZEKURA]   durable SETs per second, with a server that does nothing
#   scripts/redis-clients.sh --functions [AZEKURA] instructions per request by function (valgrind)
#   scripts/redis-clients.sh --ycsb [AZEKURA]      YCSB A to F, all servers in turn, and three nodes
#
# --bench measures redis-server with appendfsync always and everysec; --costs with always. --ceiling measures
# with redis-benchmark, and with a client that needs less processor time (cargo build --release -p
# azekura-server --example light). The counts of --functions do not depend on the load of the machine. YCSB-E
# consists of ordered scans, which Redis does not have.
#
# PYTHON may name an interpreter that has the package `redis`. RUNS (3), REQUESTS (200000) and CLIENTS (50)
# set the size of the benchmark; for YCSB, also RECORDS (100000) and SECONDS_EACH (2), and OPTIONS may be
# --json. For --costs and --functions, TESTS (set get) selects the tests, SERVE may contain options of the
# server, and TOP (40) is the number of functions shown. Debian has the programs in redis-tools and
# redis-server. Leaves no files behind. Exit code 0: all replies are as expected.
set -euo pipefail
export LC_ALL=C

mode=check
case "${1:-}" in --bench | --costs | --ceiling | --functions | --ycsb) mode=${1#--}; shift ;; esac
azekura=$(realpath "${1:-$(dirname "$0")/../target/release/azekura}")
[ -x "$azekura" ] || { echo "no command $azekura: cargo build --release -p azekura-cli" >&2; exit 2; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/redis-clients.XXXXXX")
pids=()
clusters=()
cleanup() {
    local pid cluster
    for cluster in "${clusters[@]}"; do
        "$azekura" cluster stop --kill --dir "$cluster" >/dev/null 2>&1 || true
    done
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

say() { printf '%s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null || { say "skipped: no $1 here"; return 1; }; }

# serve NAME OPTIONS...: starts a server on a free port, and sets $port.
serve() {
    local name=$1
    shift
    : >"$dir/$name.out"
    "$azekura" serve "$dir/$name" --listen 127.0.0.1:0 "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
    pids+=($!)
    for _ in $(seq 1200); do
        port=$(sed -n 's/^serving .*:\([0-9]*\)$/\1/p' "$dir/$name.out")
        [ -n "$port" ] && return
        sleep 0.05
    done
    fail "the server does not start: $(cat "$dir/$name.err")"
}

# nodes NAME: starts a cluster of three nodes, and sets $doors to their client addresses, separated by +. The
# benchmark's keys begin with any byte; the nodes' key ranges begin at the bytes 0, 55 and c2aa (hexadecimal).
nodes() {
    clusters+=("$dir/$1")
    "$azekura" cluster start --dir "$dir/$1" --split-at U,ª >"$dir/$1.out" 2>&1 ||
        fail "no cluster: $(cat "$dir/$1.out")"
    doors=$(sed -n 's/^node .* serves clients on \([0-9.:]*\):.*$/\1/p' "$dir/$1.out" | paste -sd+)
}

# is WANTED WORDS...: checks that redis-cli prints WANTED, in both versions of the protocol.
is() {
    local wanted=$1 got version
    shift
    for version in -2 -3; do
        got=$(redis-cli "$version" -p "$port" "$@" 2>&1 | tr '\n' ' ')
        [ "$got" = "$wanted " ] || fail "redis-cli $version $*: $got, not $wanted"
    done
}

cli() {
    have redis-cli || return 0
    is OK flushall
    is OK set a 1
    is 1 get a
    is "" get nokey
    is OK mset b 2 c 3
    is "a b c" --scan
    is "a 1 b 2" az.range - + limit 2
    is 3 dbsize
    printf 'multi\nincr n\nincr n\nexec\n' | redis-cli -p "$port" | tr '\n' ' ' |
        grep -q 'OK QUEUED QUEUED 1 2' || fail "redis-cli: MULTI"
    seq 5000 | awk '{print "SET p" $1 " " $1}' | redis-cli -p "$port" --pipe |
        grep -q 'errors: 0, replies: 5000' || fail "redis-cli --pipe"
    is 5000 get p5000
    redis-cli -p "$port" info server | grep -q '^redis_version:' || fail "redis-cli info"
    say "redis-cli: $(redis-cli --version): as it must be"
}

python() {
    local python=${PYTHON:-python3}
    "$python" -c 'import redis' 2>/dev/null || { say "skipped: no Python package redis here"; return 0; }
    "$python" - "$port" <<'PY' || fail "redis-py"
import sys, threading, time, redis
port = int(sys.argv[1])
for protocol in (2, 3):
    r = redis.Redis(port=port, decode_responses=True, protocol=protocol)
    r.flushdb()
    assert r.set("a", 1, ex=1000) and 900 < r.ttl("a") <= 1000
    assert r.set("a", 2, nx=True) is None and r.set("a", 3, xx=True, get=True) == "1"
    assert r.getex("a", px=500000) == "3" and 400000 < r.pttl("a") <= 500000 and r.persist("a")
    assert r.mset({"b": 1, "c": 2}) and r.mget("b", "zz", "c") == ["1", None, "2"]
    assert r.msetnx({"b": 1, "d": 2}) is False and r.exists("b", "c", "zz") == 2
    assert r.append("s", "hello") == 5 and r.setrange("s", 1, "ipp") == 5 and r.getrange("s", 0, 3) == "hipp"
    assert r.incrbyfloat("f", 1.5) == 1.5 and r.decrby("n", 3) == -3 and r.getdel("n") == "-3"
    assert r.rename("s", "t") and r.copy("t", "u") and r.type("u") == "string"
    assert r.expire("t", 1000, nx=True) and r.expiretime("t") > time.time() and r.delete("t", "u", "zz") == 2
    pipe = r.pipeline()
    pipe.incr("n"); pipe.incr("n"); pipe.get("n")
    assert pipe.execute() == [1, 2, "2"]
    def double(pipe):
        n = int(pipe.get("n")); pipe.multi(); pipe.set("n", n * 2)
    assert r.transaction(double, "n") == [True] and r.get("n") == "4"
    for i in range(100):
        r.set(f"k{i:03}", i)
    assert list(r.scan_iter("k*", count=7)) == [f"k{i:03}" for i in range(100)]
    assert r.keys("k00*") == [f"k00{i}" for i in range(10)] and r.dbsize() == 105
    try:
        r.incr("a" if r.set("a", "x") else ""); raise SystemExit("INCR of text was not refused")
    except redis.ResponseError as error:
        assert "not an integer" in str(error)
    def count():
        own = redis.Redis(port=port, protocol=protocol)
        for _ in range(100):
            add = lambda pipe, n: (pipe.multi(), pipe.set("w", n + 1))
            own.transaction(lambda pipe: add(pipe, int(pipe.get("w") or 0)), "w")
    threads = [threading.Thread(target=count) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert r.get("w") == "400", r.get("w")
    assert r.info()["role"] == "master" and r.config_get("save") == {"save": ""}
    assert r.client_list()[0]["lib-name"]
print(f"redis-py {redis.__version__}: as it must be, with RESP2 and RESP3")
PY
}

benchmark() {
    have redis-benchmark || return 0
    local line
    for line in "" "-P 16"; do
        # shellcheck disable=SC2086
        redis-benchmark -p "$port" -t set,get,incr,mset -n 2000 $line -q >"$dir/benchmark" 2>&1 ||
            fail "redis-benchmark $line"
        grep -qi 'error\|warning' "$dir/benchmark" && fail "redis-benchmark $line: $(cat "$dir/benchmark")"
        [ "$(tr '\r' '\n' <"$dir/benchmark" | grep -c 'requests per second')" = 4 ] ||
            fail "redis-benchmark $line: $(cat "$dir/benchmark")"
    done
    say "redis-benchmark: set, get, incr, mset, with and without pipelines: all answered"
}

# redis NAME SYNC: starts redis-server with appendfsync SYNC, and sets $port.
redis() {
    mkdir "$dir/$1"
    port=$((20000 + RANDOM % 20000))
    redis-server --port "$port" --dir "$dir/$1" --save '' --appendonly yes --appendfsync "$2" --daemonize no \
        >"$dir/$1.out" &
    pids+=($!)
    answers "$1"
}

# kvrocks_server NAME: starts kvrocks with each write synced, and sets $port.
kvrocks_server() {
    mkdir "$dir/$1"
    port=$((20000 + RANDOM % 20000))
    printf '%s\n' "bind 127.0.0.1" "port $port" "dir $dir/$1" "daemonize no" \
        "rocksdb.write_options.sync yes" >"$dir/$1.conf"
    kvrocks -c "$dir/$1.conf" >"$dir/$1.out" 2>&1 &
    pids+=($!)
    answers "$1"
}

# answers NAME: waits until the server on $port answers.
answers() {
    local turn
    for turn in $(seq 1200); do
        redis-cli -p "$port" ping >/dev/null 2>&1 && return
        sleep 0.05
    done
    fail "$1 does not start: $(tail -n 3 "$dir/$1.out")"
}

# end: stops the server that was started last.
end() {
    kill "${pids[-1]}"
    wait "${pids[-1]}" 2>/dev/null || true
    unset 'pids[-1]'
}

# measure NAME OPTIONS...: prints the median rate of each test over the runs.
measure() {
    local name=$1 run
    shift
    for run in $(seq "${RUNS:-3}"); do
        redis-benchmark -p "$port" -t set,get,incr,mset -n "${REQUESTS:-200000}" -c "${CLIENTS:-50}" \
            -r 1000000 "$@" --csv
    done | tr -d '"' | awk -F, -v name="$name" '
        /^test/ { next }
        { rates[$1] = rates[$1] " " $2 }
        END {
            printf "%-34s", name
            split("SET GET INCR MSET", tests, " ")
            for (t = 1; t <= 4; t++) for (r in rates) if (index(r, tests[t]) == 1) {
                n = split(rates[r], v, " ")
                for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] + 0 < v[i] + 0) {
                    x = v[i]; v[i] = v[j]; v[j] = x
                }
                printf "%10d", v[int((n + 1) / 2)]
            }
            print ""
        }'
}

compare() {
    have redis-benchmark || return 0
    printf '%-34s%10s%10s%10s%10s   median of %s, %s clients, load %s\n' "per second" SET GET INCR \
        "MSET(10)" "${RUNS:-3}" "${CLIENTS:-50}" "$(cut -d' ' -f1 /proc/loadavg)"
    local sync
    if have redis-server; then
        for sync in always everysec; do
            redis "redis-$sync" "$sync"
            measure "redis appendfsync $sync"
            measure "redis appendfsync $sync, -P 16" -P 16
            end
        done
    fi
    if have kvrocks; then
        kvrocks_server kvrocks
        measure "kvrocks, each write synced"
        measure "kvrocks, each write synced, -P 16" -P 16
        end
    fi
    for sync in durable relaxed; do
        serve "bench-$sync" $([ "$sync" = relaxed ] && echo --durability relaxed)
        measure "azekura $sync"
        measure "azekura $sync, -P 16" -P 16
        end
        rm -rf "$dir/bench-$sync"
    done
}

# spent PID: prints the microseconds of user and system time so far, and the voluntary and involuntary context
# switches.
spent() {
    awk -v tick="$(getconf CLK_TCK)" '{ print $14 * 1e6 / tick, $15 * 1e6 / tick }' "/proc/$1/stat"
    cat "/proc/$1/task"/*/status | awk '/^voluntary/ { own += $2 } /^nonvoluntary/ { forced += $2 }
        END { print own, forced }'
}

# flushed: prints the number of log flushes so far of the server on $port. Prints nothing for Redis, for which
# calls of fdatasync are counted.
flushed() { redis-cli -p "$port" info persistence | tr -d '\r' | sed -n 's/^log_flushes://p'; }

# cost NAME PID TEST OPTIONS...: runs a test against the server on $port, and prints a line with the cost of a
# request.
cost() {
    local name=$1 pid=$2 test=$3 before after counts="" counter="" flushes
    local events=instructions:u,instructions:k sync=syscalls:sys_enter_fdatasync
    shift 3
    if perf stat -e "$events" true 2>/dev/null >&2; then
        perf stat -e "$sync" true 2>/dev/null >&2 && events+=,$sync
        perf stat -x, -e "$events" -p "$pid" -o "$dir/counts" &
        counter=$!
        sleep 0.2
    fi
    flushes=$(flushed)
    before=$(spent "$pid" | tr '\n' ' ')
    TIMEFORMAT='%U %S'
    { time redis-benchmark -p "$port" -t "$test" -n "${REQUESTS:-200000}" -c "${CLIENTS:-50}" -r 1000000 \
        "$@" --csv >"$dir/rate" 2>&1; } 2>"$dir/client"
    after=$(spent "$pid" | tr '\n' ' ')
    [ -z "$flushes" ] || flushes=$(($(flushed) - flushes))
    if [ -n "$counter" ]; then
        kill -INT "$counter"
        wait "$counter" || true
        counts=$(awk -F, '/instructions/ { printf "%s ", $1 }' "$dir/counts")
        [ -n "$flushes" ] || flushes=$(awk -F, '/fdatasync/ { print $1 }' "$dir/counts")
    fi
    tr -d '"' <"$dir/rate" | awk -F, -v name="$name" -v test="$test" -v before="$before" -v after="$after" \
        -v counts="$counts" \
        -v client="$(tail -n 1 "$dir/client")" -v flushes="${flushes:-0}" -v n="${REQUESTS:-200000}" '
        $1 != "test" && NF > 2 { rate = $2 }
        END {
            split(before, b, " "); split(after, a, " "); split(counts, i, " "); split(client, c, " ")
            printf "%-34s%-5s%10d%8.2f%8.2f%8.2f%8.2f%8.3f%8.3f", name, test, rate, (a[1] - b[1]) / n,
                (a[2] - b[2]) / n, c[1] * 1e6 / n, c[2] * 1e6 / n,
                (a[3] - b[3]) / n, (a[4] - b[4]) / n
            # A smaller number of flushes comes from background work, not from these requests.
            if (1000 * flushes > n) printf "%8.1f", n / flushes
            else printf "%8s", "-"
            if (counts != "") printf "%9.0f%9.0f", i[1] / n, i[2] / n
            print ""
        }'
}

costs() {
    have redis-benchmark && have redis-server || return 0
    local run test
    redis costs always
    local redis_port=$port redis_pid=${pids[-1]}
    # shellcheck disable=SC2086
    serve costs-azekura ${SERVE:-}
    local own_port=$port own_pid=${pids[-1]}
    echo "per request: µs of user and system time, switches (own, forced), requests per flush of the log," \
        "instructions (user, kernel); ${CLIENTS:-50} clients, load $(cut -d' ' -f1 /proc/loadavg)"
    printf '%-39s%10s%16s%16s%16s%8s%18s\n' \
        "" "per second" "server" "client" "switches" "grouped" "instructions"
    for run in $(seq "${RUNS:-3}"); do
        for test in ${TESTS:-set get}; do
            port=$redis_port
            cost "redis appendfsync always" "$redis_pid" "$test" "$@"
            port=$own_port
            cost "azekura" "$own_pid" "$test" "$@"
        done
    done
}

# median: prints the median of the numbers on standard input, one per line.
median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

# Prints a line for each client, with the median of its runs at each server.
ceiling() {
    have redis-benchmark && have redis-server || return 0
    local light=${LIGHT:-$(dirname "$azekura")/examples/light} n=${REQUESTS:-50000} run client name
    [ -x "$light" ] || { say "skipped: no $light here"; return 0; }
    local -A ports
    redis ceiling always
    ports[redis]=$port
    # shellcheck disable=SC2086
    serve ceiling-azekura ${SERVE:-}
    ports[azekura]=$port
    mkfifo "$dir/hold"
    "$light" nothing 127.0.0.1:0 <"$dir/hold" >"$dir/nothing.out" &
    pids+=($!)
    exec 9>"$dir/hold"
    for _ in $(seq 1200); do
        ports[nothing]=$(sed -n 's/^serving .*:\([0-9]*\)$/\1/p' "$dir/nothing.out")
        [ -n "${ports[nothing]}" ] && break
        sleep 0.05
    done
    for run in $(seq "${RUNS:-5}"); do
        for client in benchmark light "light -P 16"; do
            for name in redis azekura nothing; do
                port=${ports[$name]}
                case $client in
                benchmark) redis-benchmark -p "$port" -t set -n "$n" -c "${CLIENTS:-50}" -r 1000000 --csv \
                    2>/dev/null | tail -n 1 | cut -d, -f2 | tr -d '"' ;;
                light) "$light" load "127.0.0.1:$port" --requests "$n" --clients "${CLIENTS:-50}" ;;
                *) "$light" load "127.0.0.1:$port" --requests $((3 * n)) --clients "${CLIENTS:-50}" \
                    --pipeline 16 ;;
                esac >>"$dir/rates-$client-$name"
            done
        done
    done
    printf '%-34s%10s%10s%10s%18s%18s   durable SETs per second, median of %s, %s clients, load %s\n' \
        "client" redis azekura nothing "azekura/redis" "nothing/redis" "${RUNS:-5}" "${CLIENTS:-50}" \
            "$(cut -d' ' -f1 /proc/loadavg)"
    for client in benchmark light "light -P 16"; do
        local rates=$dir/rates-$client
        printf '%-34s%10.0f%10.0f%10.0f%18s%18s\n' "${client/benchmark/redis-benchmark}" \
            "$(median <"$rates-redis")" "$(median <"$rates-azekura")" "$(median <"$rates-nothing")" \
            "$(paste -d' ' "$rates-redis" "$rates-azekura" | awk '{ print $2 / $1 }' | median)" \
            "$(paste -d' ' "$rates-redis" "$rates-nothing" | awk '{ print $2 / $1 }' | median)"
    done
}

# Under valgrind, the server's threads run one at a time, and about thirty times slower. So the share of work
# that depends on time (cleaning, checkpoints) is larger than usual.
functions() {
    have redis-benchmark && have valgrind && have callgrind_control || return 0
    local test pid n=${REQUESTS:-15000} number=0
    mkdir "$dir/counts"
    # shellcheck disable=SC2086
    valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$dir/counts/out" "$azekura" serve \
        "$dir/counted" --listen 127.0.0.1:0 ${SERVE:-} \
        >"$dir/counted.out" 2>"$dir/counted.err" </dev/null &
    pids+=($!)
    pid=$!
    for _ in $(seq 600); do
        port=$(sed -n 's/^serving .*:\([0-9]*\)$/\1/p' "$dir/counted.out")
        [ -n "$port" ] && break
        sleep 0.1
    done
    [ -n "$port" ] || fail "the server does not start: $(tail -n 5 "$dir/counted.err")"
    redis-benchmark -p "$port" -t set -n 20000 -c "${CLIENTS:-50}" -r 1000000 --csv >/dev/null 2>&1
    for test in ${TESTS:-set get}; do
        number=$((number + 1))
        callgrind_control -i on "$pid" >/dev/null 2>&1
        redis-benchmark -p "$port" -t "$test" -n "$n" -c "${CLIENTS:-50}" -r 1000000 --csv >/dev/null 2>&1
        callgrind_control -i off "$pid" >/dev/null 2>&1
        callgrind_control -d "$pid" >/dev/null 2>&1
        for _ in $(seq 100); do
            grep -q '^totals' "$dir/counts/out.$number" 2>/dev/null && break
            sleep 0.1
        done
        say "$test: instructions per request, each function with what it calls:"
        callgrind_annotate --auto=no --inclusive=yes --threshold=100 "$dir/counts/out.$number" 2>/dev/null |
            awk -v n="$n" -v top="${TOP:-40}" '
            /PROGRAM TOTALS/ { gsub(",", "", $1); printf "%8d  in all\n", $1 / n }
            /^ *[0-9,]+ \( *[0-9.]+%\)/ && !/PROGRAM TOTALS/ {
                count = $1
                gsub(",", "", count)
                sub(/^ *[0-9,]+ \( *[0-9.]+%\) */, "")
                sub(/^[^:]*:/, "")
                sub(/ \[[^]]*\]$/, "")
                sub(/\047[0-9]+$/, "")
                if (/azekura/ && !seen[$0]++ && shown++ < top) printf "%8d  %s\n", count / n, $0
            }'
    done
}

# The servers run at the same time, but only one of them receives requests at a time.
ycsb() {
    local addresses sync
    serve ycsb
    addresses=127.0.0.1:$port
    nodes ycsb-cluster
    addresses+=,$doors
    if have redis-server && have redis-cli; then
        for sync in always everysec; do
            redis "redis-$sync" "$sync"
            addresses+=,127.0.0.1:$port
        done
    fi
    if have kvrocks && have redis-cli; then
        kvrocks_server kvrocks
        addresses+=,127.0.0.1:$port
    fi
    # shellcheck disable=SC2086
    "${LAB:-$(dirname "$azekura")/azekura-lab}" kv --workload ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f \
        --threads "${CLIENTS:-50}" --records "${RECORDS:-100000}" \
        --seconds "${SECONDS_EACH:-2}" --runs "${RUNS:-3}" --resp "$addresses" ${OPTIONS:-}
}

case "$mode" in
bench) compare ;;
costs) costs ;;
ceiling) ceiling ;;
functions) functions ;;
ycsb) ycsb ;;
check)
    serve db
    cli
    python
    benchmark
    ;;
esac
