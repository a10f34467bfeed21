#!/usr/bin/env python3
"""A disk below the host tier."""

from program import CommandLine, main

# 128 KiB per token: pages of 16 tokens have 2 MiB. The longest request just fits, and prefixes leave the GPU.
SMALL = ("run", "coding_agents_small", "--quiet", "--set=memory.gpu_pages=13000", "--set=memory.host_bytes=4000000000",
         "--format=json")
DISK = SMALL + ("--set=memory.disk_bytes=100000000000",)


class Disk(CommandLine):
    def test_prefixes_that_do_not_fit_on_the_host_come_back_from_the_disk(self):
        host = self.kvtwin(*SMALL, "--no-write").json
        self.assertEqual(host["hit_tokens_disk"], 0)
        self.assertEqual(host["disk_bytes_written"], 0)
        disk = self.kvtwin(*DISK, "--record", "--out=a").json
        self.assertGreater(disk["hit_tokens_disk"], 10_000)
        self.assertGreaterEqual(disk["disk_bytes_written"], disk["disk_bytes_read"])
        self.assertEqual(disk["disk_bytes_read"], disk["hit_tokens_disk"] * 131_072)
        self.assertGreater(disk["reused_tokens_first"], host["reused_tokens_first"])
        self.replay("a")
        single = self.kvtwin(*DISK, "--no-write", "--set=simulation.coalesce=false").json
        self.assertEqual(single["decisions"], disk["decisions"])
        self.assertEqual(single["elapsed_s"], disk["elapsed_s"])

    def test_the_cuda_engine_refuses_it(self):
        outcome = self.kvtwin(*DISK, "--no-write", "--backend=cuda", status=None)
        if outcome.status != 4:  # without a GPU, or in a build without CUDA, that error comes first
            self.assertEqual(outcome.status, 2)
            self.assertIn("the CUDA engine has no disk tier", outcome.err)


main()
