"""The explorer page: what is recorded is what ran, and what the page says is what was recorded."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import webbrowser
from html import unescape
from pathlib import Path

import markupsafe
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import cli
from numpy_gpt.learn.explorer import building
from numpy_gpt.learn.explorer.arrays import ArrayStore, axes_in
from numpy_gpt.learn.explorer.building import build_page
from numpy_gpt.learn.explorer.experiment import run_experiment
from numpy_gpt.learn.explorer.lessons import inline, read_lesson
from numpy_gpt.learn.explorer.mathml import formula, is_formula
from numpy_gpt.learn.explorer.mistakes import bugs_of, plant_in_op
from numpy_gpt.learn.explorer.sentence import MOST_TOKENS, read_sentence
from numpy_gpt.learn.explorer.sources import CITATION, find_links, read_source
from numpy_gpt.learn.explorer.steps import RESIDUALS, STEPS
from numpy_gpt.learn.explorer.watching import watch
from numpy_gpt.model import GPT
from numpy_gpt.ops import book
from numpy_gpt.training import adamw
from numpy_gpt.verify.bugs import CATALOGUE
from tests.explorer_pages import HOSTILE, LONGEST, SENTENCE, SHORTEST, page_of

MOST_BYTES = 3_000_000
OPS = list(book._fields)


# ---- the sentence -----------------------------------------------------------------------------------------


def test_a_sentence_becomes_two_rows_and_their_targets() -> None:
    batch = read_sentence("the cat sat, the dog")
    assert batch.vocabulary == ("the", "cat", "sat", ",", "dog")
    assert batch.tokens(batch.token_ids) == [["the", "cat"], ["sat", ","]]
    assert batch.tokens(batch.target_ids) == [["cat", "sat"], [",", "the"]]
    assert (batch.is_whole, batch.unit) == (False, "word")


def test_too_few_words_become_characters() -> None:
    batch = read_sentence("hello")
    assert batch.tokens(batch.token_ids) == [["h", "e"], ["l", "l"]]
    assert (batch.is_whole, batch.unit) == (True, "character")


@pytest.mark.parametrize("text", ["", "a", "ab", "zzzz", " \n\t", "\ud800\ud801\ud802", "zz zz zz"])
def test_what_is_too_short_to_learn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs at least 3, and two different ones"):
        read_sentence(text)


@given(st.text(max_size=300))
def test_any_text_is_a_batch_or_refused_in_one_line(text: str) -> None:
    try:
        batch = read_sentence(text)
    except ValueError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "\n" not in refusal
        return
    B, T = batch.token_ids.shape
    assert (B, 1 <= T <= MOST_TOKENS) == (2, True)
    stream = [*batch.token_ids.ravel(), batch.target_ids[-1, -1]]
    np.testing.assert_array_equal(batch.target_ids.ravel(), stream[1:])
    assert set(stream) <= set(range(len(batch.vocabulary)))
    assert 2 <= len(set(batch.vocabulary)) == len(batch.vocabulary)
    assert all(token.strip() for token in batch.vocabulary)
    windows, targets = batch.windows
    np.testing.assert_array_equal(windows[[0, T]], batch.token_ids)
    np.testing.assert_array_equal(targets[[0, T]], batch.target_ids)


def test_the_rest_of_a_long_text_is_not_read() -> None:
    start = "one two three four five six seven eight nine ten eleven twelve a b c d e "
    batch = read_sentence(start + "zebra " * 1000)
    assert "zebra" not in batch.vocabulary
    assert batch.token_ids.shape == (2, MOST_TOKENS)


# ---- the recording ----------------------------------------------------------------------------------------


def test_watching_changes_no_result_and_leaves_no_hook() -> None:
    random = np.random.default_rng(0)
    x, weight, bias = random.normal(size=(2, 3, 4)), random.normal(size=4), random.normal(size=4)
    before = sys.gettrace()
    run = watch(book.layer_norm.forward, x, weight, bias, eps=1e-3)
    assert sys.gettrace() is before
    out, saved = book.layer_norm.forward(x, weight, bias, eps=1e-3)
    np.testing.assert_array_equal(run.result[0], out)
    assert run.arguments.keys() == {"x", "weight", "bias", "eps"}
    lines = {name: value for values in run.lines.values() for name, value in values.items()}
    np.testing.assert_array_equal(lines["normalized"], saved.normalized)
    np.testing.assert_array_equal(lines["mean"], x.mean(axis=-1, keepdims=True))


def test_watching_leaves_no_hook_behind_an_error() -> None:
    before = sys.gettrace()
    with pytest.raises(ValueError, match="attention takes"):
        watch(book.attention.forward, np.ones(1), np.ones(1), np.ones(1), num_heads=1)
    assert sys.gettrace() is before


def test_a_variable_that_changes_twice_is_recorded_at_both_lines() -> None:
    x = np.random.default_rng(0).normal(size=(1, 3, 4))
    run = watch(book.attention.forward, x, x, x, num_heads=2)
    scores = [values["scores"] for values in run.lines.values() if "scores" in values]
    assert len(scores) == 2
    assert np.isfinite(scores[0]).all()
    assert np.isinf(scores[1]).sum() == 2 * 3  # three masked scores in each head
    assert [inner.name for inner in run.inner] == ["softmax_forward"]


def test_what_changes_in_place_is_recorded_where_it_changes() -> None:
    random = np.random.default_rng(0)
    x, weight, bias = random.normal(size=(2, 3)), random.normal(size=(4, 3)), random.normal(size=4)
    run = watch(book.linear.forward, x, weight, bias)
    first, second = (values["y"] for values in run.lines.values() if "y" in values)
    np.testing.assert_array_equal(first, x @ weight.T)
    np.testing.assert_array_equal(second, x @ weight.T + bias)


def test_the_recorded_step_is_the_step_that_the_model_makes() -> None:
    experiment = page_of(SENTENCE).experiment
    loss, gradients = experiment.model.loss_and_gradients(*experiment.ids)
    assert loss == experiment.loss
    np.testing.assert_array_equal(gradients.flat, experiment.gradients.flat)
    assert [call.op for call in experiment.calls] == [
        *("embedding", "layer_norm", "linear", "attention", "linear"),
        *("layer_norm", "linear", "gelu", "linear", "layer_norm", "linear_cross_entropy"),
    ]
    for earlier, later in ((1, 2), (3, 4), (5, 6), (6, 7), (7, 8), (9, 10)):
        np.testing.assert_array_equal(
            experiment.calls[later].inputs["x"].ravel(), experiment.calls[earlier].out.ravel()
        )
    assert experiment.model.loss(*experiment.ids) == experiment.loss
    assert experiment.loss_after < experiment.loss


def test_replaying_with_the_same_number_gives_the_same_loss() -> None:
    experiment = page_of(SENTENCE).experiment
    for call in experiment.calls:
        for name in call.gradients:
            assert experiment.replay.loss_with(call, name, call.inputs[name]) == experiment.loss


# ---- docstrings and source --------------------------------------------------------------------------------


def lesson_of(op: str):
    return read_lesson(inspect.getdoc(importlib.import_module(f"numpy_gpt.ops.{op}")) or "")


D_X = '<mrow><mi mathvariant="normal">d</mi><mi>x</mi></mrow>'
OVER_D = "<mrow><msqrt><mi>D</mi></msqrt></mrow></mfrac>"


@pytest.mark.parametrize(
    ("text", "right_side"),
    [
        ("y = b_o", "<msub><mi>b</mi><mrow><mi>o</mi></mrow></msub>"),
        ("y = a - b", "<mi>a</mi><mo>−</mo><mi>b</mi>"),
        ("y = -√x", '<mo form="prefix">−</mo><msqrt><mi>x</mi></msqrt>'),
        ("y = a s/√D", f"<mi>a</mi><mfrac><mrow><mi>s</mi></mrow>{OVER_D}"),
        ("y = a s / √D", f"<mfrac><mrow><mi>a</mi><mi>s</mi></mrow>{OVER_D}"),
        ("y = (a + s) / √D", f"<mfrac><mrow><mi>a</mi><mo>+</mo><mi>s</mi></mrow>{OVER_D}"),
        ("y = d_xᵀ", f"<msup>{D_X}<mrow><mi>T</mi></mrow></msup>"),
    ],
)
def test_formulas_are_typeset(text: str, right_side: str) -> None:
    assert formula(text) == f"<mi>y</mi><mo>=</mo>{right_side}"


@pytest.mark.parametrize("text", ["every token on its own", "y = (x", "a b", "", "m = a / b / c", "/ y = x"])
def test_prose_and_unfinished_formulas_are_no_formulas(text: str) -> None:
    assert not is_formula(text)


@pytest.mark.parametrize("op", OPS)
def test_every_equation_of_the_book_is_typeset_and_nothing_is_lost(op: str) -> None:
    doc = inspect.getdoc(importlib.import_module(f"numpy_gpt.ops.{op}")) or ""
    lesson = read_lesson(doc)
    assert list(lesson.sections)[:4] == ["Equation", "Shapes", "Derivation", "Saved"]
    assert any(paragraph.is_display for paragraph in lesson.sections["Equation"])
    for heading, paragraphs in lesson.sections.items():
        source = re.search(rf"^{re.escape(heading)}\n((?:    .*\n?|\n)+)", doc, flags=re.MULTILINE)
        assert source
        shown = "".join(piece.text for p in paragraphs for chunk in p.chunks for piece in chunk)
        shown = unescape(re.sub(r"<[^>]*>", "", shown))
        assert letters(shown) == letters(source[1]), heading


def letters(text: str) -> str:
    """Return a text's letters, without marks that typesetting replaces: scripts, fractions, dots at ends."""
    flat = text.replace("½", "12").translate(str.maketrans("ᵀᵗ²³₁₂", "Tt2312"))
    return "".join(c for c in flat if c.isalnum())


