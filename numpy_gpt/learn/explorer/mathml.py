"""The book's Unicode equations as MathML, so that a page typesets what the docstrings say and nothing else.

    y_no = Σ_i x_ni W_oi + b_o

becomes rows, subscripts, fractions and roots. The conventions are those of the docstrings: `_` starts a
subscript of letters or of a group in braces, `d_x` is the gradient of x, a slash with blanks around it
divides the whole products on its sides and one without only its neighbours, and two blanks or more end a
formula.
"""

from __future__ import annotations

import re
from html import escape

FUNCTIONS = {"exp", "log", "tanh", "softmax", "mean", "erfc", "loss", "lr", "divisor", "layer_norm"}
FUNCTIONS |= {"cross_entropy", "softmax_backward", "logits", "targets"}
"""Names of more than one letter that occur in formulas; any other makes a line prose."""

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹ᵀᵗ", [*"0123456789", "T", "t"], strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
RELATIONS = {"=", "←"}
OPERATORS = {"+", "-", "·", ",", ";", "∈", *RELATIONS}
CLOSING = {"(": ")", "[": "]"}
HALF = "½"

_GREEK = "α-ωΑ-Ω"
_LETTER = rf"[A-Za-z{_GREEK}∂]"
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<name>(?:{"|".join(sorted(FUNCTIONS, key=len, reverse=True))})(?![A-Za-z]|_[a-z]{4})
        | d_(?:loss|[A-Za-z](?![a-z]))                    # d_x: the gradient of x
        | ∂[A-Za-z]                                       # ∂y: the top or bottom of a derivative
        | {_LETTER}(?:\u0302)?(?![a-z]{{2}})              # one letter, hatted or not
        | d(?=\ tanh))
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<tight>(?<=\S)/(?=\S)) | (?P<wide>/)
    | (?P<symbol>\S)
    )""",
    re.VERBOSE,
)


class NotAFormulaError(ValueError):
    """The text is prose, or a formula of a kind that these docstrings do not use."""


def formula(text: str) -> str:
    """Return a formula as the content of a `<math>` element.

    Raises:
        NotAFormulaError: for prose.
    """
    parser = _Parser(text)
    content = parser.sequence(until=None)
    if not parser.saw_relation:
        raise NotAFormulaError(text)
    return content


def is_formula(text: str) -> bool:
    """Return whether the text is an equation and nothing else."""
    try:
        formula(text)
    except NotAFormulaError:
        return False
    return True


def symbol(text: str) -> str:
    """Return a symbol that stands in prose, such as `x_ni` or `d_E_vc`, as the content of `<math>`."""
    return _Parser(text).sequence(until=None)


class _Parser:
    """Reads a formula from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.saw_relation = False

    def sequence(self, until: str | None) -> str:
        """Return everything up to the closing bracket `until`, or to the end, as one row."""
        row: list[str] = []
        product: list[str] = []  # the factors since the last operator
        numerator: list[str] | None = None  # of a wide fraction whose denominator is being read

        def end_product() -> None:
            nonlocal product, numerator
            if numerator is not None:
                row.append(_fraction("".join(numerator), "".join(product)))
            else:
                row.extend(product)
            product, numerator = [], None

        while True:
            kind, token = self.next_token()
            if token is None or token == until:
                if token is None and until is not None:
                    raise NotAFormulaError(f"{self.text}: {until} is missing")
                end_product()
                return "".join(row)
            if kind == "wide":
                if numerator is not None or not product:
                    raise NotAFormulaError(self.text)
                numerator, product = product, []
            elif kind == "tight":
                if not product:
                    raise NotAFormulaError(self.text)
                product.append(_fraction(product.pop(), self.factor(*self.next_token())))
            elif token in OPERATORS:
                self.saw_relation |= token in RELATIONS
                is_sign = not product and (not row or row[-1].endswith("</mo>"))
                end_product()
                row.append(_operator(token, is_sign=is_sign))
            else:
                product.append(self.factor(kind, token))

    def next_token(self) -> tuple[str, str | None]:
        """Return the kind and the text of the next token; None at the end."""
        match = _TOKEN.match(self.text, self.position)
        if not match:
            if self.text[self.position :].strip():
                raise NotAFormulaError(self.text)
            return "end", None
        self.position = match.end()
        kind = match.lastgroup or ""
        return kind, match[kind]

    def factor(self, kind: str, token: str | None) -> str:
        """Return one factor with its sub- and superscripts."""
        if token is None:
            raise NotAFormulaError(self.text)
        if token in CLOSING:
            inside = self.sequence(until=CLOSING[token])
            base = f"<mrow><mo>{token}</mo>{inside}<mo>{CLOSING[token]}</mo></mrow>"
        elif token == "√":
            base = f"<msqrt>{_without_brackets(self.factor(*self.next_token()))}</msqrt>"
        elif token == HALF:
            base = _fraction("<mn>1</mn>", "<mn>2</mn>")
        elif token == "Σ":
            base = "<mo>Σ</mo>"
        elif token == "∞":
            base = "<mn>∞</mn>"
        elif kind == "number":
            base = f"<mn>{token}</mn>"
        elif kind == "name":
            base = _name(token)
        else:
            raise NotAFormulaError(self.text)
        return self.scripts(base)

    def scripts(self, base: str) -> str:
        """Return the base with the subscript, prime and superscript that follow it."""
        below, above = "", ""
        if match := self.take(r"_(?:\{(.*?)\}|([a-z]{1,3})(?![a-z]))"):
            below = _letters(match[1] or match[2])
        elif match := self.take(f"[{''.join(SUBSCRIPTS)}]+"):
            below = f"<mn>{''.join(SUBSCRIPTS[c] for c in match[0])}</mn>"
        if self.take("'"):
            above = "<mo>′</mo>"
        elif match := self.take(f"[{''.join(SUPERSCRIPTS)}]+"):
            letters = [SUPERSCRIPTS[c] for c in match[0]]
            above = "".join(f"<mn>{c}</mn>" if c.isdigit() else f"<mi>{c}</mi>" for c in letters)
        elif match := self.take(r"\^\((.*?)\)"):
            inner = _Parser(match[1])
            above = f"<mrow>{inner.sequence(until=None)}</mrow>"
        if below and above:
            return f"<msubsup>{base}<mrow>{below}</mrow><mrow>{above}</mrow></msubsup>"
        if below:
            return f"<msub>{base}<mrow>{below}</mrow></msub>"
        return f"<msup>{base}<mrow>{above}</mrow></msup>" if above else base

    def take(self, pattern: str) -> re.Match[str] | None:
        """Return the match of a pattern that comes next, and move past it."""
        match = re.compile(pattern).match(self.text, self.position)
        if match:
            self.position = match.end()
        return match


