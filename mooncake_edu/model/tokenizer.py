"""Text to tokens and back: a byte tokenizer that needs no files, and the tokenizer of a Hugging Face folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mooncake_edu.errors import ModelError, RequestError
from mooncake_edu.model.config import TINY, ModelConfig
from mooncake_edu.model.folders import AGAIN

Message = dict[str, str]
"""One turn of a conversation: `role` and `content`."""

MARKS = ("pad", "bos", "eos", "system", "user", "assistant", "end", "tool")
"""The tokens after the 256 bytes, in order of their ids."""

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
"""A folder with one of these has a tokenizer of its own."""

FILE_LIMIT = 256 << 20
"""Bytes of one tokenizer file; the largest of the supported families has about 20 MB."""


class Tokenizer(ABC):
    """Turns text into token ids and back.

    `eos` are the tokens that end an answer and `vocab` the number of ids. `decode` depends on its arguments alone.
    """

    eos: frozenset[int]
    vocab: int

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, led by the model's first token where it has one; no text makes any other mark."""

    @abstractmethod
    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """The text of tokens; ids that mean nothing give no text, broken UTF-8 gives U+FFFD."""

    @abstractmethod
    def chat(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the assistant's answer begins.

        Raises RequestError if a turn is malformed or the model has no form for conversations.
        """


class ByteTokenizer(Tokenizer):
    """One token a byte of UTF-8, and eight marks; a conversation that goes on keeps its beginning token for token."""

    def __init__(self) -> None:
        self.mark = {name: 256 + index for index, name in enumerate(MARKS)}
        self.eos = frozenset((self.mark["eos"], self.mark["end"]))
        self.vocab = 256 + len(MARKS)

    def encode(self, text: str) -> list[int]:
        """The bytes of a text; what has no UTF-8 (half of a surrogate pair) becomes a question mark."""
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """The text of the bytes among the tokens; marks read `<name>` unless they are skipped."""
        parts, run = [], bytearray()
        for token in tokens:
            if 0 <= token < 256:
                run.append(token)
            elif not skip_special and 256 <= token < self.vocab:
                parts += [run.decode("utf-8", errors="replace"), f"<{MARKS[token - 256]}>"]
                run = bytearray()
        return "".join([*parts, run.decode("utf-8", errors="replace")])

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Each turn between the mark of its role and the mark `end`, after `bos`."""
        tokens = [self.mark["bos"]]
        for role, content in _turns(messages):
            if role not in ("system", "user", "assistant", "tool"):
                raise RequestError(f"role {role!r} is unknown: use system, user, assistant or tool")
            tokens += [self.mark[role], *self.encode(content), self.mark["end"]]
        return [*tokens, self.mark["assistant"]]


class HubTokenizer(Tokenizer):
    """The tokenizer in a Hugging Face folder, through transformers, from local files only.

    `eos` are the end tokens that the model's configuration names; the tokenizer's own is added. Raises ModelError
    naming the folder if it has no tokenizer that can be read without code of its own.
    """

    def __init__(self, folder: Path | str, eos: Iterable[int] = ()) -> None:
        self.folder = Path(folder)
        self._inner = _open(self.folder)
        own = self._inner.eos_token_id
        self.eos = frozenset(eos) | (frozenset() if own is None else {int(own)})
        self.vocab = len(self._inner)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text; marks spelled out in it are read as plain characters."""
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        return list(self._inner(clean, split_special_tokens=True)["input_ids"])

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """The text of tokens, with no tidying of spaces, so that more tokens only ever add to it."""
        known = [int(token) for token in tokens if 0 <= token < self.vocab]
        return str(self._inner.decode(known, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False))

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """The conversation through the model's own template, as transformers makes it, marks in contents included."""
        turns = [{"role": role, "content": content} for role, content in _turns(messages)]
        if not self._inner.chat_template:
            raise RequestError(
                f"{self.folder.name} has no chat template: use `mooncake-edu generate`, or an instruct model"
            )
        try:
            tokens = self._inner.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template raises what its author wrote
            reason = " ".join(str(error).split())[:200]
            raise RequestError(f"the chat template of {self.folder.name} refuses these messages: {reason}") from error
        return [int(token) for token in tokens]


def load_tokenizer(folder: Path | str, config: ModelConfig) -> Tokenizer:
    """The tokenizer of a model folder: its own, or that of bytes where it has none and the vocabulary of `tiny`.

    Raises ModelError if the folder has none.
    """
    folder = Path(folder)
    if any((folder / name).exists() for name in FILES):
        return HubTokenizer(folder, config.eos)
    if config.vocab == TINY.vocab:
        return ByteTokenizer()
    raise ModelError(f"{folder} has no tokenizer.json: {AGAIN}")


def _turns(messages: Sequence[Message]) -> list[tuple[str, str]]:
    if not messages:
        raise RequestError("messages [] is empty: give at least one turn with role and content")
    turns = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise RequestError(f"message {message!r} has no role and content as text: give both")
        turns.append((role, content))
    return turns


def _open(folder: Path) -> Any:
    from transformers import AutoTokenizer  # seconds to import, so only where a folder is read

    for path in folder.glob("*"):
        if path.name in FILES and path.stat().st_size > FILE_LIMIT:
            raise ModelError(f"{path} is longer than {FILE_LIMIT} bytes: it is no tokenizer, {AGAIN}")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds, none of them its own
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"the tokenizer in {folder} cannot be read ({reason}): {AGAIN}") from error