def test_adamw_is_a_lesson_too() -> None:
    lesson = read_lesson(adamw.__doc__ or "")
    displays = [p for p in lesson.sections["Equation"] if p.is_display]
    assert len(displays) == 4
    assert any("<mover>" in piece.text for p in displays for chunk in p.chunks for piece in chunk)


def test_prose_keeps_code_and_typesets_symbols() -> None:
    kinds = [(piece.kind, re.sub("<[^>]*>", "", piece.text)) for piece in inline("of x_ni, `a_b` and W_key")]
    assert kinds == [
        ("text", "of "),
        ("math", "xni"),
        ("text", ", "),
        ("code", "a_b"),
        ("text", " and W_key"),
    ]


@pytest.mark.parametrize("op", OPS)
def test_every_line_that_a_backward_cites_stands_in_its_forward(op: str) -> None:
    forward, backward = (read_source(function) for function in getattr(book, op))
    links = find_links(forward, backward)
    citations = [text for _, text in backward.lines if CITATION.match(text)]
    assert len(links) >= max(len(citations), 1)
    numbers = {number for number, _ in forward.lines}, {number for number, _ in backward.lines}
    for link in links:
        assert link.forward
        assert link.forward <= numbers[0]
        assert link.backward
        assert link.backward <= numbers[1]


