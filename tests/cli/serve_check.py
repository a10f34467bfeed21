#!/usr/bin/env python3
"""kvtwin serve from outside: usage: serve_check.py KVTWIN"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from serve_server import Server, Subscriber, check, read_head, read_response, request_bytes, unpack

HERE = os.path.dirname(os.path.abspath(__file__))
KVTWIN = os.path.abspath(sys.argv[1])
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def kvtwin(*words):
    return subprocess.run([KVTWIN, *words], capture_output=True, text=True, timeout=120)


def answers(server):
    ids = list(range(1000, 1040))
    status, first = server.post(COMPLETIONS, {"prompt": ids, "max_tokens": 5})
    check(status == 200 and first["usage"] == {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 45,
                                               "prompt_tokens_details": {"cached_tokens": 0}}, first)
    check(len(first["choices"][0]["text"]) == 20 and first["choices"][0]["finish_reason"] == "length", first)
    _, again = server.post(COMPLETIONS, {"prompt": ids, "max_tokens": 5})
    check(again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32, "two pages of 16 are cached", again)
    check(again["choices"] == first["choices"], "equal prompts get equal answers")
    _, other = server.post(COMPLETIONS, {"prompt": [7] + ids[1:], "max_tokens": 5})
    check(other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "another prefix", other)

    # A conversation that sends the answer back continues its prefix: 1 + 15 + 1 prompt tokens, 1 that opens the
    # answer, 30 of the answer: 48 tokens are three pages, the last of which the answer's last token does not reach.
    messages = [{"role": "user", "content": "x" * 60}]
    _, turn = server.post(CHAT, {"messages": messages, "max_tokens": 32})
    check(turn["object"] == "chat.completion" and turn["usage"]["prompt_tokens"] == 18, turn)
    messages += [turn["choices"][0]["message"], {"role": "user", "content": "and?"}]
    _, next_turn = server.post(CHAT, {"messages": messages, "max_tokens": 1})
    check(next_turn["usage"]["prompt_tokens_details"]["cached_tokens"] == 48, next_turn)
    check(next_turn["usage"]["prompt_tokens"] == 18 + 32 + 1 + 3 + 1, next_turn)

    events = server.stream(CHAT, {"messages": messages, "max_tokens": 4, "stream_options": {"include_usage": True}})
    check(events[-1][1] == "[DONE]")
    parsed = [json.loads(event) for _, event in events[:-1]]
    check(parsed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, parsed[0])
    check([len(e["choices"][0]["delta"]["content"]) for e in parsed[1:5]] == [4] * 4, parsed)
    check(parsed[5]["choices"][0]["finish_reason"] == "length" and parsed[6]["choices"] == [], parsed)
    check(parsed[6]["usage"]["completion_tokens"] == 4 and len(parsed) == 7, parsed)


def refusals(server):
    for path, body, words in (
            (COMPLETIONS, b"{", "not valid JSON: line 1, column 2, where it ends"), (COMPLETIONS, b"[]", "must be a JSON object"),
            (COMPLETIONS, b"{}", "'prompt' is missing"), (COMPLETIONS, b'{"prompt":[]}', "'prompt' is empty"),
            (COMPLETIONS, b'{"prompt":[-1]}', "token id -1"), (COMPLETIONS, b'{"prompt":["a","b"]}', "2 prompts"),
            (COMPLETIONS, b'{"prompt":"a","n":2}', "one answer"), (COMPLETIONS, b'{"prompt":{}}', "must be a string"),
            (COMPLETIONS, b'{"prompt":"a","max_tokens":0}', "'max_tokens' must be a whole number from 1"),
            (COMPLETIONS, b'{"prompt":"a","max_tokens":"many"}', "and is \\\"many\\\""),
            (COMPLETIONS, b'{"prompt":"a","max_tokens":131072}', "maximum context length is 131072"),
            (COMPLETIONS, b'{"prompt":"a","stream_options":{}}', "needs 'stream'"),
            (CHAT, b'{"messages":[]}', "at least one message"), (CHAT, b'{"messages":[1]}', "'messages[0]'"),
            (CHAT, b'{"messages":[{"role":"boss"}]}', "'messages[0].role' is 'boss'"),
            (CHAT, b'{"messages":[{"role":"user"}]}', "'messages[0].content' is missing"),
            (CHAT, b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}', "type 'image_url'")):
        status, headers, reply = server.ask("POST", path, body)
        error = json.loads(reply)["error"]
        check(status == 400 and words in reply.decode() and error["type"] == "invalid_request_error", status, reply)
        check(error.keys() == {"message", "type", "param", "code"}, error)
    status, reply = server.post(CHAT, {"model": "gpt-5", "messages": [{"role": "user", "content": "a"}]})
    check(status == 404 and reply["error"]["code"] == "model_not_found", reply)
    check(server.ask("GET", "/nothing")[0] == 404 and server.ask("POST", "/nothing")[0] == 404)
    for method, path, allow in (("GET", COMPLETIONS, "POST"), ("PUT", CHAT, "POST"), ("POST", "/health", "GET, HEAD"),
                                ("DELETE", "/v1/models", "GET, HEAD")):
        status, headers, reply = server.ask(method, path)
        check(status == 405 and headers["allow"] == allow, method, path, status, headers)
    for path in ("/health", "/metrics", "/v1/models"):
        with server.connect() as connection:  # the answer to HEAD has no body, and the next one follows
            connection.sendall(request_bytes("HEAD", path, None) + request_bytes("GET", "/version", None))
            file = connection.makefile("rb")
            status, headers = read_head(file)
            check(status == 200 and "content-length" in headers, path, status, headers)
            check(read_response(file)[2] == b'{"version":"kvtwin"}', path)
    long = list(range(131_072))
    for body in ({"prompt": long}, {"prompt": long, "max_tokens": 5}):
        status, reply = server.post(COMPLETIONS, body)
        check(status == 400 and reply["error"]["param"] == "prompt", reply)
        check("the prompt has 131072: no token can follow" in reply["error"]["message"], reply)
    status, reply = server.post(COMPLETIONS, {"prompt": long[:-2], "max_tokens": 5})
    check(status == 400 and reply["error"]["param"] == "max_tokens", reply)
    with server.connect() as connection:
        connection.sendall(b"no http at all\r\n\r\n")
        check(b"400 Bad Request" in connection.recv(1000))
    with server.connect() as connection:  # a header that never ends
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
        check(b"431" in connection.recv(1000))
    nested = b'{"prompt":' + b"[" * 100_000
    check(server.ask("POST", COMPLETIONS, nested)[0] == 400)
    status, _, reply = server.ask("GET", "/v1/models")
    check(status == 200 and json.loads(reply)["data"][0]["id"] == server.model)
    check(server.ask("GET", "/health")[:1] == (200,))


def disconnects(server):
    before = server.metrics()
    body = json.dumps({"prompt": "a", "max_tokens": 100_000, "stream": True}).encode()
    for read in (0, 2_000):
        with server.connect() as connection:
            connection.sendall(request_bytes("POST", COMPLETIONS, body))
            if read:
                connection.recv(read)
            else:
                time.sleep(0.05)
    aborted = 'vllm:request_success_total{engine="0",model_name="%s",finished_reason="abort"}' % server.model
    running = 'vllm:num_requests_running{engine="0",model_name="%s"}' % server.model
    for _ in range(100):
        after = server.metrics()
        if after[aborted] == before[aborted] + 2 and after[running] == 0:
            return
        time.sleep(0.1)
    check(False, before[aborted], after[aborted], after[running])


# A client that does not read delays its own stream alone, and gets all of it later.
def slow_clients(kvtwin_path, receive_buffer, folder):
    log = os.path.join(folder, "tokens.csv")
    server = Server(kvtwin_path, "--speed=100", "--token-log=" + log)
    tokens = 4_000
    body = json.dumps({"prompt": "slow", "max_tokens": tokens, "stream": True}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request_bytes("POST", COMPLETIONS, body))
        for _ in range(100):
            generated = server.metrics()['vllm:generation_tokens_total{engine="0",model_name="%s"}' % server.model]
            if generated >= tokens:
                break
            time.sleep(0.1)
        check(generated >= tokens, "the simulation goes on", generated)
        check(len(server.stream(COMPLETIONS, {"prompt": "fast", "max_tokens": 50})) == 52, "and so do others")
        connection.settimeout(30)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(1 << 20)
        check(data.count(b'"finish_reason":null') == tokens, data.count(b'"finish_reason":null'))
    status = [line for line in open(f"/proc/{server.process.pid}/status") if line.startswith("VmHWM")]
    check(int(status[0].split()[1]) < 1_000_000, status)
    out = server.stop()
    check("2 requests: 2 answered, 0 cancelled by clients, 0 cut by the stop, 0 refused; 4050 tokens sent" in out, out)
    rows = [[int(cell) for cell in line.split(",")] for line in open(log).readlines()[1:]]
    check([row[1] for row in rows if row[0] == 0] == list(range(1, tokens + 1)), "the log has each token once")
    late = [row[4] - row[3] for row in rows if row[0] == 0]
    check(max(late) > 100_000_000 and min(late) > -1_000_000, "with the time at which it was sent", max(late))


# A header or a body that does not go on ends as a client does that does not read.
def half_sent(kvtwin_path):
    server = Server(kvtwin_path, "--stall=1")
    whole = request_bytes("POST", COMPLETIONS, b'{"prompt":"a","max_tokens":1}')
    for part in (b"POST /v1/comp", whole[:-5]):
        with server.connect() as connection:
            connection.sendall(part)
            began = time.monotonic()
            check(connection.recv(1000) == b"" and 0.5 < time.monotonic() - began < 5, part)
    with server.connect() as connection:  # slow, but not stalled
        for at in range(0, len(whole), len(whole) // 4 + 1):
            connection.sendall(whole[at:at + len(whole) // 4 + 1])
            time.sleep(0.2)
        check(read_response(connection.makefile("rb"))[0] == 200)
    server.stop()


# Latencies contain the front end of the scenario, as those of kvtwin run do.
def front_end(kvtwin_path):
    server = Server(kvtwin_path, "--set=cost.front_end_request_ns=300ms")
    for ask in (server.post, server.stream):
        began = time.monotonic()
        ask(COMPLETIONS, {"prompt": [1, 2], "max_tokens": 1})
        check(0.3 <= time.monotonic() - began < 3, time.monotonic() - began)
    labels = '{engine="0",model_name="%s"}' % server.model
    metrics = server.metrics()
    check(metrics["vllm:time_to_first_token_seconds_sum" + labels] >= 0.6, "TTFT counts from the client's sending")
    check(metrics["vllm:request_queue_time_seconds_sum" + labels] < 0.1, "queueing from the engine's")
    server.stop()


def limits_and_keys(kvtwin_path):
    server = Server(kvtwin_path, "--max-streams=2", "--max-body=0.01", "--api-key-env=SERVE_CHECK_KEY",
                    env={**os.environ, "SERVE_CHECK_KEY": "sesame"})
    key = ["Authorization: Bearer sesame"]
    for lines in ([], ["Authorization: Bearer sesamf"], ["Authorization: sesame"]):
        status, headers, reply = server.ask("POST", COMPLETIONS, b'{"prompt":"a"}', lines)
        check(status == 401 and json.loads(reply)["error"]["code"] == "invalid_api_key", reply)
    check(server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, ["Authorization: bearer  sesame"])[0] == 200)
    check(server.ask("GET", "/v1/models")[0] == 401 and server.ask("GET", "/health")[0] == 200)
    check(server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, key)[0] == 200)
    check(server.ask("POST", COMPLETIONS, b"x" * 20_000, key)[0] == 413)
    body = json.dumps({"prompt": "a", "max_tokens": 100_000, "stream": True}).encode()
    open_streams = [server.connect() for _ in range(2)]
    for connection in open_streams:
        connection.sendall(request_bytes("POST", COMPLETIONS, body, key))
        connection.recv(100)
    status, headers, reply = server.ask("POST", COMPLETIONS, body, key)
    check(status == 429 and headers["retry-after"] == "1", status, reply)
    for connection in open_streams:
        connection.close()
    out = server.stop(signal.SIGINT)
    # Refused: three keys and one of /v1/models, a large body, and one of too many.
    check("10 requests: 2 answered, 2 cancelled by clients, 0 cut by the stop, 6 refused; " in out, out)


def stops(kvtwin_path):
    server = Server(kvtwin_path, "--grace=20")
    idle, busy = server.connect(), server.connect()
    idle.sendall(request_bytes("GET", "/health", None))
    check(read_response(idle.makefile("rb"))[0] == 200)
    body = json.dumps({"prompt": "a", "max_tokens": 100, "stream": True}).encode()
    busy.sendall(request_bytes("POST", COMPLETIONS, body))
    data = busy.recv(100)
    server.process.send_signal(signal.SIGTERM)
    check(idle.recv(1) == b"", "an idle connection is closed")
    while (more := busy.recv(1 << 16)):
        data += more
    check(data.count(b'"finish_reason":null') == 100 and b"[DONE]" in data, "the stream is finished")
    out = server.process.communicate(timeout=20)[0]
    check(server.process.returncode == 0, server.process.returncode)
    check("1 request: 1 answered, 0 cancelled by clients, 0 cut by the stop, 0 refused; 100 tokens sent" in out, out)

    server = Server(kvtwin_path, "--grace=0.2")
    busy = server.connect()
    busy.sendall(request_bytes("POST", COMPLETIONS, body.replace(b"100", b"100000")))
    data = busy.recv(100)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    while (more := busy.recv(1 << 16)):
        data += more
    check(b"the server stops" in data and time.monotonic() - began < 10, data[-300:])
    out = server.process.communicate(timeout=20)[0]
    check(server.process.returncode == 0)
    check("1 request: 0 answered, 0 cancelled by clients, 1 cut by the stop, 0 refused; " in out, out)

    server = Server(kvtwin_path, "--grace=1000")  # the second signal ends at once
    busy = server.connect()
    busy.sendall(request_bytes("POST", COMPLETIONS, body.replace(b"100", b"100000")))
    busy.recv(100)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    check(server.process.poll() is None, "the first one lets requests end")
    try:
        server.connect().close()
        check(False, "no connection is taken any more")
    except ConnectionRefusedError:
        pass
    server.process.send_signal(signal.SIGINT)
    check("1 cut by the stop" in server.process.communicate(timeout=10)[0] and server.process.returncode == 0)


# The values of an event in the order of its fields, its name first.
def event_values(event, layout):
    if layout == "arrays":
        return event
    fields = {"BlockStored": ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                              "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"],
              "BlockRemoved": ["type", "block_hashes", "medium", "group_idx"], "AllBlocksCleared": ["type"]}
    check(list(event) == fields[event["type"]], event)
    if event["type"] == "BlockStored":
        check(event["extra_keys"] == [None] * len(event["block_hashes"]), event)
        check(event["group_idx"] == 0 and event["kv_cache_spec_kind"] == "full_attention", event)
    return list(event.values())


# The trace has requests that this memory cannot hold; the server does not run them.
def kv_events(kvtwin_path, layout):
    words = ["--kv-events-layout=arrays"] if layout == "arrays" else []
    server = Server(kvtwin_path, "--kv-events=tcp://127.0.0.1:*", "--kv-events-topic=kv", "--set=memory.gpu_pages=8",
                    "--set=model.context_window=128", *words)
    endpoint = server.process.stdout.readline().split()[0]
    subscriber = Subscriber(endpoint, b"kv")
    ids = list(range(40))
    server.post(COMPLETIONS, {"prompt": ids, "max_tokens": 10})
    stored, removed, parent, sequence = {}, [], None, 0
    batches = []

    def take():
        nonlocal sequence
        topic, number, payload = subscriber.message()
        check(topic == b"kv" and int.from_bytes(number, "big") == sequence, topic, number)
        sequence += 1
        at, events, rank = unpack(payload)
        check(abs(at - time.time()) < 60 and rank == 0, at, rank)
        events = [event_values(event, layout) for event in events]
        batches.append(events)
        return events

    while len(stored) < 3:  # 49 tokens are computed: three pages
        for event in take():
            check(event[0] == "BlockStored", event)
            name, hashes, parent_hash, tokens, size, lora, medium, lora_name = event[:8]
            check(len(event) == (8 if layout == "arrays" else 11), event)
            check(parent_hash == parent and size == 16 and medium == "GPU" and lora is None, event)
            check(len(tokens) == 16 * len(hashes), event)
            for i, block in enumerate(hashes):
                stored[block] = tokens[16 * i:16 * i + 16]
            parent = hashes[-1]
    check(list(stored.values())[:2] == [ids[:16], ids[16:32]] and list(stored.values())[2][:8] == ids[32:], stored)
    server.post(COMPLETIONS, {"prompt": list(range(100, 200)), "max_tokens": 10})  # needs seven of the eight pages
    while len(removed) < 2:
        for event in take():
            if event[0] == "BlockRemoved":
                removed += event[1]
    check(set(removed) <= set(stored), removed)
    server.process.send_signal(signal.SIGTERM)
    while take() != [["AllBlocksCleared"]]:
        pass
    server.stop()
    refused = kvtwin("serve", "methods/snapkv", "--port=0", "--kv-events=tcp://127.0.0.1:*")
    check(refused.returncode == 2 and "no prefix cache of whole pages" in refused.stderr, refused.stderr)


def tools_of_a_trace(kvtwin_path):
    server = Server(kvtwin_path, "--speed=20")
    session = "coding-000000"
    body = {"messages": [{"role": "user", "content": "go"}], "user": session}
    status, first = server.post(CHAT, body)
    call = first["choices"][0]["message"]["tool_calls"][0]
    check(first["choices"][0]["finish_reason"] == "tool_calls" and call["type"] == "function", first)
    check(isinstance(json.loads(call["function"]["arguments"]), dict) and call["function"]["name"], call)
    events = [json.loads(e) for _, e in server.stream(CHAT, {"messages": body["messages"]},
                                                      ["X-Session-Id: " + session])[:-1]]
    deltas = [e["choices"][0]["delta"] for e in events]
    calls = [d["tool_calls"] for d in deltas if "tool_calls" in d]
    check(len(calls) <= 1, calls)
    check(len(events) > 3, "an answer of the trace's length", events)
    _, text = server.post(COMPLETIONS, {"prompt": "go", "user": "coding-000001"})
    check(text["choices"][0]["finish_reason"] == "stop", "completions call no tools", text)
    _, plain = server.post(CHAT, {**body, "user": "nobody", "max_tokens": 3})
    check(plain["choices"][0]["finish_reason"] == "length", plain)
    server.stop()


def replicas(kvtwin_path):
    server = Server(kvtwin_path, "--set=engines.count=2", "--set=hardware.gpus=2", "--set=engines.routing=round_robin")
    engines = []
    for i in range(4):
        body = json.dumps({"prompt": [i] * 20, "max_tokens": 2, "stream": i > 1}).encode()
        with server.connect() as connection:
            connection.sendall(request_bytes("POST", COMPLETIONS, body, ["Connection: close"]))
            file = connection.makefile("rb")
            engines.append(read_head(file)[1]["x-kvtwin-engine"])
            file.read()
    check(sorted(engines[:2]) == sorted(engines[2:]) == ["0", "1"], engines)
    metrics = server.metrics()
    for engine in "01":
        check(metrics['vllm:prompt_tokens_total{engine="%s",model_name="%s"}' % (engine, server.model)] == 40, metrics)
    check(metrics['vllm:time_to_first_token_seconds_bucket{engine="1",model_name="%s",le="+Inf"}' % server.model] == 2)
    check("4 requests: 4 answered, " in (out := server.stop()) and "; 8 tokens sent" in out, "whole answers count too", out)


# The same trace simulated, and driven through the server by kvtwin observe.
def round_trip(kvtwin_path, folder):
    rows = [{"session_id": str(i), "timestamp": 150 * i, "input_length": 2048 + 512 * (i % 5), "output_length": 40 + i,
             "hash_ids": list(range(3)) + [100 * i + j for j in range(3, 4 + i % 5)]} for i in range(20)]
    with open(os.path.join(folder, "rows.jsonl"), "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    trace = os.path.join(folder, "t.kvtrace")
    made = kvtwin("trace", "import", "mooncake", os.path.join(folder, "rows.jsonl"), "--out=" + trace)
    check(made.returncode == 0, made.stderr)
    set_trace = f"--set=trace.path={trace}"
    run_out, real_out = os.path.join(folder, "run"), os.path.join(folder, "real")
    ran = kvtwin("run", "coding_agents_small", set_trace, "--quiet", "--out=" + run_out)
    check(ran.returncode == 0, ran.stderr)
    server = Server(kvtwin_path, set_trace)
    seen = kvtwin("observe", server.url, "--trace=" + trace, "--out=" + real_out)
    check(seen.returncode == 0 and "20 requests sent, 0 failed" in seen.stdout, seen.stdout, seen.stderr)
    check("counted other prompt tokens" not in seen.stderr, seen.stderr)
    server.stop()
    times = []
    for out in (run_out, real_out):
        lines = [json.loads(line) for line in open(os.path.join(out, "requests.jsonl"))]
        lines.sort(key=lambda line: line["arrival_time"])
        times.append([(line["first_token_ts"] - line["arrival_time"],
                       (line["last_token_ts"] - line["first_token_ts"]) / (line["output_toks"] - 1))
                      for line in lines])
    simulated, observed = times
    check(len(simulated) == len(observed) == 20)
    ttft = statistics.median(abs(a[0] - b[0]) for a, b in zip(simulated, observed))
    tpot = statistics.median(abs(a[1] - b[1]) for a, b in zip(simulated, observed))
    mean = statistics.mean(a[0] for a in simulated), statistics.mean(a[1] for a in simulated)
    print(f"round trip of 20 requests: TTFT {1e3 * mean[0]:.1f} ms, median difference {1e3 * ttft:.2f} ms; "
          f"TPOT {1e3 * mean[1]:.2f} ms, median difference {1e3 * tpot:.3f} ms")
    check(ttft < 0.005 and tpot < 0.001, ttft, tpot)


# Sessions of several requests at ten times the speed: requests match by id, and both forms of compare give the same
# latencies, which contain the front end.
def sessions_round_trip(kvtwin_path, folder):
    run_out, real_out = os.path.join(folder, "sessions"), os.path.join(folder, "observed")
    front = "--set=cost.front_end_request_ns=50ms"
    words = ["--set=replay.sessions_max=2", "--set=replay.requests_max=12", "--set=replay.think_cap_s=1", front]
    ran = kvtwin("run", "coding_agents_small", *words, "--quiet", "--out=" + run_out)
    check(ran.returncode == 0, ran.stderr)
    trace = os.path.join(folder, "cut.kvtrace")
    cut = kvtwin("trace", "cut", os.path.join(HERE, "../../traces/data/coding_agents_small.kvtrace"), "--sessions=2",
                 "--requests=12", "--out=" + trace)
    check(cut.returncode == 0, cut.stderr)
    server = Server(kvtwin_path, front, "--speed=10")
    seen = kvtwin("observe", server.url, "--trace=" + trace, "--think-cap=1", "--speed=10", "--out=" + real_out)
    check(seen.returncode == 0 and "12 requests sent, 0 failed" in seen.stdout, seen.stdout, seen.stderr)
    server.stop()
    log = kvtwin("compare", run_out, real_out + "/requests.jsonl", "--format=json")
    check(log.returncode == 0, log.stderr)
    log = json.loads(log.stdout)
    check(log["matched_by"] == "id" and log["requests"] == 12 and log["ttft"].endswith("arrival_time"), log)
    both = json.loads(kvtwin("compare", run_out, real_out, "--format=json").stdout)
    metrics = {row["metric"]: row for row in both["metrics"]}
    ttft = next(row for row in log["rows"] if row["metric"] == "ttft" and row["statistic"] == "mean")
    metric = metrics["ttft_mean_ms"]
    check(abs(ttft["kvtwin_ms"] - metric["first"]) < 0.01 and abs(ttft["real_ms"] - metric["second"]) < 0.01, ttft, metric)
    check(metric["first"] >= 50 and metric["second"] >= 50 and both["same_requests"]["requests"] == 12, metric)
    check(metrics["prefix_reuse"]["second"] > 0.3, "what the server reported as cached", metrics["prefix_reuse"])


# Requests of a session, sub-agents included, go to the engine that the session began on.
def affinity(kvtwin_path, folder):
    server = Server(kvtwin_path, "--speed=20", "--set=engines.count=2", "--set=hardware.gpus=2",
                    "--set=engines.routing=session_affine")
    server.post(COMPLETIONS, {"prompt": [1], "max_tokens": 1})
    out = os.path.join(folder, "sticky")
    seen = kvtwin("observe", server.url, "--trace=" + os.path.join(folder, "cut.kvtrace"), "--think-cap=0.1", "--speed=20",
                  "--out=" + out)
    check(seen.returncode == 0, seen.stderr)
    engines = [line.split(",")[4] for line in open(os.path.join(out, "requests.csv")).readlines()[1:]]
    check(engines in (["0"] * 12, ["1"] * 12), engines)
    server.stop()


def wrong_words(kvtwin_path):
    for words, said, status in ((["--speed=0"], "--speed: 0; from 0.001 to 1000", 2),
                                (["--host=no.such.host.invalid"], "is neither an IP address nor the name of", 2),
                                (["--host=192.0.2.1"], "is no address of this machine", 2),
                                (["--kv-events=udp://x"], "is not an endpoint", 2),
                                (["--kv-events=tcp://127.0.0.1:99999"], "is not an endpoint for 1 engine;", 2),
                                (["--kv-events-layout=lists"], "--kv-events-layout: 'lists'; maps", 2),
                                (["--api-key-env=NOT_SET_AT_ALL"], "this variable is not set", 2),
                                (["--set=backend=cpu"], "a server's times are simulated", 2)):
        refused = kvtwin("serve", "coding_agents_small", "--port=0", *words)
        check(refused.returncode == status and said in refused.stderr, words, refused.returncode, refused.stderr)
    server = Server(kvtwin_path)
    taken = kvtwin("serve", "coding_agents_small", f"--port={server.port}")
    check(taken.returncode == 3 and "cannot listen" in taken.stderr, taken.stderr)
    local = subprocess.Popen([kvtwin_path, "serve", "coding_agents_small", "--host=localhost", "--port=0"],
                             stdout=subprocess.PIPE, text=True)
    check(local.stdout.readline().startswith("http://localhost:"))
    local.terminate()
    check(local.wait(timeout=20) == 0)
    log = kvtwin("serve", "coding_agents_small", "--port=0", "--token-log=/")
    check(log.returncode == 3 and "--token-log=/: cannot be written" in log.stderr, log.stderr)
    server.stop()


def main():
    server = Server(KVTWIN)
    answers(server)
    refusals(server)
    disconnects(server)
    server.stop()
    with tempfile.TemporaryDirectory() as folder:
        for receive_buffer in (4_096, 65_536):
            slow_clients(KVTWIN, receive_buffer, folder)
        half_sent(KVTWIN)
        front_end(KVTWIN)
        limits_and_keys(KVTWIN)
        stops(KVTWIN)
        for layout in ("maps", "arrays"):
            kv_events(KVTWIN, layout)
        tools_of_a_trace(KVTWIN)
        replicas(KVTWIN)
        round_trip(KVTWIN, folder)
        sessions_round_trip(KVTWIN, folder)
        affinity(KVTWIN, folder)
        wrong_words(KVTWIN)


main()
