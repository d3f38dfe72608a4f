"""What counts as a number, what as a label, and how they sort."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.columns.ids import BadIds, IdColumn, Ids, unite


def column(*values) -> IdColumn:
    encoded = pa.array(values).dictionary_encode()
    return IdColumn(np.asarray(encoded.indices, np.int32), encoded.dictionary)


def united(*values, mode="auto", header=()) -> Ids:
    return unite("item", [column(*values)], mode, frozenset(header))


def refused(*values, mode="auto", header=()) -> BadIds:
    with pytest.raises(BadIds) as caught:
        unite("item", [column(*values)], mode, frozenset(header))
    return caught.value


def test_numbers_sort_as_numbers_and_labels_by_code_point():
    assert united("10", "9", "100", "9").labels.to_pylist() == [9, 10, 100]
    assert united("b", "a", "Ä", "B").labels.to_pylist() == ["B", "a", "b", "Ä"]
    assert united("10", "9", "100", mode="labels").labels.to_pylist() == ["10", "100", "9"]


def test_codes_point_into_the_labels():
    found = united("30", "7", "30", "8")
    assert found.codes[0].tolist() == [2, 0, 2, 1]
    assert found.codes[0].dtype == np.int32


def test_several_columns_share_one_vocabulary():
    found = unite("user", [column("2", "1"), column(3, 2)], "auto", frozenset())
    assert found.labels.to_pylist() == [1, 2, 3]
    assert [codes.tolist() for codes in found.codes] == [[1, 0], [2, 1]]


def test_spaces_around_ids_do_not_matter():
    assert united(" 1", "1 ", "2").labels.to_pylist() == [1, 2]
    assert united(" a", "a ").labels.to_pylist() == ["a"]


def test_whole_numbers_written_with_a_point_are_numbers_with_a_note():
    found = united("1.0", "2.0")
    assert found.labels.to_pylist() == [1, 2]
    assert "'1.0'" in found.notes[0]


def test_leading_zeros_are_kept_as_text_unless_told():
    found = united("0553092626", "0393316041")
    assert found.labels.to_pylist() == ["0393316041", "0553092626"]
    assert "leading zeros" in found.notes[0]
    assert united("007", "8", mode="numbers").labels.to_pylist() == [7, 8]
    assert "'7' and '07'" in refused("7", "07", mode="numbers").cause


def test_a_mixture_is_text_with_a_note_but_a_few_strangers_are_refused():
    found = united("12", "B00X", "13")
    assert found.labels.to_pylist() == ["12", "13", "B00X"]
    assert "2 of 3 item ids are written as numbers" in found.notes[0]
    assert "B00X" in found.notes[0]
    many = [str(i) for i in range(500)]
    assert refused(*many, "12x").rule == "numbers"
    assert len(united(*many, "12x", mode="labels").labels) == 501


@pytest.mark.parametrize("text", ["1.5", "1e3", "+4", ".5", "-0", "-1.5"])
def test_numbers_that_are_no_ids_are_refused(text):
    assert refused("1", text).rule == "numbers"
    assert refused("1", text, mode="numbers").rule == "numbers"
    assert len(united("1", text, mode="labels").labels) == 2


@pytest.mark.parametrize("mode", ["auto", "numbers"])
def test_ids_are_any_integers_of_64_bits(mode):
    values = [-(2**63), -1, 0, 2**31, 2**53 + 1, 2**63 - 1]
    assert united(*values[::-1], mode=mode).labels.to_pylist() == values
    assert united(*map(str, values[::-1]), mode=mode).labels.to_pylist() == values
    assert united("-7.0", f"{2**53 + 1}.", mode=mode).labels.to_pylist() == [-7, 2**53 + 1]


@pytest.mark.parametrize("text", [str(2**63), str(-(2**63) - 1), str(2**64 - 1), "9" * 40])
def test_whole_numbers_of_more_bits_are_labels(text):
    found = united("12", text)
    assert found.labels.to_pylist() == sorted(["12", text])
    assert "more than 64 bits: all are kept as text" in found.notes[0]
    assert "do not fit into 64 bits" in refused("12", text, mode="numbers").cause


def test_uuids_are_labels():
    texts = ["f47ac10b-58cc-4372-a567-0e02b2c3d479", "12345678-1234-4234-8234-123456789012"]
    assert united(*texts).labels.to_pylist() == sorted(texts)


@pytest.mark.parametrize("text", ["", " ", "nan", "NULL", "None", "N/A", "a\nb", "a\tb", "\ufeffa"])
def test_what_is_no_label_is_refused(text):
    assert refused("tea", text).rule == "labels"


def test_missing_words_are_labels_when_told():
    assert united("tea", "None", mode="labels").labels.to_pylist() == ["None", "tea"]


def test_a_repeated_header_is_refused():
    assert refused("tea", "item", header=["item"]).rule == "labels"
    assert refused(*map(str, range(300)), "item", header=["item"]).rule == "numbers"


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_and_their_texts_are_the_same_vocabulary(values):
    as_numbers, as_texts = united(*values), united(*map(str, values))
    assert as_numbers.labels.equals(as_texts.labels)
    assert np.array_equal(as_numbers.codes[0], as_texts.codes[0])
    assert as_numbers.labels.take(pa.array(as_numbers.codes[0])).to_pylist() == values
