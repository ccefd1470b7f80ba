from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LoadError
from tailrace.load import Texts


@given(st.lists(st.text(max_size=5), max_size=20))
def test_texts_hold_what_was_put_in(texts: list[str]) -> None:
    packed = Texts.of(texts)
    packed.check("The table")
    assert list(packed) == texts
    assert packed.sizes().tolist() == [len(text.encode()) for text in texts]
    assert packed == Texts.of(packed.arrow())


@pytest.mark.parametrize("bad", [[None], [1], ["\ud800"]])
def test_what_is_not_text_is_refused(bad: list[str]) -> None:
    with pytest.raises(LoadError, match="A text"):
        Texts.of(bad)
