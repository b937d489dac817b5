"""Where Triton's interpreter is on, it does not set itself up anew on every call of a device function."""

from collections.abc import Iterator

import pytest

from kernels.target import interpreting


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    if not interpreting():
        yield
        return
    from tests.kernels.guarded import quick_interpreter

    with quick_interpreter():
        yield