def test_a_citation_leads_to_the_line_it_quotes_or_to_all_that_set_what_it_names() -> None:
    def undone(op: str) -> dict[str, list[str]]:
        forward, backward = (read_source(function) for function in getattr(book, op))
        lines = dict(forward.lines)
        return {
            link.citation[:12]: [lines[number].partition("  #")[0].strip() for number in sorted(link.forward)]
            for link in find_links(forward, backward)
        }

    assert undone("linear") == {"y += bias: t": ["y += bias"], "y = rows @ w": ["y = rows @ weight.T"]}
    scores = ["scores = q @ k.swapaxes(-2, -1)", "scores = np.where(mask, -math.inf, scores)"]
    assert undone("attention")["scores = q @"] == scores


def test_the_block_cites_its_residual_additions() -> None:
    for residual in RESIDUALS.values():
        forward = read_source(GPT._block_forward, residual.forward)
        (link,) = find_links(forward, read_source(GPT._block_backward, residual.backward))
        lines = dict(forward.lines)
        assert [lines[number].strip() for number in link.forward] == ["x = x + branch  # (B, T, C)"]


def test_a_citation_of_nothing_is_noticed() -> None:
    forward, backward = read_source(book.softmax.forward), read_source(book.gelu.backward)
    with pytest.raises(ValueError, match=r"gelu_backward cites 'gate = .* softmax_forward does not have"):
        find_links(forward, backward)


