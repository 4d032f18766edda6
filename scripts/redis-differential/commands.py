"""Random commands over few keys: well-formed, malformed, at the edges."""

from collections import Counter

KEYS = [b"a", b"b", b"c", b"d", b"e", b"f", b"", b"key with blank", b"\x00\xff\r\n", b"{h}1", b"{h}2",
        b"k" * 100]
INTEGERS = [b"0", b"1", b"-1", b"2", b"7", b"10", b"-10", b"100", b"9223372036854775807",
            b"-9223372036854775808"]
ODD_NUMBERS = [b"007", b"-0", b"+1", b" 1", b"1 ", b"", b"x", b"1.5", b"9223372036854775808", b"0x10", b"1e3",
               b"-9223372036854775809", b"99999999999999999999999", b"--1", b"\xff"]
FLOATS = [b"0.1", b"0.2", b"-0.3", b"1e5", b"3.0e3", b"1.0000000000000001", b"1e-17", b"5.", b".5", b"inf",
          b"-inf",
          b"nan", b"1e400", b"1e5000", b"0x1p3", b"1e20", b"17179869184.0000001", b"1 ", b" 1", b"-0.0",
          b"1e-20"]
TEXTS = [b"", b"hello", b"world", b"foobar", b"\x00\x01\xfe\xff", b"\xff\xff\xff", b"\x00\x00", b"x" * 45,
         b"x" * 44,
         b"a\r\nb", b"y" * 900]
JUNK = [b"foo", b"", b"NX", b"XX", b"GT", b"LT", b"GET", b"EX", b"PX", b"KEEPTTL", b"PERSIST", b"BIT",
        b"BYTE", b"0",
        b"1", b"-1", b"MATCH", b"COUNT", b"TYPE", b"REPLACE", b"DB", b"ASYNC", b"\xff"]
LONG_TIMES = [b"1000", b"5000", b"100000"]
# No key expires within seconds: it would expire at different moments of the two servers.
TIMES_MS = [time + b"000" for time in LONG_TIMES] + [b"0", b"-1", b"0000", b"9223372036854775807",
                                                     b"-9223372036854775808"]
TIMES = LONG_TIMES + [b"0", b"-1", b"9223372036854775807", b"9223372036854776", b"-9223372036854775808"]
FIELD_TYPES = [b"u1", b"i1", b"u4", b"i5", b"u8", b"i8", b"u16", b"i16", b"u31", b"i32", b"u63", b"i64"]
ODD_FIELD_TYPES = [b"u64", b"i65", b"u0", b"i", b"x8", b"I8", b"", b"8"]


def ends_soon(request):
    """Whether a request could let a key expire within moments, at another time at each server."""
    name, times = request[0].upper(), []
    if name in (b"EXPIRE", b"PEXPIRE", b"SETEX", b"PSETEX"):
        times = request[2:3]
    elif name in (b"SET", b"GETEX"):
        times = [time for word, time in zip(request, request[1:]) if word.upper() in (b"EX", b"PX")]
    return any(time.isdigit() and 0 < int(time) < 1000 for time in times)


# Azekura ends a connection after ten wrong logins.
MOST_WRONG_LOGINS = 5


