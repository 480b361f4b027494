"""Tokens to text under real tokenizers: joined pieces are the text, nothing is taken back."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pytest
import tokenizers as tk
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.streaming import TextStream

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@lru_cache
def byte_level() -> tk.Tokenizer:
    """As GPT-2, Llama 3, Qwen, SmolLM: every byte is a token, and a few pairs are merged."""
    alphabet = sorted(tk.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("h", "e"), ("Ã", "©"), ("s", "t")]
    pieces = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = tk.Tokenizer(
        tk.models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges)
    )
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


@lru_cache
def sentencepiece_like() -> tk.Tokenizer:
    """As Llama 2, Mistral, Gemma: "▁" stands for a space, unknown characters fall back to bytes,
    and the space at the very beginning is stripped."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdeghlorstw", "▁the", "▁a"]
    tokenizer = tk.Tokenizer(
        tk.models.BPE(
            vocab={word: i for i, word in enumerate(words)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Metaspace()
    tokenizer.decoder = tk.decoders.Sequence(
        [
            tk.decoders.Replace("▁", " "),
            tk.decoders.ByteFallback(),
            tk.decoders.Fuse(),
            tk.decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


KINDS = {"byte level": byte_level, "sentencepiece-like": sentencepiece_like}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def decoder(tokenizer: tk.Tokenizer) -> Decode:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def pieces(decode: Decode, ids: Sequence[int]) -> list[str]:
    stream = TextStream(decode)
    return [*(stream.push(token).text for token in ids), stream.flush().text]


@given(ids=st.lists(st.integers(0, 260), max_size=20))
@settings(max_examples=200, deadline=None)
def test_joined_pieces_are_the_decoded_text_whatever_the_tokens(ids: list[int]) -> None:
    """Any ids, also broken UTF-8 and special tokens, as a random model may write them."""
    decode = decoder(byte_level())
    assert "".join(pieces(decode, ids)) == decode(ids)


CHUNKS = ["▁the", "▁a", "▁", "t", "<end>", "<unk>", "é", "🙂", "漢"]


@given(chunks=st.lists(st.sampled_from(CHUNKS), max_size=12))
@settings(max_examples=200, deadline=None)
def test_joined_pieces_are_the_decoded_text_with_byte_fallback(chunks: list[str]) -> None:
    """Whole characters only: a broken run of bytes changes what stood before it in this decoder."""
    tokenizer = sentencepiece_like()
    ids = [
        token
        for chunk in chunks
        for token in (
            [tokenizer.token_to_id(chunk)]
            if tokenizer.token_to_id(chunk) is not None
            else [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in chunk.encode()]
        )
    ]
    decode = decoder(tokenizer)
    assert "".join(pieces(decode, ids)) == decode(ids)


@kinds
@given(text=st.text(alphabet="théo🙂👩‍👩‍👧漢 é", max_size=12))
@settings(max_examples=100, deadline=None)
def test_no_character_is_split(kind: Callable[[], tk.Tokenizer], text: str) -> None:
    tokenizer = kind()
    ids = tokenizer.encode(text).ids
    told = pieces(decoder(tokenizer), ids)
    assert not any(UNFINISHED in piece for piece in told)
    whole = decoder(tokenizer)(ids)
    assert all(whole.startswith("".join(told[: i + 1])) for i in range(len(told)))


def test_emoji_waits_for_its_last_byte() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("é🙂!").ids
    assert pieces(decoder(tokenizer), ids) == ["é", "", "", "", "🙂", "!", ""]


def test_token_by_token_decoding_would_split_it() -> None:
    """Negative control: what the stream is for."""
    tokenizer = byte_level()
    ids = tokenizer.encode("é🙂!").ids
    assert "".join(tokenizer.decode([i]) for i in ids) != "é🙂!"


def test_words_keep_their_spaces_also_across_a_special_token() -> None:
    tokenizer = sentencepiece_like()
    ids = [tokenizer.token_to_id(t) for t in ("▁the", "<end>", "▁a", "▁the")]
    assert pieces(decoder(tokenizer), ids) == ["the", "", " a", " the", ""]


def test_unfinished_character_at_the_end_is_flushed() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("a🙂").ids[:-1]
    assert pieces(decoder(tokenizer), ids) == ["a", "", "", "", UNFINISHED]


def letters(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def until_stop(text: str, *stops: str, decode: Decode = letters) -> tuple[str, int]:
    """(text up to the stop, tokens read)."""
    stream = TextStream(decode, stop_strings=stops)
    said = ""
    for count, character in enumerate(text, start=1):
        piece = stream.push(ord(character))
        said += piece.text
        if piece.stopped:
            return said, count
    return said + stream.flush().text, len(text)


@settings(deadline=None)
@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stops_where_a_plain_search_stops(text: str, stops: list[str]) -> None:
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    first = min(ends, default=len(text))
    assert until_stop(text, *stops) == (text[:first], first)


def test_stop_string_inside_one_token_cuts_the_rest_of_it() -> None:
    words = ["say ", "stop", "now\nUser", ": hi"]
    stream = TextStream(lambda ids: "".join(words[i] for i in ids), stop_strings=["\n"])
    assert [stream.push(i).text for i in range(2)] == ["say ", "stop"]
    piece = stream.push(2)
    assert (piece.text, piece.stopped) == ("now\n", True)


def test_stop_string_over_three_tokens() -> None:
    words = ["a<", "en", "d>b"]
    stream = TextStream(lambda ids: "".join(words[i] for i in ids), stop_strings=["<end>"])
    assert [stream.push(i).stopped for i in range(3)] == [False, False, True]