def test_source_is_shown_as_it_stands_in_its_file() -> None:
    source = read_source(book.attention.backward)
    file = (Path(cli.__file__).parents[1] / source.path).read_text(encoding="utf-8").splitlines()
    assert all(file[number - 1] == text for number, text in source.lines)
    assert source.lines[0][1].startswith("def attention_backward(")
    assert '"""' not in "\n".join(text for _, text in source.lines)


def test_shapes_are_read_from_comments() -> None:
    assert axes_in("(B, Tq, C) each", 3) == ("B", "Tq", "C")
    assert axes_in("(..., C): n, so that x need not be kept", 3) == ("B", "T", "C")
    assert axes_in("(..., n)", 4) == ("B", "H", "Tq", "n")
    assert axes_in("nothing of that rank (V,)", 2) == ("n", "n")


# ---- the page ---------------------------------------------------------------------------------------------


def numbers_of(page, array: str) -> np.ndarray:
    entry = page.arrays[array]
    values = [float(v) if isinstance(v, str) else v for v in entry["data"]]
    return np.array(values).reshape(entry["shape"])


def step_of(page, key: str):
    return next(step for step in page.steps if step.key == key)


def test_every_number_is_the_one_that_was_computed() -> None:
    experiment, page, _ = page_of(SENTENCE)
    for step in STEPS:
        if step.place is None:
            continue
        view, call = step_of(page, step.key), experiment.calls[step.place]
        for tensor, value in zip(view.inputs, call.inputs.values(), strict=True):
            np.testing.assert_array_equal(numbers_of(page, tensor.array), value)
        np.testing.assert_array_equal(numbers_of(page, view.outputs[0].array), call.out)
        np.testing.assert_array_equal(numbers_of(page, view.arrives[0].tensor.array), call.d_out)
        for gradient, value in zip(view.leaves, call.gradients.values(), strict=True):
            np.testing.assert_array_equal(numbers_of(page, gradient.tensor.array), value)
    for step in page.steps:
        for gradient in (*step.arrives, *step.leaves):
            for other in gradient.comparisons:
                ours, theirs = numbers_of(page, gradient.tensor.array), numbers_of(page, other.array)
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-7)


def test_gradients_agree_with_every_second_opinion() -> None:
    _, page, _ = page_of(SENTENCE)
    for step in page.steps:
        for gradient in step.leaves if step.op != "add" else ():
            errors = {other.source: other.error for other in gradient.comparisons}
            assert errors["finite differences"] < 1e-7, (step.key, gradient.tensor.name)
            assert errors.get("torch", 0) < 1e-12
        if step.arrives and step.key != "loss":
            assert [other.source for other in step.arrives[0].comparisons] == ["torch"]
            assert step.arrives[0].comparisons[0].error < 1e-12
    assert page.worst["torch"] < 1e-12
    assert 0 < page.worst["finite differences"] < 1e-7


def test_a_wrong_gradient_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "STEPS", [step for step in STEPS if step.key == "qkv"])
    experiment = run_experiment(read_sentence(SHORTEST))
    wrong = experiment.calls[2].backward
    assert wrong is not None
    wrong.returned = (wrong.returned[0], wrong.returned[1] * 1.01, wrong.returned[2])
    leaves = step_of(build_page(experiment), "qkv").leaves
    errors = [[other.error for other in gradient.comparisons] for gradient in leaves]
    assert all(0.005 < error < 0.02 for error in errors[1])
    assert all(error < 1e-7 for error in errors[0] + errors[2])


