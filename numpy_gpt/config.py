"""Settings, in frozen dataclasses that are validated once: a model's, a training run's, short commands'."""

from __future__ import annotations

import dataclasses
import math
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Literal


class SettingsError(ValueError):
    """A setting that makes sense by itself, but not with the data or the model that it is used with."""


def _whole_number(name: str, value: object, *, at_least: int) -> int:
    """Return `value` as an int; NumPy's integers are welcome, booleans and floats are not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has no __index__ raises TypeError
    except TypeError:
        raise ValueError(f"{name} must be an integer, not {value!r}") from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {number}")
    return number


def _real_number(name: str, value: object, *, positive: bool) -> float:
    """Return `value` as a finite float that is above zero, or at least zero where not `positive`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]  # whatever is no number raises
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be {'positive' if positive else 'zero or more'}, not {value!r}")
    return number


def _is_folder(path: object) -> bool:
    return isinstance(path, str) and path != "" and Path(path).is_dir()


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


ACTIVATIONS = ("gelu_tanh", "gelu")


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices that determine a GPT's parameters and computation.

    Args:
        vocabulary_size: V, the number of token ids.
        max_sequence_length: the longest T that has a position embedding.
        embedding_dim: C, the width of a token vector; divisible by num_heads.
        num_heads: H, attention heads per block.
        num_layers: L, transformer blocks.
        qkv_bias: whether W_query, W_key and W_value have biases (GPT-2: yes).
        tie_weights: whether the vocabulary projection is the token embedding itself.
        activation: "gelu_tanh" (what GPT-2 uses) or "gelu" (exact).
        layer_norm_eps: added to the variance inside layer norm's square root.

    Raises:
        ValueError: naming the first field that makes no model.
    """

    vocabulary_size: int
    max_sequence_length: int
    embedding_dim: int
    num_heads: int
    num_layers: int
    qkv_bias: bool = True
    tie_weights: bool = True
    activation: str = "gelu_tanh"
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "max_sequence_length", "embedding_dim", "num_heads", "num_layers"):
            object.__setattr__(self, name, _whole_number(name, getattr(self, name), at_least=1))
        if self.embedding_dim % self.num_heads != 0:
            raise ValueError(
                f"embedding_dim must be divisible by num_heads, but {self.embedding_dim} is not "
                f"a multiple of {self.num_heads}"
            )
        for name in ("qkv_bias", "tie_weights"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")
        _one_of("activation", self.activation, ACTIVATIONS)
        eps = _real_number("layer_norm_eps", self.layer_norm_eps, positive=True)
        object.__setattr__(self, "layer_norm_eps", eps)

    @property
    def head_dim(self) -> int:
        """D = C // H, the width of one attention head."""
        return self.embedding_dim // self.num_heads

    @classmethod
    def preset(cls, name: str) -> GPTConfig:
        """Return a named configuration.

        Args:
            name: a key of `PRESETS`; the gpt2 sizes are those of Radford et al. 2019, table 2.

        Raises:
            ValueError: for a name that is not a preset.
        """
        return PRESETS[_one_of("preset", name, tuple(PRESETS))]


PRESETS = {
    "nano": GPTConfig(257, 64, embedding_dim=128, num_heads=4, num_layers=4),
    "small": GPTConfig(4096, 256, embedding_dim=384, num_heads=6, num_layers=6),
    "gpt2": GPTConfig(50257, 1024, embedding_dim=768, num_heads=12, num_layers=12),
    "gpt2-medium": GPTConfig(50257, 1024, embedding_dim=1024, num_heads=16, num_layers=24),
    "gpt2-large": GPTConfig(50257, 1024, embedding_dim=1280, num_heads=20, num_layers=36),
    "gpt2-xl": GPTConfig(50257, 1024, embedding_dim=1600, num_heads=25, num_layers=48),
}
"""Every preset by name; nano and small are byte-level and word-piece models that a laptop trains."""

if TYPE_CHECKING:  # no type checker computes the choices, but the command line reads them
    PresetName = str
else:
    PresetName = Literal[tuple(PRESETS)]

SHAPE = ("num_layers", "num_heads", "embedding_dim", "max_sequence_length", "activation")
"""The settings of a run that its preset has too."""

