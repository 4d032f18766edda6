#!/usr/bin/env bash
# Tests a cluster of four nodes, each in a network namespace of its own, while nodes are killed with SIGKILL,
# links are cut and leaves move. At half time the last node leaves the cluster: this is refused while another
# node is down, and succeeds when all nodes run again. Then its process is killed and its store deleted.
#
# Clients at every node write all the time: single keys, and pairs of keys in interactive transactions
# (AZ.BEGIN … AZ.COMMIT). At the end, every node must find each key with an acknowledged write, once and in
# order. Of each pair it must find both keys or neither: both if the commit was acknowledged, neither if it
# was refused, either if its outcome is unknown.
#
#   scripts/cluster-namespaces.sh [AZEKURA]        target/release/azekura unless given
#
# ROUNDS is the number of faults (default: 6). SEED repeats the choices of a run, but not their times. Needs
# root and `ip netns` (iproute2); without them, the script prints a note and succeeds. It removes its
# namespaces and processes at the end. Exit code 0: no write was lost.
set -euo pipefail
export LC_ALL=C

azekura=$(realpath "${1:-$(dirname "$0")/../target/release/azekura}")
[ -x "$azekura" ] || { echo "no command $azekura: cargo build --release -p azekura-cli" >&2; exit 2; }
rounds=${ROUNDS:-6} seed=${SEED:-$RANDOM}
RANDOM=$seed
skip() { echo "skipped: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "no ip here (iproute2)"

tag=azk$$
ip netns add "$tag-hub" 2>/dev/null || skip "this kernel or container gives no network namespaces"
dir=$(mktemp -d "${TMPDIR:-/tmp}/cluster-namespaces.XXXXXX")
declare -A node=()
writers=()
cleanup() {
    local pid n
    touch "$dir/over"
    for pid in "${node[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    for pid in "${writers[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for n in 0 1 2 3 hub; do ip netns del "$tag-$n" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT
fail() {
    echo "FAILED (SEED=$seed): $*" >&2
    tail -n 5 "$dir"/node-*.log >&2 || true
    exit 1
}

# The network: a bridge in a namespace of its own, and a link to each node.
ip -n "$tag-hub" link add bridge type bridge 2>/dev/null || skip "this kernel has no bridges"
ip -n "$tag-hub" link set bridge up
for n in 0 1 2 3; do
    ip netns add "$tag-$n"
    ip -n "$tag-hub" link add "to$n" type veth peer name eth0 netns "$tag-$n"
    ip -n "$tag-hub" link set "to$n" master bridge up
    ip -n "$tag-$n" addr add "10.77.0.$((n + 1))/24" dev eth0
    ip -n "$tag-$n" link set eth0 up
    ip -n "$tag-$n" link set lo up
done

echo "a password for this run only" >"$dir/password"
head -c 32 /dev/urandom | base64 >"$dir/cluster.key"
members=(0 1 2 3)
from=("" h n t)

# list VERSION: writes the list of members, with the nodes that have left marked; replaces the old list
# atomically.
list() {
    local n
    {
        printf 'cluster = "00000000000077a7"\nkey_file = "cluster.key"\nversion = %s\n' "$1"
        for n in 0 1 2 3; do
            printf '[[node]]\nid = %s\nfrom = "%s"\n' "$n" "${from[$n]}"
            printf 'address = "10.77.0.%s:7100"\nclients = "10.77.0.%s:6379"\n' "$((n + 1))" "$((n + 1))"
            case " ${members[*]} " in *" $n "*) ;; *) echo 'left = true' ;; esac
        done
    } >"$dir/cluster.new"
    mv "$dir/cluster.new" "$dir/cluster.toml"
}
list 1

start() { # start N
    ip netns exec "$tag-$1" "$azekura" serve "$dir/node-$1.db" --cache 16M --cluster "$dir/cluster.toml" \
        --node "$1" \
        --auth "$dir/password" >>"$dir/node-$1.log" 2>&1 &
    node[$1]=$!
}

# ask N SECONDS REQUEST: sends one request to node N from its namespace, and prints the first line of the
# reply.
ask() {
    timeout "$2" ip netns exec "$tag-$1" bash -c '
        exec 3<>"/dev/tcp/10.77.0.$(($1 + 1))/6379" || exit 1
        printf "AUTH \"%s\"\r\n%s\r\n" "$(cat "$2")" "$3" >&3
        read -r ok <&3 && read -r reply <&3 && printf "%s\n" "${reply%$'"'\r'"'}"' _ "$1" "$dir/password" \
            "$3" 2>/dev/null
}

wait_for() { # wait_for N: until it takes requests for keys of every node
    local key
    for key in a k z; do
        for _ in $(seq 600); do
            case $(ask "$1" 20 "EXISTS $key" || true) in :*) continue 2 ;; esac
            sleep 0.2
        done
        fail "node $1 does not come to know $key"
    done
}

# write N: runs a client at node N until the end of the test. Prints each key with an acknowledged write.
write() {
    ip netns exec "$tag-$1" bash -c '
        letters=abcdefghijklmnopqrstuvwxyz number=0
        while [ ! -e "$2/over" ]; do
            { exec 3<>"/dev/tcp/10.77.0.$(($1 + 1))/6379"; } 2>/dev/null || { sleep 0.1; continue; }
            printf "AUTH \"%s\"\r\n" "$(cat "$2/password")" >&3
            read -r -t 20 reply <&3 || continue
            while [ ! -e "$2/over" ]; do
                number=$((number + 1))
                key=${letters:$((number * 7 % 26)):1}$1.$number
                printf "SET %s %s\r\n" "$key" "$number" >&3 2>/dev/null || break
                read -r -t 20 reply <&3 || break
                case $reply in +OK*) echo "$key $number" ;; esac
            done
            exec 3>&-
        done' _ "$1" "$dir" >"$dir/acked.$1" 2>/dev/null
}