def crc64(data):
    """The checksum of a serialized value."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


def payload(body, version=10):
    """A serialized value, as DUMP returns it."""
    bytes_ = body + version.to_bytes(2, "little")
    return bytes_ + crc64(bytes_).to_bytes(8, "little")


PAYLOADS = [payload(body) for body in [
    b"\x00\x05hello", b"\x00\x00", b"\x00\xc0\x85", b"\x00\xc1\x39\x30",
    b"\x00\xc2\x00\x00\x00\x80",
    b"\x00\x40\x64" + b"z" * 100, b"\x00\x80\x00\x00\x00\x03abc", b"\x00\x03123", b"\x00\x02-0",
    b"\x00\xc3\x05\x2c\x00x\xe0\x22\x00",
]] + [payload(b"\x00\x01a", 1), payload(b"\x00\x01a", 99), b"", b"short",
      b"\x00\x05hello\x0a\x00" + b"0" * 8]


def shown(request):
    """A request as text."""
    return " ".join(repr(argument)[2:-1] if argument else "''" for argument in request)


class Generator:
    def __init__(self, chance):
        self.chance = chance
        self.multi = {}
        self.wrong_logins = Counter()
        self.watching = set()

    def in_multi(self, connection):
        return self.multi.get(connection, False)

    def note(self, connection, request, reply):
        """Follows a connection in and out of MULTI by what Redis answers."""
        name = request[0].lower() if request else b""
        if name == b"multi" and reply == b"+OK\r\n":
            self.multi[connection] = True
        elif name == b"exec" or (name == b"discard" and b"wrong number" not in reply):
            self.multi[connection] = False
            self.watching.discard(connection)

    # Arguments

    def pick(self, *lists):
        return self.chance.choice(self.chance.choice(lists))

    def key(self):
        return self.chance.choice(KEYS)

    def number(self):
        if self.chance.random() < 0.1:
            return self.pick(ODD_NUMBERS)
        if self.chance.random() < 0.5:
            return b"%d" % self.chance.randint(-20, 60)
        return self.pick(INTEGERS)

    def float(self):
        return self.pick(FLOATS, INTEGERS, ODD_NUMBERS)

    def value(self):
        return self.pick(TEXTS, TEXTS, INTEGERS, ODD_NUMBERS, FLOATS)

    def offset(self):
        """A place in a string: no value becomes large."""
        if self.chance.random() < 0.1:
            return self.pick(ODD_NUMBERS)
        return b"%d" % self.chance.choice([0, 1, 2, 7, 8, 9, 15, 31, 100, 1000, 5000, -1, -2, -9])

    def options(self, *choices):
        found = []
        while self.chance.random() < 0.45:
            found += self.chance.choice(choices)()
        if self.chance.random() < 0.04:
            found.append(self.pick(JUNK))
        return found

    def words(self, *words):
        return lambda: [self.chance.choice(words)]

    def end(self):
        now = 1_900_000_000 + self.chance.randint(0, 1000)
        return self.chance.choice([
            lambda: [b"EX", self.chance.choice(TIMES)],
            lambda: [b"PX", self.chance.choice([b"1000000", b"0", b"-5", b"x"])],
            lambda: [b"EXAT", self.chance.choice([b"%d" % now, b"0", b"-1"])],
            lambda: [b"PXAT", self.chance.choice([b"%d" % (now * 1000), b"0", b"9223372036854775807"])],
        ])()

    def keys(self, least=1):
        return [self.key() for _ in range(self.chance.randint(least, 4))]

    # Commands

    def well_formed(self):
        key, value, number = self.key, self.value, self.number
        c = self.chance
        table = [
            (8, lambda: [b"SET", key(), value(), *self.options(
                self.words(b"NX", b"XX", b"GET", b"KEEPTTL", b"nx"), self.end)]),
            (6, lambda: [b"GET", key()]),
            (2, lambda: [b"GETEX", key(), *self.options(self.words(b"PERSIST"), self.end)]),
            (2, lambda: [c.choice([b"GETDEL", b"STRLEN", b"TYPE", b"PERSIST", b"TTL", b"PTTL", b"EXPIRETIME",
                                   b"PEXPIRETIME"]), key()]),
            (2, lambda: [c.choice([b"GETSET", b"SETNX", b"APPEND"]), key(), value()]),
            (2, lambda: [c.choice([b"SETEX", b"PSETEX"]), key(), c.choice(LONG_TIMES) + b"000", value()]),
            (1, lambda: [c.choice([b"SETEX", b"PSETEX"]), key(), c.choice([b"0", b"-1", b"x"]), value()]),
            (2, lambda: [b"MGET", *self.keys()]),
            (2, lambda: [c.choice([b"MSET", b"MSETNX"]), *[x for k in self.keys() for x in (k, value())]]),
            (4, lambda: [c.choice([b"INCR", b"DECR"]), key()]),
            (4, lambda: [c.choice([b"INCRBY", b"DECRBY"]), key(), number()]),
            (4, lambda: [b"INCRBYFLOAT", key(), self.float()]),
            (3, lambda: [c.choice([b"GETRANGE", b"SUBSTR"]), key(), number(), number()]),
            (3, lambda: [b"SETRANGE", key(), self.offset(), c.choice(TEXTS[:6])]),
            (3, lambda: [b"GETBIT", key(), self.offset()]),
            (3, lambda: [b"SETBIT", key(), self.offset(), c.choice([b"0", b"1", b"1", b"2", b"x"])]),
            (4, lambda: [b"BITCOUNT", key(), *self.span()]),
            (4, lambda: [b"BITPOS", key(), c.choice([b"0", b"1", b"1", b"2", b"x"]), *self.span()]),
            (3, lambda: [b"BITOP", c.choice([b"AND", b"OR", b"XOR", b"NOT", b"and", b"foo"]), key(),
                         *self.keys()]),
            (4, lambda: [b"BITFIELD", key(), *self.fields(False)]),
            (1, lambda: [b"BITFIELD_RO", key(), *self.fields(c.random() < 0.9)]),
            (3, lambda: [b"LCS", key(), key(), *self.options(
                self.words(b"IDX", b"LEN", b"WITHMATCHLEN", b"idx"),
                lambda: [b"MINMATCHLEN", c.choice([b"0", b"1", b"2", b"4", b"-1", b"x"])])]),
            (2, lambda: [b"DUMP", key()]),
            (3, lambda: [b"RESTORE", key(), c.choice([b"0", b"0", b"1000000", b"-1", b"x"]),
                         c.choice(PAYLOADS), *self.options(self.words(b"REPLACE", b"replace"),
                                       lambda: [b"IDLETIME", c.choice([b"0", b"7", b"-1", b"x"])],
                                       lambda: [b"FREQ", c.choice([b"0", b"255", b"256", b"x"])])]),
            (1, lambda: [b"RESTORE", key(), c.choice([b"1900000000000", b"1"]), c.choice(PAYLOADS),
                         b"REPLACE", b"ABSTTL"]),
            (0.3, lambda: [c.choice([b"ACL", b"acl"]), c.choice([b"WHOAMI", b"USERS"])]),
            (0.3, lambda: [b"MODULE", b"LIST"]),
            (3, lambda: [c.choice([b"DEL", b"UNLINK", b"EXISTS", b"TOUCH"]), *self.keys()]),
            (3, lambda: [c.choice([b"RENAME", b"RENAMENX"]), key(), key()]),
            (3, lambda: [b"COPY", key(), key(),
                         *self.options(self.words(b"REPLACE"), lambda: [b"DB", b"0"])]),
            (3, lambda: [b"EXPIRE", key(), c.choice(TIMES) + c.choice([b"", b"000"]),
                         *self.options(self.words(b"NX", b"XX", b"GT", b"LT"))]),
            (2, lambda: [b"PEXPIRE", key(), c.choice(TIMES_MS),
                         *self.options(self.words(b"NX", b"XX", b"GT", b"LT"))]),
            (2, lambda: [b"EXPIREAT", key(), c.choice([b"1900000000", b"1900001000", b"0", b"-1"]),
                         *self.options(self.words(b"NX", b"XX", b"GT", b"LT"))]),
            (2, lambda: [b"PEXPIREAT", key(), c.choice([b"1900000000000", b"1900001000000", b"1"]),
                         *self.options(self.words(b"NX", b"XX", b"GT", b"LT"))]),
            (3, lambda: [b"OBJECT", c.choice([b"ENCODING", b"encoding", b"REFCOUNT", b"FREQ", b"FOO"]),
                         key()]),
            (2, lambda: [b"KEYS", c.choice([b"*", b"?", b"[a-c]", b"[^a]*", b"k*", b"\\*", b"{h}*", b"[",
                                            b"a[", b""])]),
            (1, lambda: [b"DBSIZE"]),
            (1, lambda: [c.choice([b"PING", b"ECHO"]), value()]),
            (1, lambda: [b"PING"]),
            (1, lambda: [b"SELECT", c.choice([b"0", b"x", b"-1", b"99999999"])]),
            (2, lambda: [b"MULTI"]),
            (3, lambda: [b"EXEC"]),
            (1, lambda: [b"DISCARD"]),
            (1, lambda: [b"WATCH", *self.keys()]),
            (1, lambda: [b"UNWATCH"]),
            (0.3, lambda: [c.choice([b"FLUSHALL", b"FLUSHDB"]),
                           *self.options(self.words(b"SYNC", b"ASYNC"))]),
            (0.5, lambda: [b"SCAN", c.choice([b"x", b"-", b"1x", b" 1", b"99999999999999999999999"])]),
            (0.5, lambda: [b"SCAN", b"0", b"COUNT", c.choice([b"0", b"-1", b"x"])]),
            (0.5, lambda: [c.choice([b"CLIENT", b"CONFIG", b"OBJECT", b"COMMAND", b"MEMORY"]),
                           c.choice([b"FOO", b"", b"bar\r\n"]), *self.keys(0)]),
            (0.5, lambda: [b"CLIENT", c.choice([b"SETNAME", b"GETNAME"]),
                           *c.choice([[], [b"name"], [b"a b"]])]),
            (0.5, lambda: [b"LATENCY", *c.choice([[b"LATEST"], [b"HISTORY", value()], [b"RESET"],
                                                  [b"GRAPH", b"command"], [b"HISTOGRAM", b"nosuch"],
                                                  [b"FOO"]])]),
            (0.3, lambda: [c.choice([b"READONLY", b"READWRITE", b"ASKING"])]),
            (0.3, lambda: [b"CLIENT", b"REPLY", c.choice([b"ON", b"x"])]),
            (0.5, lambda: [b"COMMAND", b"GETKEYS", *self.command_words()]),
            (0.5, lambda: [b"WAIT", b"0", c.choice([b"0", b"10", b"x", b"-1"])]),
            (0.5, lambda: [c.choice([b"NOSUCH", b"", b"GE", b"\r\n", b"z" * 200]), *self.keys(0), value()]),
            (0.3, lambda: [b"AUTH", *c.choice([[b"x"], [b"default", b"x"], [b"a", b"b", b"c"]])]),
        ]
        weights = [weight for weight, _ in table]
        return c.choices(table, weights)[0][1]()

    def command_words(self):
        return self.chance.choice([[b"GET", b"a"], [b"MSET", b"a", b"1", b"b", b"2"], [b"PING", b"a"],
                                   [b"NOSUCH", b"a"],
                                   [b"GET", b"a", b"b"], [b"BITOP", b"AND", b"d", b"a"],
                                   [b"OBJECT", b"ENCODING", b"k"]])

    def fields(self, only_reads):
        """Subcommands of BITFIELD."""
        c, found = self.chance, []
        for _ in range(c.randint(0, 4)):
            kind = c.choice(FIELD_TYPES if c.random() < 0.95 else ODD_FIELD_TYPES)
            offset = c.choice([b"", b"", b"#"]) + self.offset()
            if c.random() < 0.3:
                # A write that fails can create the key. Only Azekura then refuses the EXEC of a connection
                # that watches the key.
                fail = b"SAT" if self.watching else b"FAIL"
                found += [b"OVERFLOW", c.choice([b"WRAP", b"SAT", fail, b"sat", fail, b"x"])]
            if only_reads or c.random() < 0.3:
                found += [b"GET", kind, offset]
            else:
                # Redis 7.0 saturates a number next to the least one at the largest number of the type.
                number = self.number().replace(b"-9223372036854775808", b"-4611686018427387904")
                found += [c.choice([b"SET", b"INCRBY", b"incrby"]), kind, offset, number]
        return found

    def span(self):
        units = self.chance.choice([[], [], [b"BIT"], [b"BYTE"], [b"bit"], [b"foo"]])
        return [self.number() for _ in range(self.chance.randint(0, 2))] + units

    def command(self, connection):
        request = self.well_formed()
        roll = self.chance.random()
        if request[0] in (b"COMMAND", b"SCAN", b"RESTORE"):
            # Versions of Redis differ in the number of arguments of GETKEYS. Cursors of the other server are
            # meaningless. A time of RESTORE that counts from another moment would let a key expire.
            return request
        if roll < 0.02 and len(request) > 1:
            request.pop(self.chance.randrange(1, len(request)))
        elif roll < 0.04:
            request.insert(self.chance.randrange(1, len(request) + 1), self.pick(JUNK, KEYS, ODD_NUMBERS))
        elif roll < 0.05 and len(request) > 1:
            # In place of a time, 1 would let a key expire.
            junk = [word for word in JUNK if word != b"1"]
            request[self.chance.randrange(1, len(request))] = self.pick(junk, ODD_NUMBERS, TEXTS[:6])
        if request[0].upper() == b"WATCH":
            self.watching.add(connection)
        is_login = request[0].upper() == b"AUTH" and len(request) == 3 and request[1] != b"default"
        self.wrong_logins[connection] += is_login
        if ends_soon(request) or (is_login and self.wrong_logins[connection] > MOST_WRONG_LOGINS):
            return self.command(connection)
        if self.chance.random() < 0.1:
            request[0] = request[0].swapcase()
        return request
