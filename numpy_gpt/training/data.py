"""From a run's settings to token ids: corpus, split, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy_gpt.arrays import Array
from numpy_gpt.config import TrainConfig
from numpy_gpt.text.corpus import embedded_corpus, fingerprint, read_text, split_text
from numpy_gpt.text.tokenizers import bytes_tokenizer, encode, gpt2_tokenizer, learn_bpe, token_lengths

if TYPE_CHECKING:
    import tiktoken


@dataclass(frozen=True)
class TrainingData:
    """A text, split and tokenized.

    Attributes:
        description: where the text comes from, for people.
        fingerprint: of the whole text.
        num_bytes: of the whole text in UTF-8.
        tokenizer: whose n_vocab is the model's vocabulary size.
        training_ids: (N,) ints, the first nine tenths.
        validation_ids: (M,) ints, the last tenth, which the tokenizer has not seen either.
        validation_text: the last tenth itself.
        bytes_per_token: (V,) ints, how many bytes each token id stands for.
    """

    description: str
    fingerprint: str
    num_bytes: int
    tokenizer: tiktoken.Encoding
    training_ids: Array
    validation_ids: Array
    validation_text: str
    bytes_per_token: Array


def load_data(config: TrainConfig) -> TrainingData:
    """Read, split and tokenize what a run learns from.

    Raises:
        OSError, ValueError: in one line that names the file and what is wrong with it.
    """
    if config.text is None:
        description, text = "Python's language reference", embedded_corpus()
    else:
        description, text = str(config.text), read_text(config.text)
    training_text, validation_text = split_text(text)
    if config.tokenizer == "bytes":
        tokenizer = bytes_tokenizer()
    elif config.tokenizer == "gpt2":
        tokenizer = gpt2_tokenizer()
    else:
        tokenizer = learn_bpe([training_text], config.requested_vocabulary)
    training_ids, validation_ids = encode(tokenizer, training_text), encode(tokenizer, validation_text)
    window = config.model_config(tokenizer.n_vocab).max_sequence_length
    for part, ids in (("training", training_ids), ("validation", validation_ids)):
        if len(ids) <= window:
            raise ValueError(
                f"{description} is too short: its {part} part has {len(ids)} tokens, but one window needs "
                f"{window + 1}"
            )
    return TrainingData(
        description=description,
        fingerprint=fingerprint(text),
        num_bytes=len(text.encode("utf-8", "replace")),
        tokenizer=tokenizer,
        training_ids=training_ids,
        validation_ids=validation_ids,
        validation_text=validation_text,
        bytes_per_token=token_lengths(tokenizer),
    )
