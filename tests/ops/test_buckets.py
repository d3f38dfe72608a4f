"""Bucket layout: every token once, in order, little padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hasten.ops.buckets import flat_indices, make_buckets, with_padding_bucket


@given(st.lists(st.integers(1, 60), max_size=80), st.sampled_from([0, 16, 128, 1 << 20]))
def test_layout_holds_every_sequence(lengths, slack):
    lengths = np.array(sorted(lengths, reverse=True), np.int64)
    buckets = make_buckets(lengths, slack)
    assert sum(b.rows for b in buckets) == len(lengths)
    positions = flat_indices(lengths, buckets)
    assert len(positions) == lengths.sum() == len(set(positions.tolist()))
    row = 0
    taken = 0
    for bucket in buckets:
        for line in range(bucket.rows):
            length = int(lengths[row])
            assert length <= bucket.length
            begin = bucket.start + line * bucket.length
            assert positions[taken : taken + length].tolist() == list(range(begin, begin + length))
            row, taken = row + 1, taken + length
    if slack == 0:
        assert all(bucket.rows * bucket.length for bucket in buckets)
        assert (buckets[-1].stop if buckets else 0) == lengths.sum()


def test_padding_stays_small_and_buckets_few():
    generator = np.random.default_rng(0)
    lengths = np.sort(np.minimum(generator.geometric(0.12, 128) + 1, 50))[::-1].astype(np.int64)
    buckets = make_buckets(lengths, 128)
    assert buckets[-1].stop < 1.35 * lengths.sum()
    assert len(buckets) <= 12
    assert len(make_buckets(lengths, 1 << 20)) == 1


def test_a_padding_bucket_leaves_few_sizes():
    sizes = set()
    for count in range(1, 3000):
        buckets = make_buckets(np.full(count, 7, np.int64), 0)
        *first, last = padded = with_padding_bucket(buckets)
        assert padded == buckets or (first == buckets and last.length == 1)
        assert buckets[-1].stop <= last.stop < buckets[-1].stop + max(64, buckets[-1].stop / 8)
        sizes.add(last.stop)
    assert len(sizes) < 80
