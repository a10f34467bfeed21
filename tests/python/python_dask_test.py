"""Runs and shards of sweeps on Dask's workers, in processes of their own."""

import tempfile
import unittest

import support

support.skip_without("distributed")
from distributed import Client, LocalCluster  # noqa: E402

import kvtwin  # noqa: E402


def digest_of(sessions):
    return kvtwin.run(support.SMALL, set={"replay.sessions_max": sessions}).digest


def shard_of(index, out):
    swept = kvtwin.sweep(support.SMALL, {"seed": "1..6+1"}, {"replay.sessions_max": 4}, out=out, jobs=1,
                         shard=f"{index}/3")
    return [point["point"] for point in swept.points if point["state"] == "done"]


class Dask(unittest.TestCase):
    def test_runs_and_shards(self):
        with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster, \
                Client(cluster) as client, tempfile.TemporaryDirectory() as out:
            expected = [digest_of(sessions) for sessions in range(3, 7)]
            self.assertEqual(client.gather(client.map(digest_of, range(3, 7))), expected)
            self.assertEqual(len(set(expected)), 4)
            with self.assertRaises(kvtwin.Error) as raised:
                client.submit(kvtwin.run, "nonsense.textproto").result()
            self.assertTrue(raised.exception.hint or raised.exception.what)
            client.gather(client.map(shard_of, range(3), [out] * 3))
            whole = kvtwin.sweep(support.SMALL, {"seed": "1..6+1"}, {"replay.sessions_max": 4}, out=out)
            self.assertEqual([point["state"] for point in whole.points], ["done"] * 6)


if __name__ == "__main__":
    support.main()
