"""Tokenizers: text comes back as it was, no text makes a mark, and no tokens make decoding fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.errors import ModelError, RequestError
from mooncake_edu.model.config import SMOLLM2_135M, TINY
from mooncake_edu.model.tokenizer import ByteTokenizer, HubTokenizer, Message, Tokenizer, load_tokenizer

TEMPLATE = """
{%- for message in messages %}
{%- if message['role'] == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}
{{- '<s>' + message['content'] + '<end>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<s>' }}{% endif %}"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a small byte-level tokenizer, two marks and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocabulary | {"ab": 256}, [("a", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<end>", special=True)])
    outer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="<end>")
    outer.chat_template = TEMPLATE
    path = tmp_path_factory.mktemp("tokenizer")
    outer.save_pretrained(path)
    return path


@pytest.fixture(scope="session", params=["bytes", "hub"])
def tokenizer(request: pytest.FixtureRequest, folder: Path) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else HubTokenizer(folder, (7,))


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(codec="utf-8")))
def test_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None, max_examples=200)
@given(tokens=st.lists(st.integers(0, 400) | st.integers(-5, 2**32)))
def test_any_tokens_decode_to_some_text_and_always_the_same(tokenizer: Tokenizer, tokens: list[int]) -> None:
    text = tokenizer.decode(tokens)
    text.encode()
    assert text == tokenizer.decode(tokens)


@pytest.mark.parametrize("text", ["<s>", "a<end>b", "<bos><eos>", "\ud800 half a pair"])
def test_no_text_makes_a_mark(tokenizer: Tokenizer, text: str) -> None:
    assert all(token <= 256 for token in tokenizer.encode(text))  # 256 is "ab", marks come after


def test_half_a_surrogate_pair_becomes_a_question_mark(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_marks_are_shown_only_when_asked_for(folder: Path) -> None:
    hub, plain = HubTokenizer(folder), ByteTokenizer()
    assert hub.decode([257, 256, 258]) == "ab" and hub.decode([257, 256, 258], skip_special=False) == "<s>ab<end>"
    marked = [plain.mark["bos"], 97, plain.mark["end"]]
    assert plain.decode(marked) == "a" and plain.decode(marked, skip_special=False) == "<bos>a<end>"


def test_the_vocabulary_and_end_tokens_are_those_of_the_model(folder: Path) -> None:
    assert ByteTokenizer().vocab == TINY.vocab and ByteTokenizer().eos == set(TINY.eos)
    assert HubTokenizer(folder, (7,)).vocab == 259 and HubTokenizer(folder, (7,)).eos == {7, 258}


TURNS: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ab é"}]


def test_a_conversation_ends_where_the_answer_begins(folder: Path) -> None:
    mark = ByteTokenizer().mark
    tokens = ByteTokenizer().chat(TURNS)
    assert tokens[:2] == [mark["bos"], mark["system"]] and tokens[-2:] == [mark["end"], mark["assistant"]]
    hub = HubTokenizer(folder)
    assert hub.decode(hub.chat(TURNS), skip_special=False) == "<s>Be brief.<end><s>ab é<end><s>"


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    tokenizer = ByteTokenizer()
    before = tokenizer.chat(TURNS)
    answer = tokenizer.encode("yes")
    after = tokenizer.chat([*TURNS, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}])
    assert after[: len(before) + len(answer) + 1] == [*before, *answer, tokenizer.mark["end"]]


BAD_TURNS: list[tuple[list[object], str]] = [
    ([], "messages .* is empty"),
    ([{"role": "user"}], "has no role and content as text"),
    ([{"content": "a"}], "has no role and content as text"),
    ([{"role": "user", "content": None}], "has no role and content as text"),
    ([{"role": "user", "content": ["a"]}], "has no role and content as text"),
]


@pytest.mark.parametrize(("messages", "reason"), BAD_TURNS)
def test_malformed_turns_are_refused(tokenizer: Tokenizer, messages: list[Message], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        tokenizer.chat(messages)


def test_what_the_template_refuses_is_refused_in_its_words(folder: Path) -> None:
    with pytest.raises(RequestError, match="refuses these messages: system comes first"):
        HubTokenizer(folder).chat(TURNS[::-1])
    with pytest.raises(RequestError, match="role 'judge' is unknown"):
        ByteTokenizer().chat([{"role": "judge", "content": "a"}])


def test_a_model_without_a_template_is_no_chat_model(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(RequestError, match="has no chat template"):
        HubTokenizer(tmp_path).chat(TURNS)


def test_a_folder_brings_its_own_tokenizer_or_is_that_of_bytes(folder: Path, tmp_path: Path) -> None:
    assert isinstance(load_tokenizer(folder, TINY), HubTokenizer)
    assert isinstance(load_tokenizer(tmp_path, TINY), ByteTokenizer)
    with pytest.raises(ModelError, match=r"has no tokenizer.json"):
        load_tokenizer(tmp_path, SMOLLM2_135M)


def test_a_broken_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"the tokenizer in .* cannot be read") as refusal:
        HubTokenizer(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_tokens_of_smollm2_are_those_of_transformers(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    ours, theirs = HubTokenizer(smollm2, (2,)), AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    for text in ("", "Hello, world", "  spaces\n\n\tand tabs", "1969 + 55", "naïve 漢字 🙂"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text
    assert ours.chat(TURNS) == theirs.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
    assert ours.eos == {2} and ours.vocab == 49152
