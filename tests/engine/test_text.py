"""Streamed text is the whole text cut at the first stop string, whatever bytes each token carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.engine.text import TextStream


@dataclass
class PieceTokenizer:
    """Token i is the bytes `pieces[i]`, so a token may hold half a character, or several and a half."""

    pieces: list[bytes]
    longest: int = field(default=0)

    def decode(self, tokens: Sequence[int]) -> str:
        self.longest = max(self.longest, len(tokens))
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")


class FallbackTokenizer(PieceTokenizer):
    """Shows every byte of an unfinished character as one replacement, as sentencepiece byte tokens do."""

    def decode(self, tokens: Sequence[int]) -> str:
        data, text = b"".join(self.pieces[token] for token in tokens), ""
        while data:
            size = next((n for n in range(1, 5) if _valid(data[:n])), 0)
            text, data = text + (data[:size].decode() if size else "\ufffd"), data[size or 1 :]
        return text


def _valid(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


ALPHABET = "ab \n\u00e9\u0301\u4e2d\u6587\U0001f600\U0001f468\u200d\ufffd"
texts = st.text(ALPHABET, max_size=40) | st.text(max_size=20)
stops = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=3)


@st.composite
def splits(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> list[bytes]:
    whole = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=60)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The text up to the stop string that is complete first, of several the longest."""
    met = [(text.find(each) + len(each), -len(each)) for each in stop if each in text]
    return (text[: sum(min(met))], True) if met else (text, False)


def check(tokenizer: PieceTokenizer, stop: Sequence[str], group: int) -> TextStream:
    tokens = list(range(len(tokenizer.pieces)))
    expected, stopped = cut(tokenizer.decode(tokens), stop)
    tokenizer.longest = 0
    stream, seen = TextStream(tokenizer, stop), ""
    for start in range(0, len(tokens), group):
        seen += stream.push(tokens[start : start + group])
        assert expected.startswith(seen)
    assert seen + stream.finish() == expected
    assert stream.stopped == stopped
    return stream


@given(splits(texts.map(str.encode)), stops, st.integers(1, 3))
def test_pieces_are_the_text_cut_at_the_first_stop_for_any_split(
    pieces: list[bytes], stop: list[str], group: int
) -> None:
    check(PieceTokenizer(pieces), stop, group)


@given(splits(texts.map(str.encode)), stops)
def test_tokenizers_with_a_replacement_for_every_byte_show_the_same_text(
    pieces: list[bytes], stop: list[str]
) -> None:
    check(FallbackTokenizer(pieces), stop, 1)


@given(
    splits(st.lists(st.sampled_from([b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xff", b"a"])).map(b"".join)),
    stops,
)
def test_bytes_that_are_no_text_are_shown_as_replacements_in_the_end(
    pieces: list[bytes], stop: list[str]
) -> None:
    check(PieceTokenizer(pieces), stop, 1)


@given(texts, st.text(ALPHABET, min_size=1, max_size=5))
def test_whatever_cannot_be_part_of_a_stop_string_is_shown_at_once(text: str, stop: str) -> None:
    expected, stopped = cut(text, [stop])
    stream = TextStream(PieceTokenizer([text.encode()]), [stop])
    seen = stream.push([0])
    held = expected[len(seen) :]
    half = len(text) - len(text[-3:].rstrip("\ufffd")) - len(text[:-3])
    assert stopped or len(held) <= half + len(stop) - 1
    assert stopped or any(stop.startswith(held[: len(held) - each]) for each in range(half + 1))


def test_half_an_emoji_is_held_until_its_last_byte() -> None:
    stream = TextStream(PieceTokenizer([b"a\xf0", b"\x9f\x98", b"\x80b"]))
    assert [stream.push([token]) for token in range(3)] == ["a", "", "\U0001f600b"]


def test_tokens_after_a_stop_string_are_ignored() -> None:
    stream = TextStream(PieceTokenizer([b"one ST", b"OP two", b"three"]), ("STOP",))
    assert [stream.push([token]) for token in range(3)] == ["one ", "", ""]
    assert stream.stopped and stream.finish() == ""


def test_of_stop_strings_complete_at_once_the_longest_counts() -> None:
    stream = TextStream(PieceTokenizer([b"x\n\nUser:"]), ("User:", "\n\nUser:"))
    assert stream.push([0]) == "x"


def test_a_leading_space_that_the_tokenizer_drops_is_kept_between_tokens() -> None:
    class Stripping(PieceTokenizer):
        def decode(self, tokens: Sequence[int]) -> str:
            return super().decode(tokens).removeprefix(" ")

    stream = TextStream(Stripping([b" Hello", b" ", b" world", b"!"]))
    assert "".join(stream.push([token]) for token in range(4)) == "Hello  world!"


@pytest.mark.parametrize("piece", [b"a", b"\xff", b"\xf0\x9f", b"\xe2\x82\xac", b""])
def test_few_tokens_are_decoded_together_however_long_the_text(piece: bytes) -> None:
    tokenizer = PieceTokenizer([piece] * 2000)
    stream = TextStream(tokenizer, ["stop"])
    for token in range(2000):
        stream.push([token])
    assert tokenizer.longest <= 33
