"""A scorer for `scorer: "external"`: entries with long values stay, because a long value moves the output most."""
import sys
from types import SimpleNamespace

import numpy

# NumPy reads and writes plain streams only through objects that are not files.
ask = SimpleNamespace(read=sys.stdin.buffer.read)
answer = SimpleNamespace(write=sys.stdout.buffer.write)

while True:
    try:
        layer = numpy.lib.format.read_array(ask)  # int64
    except ValueError:  # the input has ended
        break
    positions = numpy.lib.format.read_array(ask)  # [H][T], int64
    keys = numpy.lib.format.read_array(ask)  # [H][T][d], float32
    values = numpy.lib.format.read_array(ask)  # [H][T][d]
    queries = numpy.lib.format.read_array(ask)  # [Hq][w][d]: the window's
    scores = numpy.linalg.norm(values, axis=-1)  # [H][T]; higher stays
    numpy.lib.format.write_array(answer, scores)
    sys.stdout.buffer.flush()
