"""What every test file shares: hypothesis profiles, the `slow` mark, and the optional folder of data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from numpy_gpt.model import TABLES

# Twenty-five examples, and twice as many where a test says so: together under a minute.
# No deadline and no complaint about slow draws: the first call pays for torch's start, and machines differ.
settings.register_profile(
    "default",
    max_examples=25,
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
# `pytest --hypothesis-profile ci` searches six times as long.
settings.register_profile("ci", parent=settings.get_profile("default"), max_examples=150)
settings.load_profile("default")

DATA_FOLDER = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the whole suite run on another table, or on more threads, than a model takes by itself."""
    parser.addoption(
        "--ops", choices=sorted(TABLES), default="fast", help="the table that models compute with"
    )
    parser.addoption("--threads", type=int, help="the threads that models compute on")


def pytest_configure(config: pytest.Config) -> None:
    """Leave slow tests out unless the command line says with `-m` which marks it wants."""
    if not config.option.markexpr:
        config.option.markexpr = "not slow"


@pytest.fixture(autouse=True, scope="session")
def table_and_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put in place what the command line asks for; processes that tests start do as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLES, "fast", TABLES[request.config.option.ops])
        if request.config.option.threads:
            patch.setattr("numpy_gpt.parallel.default_threads", lambda: request.config.option.threads)
        yield


@pytest.fixture
def shared_data() -> Path:
    """The data folder beside the checkout: texts and vocabularies too large for the repository."""
    if not DATA_FOLDER.is_dir():
        pytest.skip(f"needs the data folder beside the checkout, {DATA_FOLDER}")
    return DATA_FOLDER