def _name(token: str) -> str:
    if token.startswith("d_"):
        return f'<mrow><mi mathvariant="normal">d</mi>{_name(token[2:])}</mrow>'
    if token.startswith("∂") and len(token) > 1:
        return f"<mrow><mo>∂</mo>{_name(token[1:])}</mrow>"
    if token == "d":
        return '<mi mathvariant="normal">d</mi>'
    if token.endswith("\u0302"):
        return f"<mover><mi>{token[0]}</mi><mo>^</mo></mover>"
    return f"<mi>{escape(token)}</mi>"


def _operator(token: str, *, is_sign: bool) -> str:
    shown = {"-": "−"}.get(token, token)
    return f'<mo form="prefix">{shown}</mo>' if is_sign else f"<mo>{shown}</mo>"


def _letters(text: str) -> str:
    return "".join(f"<mi>{c}</mi>" if c.isalpha() else f"<mo>{c}</mo>" for c in text if not c.isspace())


def _fraction(above: str, below: str) -> str:
    return f"<mfrac><mrow>{_without_brackets(above)}</mrow><mrow>{_without_brackets(below)}</mrow></mfrac>"


def _without_brackets(content: str) -> str:
    """Return what stands in a pair of round brackets around the whole: a bar or a root groups as well."""
    opening, closing = "<mrow><mo>(</mo>", "<mo>)</mo></mrow>"
    if not (content.startswith(opening) and content.endswith(closing)):
        return content
    inside = content[len(opening) : -len(closing)]
    depth = 0
    for bracket in re.findall(r"<mo>([()])</mo>", inside):
        depth += 1 if bracket == "(" else -1
        if depth < 0:  # the first bracket closes before the end: these are two pairs
            return content
    return inside