def test_every_line_that_computes_shows_its_numbers() -> None:
    experiment, page, _ = page_of(SENTENCE)
    forward, backward = step_of(page, "attention").parts[0].codes
    shown = {
        value.name: value for code in (forward, backward) for line in code.lines for value in line.values
    }
    assert {"q", "k", "v", "scores", "mask", "weights", "context"} <= shown.keys()
    assert {"d_heads", "d_weights", "d_v", "d_scaled", "d_scores", "d_q", "d_k", "d_keys"} <= shown.keys()
    assert shown["weights"].shape == "(B, H, Tq, Tk) = (2, 2, 6, 6)"
    call = experiment.calls[3]
    np.testing.assert_array_equal(numbers_of(page, shown["weights"].array), call.saved.softmax.y)
    np.testing.assert_array_equal(numbers_of(page, shown["d_keys"].array), call.gradients["keys"])
    masked = numbers_of(page, shown["scores"].array)
    assert (np.isneginf(masked) == (call.saved.softmax.y == 0)).all()


def test_the_prediction_shown_is_the_models() -> None:
    experiment, page, _ = page_of(SENTENCE)
    logits = experiment.model(experiment.batch.token_ids)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    shown = numbers_of(page, page.batch.probabilities.array)
    np.testing.assert_allclose(shown, chances, rtol=1e-12)
    targets = numbers_of(page, page.batch.probabilities.mark)
    np.testing.assert_array_equal(targets, experiment.batch.target_ids)
    of_targets = [chance for row in page.batch.rows for *_, chance in row]
    assert np.mean(-np.log(of_targets)) == pytest.approx(page.loss, rel=1e-12)


def test_the_nudged_loss_starts_at_the_loss_with_the_gradient_as_its_slope() -> None:
    _, page, _ = page_of(SENTENCE)
    nudges = [nudge for step in page.steps for nudge in step.nudges]
    assert len(nudges) > 20
    for nudge in nudges:
        middle = len(nudge.values) // 2
        assert nudge.values[middle] == pytest.approx(nudge.value, abs=1e-15)
        assert nudge.losses[middle] == pytest.approx(page.loss, rel=1e-12)
        slopes = np.diff(nudge.losses) / np.diff(nudge.values)
        around = sorted(slopes[middle - 1 : middle + 1])
        room = 0.6 * abs(around[1] - around[0]) + 0.05 * abs(nudge.gradient)
        assert around[0] - room <= nudge.gradient <= around[1] + room, nudge.label


def test_notes_tell_where_gradients_add() -> None:
    experiment, page, _ = page_of(SENTENCE)
    repeated = step_of(page, "embedding").notes[0]
    assert repeated.title == "“the” is looked up 4 times, so its row adds 4 gradients"
    rows = numbers_of(page, repeated.tensors[0].array)
    np.testing.assert_allclose(rows[:-1].sum(0), rows[-1], rtol=1e-12)
    the = experiment.batch.vocabulary.index("the")
    np.testing.assert_allclose(rows[-1], experiment.calls[0].gradients["token_weight"][the], rtol=1e-12)
    for step in page.steps:
        for note in step.notes:
            shown = {tensor.name: numbers_of(page, tensor.array) for tensor in note.tensors}
            if "together" in shown:
                first, second, total = shown.values()
                np.testing.assert_allclose(first + second, total, rtol=1e-12, atol=1e-15)
            elif note.kind == "adds" and shown:
                (values,) = shown.values()
                if page.arrays[note.tensors[0].array]["rows"]:
                    np.testing.assert_allclose(values[:-1].sum(0), values[-1], rtol=1e-10, atol=1e-15)


def test_what_is_zero_by_symmetry_is_said_to_be() -> None:
    page = page_of(SHORTEST).page
    qkv = step_of(page, "qkv")
    assert any("One token" in note.title for note in qkv.notes)
    queries, keys, values = step_of(page, "attention").leaves
    assert (queries.is_zero, keys.is_zero, values.is_zero) == (True, True, False)


