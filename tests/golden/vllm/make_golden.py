#!/usr/bin/env python3
"""Makes sharegpt300.jsonl from LLMServingSim's copy of the workload, without its token ids.

  tests/golden/vllm/make_golden.py $KVTWIN_DATA/llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl \
      > tests/golden/vllm/sharegpt300.jsonl

Per request: arrival, lengths, and the identity of each page of 16 prompt tokens. Equal numbers mean equal
tokens from the start of the prompt to the end of that page (ids are chained). Numbers are assigned in order of
appearance and have no other meaning. The last page may be partly filled (ids = ceil(tokens / 16)).
"""
import json
import sys

PAGE = 16
numbers = {}
with open(sys.argv[1]) as file:
    for line in file:
        request = json.loads(line)
        tokens = request["input_tok_ids"]
        ids, chain = [], -1
        for start in range(0, len(tokens), PAGE):
            chain = numbers.setdefault((chain, tuple(tokens[start:start + PAGE])), len(numbers))
            ids.append(chain)
        at_ns = request["arrival_time_ns"]
        print(f'{{"timestamp": {at_ns // 1_000_000}.{at_ns % 1_000_000:06d}, "input_length": {len(tokens)}, '
              f'"output_length": {request["output_toks"]}, "hash_ids": {json.dumps(ids)}}}')
