"""Evidence: what goes in comes out, and bytes that somebody else made can do nothing but be refused."""

import json
import math
import pickle
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from breakfix import evidence
from breakfix.evidence import DTYPES, LIMIT, MAGIC, BadFrame, TooLarge, decode, encode

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
arrays = hnp.arrays(st.sampled_from(sorted(DTYPES)), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
evidences = st.dictionaries(st.text(), plain | arrays, max_size=4)

# headers that almost are one: the words of the format, in wrong places
words = st.sampled_from(["value", "dtype", "shape", "float", "dict", "nan", "float32", "bool", ""])
almost = st.recursive(
    st.none() | st.booleans() | st.integers() | words | st.sampled_from([2**31, 2**62, 2**64, -1]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)


def same(a, b) -> bool:
    """Equal in type and value; nan equals nan, and 0.0 is not -0.0."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def frame_of(header: bytes, rest: bytes = b"") -> bytes:
    return MAGIC + len(header).to_bytes(4, "little") + header + rest


def refused_or_read(frame: bytes) -> None:
    """Whatever it is, `frame` is read or refused with BadFrame, in memory of the order of a frame."""
    tracemalloc.start()
    with suppress(BadFrame):
        decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


# ------------------------------------------------------------------------------------------------------ there and back


@given(evidences)
def test_decode_undoes_encode(some):
    """Numbers, nan, inf, strings, nested lists and dicts, arrays of every dtype and shape."""
    assert same(decode(encode(some)), some)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (2, 0, 3), (2, 3)])
def test_every_dtype_and_shape(dtype, shape):
    array = np.ones(shape, dtype)
    assert same(decode(encode({"before": 1, "array": array, "after": [2]}))["array"], array)


def test_arrays_are_read_only():
    """Several checks share one array: none may change it under another."""
    array = decode(encode({"a": np.zeros(3), "b": np.zeros(())}))
    for name in "ab":
        with pytest.raises(ValueError, match="read-only"):
            array[name][...] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array[name].flags.writeable = True


def test_numpy_numbers_become_plain_ones_also_inside_lists():
    got = decode(encode({"a": np.float32(0.5), "b": [np.float64("nan"), np.int64(3)], "c": {"d": np.bool_(True)}}))
    assert same(got, {"a": 0.5, "b": [math.nan, 3], "c": {"d": True}})


def test_tuples_become_lists():
    assert decode(encode({"a": (1, (2, 3))})) == {"a": [1, [2, 3]]}


def test_arrays_of_any_memory_layout():
    """Big-endian, transposed, reversed and broadcast arrays arrive with the same values."""
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (
        grid.astype(">f4"),
        grid.T,
        grid[:, ::-1],
        np.broadcast_to(grid, (4, 2, 3)),
        np.ma.masked_array(grid),
    ):
        np.testing.assert_array_equal(decode(encode({"a": array}))["a"], np.asarray(array))


def test_tensors():
    """A tensor arrives as its array: detached, on the CPU; bfloat16 as float32, as NumPy has none."""
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    got = decode(
        encode({"weight": weight, "loss": weight.sum(), "half": weight.to(torch.bfloat16), "none": weight[:0]})
    )
    assert same(got["weight"], np.array([1, 2], np.float32))
    assert same(got["loss"], np.array(3, np.float32))
    assert same(got["half"], np.array([1, 2], np.float32))
    assert same(got["none"], np.array([], np.float32))


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, complex), np.array(["a"]), np.array([object()]), np.zeros(2, "datetime64[s]"),
        np.zeros(2, np.uint16), np.zeros(2, [("x", "f4")]), torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.float8_e4m3fn), b"bytes", {1, 2}, object(), 1j, [object()], {"a": {"b": print}},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_evidence_is_a_type_error(value):
    with pytest.raises(TypeError):
        encode({"name": value})


def test_the_type_error_names_the_evidence():
    with pytest.raises(TypeError, match=r"'loss\.grad'.*complex128.*float32"):
        encode({"loss.grad": np.zeros(2, complex)})
    with pytest.raises(TypeError, match="strings, not by 3"):
        encode({3: 1.0})


@pytest.mark.parametrize(
    "value", ["x" * LIMIT, np.zeros(LIMIT, np.uint8), ["x" * 1000] * (LIMIT // 1000)], ids=["text", "array", "list"]
)
def test_too_large_names_the_largest(value):
    with pytest.raises(TooLarge, match=rf"at most {LIMIT}.*Largest: whole\.model \(\d{{7,}} bytes\), loss "):
        encode({"loss": [0.5, 0.25], "whole.model": value, "n": 3})


def test_too_large_is_seen_before_anything_is_copied():
    with pytest.raises(TooLarge):
        encode({"huge": np.broadcast_to(np.zeros(1), (1 << 40,))})


def test_exactly_the_limit_is_allowed():
    overhead = len(encode({"a": np.zeros(1_000_000, np.uint8)})) - 1_000_000
    full = np.zeros(LIMIT - overhead, np.uint8)
    assert same(decode(encode({"a": full})), {"a": full})
    with pytest.raises(TooLarge):
        encode({"a": np.zeros(LIMIT - overhead + 1, np.uint8)})


# --------------------------------------------------------------------------------------------------- bytes of strangers


@given(evidences, st.data())
def test_every_shortened_frame_is_refused(some, data):
    frame = encode(some)
    with pytest.raises(BadFrame):
        decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(evidences, st.binary(min_size=1))
def test_every_extended_frame_is_refused(some, more):
    with pytest.raises(BadFrame):
        decode(encode(some) + more)


@given(evidences, st.data())
def test_a_frame_with_one_changed_bit_is_read_or_refused(some, data):
    frame = bytearray(encode(some))
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[bit // 8] ^= 1 << bit % 8
    refused_or_read(bytes(frame))


@given(st.binary(), st.booleans())
def test_any_bytes_are_read_or_refused(rest, with_magic):
    refused_or_read(MAGIC * with_magic + rest)


@given(almost, st.binary(max_size=64))
def test_any_header_is_read_or_refused(header, rest):
    refused_or_read(frame_of(json.dumps(header).encode(), rest))


@given(
    st.dictionaries(st.text(max_size=2), st.fixed_dictionaries({"dtype": words, "shape": almost})),
    st.binary(max_size=64),
)
def test_any_array_entry_is_read_or_refused(header, rest):
    refused_or_read(frame_of(json.dumps(header).encode(), rest))


@pytest.mark.parametrize(
    "shape", [[1 << 40], [1 << 62, 4], [10**400], [0, 1 << 62], [0] * 33, [-1], [True], [1.0], "12", {}]
)
def test_no_memory_for_a_shape_that_is_only_claimed(shape):
    frame = frame_of(json.dumps({"a": {"dtype": "float64", "shape": shape}}).encode())
    refused_or_read(frame)
    with pytest.raises(BadFrame):
        decode(frame)


@pytest.mark.parametrize("dtype", ["object", "O", "complex64", "uint16", "<f4", "U9", ["float32"], None, 3])
def test_only_the_listed_dtypes_are_read(dtype):
    with pytest.raises(BadFrame):
        decode(frame_of(json.dumps({"a": {"dtype": dtype, "shape": [0]}}).encode()))


def test_a_deep_header_is_refused():
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        with pytest.raises(BadFrame):
            decode(frame_of(b'{"a":{"value":' + opening * 200_000 + b"0" + closing * 200_000 + b"}}"))


def test_a_bool_is_zero_or_one():
    """For NumPy a bool of any other byte is neither true nor false, so a check could be led astray by it."""
    with pytest.raises(BadFrame, match="neither 0 nor 1"):
        decode(encode({"a": np.array([0, 2], np.uint8).view(bool)}))


def test_a_pickle_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    for frame in (pickle.dumps(Bomb()), frame_of(pickle.dumps(Bomb())), frame_of(b"{}", pickle.dumps(Bomb()))):
        with pytest.raises(BadFrame):
            decode(frame)
    assert not (tmp_path / "ran").exists()


def test_a_frame_beyond_the_limit_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(evidence.json, "loads", None)
    with pytest.raises(BadFrame, match=str(LIMIT + 1)):
        decode(MAGIC + bytes(LIMIT + 1 - len(MAGIC)))
