from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from highway.errors import MalformedPacketError
from highway.mqtt.wire import (
    MAX_REMAINING_LENGTH,
    NeedMoreData,
    Reader,
    encode_binary,
    encode_string,
    encode_varint,
    packet_bytes,
    text_fault,
)


def reader(data: bytes, end: int | None = None) -> Reader:
    return Reader(data, 0, len(data) if end is None else end)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (MAX_REMAINING_LENGTH, "ffffff7f"),
    ],
)
def test_the_bounds_of_variable_byte_integers(value, encoded):
    assert encode_varint(value).hex() == encoded
    assert reader(bytes.fromhex(encoded)).varint() == value


@given(st.integers(0, MAX_REMAINING_LENGTH))
def test_variable_byte_integers_survive(value):
    encoded = encode_varint(value)
    assert len(encoded) <= 4
    assert reader(encoded).varint() == value


@pytest.mark.parametrize("encoded", ["8000", "808000", "80808000", "ff00"])
def test_longer_than_need_be(encoded):
    with pytest.raises(MalformedPacketError, match="longer than it need be"):
        reader(bytes.fromhex(encoded)).varint()


def test_a_fifth_byte_is_not_waited_for():
    with pytest.raises(MalformedPacketError, match="more than 4 bytes"):
        reader(bytes.fromhex("80808080"), end=100).varint()


def test_too_large_to_encode():
    with pytest.raises(ValueError, match="268435456"):
        encode_varint(MAX_REMAINING_LENGTH + 1)
    with pytest.raises(ValueError, match="65536"):
        encode_binary(bytes(65_536))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=50))
def test_strings_survive(text):
    assert reader(encode_string(text)).string() == text


@given(st.binary(max_size=50))
def test_binary_data_survives_with_what_follows(data):
    source = reader(encode_binary(data) + b"rest")
    assert source.binary() == data
    assert source.rest() == b"rest"
    assert source.at_end()


def test_integers():
    source = reader(bytes.fromhex("01 0203 04050607"))
    assert (source.u8(), source.u16(), source.u32()) == (1, 0x0203, 0x04050607)


def test_beyond_the_end_of_the_packet_is_malformed_and_beyond_the_data_is_not():
    with pytest.raises(MalformedPacketError) as raised:
        reader(b"\0\5abc").binary()
    assert raised.value.position == 2
    with pytest.raises(NeedMoreData):
        reader(b"\0\5abc", end=7).binary()
    with pytest.raises(MalformedPacketError):
        reader(b"\0\5", end=6).binary()  # known to be too long without a byte of it


def test_blocks_may_be_here_only_in_part():
    source = reader(b"ab", end=6)
    block = source.block(4)
    assert block.raw(2) == b"ab"
    with pytest.raises(NeedMoreData):
        block.u8()
    with pytest.raises(NeedMoreData):
        source.u8()
    with pytest.raises(MalformedPacketError):
        source.block(3)


def test_bytes_left_over():
    source = reader(b"ab")
    source.u8()
    with pytest.raises(MalformedPacketError):
        source.expect_end()
    source.u8()
    source.expect_end()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"plain", None),
        ("grün \N{ELEPHANT} \ufeff".encode(), None),
        (b"a b", None),
        (b"a\0b", "U+0000"),
        ("ä\0".encode(), "U+0000"),
        (b"a\nb", "a control character"),
        (b"\x7f", "a control character"),
        ("\x85".encode(), "U+0085"),
        ("\ufdd0".encode(), "U+FDD0"),
        ("\uffff".encode(), "U+FFFF"),
        ("\U0010ffff".encode(), "U+10FFFF"),
        ("\U0001fffe".encode(), "U+1FFFE"),
        (b"\xed\xa0\x80", "ill-formed UTF-8"),
        (b"\xc0\xaf", "ill-formed UTF-8"),
        (b"\xf4\x90\x80\x80", "ill-formed UTF-8"),
        (b"\xc3", "ill-formed UTF-8"),
    ],
)
def test_names(text, fault):
    found = text_fault(text)
    assert (found and found[0]) == fault
    if fault is None:
        assert reader(encode_binary(text)).name() == text
    else:
        with pytest.raises(MalformedPacketError, match="in a name"):
            reader(encode_binary(text)).name()


def test_where_a_string_breaks():
    with pytest.raises(MalformedPacketError) as raised:
        reader(b"\0\4abc\xff").string()
    assert raised.value.position == 5
    with pytest.raises(MalformedPacketError) as raised:
        reader(b"\0\3a\0b").string()
    assert raised.value.position == 3


def test_a_whole_packet():
    assert packet_bytes(0x30, b"x" * 200) == b"\x30\xc8\x01" + b"x" * 200