QUICK_SHAPE = dataclasses.replace(PRESETS["nano"], num_layers=2)
"""What `train` builds unless told: nano with half of its layers, for a short text and a short run."""

TOKENIZER_VOCABULARIES = {"bytes": 257, "bpe": 1024, "gpt2": 50257}
"""How many tokens each tokenizer has, end-of-text included; of bpe, how many it learns unless told."""

DEFAULT_TOKENIZER = "bpe"

OPS_TABLES = ("fast", "book")
OPS_OF_A_FOLDER = "folder"
"""What a checkpoint says of a run that computed with somebody's own functions. It does not say where they
lie: no code runs because a checkpoint names it, so who resumes such a run gives the folder again."""

CHANGEABLE = ("text", "threads", "recompute", "eval_interval", "stop_after", "out", "resume")
"""The settings that may differ when a run is resumed: its fingerprint tells a text, not its path."""


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Pre-train a GPT on text, in NumPy.

    Without arguments: a small model on the text of Python's own language reference.

    Args:
        text: the UTF-8 files to learn from, folders of them, or one folder that `prepare` has made; without
            it, Python's language reference.
        tokenizer: bytes (257 tokens), bpe (learned from the text) or gpt2 (50257 tokens); without it, that of
            a prepared folder, otherwise bpe.
        vocabulary_size: V, how many tokens bpe learns, end-of-text included; 1024 without it.
        preset: the model's shape where the flags below do not say; without it nano's with two layers,
            for a short text and a short run.
        num_layers: L, transformer blocks.
        num_heads: H, attention heads per block.
        embedding_dim: C, the width of a token vector.
        max_sequence_length: T, the tokens of one training window.
        activation: gelu_tanh (what GPT-2 uses) or gelu (exact).
        batch_size: B, windows per step.
        accumulate: how many parts to compute a step's batch in, one after the other; more need less memory.
        steps: how many updates to make, over which the learning rate runs its course.
        stop_after: end early, with a checkpoint, when so many steps are complete.
        learning_rate: the peak, reached after the warm-up.
        min_learning_rate: where the cosine ends, at the last step.
        warmup_steps: steps that climb to the peak.
        beta1: AdamW's decay of the first moment.
        beta2: AdamW's decay of the second moment.
        weight_decay: AdamW's decay of matrices and embeddings.
        clip_norm: the longest gradient let through unshortened; 0 never shortens.
        eval_interval: steps between two looks at the whole validation split.
        seed: of the initial weights and of every batch.
        dtype: float32 or float64, for all arithmetic.
        threads: to compute on; without it, as many as the machine's cores, or its container's quota, allow.
        recompute: make each block's activations again when they are needed: less memory, a third more time.
        ops: what to compute with: fast, book, or a folder of exercises, whose solved ones take the place of
            the book's operations.
        out: a new folder for checkpoints, metrics and picture; without it, runs/<date-time>, or when
            resuming, the folder of the checkpoint.
        resume: a checkpoint to go on from, exactly as if the run had never stopped; with another number of
            threads, but for rounding. Of a run's folder, its last. It brings all settings along; of them only
            threads, recompute, eval_interval, stop_after, out and the place of the text may change.

    Raises:
        ValueError: naming the first setting that makes no run.
    """

    text: tuple[Path, ...] = ()
    tokenizer: Literal["bytes", "bpe", "gpt2"] | None = None
    vocabulary_size: int | None = None
    preset: PresetName | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    embedding_dim: int | None = None
    max_sequence_length: int | None = None
    activation: Literal["gelu_tanh", "gelu"] | None = None
    batch_size: int = 12
    accumulate: int = 1
    steps: int = 1500
    stop_after: int | None = None
    learning_rate: float = 3e-3
    min_learning_rate: float = 1e-4
    warmup_steps: int = 100
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 1.0
    clip_norm: float = 1.0
    eval_interval: int = 250
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    threads: int | None = None
    recompute: bool = False
    ops: str = "fast"
    out: Path | None = None
    resume: Path | None = None

    def __post_init__(self) -> None:
        if self.resume is not None and self.resume.is_dir():
            object.__setattr__(self, "resume", self.resume / "last.safetensors")
        needed = {
            "batch_size": 1,
            "accumulate": 1,
            "steps": 1,
            "eval_interval": 1,
            "warmup_steps": 0,
            "seed": 0,
        }
        optional = {"vocabulary_size": TOKENIZER_VOCABULARIES["bytes"]}
        for name in (
            "stop_after",
            "threads",
            "num_layers",
            "num_heads",
            "embedding_dim",
            "max_sequence_length",
        ):
            optional[name] = 1
        given = {name: least for name, least in optional.items() if getattr(self, name) is not None}
        for name, at_least in (needed | given).items():
            object.__setattr__(self, name, _whole_number(name, getattr(self, name), at_least=at_least))
        for name in ("learning_rate", "min_learning_rate", "beta1", "beta2", "weight_decay", "clip_norm"):
            positive = name == "learning_rate"
            object.__setattr__(self, name, _real_number(name, getattr(self, name), positive=positive))
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate must be at most batch_size: {self.batch_size} windows do not make "
                f"{self.accumulate} parts"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate must be at most learning_rate, but {self.min_learning_rate} is above "
                f"{self.learning_rate}"
            )
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be below 1, not {getattr(self, name)}")
        _one_of("tokenizer", self.requested_tokenizer, tuple(TOKENIZER_VOCABULARIES))
        _one_of("dtype", self.dtype, ("float32", "float64"))
        if self.ops not in (*OPS_TABLES, OPS_OF_A_FOLDER) and not _is_folder(self.ops):
            raise ValueError(f"ops must be fast, book, or a folder of exercises, not {self.ops!r}")
        fixed = TOKENIZER_VOCABULARIES[self.requested_tokenizer]
        if self.requested_tokenizer != "bpe" and self.vocabulary_size not in (None, fixed):
            raise ValueError(
                f"vocabulary_size of the {self.tokenizer} tokenizer is {fixed}, not {self.vocabulary_size}"
            )
        self.model_config(self.requested_vocabulary)  # raises for a shape that makes no model

    @property
    def requested_tokenizer(self) -> str:
        """The tokenizer asked for, or where there is no wish, the one for a text that has none yet."""
        return self.tokenizer or DEFAULT_TOKENIZER

    @property
    def requested_vocabulary(self) -> int:
        """The vocabulary size asked for; a short text may teach bpe fewer tokens."""
        return self.vocabulary_size or TOKENIZER_VOCABULARIES[self.requested_tokenizer]

    def with_tokenizer(self, name: str, vocabulary_size: int) -> TrainConfig:
        """Return the settings with a tokenizer that the data have decided on."""
        return dataclasses.replace(self, tokenizer=name, vocabulary_size=vocabulary_size)  # type: ignore[arg-type]  # it is checked

    @property
    def kind_of_ops(self) -> str:
        """What computes: a table's name, or OPS_OF_A_FOLDER, whichever folder that is."""
        return self.ops if self.ops in OPS_TABLES else OPS_OF_A_FOLDER

    def to_json(self) -> dict[str, object]:
        """Return all settings as JSON values, for a checkpoint."""
        settings = dataclasses.asdict(self)
        for name in ("out", "resume"):
            settings[name] = None if settings[name] is None else str(settings[name])
        settings["ops"] = self.kind_of_ops
        return {**settings, "text": [str(path) for path in self.text]}

    @classmethod
    def from_json(cls, settings: object) -> TrainConfig:
        """Return the settings that `to_json` wrote down.

        Raises:
            ValueError: for anything else.
        """
        if not isinstance(settings, dict):
            raise ValueError("the settings of the run are missing")
        try:
            paths = {n: None if settings[n] is None else Path(settings[n]) for n in ("out", "resume")}
            return cls(**{**settings, **paths, "text": tuple(Path(path) for path in settings["text"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"the settings of the run are not those of this version: {error}") from None

    def changes_from(self, other: TrainConfig) -> list[str]:
        """Return the names of the settings that differ and that change what a run computes.

        A setting that only says what would have stood in for it changes nothing.
        """
        mine, theirs = self._in_effect(), other._in_effect()
        return [
            field.name
            for field in dataclasses.fields(self)
            if field.name not in (*CHANGEABLE, "ops")
            and getattr(self, field.name) != getattr(other, field.name)
            and mine[field.name] != theirs[field.name]
        ] + (["ops"] if self.kind_of_ops != other.kind_of_ops else [])

    def _in_effect(self) -> dict[str, object]:
        """Return all settings; in place of those that were left open, what stands in for them."""
        shape = self.model_config(self.requested_vocabulary)
        return {
            **dataclasses.asdict(self),
            **{name: getattr(shape, name) for name in SHAPE},
            "preset": shape,
            "tokenizer": self.requested_tokenizer,
            "vocabulary_size": self.requested_vocabulary,
        }

    def model_config(self, vocabulary_size: int) -> GPTConfig:
        """Return the preset with what the flags change, for a tokenizer of that many tokens."""
        changes = {name: getattr(self, name) for name in SHAPE if getattr(self, name) is not None}
        preset = GPTConfig.preset(self.preset) if self.preset else QUICK_SHAPE
        return dataclasses.replace(preset, vocabulary_size=vocabulary_size, **changes)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Measure how well a model predicts a text.

    Args:
        text: the UTF-8 file to predict.
        checkpoint: the model; without it, the best of the run in runs/ that wrote last.
        stride: how far each window moves on; below the model's T every token but the first window's sees at
            least T - stride tokens before it, which takes T / stride times as long. Without it, T.
        batch_size: windows per forward pass.
    """

    text: Path
    checkpoint: Path | None = None
    stride: int | None = None
    batch_size: int = 12

    def __post_init__(self) -> None:
        for name in ("batch_size", "stride"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole_number(name, getattr(self, name), at_least=1))


@dataclasses.dataclass(frozen=True)
class SampleConfig:
    """Continue a text with a trained model.

    Args:
        checkpoint: the model; without it, the best of the run in runs/ that wrote last.
        prompt: the text to continue, without it a line break; empty starts from the end-of-text token.
        prompt_file: a UTF-8 file to take the prompt from; - reads standard input.
        max_new_tokens: how many tokens to add at most.
        temperature: below 1 plays safe, above 1 takes risks; 0 always takes the likeliest token.
        top_k: choose among the k likeliest tokens only.
        top_p: choose among the likeliest tokens that together reach this probability.
        seed: of the choices.
        top: instead of continuing, list so many of the likeliest next tokens at every position of the prompt.
    """

    checkpoint: Path | None = None
    prompt: str | None = None
    prompt_file: Path | None = None
    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    top: int | None = None

    def __post_init__(self) -> None:
        if self.top is not None:
            object.__setattr__(self, "top", _whole_number("top", self.top, at_least=1))
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("prompt and prompt_file are two prompts: give one of them")


@dataclasses.dataclass(frozen=True)
class ImportConfig:
    """Turn GPT-2's weights, as Hugging Face or nanoGPT saved them, into a checkpoint.

    Args:
        weights: a folder with safetensors files, or one such file.
        out: the checkpoint to write; must not exist yet.
        dtype: float32 or float64; without it as stored, but at least float32.
        num_heads: H, for weights without a config.json that gives it; known without it for GPT-2's own sizes.
        tokenizer: gpt2, for weights that use GPT-2's tokens but have no tokenizer beside them.
    """

    weights: Path
    out: Path
    dtype: Literal["float32", "float64"] | None = None
    num_heads: int | None = None
    tokenizer: Literal["gpt2"] | None = None


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """Turn a checkpoint into a folder that Hugging Face's transformers loads.

    Args:
        out: the folder to make; new or empty.
        checkpoint: the model; without it, the best of the run in runs/ that wrote last.
    """

    out: Path
    checkpoint: Path | None = None


@dataclasses.dataclass(frozen=True)
class ExplainConfig:
    """Write a page that shows one training step of a tiny GPT, every number of it.

    Args:
        text: a sentence to learn; of a long text, its first seventeen words.
        out: the HTML file to write; it may replace such a page, but no other file.
        open: show the page in the browser.
    """

    text: str = "the cat sat on the mat and the dog sat on the rug"
    out: Path = Path("explorer.html")
    open: bool = False
