#!/usr/bin/env python3
"""kvtwin serve with clients that people use: curl, and openai@4 from npm.

Usage: serve_clients_check.py KVTWIN FOLDER; openai@4 is installed in FOLDER once. Exit status 77: skipped.
"""

import os
import shutil
import subprocess
import sys
import time

from serve_server import Server, check

KVTWIN, FOLDER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HERE = os.path.dirname(os.path.abspath(__file__))
SESSION = "coding-000000"


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def install():
    if os.path.isdir(os.path.join(FOLDER, "node_modules", "openai")):
        return
    os.makedirs(FOLDER, exist_ok=True)
    done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", FOLDER, "openai@4"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        skip("npm could not install openai@4: " + done.stderr.strip().split("\n")[0])


def curl(server):
    done = subprocess.run(
        ["curl", "-sSN", server.url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
         '{"stream":true,"max_tokens":3,"messages":[{"role":"user","content":"Hi"}]}'],
        capture_output=True, text=True, timeout=30)
    check(done.returncode == 0 and done.stdout.endswith("data: [DONE]\n\n"), done)
    check(done.stdout.count('"finish_reason":null') == 4, done.stdout)
    # Large enough for curl to ask whether it may send it.
    large = subprocess.run(["curl", "-sS", server.url + "/v1/completions", "-H", "Expect: 100-continue", "-d", "@-"],
                           input='{"max_tokens":1,"prompt":"%s"}' % ("x" * 400_000), capture_output=True, text=True,
                           timeout=30)
    check(large.returncode == 0 and '"prompt_tokens":100000' in large.stdout, large)


def openai(server):
    shutil.copy(os.path.join(HERE, "serve_openai.mjs"), FOLDER)
    done = subprocess.run(["node", "serve_openai.mjs", server.url + "/v1", server.model, SESSION], cwd=FOLDER,
                          capture_output=True, text=True, timeout=120)
    print(done.stdout, end="")
    check(done.returncode == 0, done.stderr)
    check(done.stdout.splitlines() == [
        "whole 24 length 11", "stream 24 true 6", "tool tool_calls function object", "aborted 3",
        "error NotFoundError 404 model_not_found", "models " + server.model], done.stdout)
    aborted = 'vllm:request_success_total{engine="0",model_name="%s",finished_reason="abort"}' % server.model
    for _ in range(100):
        if server.metrics()[aborted] == 1:
            return
        time.sleep(0.1)
    check(False, "a client that goes away cancels its request")


def main():
    for program in ("curl", "node", "npm"):
        if shutil.which(program) is None:
            skip(program + " is not installed")
    install()
    server = Server(KVTWIN, "--speed=5")
    curl(server)
    openai(server)
    server.stop()


main()
