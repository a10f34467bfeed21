#!/usr/bin/env python3
"""kvtwin observe against a small OpenAI-compatible server: usage: observe_check.py KVTWIN"""

import csv
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

KVTWIN = os.path.abspath(sys.argv[1])
TOKEN_S = 0.01


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests = []  # (time, path, body, session)
    cached = None  # cached_tokens that the usage reports
    fault = None   # of requests whose max_tokens is 7: "429", "cut" or "silent"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply(200, {"object": "list", "data": [{"id": "tiny"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.requests.append((time.monotonic(), self.path, body, self.headers["X-Session-Id"]))
        fault = Server.fault if body["max_tokens"] == 7 else None
        if fault == "429":
            return self.reply(429, {"error": {"message": "slow down"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        chat = self.path.endswith("/chat/completions")
        for index in range(body["max_tokens"]):
            time.sleep(TOKEN_S)
            choice = {"delta": {"content": "x"}} if chat else {"text": "x"}
            self.event({"choices": [choice]})
            if fault == "cut" and index == 2:
                return
        prompt = len(body["messages"][0]["content"].split()) if chat else len(body["prompt"])
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        if Server.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": Server.cached}
        self.event({"choices": [], "usage": usage})
        self.event("[DONE]")

    def event(self, value):
        try:
            self.wfile.write(b"data: " + (value if value == "[DONE]" else json.dumps(value)).encode() + b"\n\n")
            self.wfile.flush()
        except OSError:  # the client gave up
            self.close_connection = True


def kvtwin(*words):
    return subprocess.run([KVTWIN, *words], capture_output=True, text=True, timeout=60)


def check(condition, *shown):
    if not condition:
        sys.exit(f"observe_check: {sys._getframe(1).f_lineno}: {shown}")


def rows_of(folder):
    with open(folder + "/requests.csv") as file:
        return list(csv.DictReader(file))


# A signal ends it with what has been measured. The trace has 20 sessions, one each 150 ms.
def interrupted(url):
    with open("many.jsonl", "w") as file:
        for i in range(20):
            row = {"session_id": f"m{i}", "timestamp": 150 * i, "input_length": 16, "output_length": 3, "hash_ids": [i]}
            file.write(json.dumps(row) + "\n")
    made = kvtwin("trace", "import", "mooncake", "many.jsonl", "--block-tokens=16", "--out=many.kvtrace")
    check(made.returncode == 0, made.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        out = f"stopped-{number}"
        process = subprocess.Popen([KVTWIN, "observe", url, "--trace=many.kvtrace", "--out=" + out],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check("20 requests of 20 sessions; the trace's recorded times take 2.9 s" in process.stderr.readline())
        time.sleep(1)
        process.send_signal(number)
        text, errors = process.communicate(timeout=10)
        check(process.returncode == 1 and "incomplete: a signal stopped it; " in errors, process.returncode, errors)
        ended = len(open(out + "/requests.jsonl").readlines())
        check(0 < ended < 15 and out + ": tiny, " in text, ended, text)
    began = time.monotonic()
    fast = kvtwin("observe", url, "--trace=many.kvtrace", "--out=fast", "--speed=10")
    check(fast.returncode == 0 and "take 0.3 s at 10 times their speed" in fast.stderr, fast.stderr)
    check(time.monotonic() - began < 1.5, time.monotonic() - began)
    at = [int(row["ready_ns"]) for row in rows_of("fast")]
    check(2_800_000_000 <= at[-1] < 3_300_000_000, "times are the trace's", at)
    quiet = kvtwin("observe", url, "--trace=many.kvtrace", "--out=quiet", "--sessions=1", "--quiet")
    check(quiet.stderr == f"observed at {url} by completions\n", quiet.stderr)


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        rows = [
            {"session_id": "a", "timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]},
            {"session_id": "b", "timestamp": 100, "input_length": 40, "output_length": 7, "hash_ids": [1, 2, 9]},
            {"session_id": "a", "delay": 200, "input_length": 60, "output_length": 3, "hash_ids": [1, 2, 3, 4]},
            {"session_id": "b", "delay": 0, "input_length": 60, "output_length": 2, "hash_ids": [1, 2, 9, 5]},
        ]
        with open("rows.jsonl", "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        made = kvtwin("trace", "import", "mooncake", "rows.jsonl", "--block-tokens=16", "--out=t.kvtrace")
        check(made.returncode == 0, made.stderr)

        done = kvtwin("observe", url, "--trace=t.kvtrace", "--out=real")
        check(done.returncode == 0, done.stderr)
        check("tiny, 4 requests sent, 0 failed" in done.stdout, done.stdout)
        check(done.stderr == "4 requests of 2 sessions; the trace's recorded times take 0.2 s, plus the time of answers\n"
              "observed at " + url + " by completions\n", done.stderr)
        lines = [json.loads(line) for line in open("real/requests.jsonl")]
        check(sorted(line["input_toks"] for line in lines) == [40, 40, 60, 60], lines)
        check({line["request_id"]: line["output_toks"] for line in lines} == {"a/0": 5, "b/0": 7, "a/1": 3, "b/1": 2},
              "ids are those of kvtwin run", lines)
        check({r[2]["max_tokens"]: r[3] for r in Server.requests} == {5: "a", 7: "b", 3: "a", 2: "b"},
              "requests name their session")
        check([row["reused_tokens"] for row in rows_of("real")] == [""] * 4, "what is not known is not 0")
        for line in lines:
            # The server waits before each token; a busy machine may read the first one late.
            check(line["last_token_ts"] - line["arrival_time"] >= TOKEN_S * line["output_toks"] * 0.9, line)
            check(line["first_token_ts"] - line["arrival_time"] >= TOKEN_S * 0.9, line)
        prompts = {(r[2]["max_tokens"]): (r[0], r[2]["prompt"]) for r in Server.requests}
        check(prompts[5][1] == prompts[3][1][:40], "a prompt continues its session's")
        check(prompts[5][1][:32] == prompts[7][1][:32], "sessions share two blocks")
        check(prompts[5][1][32:] != prompts[7][1][32:], "and no more")
        check(prompts[7][0] - prompts[5][0] >= 0.09, "arrivals are the trace's")
        check(prompts[3][0] - prompts[5][0] >= 0.2 + 5 * TOKEN_S, "after the answer and the think time")
        check(prompts[2][0] - prompts[7][0] >= 7 * TOKEN_S, "after the answer")
        compared = kvtwin("compare", "real/requests.jsonl", "real/requests.jsonl")
        check(compared.returncode == 0, compared.stderr)
        again = kvtwin("trace", "import", "real/requests.jsonl", "--out=again.kvtrace")
        check(again.returncode == 0, again.stderr)

        # The order of a run's requests, and further ones.
        shuffled = [line for line in open("real/requests.jsonl")][::-1]
        shuffled.append(shuffled[0].replace('/', '/9'))
        open("run.jsonl", "w").writelines(shuffled)
        by_id = kvtwin("compare", "run.jsonl", "real/requests.jsonl", "--limit=ttft.mean=0")
        check(by_id.returncode == 0 and "4 requests, matched by id" in by_id.stdout, by_id.stdout, by_id.stderr)
        check("1 request of the run is not in the log" in by_id.stdout, by_id.stdout)
        check("count from arrival_time" in by_id.stdout, by_id.stdout)

        exported = kvtwin("export", "aiperf", "real", "--out=aiperf")
        check(exported.returncode == 0, exported.stderr)
        records = [json.loads(line) for line in open("aiperf/profile_export.jsonl")]
        check(len(records) == 4 and {r["metadata"]["x_correlation_id"] for r in records} == {"a", "b"}, records)
        summary = json.load(open("aiperf/profile_export_aiperf.json"))
        check(summary["input_sequence_length"]["avg"] == 50 and summary["total_osl"]["avg"] == 17, summary)
        ttfts = [r["metrics"]["time_to_first_token"]["value"] for r in records]
        check(abs(summary["time_to_first_token"]["avg"] - sum(ttfts) / 4) < 1e-6, summary, ttfts)
        check(open("aiperf/profile_export_aiperf.csv").read().startswith("Metric,avg,min,max,p1,"))
        back = kvtwin("import", "aiperf/profile_export.jsonl", "--out=back")
        check(back.returncode == 0 and "4 requests" in back.stdout, back.stderr)
        log = kvtwin("import", "real/requests.jsonl", "--out=as-run")
        check(log.returncode == 0 and "4 requests" in log.stdout, log.stdout, log.stderr)
        plain = kvtwin("import", "aiperf/profile_export.jsonl", "--out=rows.jsonl")
        check(plain.returncode == 2 and "rows.jsonl: is a file" in plain.stderr, plain.stderr)

        refused = kvtwin("observe", url, "--trace=t.kvtrace", "--out=real")
        check(refused.returncode == 2 and "--force" in refused.stderr, refused.stderr)
        chat = kvtwin("observe", url + "/v1/", "--trace=t.kvtrace", "--out=chat", "--endpoint=chat")
        check(chat.returncode == 0, chat.stderr)
        check(Server.requests[-1][1] == "/v1/chat/completions", Server.requests[-1][1])
        Server.cached = 30
        cached = kvtwin("observe", url, "--trace=t.kvtrace", "--out=cached")
        Server.cached = None
        check(cached.returncode == 0 and [row["reused_tokens"] for row in rows_of("cached")] == ["30"] * 4)
        page = kvtwin("report", "real", "cached", "--out=page.html")
        check(page.returncode == 0, page.stderr)
        interrupted(url)

        for fault, error in (("429", "1 request: HTTP 429: slow down"),
                             ("cut", "1 request: the stream ended before [DONE]")):
            Server.fault = fault
            some = kvtwin("observe", url, "--trace=t.kvtrace", "--out=" + fault)
            check(some.returncode == 0, some.stderr)
            check(error in some.stderr, some.stderr)
            check("1 request not sent, because a request that they wait for failed" in some.stderr, some.stderr)
            check("3 requests sent, 1 failed" in some.stdout, some.stdout)
            check(len(open(fault + "/requests.jsonl").readlines()) == 2)
        all_fail = kvtwin("observe", url, "--trace=t.kvtrace", "--out=none", "--timeout=0.001")
        check(all_fail.returncode == 3 and "2 requests" in all_fail.stderr, all_fail.returncode, all_fail.stderr)

        model = kvtwin("observe", url, "--trace=t.kvtrace", "--out=x", "--model=huge")
        check(model.returncode == 2 and "has no model \"huge\"; one of tiny" in model.stderr, model.stderr)
        server.shutdown()
        server.server_close()
        gone = kvtwin("observe", url, "--trace=t.kvtrace", "--out=x")
        check(gone.returncode == 3 and "cannot be reached" in gone.stderr, gone.stderr)
        check(not os.path.exists("x"), "a run that did not happen leaves nothing")


main()
