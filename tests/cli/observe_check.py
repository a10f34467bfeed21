#!/usr/bin/env python3
"""kvtwin observe against a small OpenAI-compatible server: usage: observe_check.py KVTWIN"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

KVTWIN = os.path.abspath(sys.argv[1])
TOKEN_S = 0.01


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests = []  # (time, path, body)
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
        Server.requests.append((time.monotonic(), self.path, body))
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
        self.event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}})
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
        check(done.stderr == "observed at " + url + " by completions\n", done.stderr)
        lines = [json.loads(line) for line in open("real/requests.jsonl")]
        check(sorted(line["input_toks"] for line in lines) == [40, 40, 60, 60], lines)
        for line in lines:
            took = line["last_token_ts"] - line["first_token_ts"]
            check(took >= TOKEN_S * (line["output_toks"] - 1) * 0.9, line)
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
        log = kvtwin("import", "real/requests.jsonl", "--out=x")
        check(log.returncode == 2 and "is a request log already" in log.stderr, log.stderr)
        plain = kvtwin("import", "aiperf/profile_export.jsonl", "--out=rows.jsonl")
        check(plain.returncode == 2 and "rows.jsonl: is a file" in plain.stderr, plain.stderr)

        refused = kvtwin("observe", url, "--trace=t.kvtrace", "--out=real")
        check(refused.returncode == 2 and "--force" in refused.stderr, refused.stderr)
        chat = kvtwin("observe", url + "/v1/", "--trace=t.kvtrace", "--out=chat", "--endpoint=chat")
        check(chat.returncode == 0, chat.stderr)
        check(Server.requests[-1][1] == "/v1/chat/completions", Server.requests[-1][1])

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
