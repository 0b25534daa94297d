"""The steps of the page, in the order of the forward pass, and where each one's parts are found."""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK = "transformer_blocks.0"
ATTENTION = f"{BLOCK}.attention"
FEED_FORWARD = f"{BLOCK}.feed_forward"
QKV = ("W_query", "W_key", "W_value")


@dataclass(frozen=True)
class Step:
    """One box of the map.

    Attributes:
        key: its anchor on the page.
        title: a few words.
        summary: what happens there, in one or two sentences.
        place: which of the recorded calls it is; None for a residual addition or the optimizer.
        inner: the operations that its operation is made of, in the order to read them.
        out_name: what the model calls its result.
        parameters: for each input that is a parameter, the names whose arrays, stacked, it is.
        torch: for each input that is not, the name of torch's gradient, where torch has that very array.
        torch_out: likewise for its output; several stand side by side in it.
        axes: axes that mean something else here than in the operation's docstring.
        bugs: what else of the catalogue is shown here, places or names.
        in_branch: whether the residual stream runs past it.
    """

    key: str
    title: str
    summary: str
    place: int | None = None
    inner: tuple[str, ...] = ()
    out_name: str = "y"
    parameters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    torch: dict[str, str] = field(default_factory=dict)
    torch_out: tuple[str, ...] = ()
    axes: dict[str, str] = field(default_factory=dict)
    bugs: tuple[str, ...] = ()
    in_branch: bool = False


def _affine(name: str) -> dict[str, tuple[str, ...]]:
    return {"weight": (f"{name}.weight",), "bias": (f"{name}.bias",)}


