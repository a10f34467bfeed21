"""A kvtwin serve process for tests, and small clients: HTTP, ZeroMQ's SUB, msgpack."""

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time


def check(condition, *shown):
    if not condition:
        sys.exit(f"line {sys._getframe(1).f_lineno}: {shown}")


class Server:
    def __init__(self, kvtwin, *words, scenario="coding_agents_small", env=None):
        self.process = subprocess.Popen([kvtwin, "serve", scenario, "--port=0", *words], env=env,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.line = self.process.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:(\d+))/v1 serves (\S+): ", self.line)
        check(found, self.line, self.line or self.process.communicate()[1])
        self.url, self.port, self.model = found.group(1), int(found.group(2)), found.group(3)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    # Returns (status, headers, body). `lines`: raw header lines.
    def ask(self, method, path, body=None, lines=()):
        with self.connect() as connection:
            connection.sendall(request_bytes(method, path, body, lines))
            return read_response(connection.makefile("rb"))

    def post(self, path, body, lines=()):
        status, headers, reply = self.ask("POST", path, json.dumps(body).encode(), lines)
        return status, json.loads(reply)

    # The events of a stream, with the times at which they came.
    def stream(self, path, body, lines=()):
        with self.connect() as connection:
            data = json.dumps({**body, "stream": True}).encode()
            connection.sendall(request_bytes("POST", path, data, lines))
            file = connection.makefile("rb")
            status, headers = read_head(file)
            check(status == 200, status, headers)
            out = []
            while True:
                size = int(file.readline(), 16)
                event = file.read(size)
                file.readline()
                if size == 0:
                    return out
                out.append((time.monotonic(), event.decode()[len("data: "):].strip()))

    def metrics(self):
        out = {}
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        check(self.process.returncode == 0 and err == "", self.process.returncode, err)
        return out


def request_bytes(method, path, body, lines=()):
    body = body or b""
    head = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


def read_head(file):
    first = file.readline().decode()
    headers = {}
    while (line := file.readline().decode().strip()):
        name, value = line.split(": ", 1)
        headers[name.lower()] = value
    return int(first.split()[1]) if first else None, headers


def read_response(file):
    status, headers = read_head(file)
    return status, headers, file.read(int(headers.get("content-length", 0)))


class Subscriber:
    """ZeroMQ's SUB socket: ZMTP 3.0, without security (https://rfc.zeromq.org/spec/23)."""

    def __init__(self, endpoint, topic=b""):
        host, port = endpoint[len("tcp://"):].split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.file = self.socket.makefile("rb")
        self.socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        check(self.file.read(64)[10] >= 3)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 3) + b"SUB"
        self.socket.sendall(bytes([4, len(ready)]) + ready)
        check(self.frame()[1].startswith(b"\x05READY"))
        self.socket.sendall(bytes([0, 1 + len(topic)]) + b"\x01" + topic)
        time.sleep(0.3)  # until the publisher has read the subscription

    def frame(self):
        flags = self.file.read(1)[0]
        size = struct.unpack(">Q", self.file.read(8))[0] if flags & 2 else self.file.read(1)[0]
        return flags, self.file.read(size)

    def message(self):
        parts = []
        while True:
            flags, body = self.frame()
            parts.append(body)
            if not flags & 1:
                return parts


def unpack(data):
    value, end = unpack_at(data, 0)
    check(end == len(data), "bytes follow the value")
    return value


def unpack_at(data, at):
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind == 0xc0:
        return None, at
    if kind == 0xcb:
        return struct.unpack_from(">d", data, at)[0], at + 8
    for code, form in ((0xcc, ">B"), (0xcd, ">H"), (0xce, ">I"), (0xcf, ">Q")):
        if kind == code:
            return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if 0x80 <= kind < 0x90:
        out = {}
        for _ in range(kind - 0x80):
            name, at = unpack_at(data, at)
            out[name], at = unpack_at(data, at)
        return out, at
    if 0xa0 <= kind < 0xc0:
        return data[at:at + kind - 0xa0].decode(), at + kind - 0xa0
    if 0x90 <= kind < 0xa0:
        count = kind - 0x90
    else:
        check(kind in (0xdc, 0xdd), hex(kind))
        form = ">H" if kind == 0xdc else ">I"
        count = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
    out = []
    for _ in range(count):
        value, at = unpack_at(data, at)
        out.append(value)
    return out, at