# transact N: runs a client at node N that writes two keys in each transaction, until the end of the test.
# Prints each pair and the outcome of its commit: yes, no (refused or rolled back), or unknown.
transact() {
    ip netns exec "$tag-$1" bash -c '
        letters=abcdefghijklmnopqrstuvwxyz number=0
        say() { printf "%s\r\n" "$1" >&3 2>/dev/null && read -r -t 20 reply <&3; }
        while [ ! -e "$2/over" ]; do
            { exec 3<>"/dev/tcp/10.77.0.$(($1 + 1))/6379"; } 2>/dev/null || { sleep 0.1; continue; }
            say "AUTH \"$(cat "$2/password")\"" || continue
            while [ ! -e "$2/over" ]; do
                number=$((number + 1))
                key=${letters:$((number * 11 % 26)):1}t$1.$number
                echo "$key begun"
                say AZ.BEGIN || break
                case $reply in +OK*) ;; *) continue ;; esac
                is_open=1
                for half in a b; do
                    say "SET $key.$half $number" || break 2
                    case $reply in +OK*) ;; *) is_open=0 ;; esac
                done
                [ $((number % 50)) = 0 ] && sleep 1 # it is thought about, while leaves move
                if [ $is_open = 0 ]; then say AZ.ABORT || break; continue; fi
                printf "AZ.COMMIT\r\n" >&3 2>/dev/null || { echo "$key unknown"; break; }
                read -r -t 20 reply <&3 || { echo "$key unknown"; break; }
                case $reply in
                    +OK*) echo "$key yes" ;;
                    -RETRY*) echo "$key no" ;;
                    *) echo "$key unknown" ;;
                esac
            done
            exec 3>&-
        done' _ "$1" "$dir" >"$dir/pairs.$1" 2>/dev/null
}

# any: prints one of the members.
any() { echo "${members[RANDOM % ${#members[@]}]}"; }

# crash N: kills the process of node N.
crash() {
    kill -9 "${node[$1]}"
    wait "${node[$1]}" 2>/dev/null || true
    unset "node[$1]"
}

# leave N OTHER: node N leaves the cluster; this must be refused while node OTHER does not run.
leave() {
    local reply m
    crash "$2"
    for _ in 1 2 3; do
        reply=$(ask "$1" 60 "AZ.CLUSTER LEAVE VERSION 1" || true)
        echo "node $1 leaves while node $2 does not run: $reply"
        [ -z "$reply" ] || break
    done
    case $reply in -*) ;; *) fail "that was to be refused" ;; esac
    start "$2"
    for m in "${members[@]}"; do wait_for "$m"; done
    for _ in $(seq 20); do
        reply=$(ask "$1" 60 "AZ.CLUSTER LEAVE VERSION 1" || true)
        echo "node $1 leaves: $reply"
        [ "$reply" = +OK ] && break
        sleep 1
    done
    [ "$reply" = +OK ] || fail "node $1 does not get away"
    crash "$1"
    rm -rf "$dir/node-$1.db"
    members=(0 1 2)
    list 2
    for m in "${members[@]}"; do
        reply=$(ask "$m" 20 "AZ.CLUSTER RELOAD" || true)
        [ "$reply" = +OK ] || fail "node $m does not take the new list: $reply"
    done
}