STEPS: tuple[Step, ...] = (
    Step(
        "embedding",
        "Embedding",
        "Each token id looks up its row in the token table, and each position adds its own row of the "
        "position table, the same in every sequence of the batch.",
        place=0,
        out_name="x",
        parameters={
            "token_weight": ("embedding.token_embedding.weight",),
            "position_weight": ("embedding.position_embedding.weight",),
        },
        torch_out=("embedding.output",),
        bugs=("model-tied-head-part-lost", "model-tied-lookup-part-lost"),
    ),
    Step(
        "attention_norm",
        "Norm",
        "The branch into attention starts from normalised vectors; the stream itself stays as it is.",
        place=1,
        out_name="normed",
        parameters=_affine(f"{BLOCK}.attention_norm"),
        torch_out=(f"{BLOCK}.attention_norm.output",),
        in_branch=True,
    ),
    Step(
        "qkv",
        "Queries, keys, values",
        "One matrix, three in one: its first C rows ask (queries), the next C say what can be found (keys), "
        "the last C what is then handed on (values). The same 3C rows are applied to every token of every "
        "sequence.",
        place=2,
        out_name="qkv",
        parameters={kind: tuple(f"{ATTENTION}.{name}.{kind}" for name in QKV) for kind in ("weight", "bias")},
        torch={"x": f"{ATTENTION}.W_query.input"},
        torch_out=tuple(f"{ATTENTION}.{name}.output" for name in QKV),
        axes={"out": "3C", "in": "C"},
        bugs=("model-keys-before-queries",),
        in_branch=True,
    ),
    Step(
        "attention",
        "Attention",
        "The vectors are split into heads, and in each head of each sequence every token mixes the values of "
        "itself and its past, by how well their keys match its query. Then the heads are joined.",
        place=3,
        inner=("softmax",),
        out_name="context",
        torch={
            "queries": f"{ATTENTION}.W_query.output",
            "keys": f"{ATTENTION}.W_key.output",
            "values": f"{ATTENTION}.W_value.output",
        },
        torch_out=(f"{ATTENTION}.out_proj.input",),
        axes={"C": "HD", "n": "Tk"},
        in_branch=True,
    ),
    Step(
        "out_proj",
        "Out projection",
        "Until here the heads kept to themselves; this matrix lets them speak to one another and to the "
        "stream.",
        place=4,
        out_name="branch",
        parameters=_affine(f"{ATTENTION}.out_proj"),
        torch={"x": f"{ATTENTION}.out_proj.input"},
        torch_out=(f"{ATTENTION}.out_proj.output",),
        axes={"out": "C", "in": "C"},
        in_branch=True,
    ),
    Step(
        "add_attention",
        "Residual add",
        "What attention found is added to what was there. Forward, two paths meet; backward, the gradient "
        "goes down both.",
        out_name="x",
        bugs=("model-residual-dropped", "model-branches-in-parallel"),
    ),
    Step(
        "feed_forward_norm",
        "Norm",
        "Again a branch starts from normalised vectors.",
        place=5,
        out_name="normed",
        parameters=_affine(f"{BLOCK}.feed_forward_norm"),
        torch_out=(f"{BLOCK}.feed_forward_norm.output",),
        in_branch=True,
    ),
    Step(
        "up_proj",
        "Widen",
        "Every token, on its own from here to the next addition, is compared with 4C patterns.",
        place=6,
        out_name="wide",
        parameters=_affine(f"{FEED_FORWARD}.up_proj"),
        torch={"x": f"{FEED_FORWARD}.up_proj.input"},
        torch_out=(f"{FEED_FORWARD}.up_proj.output",),
        axes={"out": "4C", "in": "C"},
        in_branch=True,
    ),
    Step(
        "gelu",
        "GELU",
        "Patterns that match are let through, the others held back: the only place outside attention where "
        "the model is not linear.",
        place=7,
        out_name="gated",
        torch={"x": f"{FEED_FORWARD}.gelu.input"},
        torch_out=(f"{FEED_FORWARD}.gelu.output",),
        axes={"C": "4C"},
        in_branch=True,
    ),
    Step(
        "down_proj",
        "Narrow",
        "What was let through is turned back into a vector of the stream's width.",
        place=8,
        out_name="branch",
        parameters=_affine(f"{FEED_FORWARD}.down_proj"),
        torch={"x": f"{FEED_FORWARD}.down_proj.input"},
        torch_out=(f"{FEED_FORWARD}.down_proj.output",),
        axes={"out": "C", "in": "4C"},
        in_branch=True,
    ),
    Step(
        "add_feed_forward",
        "Residual add",
        "The second branch joins. A model of more layers would now start its next block.",
        out_name="x",
        bugs=("model-residual-dropped", "model-blocks-in-forward-order"),
    ),
    Step(
        "final_norm",
        "Final norm",
        "The last vectors are normalised once more, so that the prediction depends on their direction.",
        place=9,
        out_name="x",
        parameters=_affine("final_norm"),
        torch={"x": "final_norm.input"},
        torch_out=("final_norm.output",),
        bugs=("model-final-norm-skipped", "model-eps-not-passed-on"),
    ),
    Step(
        "loss",
        "Logits and loss",
        "Every last vector is compared with every token's vector, which gives a prediction at every "
        "position; the loss is the mean surprise at the token that really came next.",
        place=10,
        inner=("cross_entropy", "linear"),
        out_name="loss",
        parameters={"weight": ("embedding.token_embedding.weight",)},
        torch={"x": "vocabulary_projection.input"},
        axes={"out": "V", "in": "C"},
    ),
    Step(
        "update",
        "Clip, and step",
        "The whole gradient is shortened to a length of at most {clip_norm}, and AdamW moves every parameter "
        "against it.",
        out_name="parameters",
        bugs=("clipping", "optimizer", "model-gradients-never-cleared", "model-one-gradient-for-all"),
    ),
)
"""Every step; the calls of the operations have the places 0 to 10."""


@dataclass(frozen=True)
class Residual:
    """Where the parts of a residual addition are found.

    Attributes:
        first: the call in whose input x the branch begins.
        last: the call whose output is the branch.
        after: the call whose input x is the sum.
        torch: torch's name of the sum.
        forward, backward: the paragraphs of GPT._block_forward and _block_backward that are about it.
    """

    first: int
    last: int
    after: int
    torch: str
    forward: slice
    backward: slice


RESIDUALS = {
    "add_attention": Residual(1, 4, 5, f"{BLOCK}.feed_forward_norm.input", slice(1, 2), slice(2, 3)),
    "add_feed_forward": Residual(5, 8, 9, "final_norm.input", slice(2, 3), slice(1, 2)),
}
