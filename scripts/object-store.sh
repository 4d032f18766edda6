#!/usr/bin/env bash
# Backs up to an S3 server and restores from it, while the command and the server are killed:
#   scripts/object-store.sh --install     builds MinIO, an S3 server, into target/tools (Go, network)
#   scripts/object-store.sh AZEKURA       runs the checks; AZEKURA is a command with the feature object-store
# Needs curl 7.75 or newer. MINIO names another MinIO program. The server listens on 127.0.0.1 and stores its
# files in a scratch directory.
set -euo pipefail
cd "$(dirname "$0")/.."
version=latest
if [ "${1:-}" = --install ]; then
    mkdir -p target/tools
    GOBIN=$PWD/target/tools GOFLAGS=-modcacherw exec go install "github.com/minio/minio@$version"
fi
azekura=$(realpath "$1")
minio=$(realpath "${MINIO:-target/tools/minio}")
scratch=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then kill -9 "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi
    server=
}
trap 'stop; rm -rf "$scratch"' EXIT
cd "$scratch"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AWS_ACCESS_KEY_ID=tester AWS_SECRET_ACCESS_KEY=not-a-secret AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:$port

start() { # start the server, and wait until it answers
    MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY \
        MINIO_BROWSER=off MINIO_UPDATE=off \
        "$minio" server --quiet --address "127.0.0.1:$port" "$scratch/objects" >>minio.log 2>&1 &
    server=$!
    for _ in $(seq 600); do
        if curl -sf "$AWS_ENDPOINT_URL/minio/health/live"; then return; fi
        sleep 0.1
    done
    cat minio.log
    exit 1
}

s3() { # s3 METHOD PATH: one request, signed
    curl -sS -X "$1" --aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" \
        "$AWS_ENDPOINT_URL/$2"
}

fails() { # fails TEXT COMMAND...: the command ends with exit code 1 and this text on stderr
    local text=$1 code=0
    shift
    "$@" >out.txt 2>err.txt || code=$?
    if [ "$code" != 1 ] || ! grep -qF -- "$text" err.txt; then
        echo "exit code $code, expected 1 and \"$text\": $*"
        cat out.txt err.txt
        exit 1
    fi
    echo "refused: $(cut -c1-200 err.txt)"
}

# Counts the uploads that were begun and not completed. MinIO lists those of one object only.
begun_uploads() { s3 GET "backups?prefix=killed%2Fbackup.azk&uploads=" | grep -o '<UploadId>' | wc -l; }

start
s3 PUT backups
python3 -c '
import random
random.seed(1)
for n in range(60000):
    print(f"key{n:08}\t{random.randbytes(400).hex()}")' >rows.tsv
"$azekura" load db rows rows.tsv

echo "== the same rows again, in parts, and from increments"
"$azekura" backup db s3://backups/monday --verify
"$azekura" restore s3://backups/monday monday --verify
cmp <("$azekura" dump db rows) <("$azekura" dump monday rows)
"$azekura" put db rows key00000007 new
"$azekura" backup db s3://backups/tuesday --incremental s3://backups/monday
"$azekura" restore s3://backups/tuesday tuesday --base s3://backups/monday --verify
cmp <("$azekura" dump db rows) <("$azekura" dump tuesday rows)
"$azekura" restore s3://backups/monday --dry-run
"$azekura" put small rows key value
"$azekura" backup small s3://backups/a/b/small --verify
"$azekura" put other rows key value --archive small-log

echo "== a log archive that is copied while the store is written, and restores to a time"
mkdir log
"$azekura" put logged rows key first --archive log
"$azekura" backup logged s3://backups/logged --archive log
"$azekura" archive log s3://backups/log --follow &
child=$!
"$azekura" put logged rows key second --archive log
sleep 0.1
time=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ)
sleep 0.1
"$azekura" put logged rows key third --archive log
for _ in $(seq 60); do # until the last change is copied
    rm -rf newest
    if "$azekura" restore s3://backups/logged newest --archive s3://backups/log --verify &&
        [ "$("$azekura" get newest rows key)" = third ]; then break; fi
    sleep 1
done
kill $child
wait $child 2>/dev/null || true
[ "$("$azekura" get newest rows key)" = third ]
"$azekura" restore s3://backups/logged then --archive s3://backups/log --to-time "$time"
[ "$("$azekura" get then rows key)" = second ]
"$azekura" archive log s3://backups/log
fails 's3://backups/log/log-' "$azekura" archive small-log s3://backups/log
fails 's3://backups/nothing/log-*.azk does not exist' \
    "$azekura" restore s3://backups/logged new --archive s3://backups/nothing
if "$azekura" put logged rows key value --archive s3://backups/log 2>err.txt; then exit 1; fi
grep -F 'name a directory' err.txt

echo "== refusals name the object"
fails 's3://backups/monday/backup.azk exists already' "$azekura" backup db s3://backups/monday
fails 's3://backups/a/b/small/backup.azk exists already' "$azekura" backup small s3://backups/a/b/small
fails 's3://backups/sunday/backup.azk does not exist' "$azekura" restore s3://backups/sunday new
fails 's3://no-such-bucket/x/backup.azk' "$azekura" backup db s3://no-such-bucket/x
fails 's3://backups/x/backup.azk' env AWS_SECRET_ACCESS_KEY=wrong "$azekura" backup db s3://backups/x
fails 's3://backups/x/backup.azk' env AWS_ENDPOINT_URL=http://127.0.0.1:9 "$azekura" backup db s3://backups/x

echo "== killed uploads leave no backup, and the next backup to the same place succeeds"
for round in 1 2 3; do
    "$azekura" backup db s3://backups/killed --rate 4M >/dev/null 2>&1 &
    child=$!
    for _ in $(seq 1200); do # until its upload has begun
        if [ "$(begun_uploads)" -ge "$round" ]; then break; fi
        sleep 0.05
    done
    kill -9 $child
    wait $child 2>/dev/null || true
    fails 's3://backups/killed/backup.azk does not exist' "$azekura" restore s3://backups/killed new
done
"$azekura" backup db s3://backups/killed --verify
echo "uploads that the kills left to the bucket's rules: $(begun_uploads)"

echo "== a server that is killed and comes back, and one that does not"
"$azekura" backup db s3://backups/outage --rate 24M >out.txt 2>err.txt &
child=$!
sleep 1.5
stop
sleep 1
start
if wait $child; then cat out.txt; else cat err.txt; exit 1; fi
"$azekura" restore s3://backups/outage outage --verify
cmp <("$azekura" dump db rows) <("$azekura" dump outage rows)
"$azekura" backup db s3://backups/gone --rate 4M >out.txt 2>err.txt & # takes 12 s
child=$!
sleep 5
stop
if wait $child; then echo "a backup without a server succeeded"; exit 1; fi
grep -F s3://backups/gone/backup.azk err.txt
start
fails 's3://backups/gone/backup.azk does not exist' "$azekura" restore s3://backups/gone new

echo "== memory: a backup has a few parts in memory, not the whole"
"$azekura" backup db s3://backups/measured --rate 24M &
child=$!
peak=0
while kill -0 $child 2>/dev/null; do
    now=$(awk '/^VmHWM/ {print $2}' /proc/$child/status 2>/dev/null || true)
    if [ "${now:-0}" -gt "$peak" ]; then peak=$now; fi
    sleep 0.05
done
wait $child
echo "peak $((peak / 1024)) MiB"
echo "object stores: all checks passed"