def test_every_mistake_of_a_step_is_shown_with_its_effect_and_what_sees_it() -> None:
    _, page, _ = page_of(SENTENCE)
    titles = {mistake.title for step in page.steps for mistake in step.mistakes}
    expected = {bug.title for bug in CATALOGUE if bug.op or bug.where in ("model", "optimizer", "clipping")}
    assert titles == expected
    for step in page.steps:
        assert step.mistakes
        for mistake in step.mistakes:
            assert mistake.check.evidence, mistake.title
            if mistake.wrong:
                right, wrong = numbers_of(page, mistake.right.array), numbers_of(page, mistake.wrong.array)
                assert not np.allclose(right, wrong, rtol=1e-10, atol=0), mistake.title
    embedding = {mistake.title: mistake for mistake in step_of(page, "embedding").mistakes}
    assert embedding["A token that occurs twice is counted once"].verdict.startswith(
        "d_token_weight is off by"
    )
    assert "takes another case" in embedding["Token -1 is the last token"].verdict
    qkv = {mistake.title: mistake for mistake in step_of(page, "qkv").mistakes}
    assert "(8, 24) instead of (24, 8)" in qkv["The weight's gradient is its transpose"].verdict


def test_right_code_planted_as_a_mistake_changes_nothing() -> None:
    call = page_of(SENTENCE).experiment.calls[0]
    (bug,) = bugs_of("embedding-ids-wrap")  # right for right ids
    planted = plant_in_op(bug, call.forward, call.backward)
    assert (planted.effects, planted.raises) == ((), "")


@pytest.mark.parametrize("text", [HOSTILE, LONGEST], ids=["hostile", "longest"])
def test_any_sentence_makes_a_page_that_is_whole_and_small(text: str) -> None:
    experiment, page, html = page_of(text)
    assert html.startswith("<!doctype html>")
    assert len(html.encode("utf-8")) < MOST_BYTES
    assert html.lower().count("<script") == html.lower().count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert data
    assert json.loads(data[1])["labels"]["V"] == list(experiment.batch.vocabulary)
    assert page.worst["finite differences"] < 1e-6
    for token in experiment.batch.vocabulary:
        assert f"<b>{markupsafe.escape(token)}</b>" in html
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", html)
    assert not re.search(r"url\((?!#)|@import|fetch\(|https?://(?!www\.w3\.org)", html)


def test_the_page_says_the_same_thing_twice() -> None:
    again = page_of.__wrapped__(SHORTEST)
    assert again.html == page_of(SHORTEST).html


# ---- without extras, and the command ----------------------------------------------------------------------


def test_without_torch_the_page_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    monkeypatch.setattr(building, "STEPS", [step for step in STEPS if step.key in ("qkv", "add_attention")])
    page = build_page(run_experiment(read_sentence(SHORTEST)))
    assert not page.has_torch
    assert page.worst.keys() == {"finite differences"}


def outcome(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def test_the_command_writes_a_page_and_may_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    out = tmp_path / "page.html"
    out.write_text(page_of(SENTENCE).html, encoding="utf-8")
    assert outcome("explain", "--text", "hi!", "--out", str(out), "--open") == 0
    assert opened == [out.resolve().as_uri()]
    assert '"V":["h","i","!"]' in out.read_text(encoding="utf-8")
    assert "MB; open it in any browser" in capsys.readouterr().out


def test_no_other_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "diary.html"
    out.write_text("dear diary", encoding="utf-8")
    assert outcome("explain", "--out", str(out)) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert out.read_text(encoding="utf-8") == "dear diary"


@pytest.mark.parametrize("text", ["", "a"])
def test_too_short_a_text_gets_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert outcome("explain", "--text", text, "--out", str(out)) == 1
    error = capsys.readouterr().err
    assert error.startswith("numpy-gpt: the text has ")
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_place_that_cannot_be_written_gets_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome("explain", "--text", SHORTEST, "--out", str(tmp_path / "no" / "page.html")) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_the_extra_the_command_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else find_spec(name)
    )
    assert outcome("explain", "--out", str(tmp_path / "page.html")) == 1
    assert capsys.readouterr().err == 'numpy-gpt: the page needs jinja2: pip install "numpy-gpt[learn]"\n'


def test_equal_arrays_are_kept_once_and_others_are_not_confused() -> None:
    store = ArrayStore()
    first = store.tensor("a", np.array([1.0, 2.0]), ("C",))
    assert store.tensor("b", np.array([1.0, 2.0]), ("C",)).array == first.array
    assert store.tensor("c", np.array([1, 2]), ("C",)).array != first.array
    assert store.tensor("d", np.array([1.0, 2.0]), ("V",)).array != first.array
    assert len(store.entries) == 3