for n in "${members[@]}"; do start "$n"; done
for n in "${members[@]}"; do wait_for "$n"; done
for n in "${members[@]}"; do
    write "$n" & writers+=($!)
    transact "$n" & writers+=($!)
done
echo "four nodes, $rounds faults, SEED=$seed"
for round in $(seq "$rounds"); do
    [ "$round" != $(((rounds + 1) / 2)) ] || leave 3 "$((RANDOM % 3))"
    n=$(any) letter=$(printf "\\$(printf %o $((97 + RANDOM % 26)))")
    echo "move of $letter to node $n: $(ask "$(any)" 20 "AZ.CLUSTER MOVE $letter $n" || echo "no answer")"
    n=$(any)
    if [ $((round % 2)) = 1 ]; then
        echo "kill -9 of node $n"
        crash "$n"
        sleep 0.5
        start "$n"
    else
        echo "link of node $n cut for 4 seconds"
        ip -n "$tag-hub" link set "to$n" down
        sleep 4
        ip -n "$tag-hub" link set "to$n" up
    fi
    for m in "${members[@]}"; do wait_for "$m"; done
done
touch "$dir/over"
for pid in "${writers[@]}"; do
    # Each client ends after its last reply, for which it waits at most 20 seconds.
    wait "$pid" || true
done
writers=()

sort "$dir"/acked.* >"$dir/acked"
count=$(wc -l <"$dir/acked")
cat "$dir"/pairs.* >"$dir/pairs"
committed=$(grep -c ' yes$' "$dir/pairs" || true) unknown=$(grep -c ' unknown$' "$dir/pairs" || true)
[ "$committed" -gt 0 ] || fail "no transaction was committed"
[ "$count" -gt 0 ] || fail "no write was answered"
for n in "${members[@]}"; do
    # The walk is refused while a leaf moves, or while a node of a busy machine does not answer in time.
    for _ in $(seq 60); do
        timeout 60 ip netns exec "$tag-$n" bash -c '
            exec 3<>"/dev/tcp/10.77.0.$(($1 + 1))/6379"
            printf "AUTH \"%s\"\r\nAZ.RANGE - +\r\nQUIT\r\n" "$(cat "$2")" >&3
            cat <&3' _ "$n" "$dir/password" | tr -d '\r' >"$dir/walk" || true
        reply=$(sed -n 2p "$dir/walk")
        case $reply in \**) [ "$(tail -n 1 "$dir/walk")" != +OK ] || break ;; esac
        sleep 1
    done
    case $reply in \**) ;; *) fail "node $n does not walk: $reply" ;; esac
    awk '/^\*/ {rows = 1; next} !rows || /^[$+]/ {next} {if (at++ % 2) print key, $0; else key = $0}' \
        "$dir/walk" >"$dir/found.$n"
    sort -c -u -k1,1 "$dir/found.$n" || fail "node $n: a key twice, or out of order"
    lost=$(sort "$dir/found.$n" | comm -23 "$dir/acked" - | head -n 3)
    [ -z "$lost" ] || fail "node $n does not find what was answered: $lost"
    # The last line of a pair has its outcome. A pair without a commit request must not be found.
    wrong=$(awk 'NR == FNR {came[$1] = $2; next}
        match($1, /\.[ab]$/) {there[substr($1, 1, length($1) - 2)]++}
        END {for (pair in came) {
            halves = there[pair] + 0
            if (halves == 1) print pair, "is half there"
            if (came[pair] == "yes" && halves != 2) print pair, "was committed, and is not there"
            if ((came[pair] == "no" || came[pair] == "begun") && halves > 0) {
                print pair, "was not committed, and is there"
            }
        }}' "$dir/pairs" "$dir/found.$n" | head -n 3)
    [ -z "$wrong" ] || fail "node $n: $wrong"
done
echo "$count answered writes, all found from every node, in order"
echo "$committed transactions committed, $unknown of unknown outcome, none half there"
