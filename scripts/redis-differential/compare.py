"""Sends the same random commands to Redis and to Azekura, and compares the replies byte for byte.

usage: compare.py REDIS_SOCKET AZEKURA_PORT COMMANDS SEED
"""

import random
import re
import socket
import sys
from pathlib import Path

from commands import Generator, shown

BATCH = 40
SHOWN_DIFFERENCES = 10
# The two servers are read at slightly different times. A busy machine may stop one of them for seconds.
TIME_TOLERANCE = {b"ttl": 60, b"pttl": 60000, b"expiretime": 60, b"pexpiretime": 60000}


class Connection:
    """A connection that sends pipelines and returns each reply as its bytes."""

    def __init__(self, address):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.connect(address)
        self.socket.settimeout(60)
        self.stream = self.socket.makefile("rb")

    def send(self, requests):
        parts = []
        for request in requests:
            parts.append(b"*%d\r\n" % len(request))
            parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in request]
        self.socket.sendall(b"".join(parts))

    def reply(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection ended")
        kind, rest = line[:1], line[1:-2]
        if kind in b"$=" and rest != b"-1":
            return line + self.stream.read(int(rest) + 2)
        if kind in b"*%~" and rest != b"-1":
            count = int(rest) * (2 if kind == b"%" else 1)
            return line + b"".join(self.reply() for _ in range(count))
        return line


def end_of(reply, at):
    """Where the reply that begins at a place ends."""
    end = reply.index(b"\r\n", at) + 2
    kind, rest = reply[at:at + 1], reply[at + 1:end - 2]
    if kind in b"$=" and rest != b"-1":
        return end + int(rest) + 2
    if kind in b"*%~" and rest != b"-1":
        for _ in range(int(rest) * (2 if kind == b"%" else 1)):
            end = end_of(reply, end)
    return end


def elements(reply):
    """The elements of an array, each as its bytes."""
    items, at = [], reply.index(b"\r\n") + 2
    while at < len(reply):
        end = end_of(reply, at)
        items.append(reply[at:end])
        at = end
    return items


def split_array(reply):
    """The strings of an array of bulk strings."""
    return [item.split(b"\r\n", 1)[1][:-2] for item in elements(reply)]


class Differences:
    """The stated differences: lines `REQUEST => REDIS => AZEKURA`, a regular expression for each part."""

    def __init__(self):
        self.rules = []
        for line in Path(__file__).with_name("differences.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                request, redis, azekura = (part.strip() for part in line.split(" => "))
                self.rules.append((*(re.compile(p, re.DOTALL) for p in (request, redis, azekura)), [0]))

    def allow(self, request, redis, azekura):
        texts = (shown(request), redis.decode("latin-1").strip(), azekura.decode("latin-1").strip())
        for *patterns, used in self.rules:
            if all(pattern.fullmatch(text) for pattern, text in zip(patterns, texts)):
                used[0] += 1
                return True
        return False


def same(request, redis, azekura):
    """Whether the replies say the same."""
    if redis == azekura:
        return True
    if redis[:1] == azekura[:1] == b"-":
        # Azekura's error messages are text: bytes of a request that are not UTF-8 appear as replacement
        # characters.
        return redis.decode("utf-8", "replace") == azekura.decode("utf-8", "replace")
    name = request[0].lower() if request else b""
    if name in TIME_TOLERANCE and redis[:1] == azekura[:1] == b":":
        return abs(int(redis[1:]) - int(azekura[1:])) <= TIME_TOLERANCE[name]
    if name == b"keys" and redis[:1] == azekura[:1] == b"*":
        return sorted(split_array(redis)) == sorted(split_array(azekura))
    return False


def scan_all(connection, count):
    """The keys that a complete scan returns."""
    cursor, keys = b"0", []
    while True:
        connection.send([[b"SCAN", cursor, b"COUNT", b"%d" % count]])
        reply = connection.reply()
        _, _, cursor, rest = reply.split(b"\r\n", 3)
        keys += split_array(rest)
        if cursor == b"0":
            return sorted(set(keys))


def main():
    redis_address, port, total, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    print(f"seed {seed}")
    chance = random.Random(seed)
    generator, differences = Generator(chance), Differences()
    pairs = [[Connection(redis_address), Connection(("127.0.0.1", port))] for _ in range(3)]
    # One of the connections uses version 3 of the protocol.
    for connection in pairs[1]:
        connection.send([[b"HELLO", b"3"]])
        connection.reply()
    history, found, sent = [], 0, 0
    queues = [[] for _ in pairs]
    while sent < total and found < SHOWN_DIFFERENCES:
        number = chance.randrange(len(pairs))
        pair = pairs[number]
        batch = [generator.command(number) for _ in range(chance.randint(1, BATCH))]
        for connection in pair:
            connection.send(batch)
        for request in batch:
            redis, azekura = (connection.reply() for connection in pair)
            generator.note(number, request, redis)
            history.append((number, request, redis, azekura))
            for difference in compared(request, redis, azekura, queues[number]):
                if not same(*difference) and not differences.allow(*difference):
                    found += 1
                    report(history, difference)
            if not generator.in_multi(number):
                queues[number] = []
            elif redis == b"+QUEUED\r\n":
                queues[number].append(request)
        del history[:-400]
        sent += len(batch)
        if chance.random() < 0.01 and not generator.in_multi(2):
            counts = chance.randint(1, 20), chance.randint(1, 20)
            keys = [scan_all(connection, count) for connection, count in zip(pairs[2], counts)]
            if keys[0] != keys[1]:
                found += 1
                print(f"DIFFERENT: SCAN finds {keys[0]} and {keys[1]}")
    unused = [pattern.pattern for pattern, _, _, used in differences.rules if used[0] == 0]
    print(f"{sent} commands, {found} differences; stated differences that did not occur: {unused}")
    sys.exit(1 if found else 0)


def compared(request, redis, azekura, queue):
    """The replies to compare: those of the queued requests for EXEC."""
    if request[:1] and request[0].lower() == b"exec" and redis[:1] == azekura[:1] == b"*" and queue:
        replies = elements(redis), elements(azekura)
        if len(replies[0]) == len(replies[1]) == len(queue):
            return list(zip(queue, *replies))
    return [(request, redis, azekura)]


def report(history, difference):
    request, redis, azekura = difference
    print(f"DIFFERENT: {shown(request)}\n  redis:   {redis[:300]!r}\n  azekura: {azekura[:300]!r}")
    key = request[1] if len(request) > 1 else None
    for n, earlier, *replies in [entry for entry in history[:-1] if key in entry[1][1:]][-12:]:
        print(f"    before, connection {n}: {shown(earlier)[:200]} {[reply[:60] for reply in replies]}")


main()
