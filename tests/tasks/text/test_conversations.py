"""Conversations in texts: what is one, where it stands, and what only looks like one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tasks.text.conversations import Conversation, Message, conversation_text, find_conversations


def said(text: str, kind: str = "text") -> list[tuple[str, list[tuple[str, str]]]]:
    return [(item.kind, [tuple(message) for message in item.messages]) for item in find_conversations(text, kind)]


def passages(text: str) -> list[str]:
    return [text[item.start : item.end] for item in find_conversations(text)]


QUESTIONS = "Sheep\n\nQ: What is wool?\nA: Hair.\n\nOf sheep.\n\nQ: And felt?\n\nA: Wool, pressed.\n\nThe end of it.\n"


def test_questions_and_answers_are_pairs_with_all_paragraphs_of_an_answer() -> None:
    assert said(QUESTIONS) == [
        ("questions", [("user", "What is wool?"), ("assistant", "Hair.\n\nOf sheep.")]),
        ("questions", [("user", "And felt?"), ("assistant", "Wool, pressed.")]),
    ]
    assert passages(QUESTIONS)[0] == "Q: What is wool?\nA: Hair.\n\nOf sheep."


@pytest.mark.parametrize("marks", [("Question", "Answer"), ("Frage", "Antwort"), ("Q1", "A1"), ("**Q", "**A")])
def test_questions_are_marked_in_several_ways(marks: tuple[str, str]) -> None:
    asks, answers = marks
    found = said(f"{asks}: Who counts?\n{answers}: The shepherd.\n")
    assert [messages for _, messages in found] == [[("user", "Who counts?"), ("assistant", "The shepherd.")]]


INTERVIEW = (
    "Ann: Where were you born?\n\nBob: In a town.\nIt was small.\n\nAnn: And when?\n\nBob: I forgot.\n\n"
    "Ann: Do you still live there?\n\nBob: No.\n"
)


def test_who_asks_in_an_interview_is_the_user() -> None:
    ((kind, messages),) = said(INTERVIEW)
    assert kind == "interview"
    assert messages[:2] == [("user", "Where were you born?"), ("assistant", "In a town.\nIt was small.")]
    assert [role for role, _ in messages] == ["user", "assistant"] * 3
    ((_, swapped),) = said("Bob: Good day to all.\n\n" + INTERVIEW)
    assert swapped == messages


def test_a_play_is_a_dialogue_of_two() -> None:
    text = "HORATIO\nWho is there?\n\nGHOST\nI am.\n\nHORATIO\nI do not see you.\n\nGHOST\nI am a ghost.\n"
    ((kind, messages),) = said(text)
    assert (kind, messages[-1]) == ("dialogue", ("assistant", "I am a ghost."))


def test_a_long_dialogue_is_several_conversations() -> None:
    text = "".join(f"Ann: Is it {n}?\n\nBob: It is {n}.\n\n" for n in range(40))
    found = find_conversations(text)
    assert [len(item.messages) for item in found] == [32, 32, 16]
    assert [item.messages[0].content for item in found] == ["Is it 0?", "Is it 16?", "Is it 32?"]
    assert text[found[1].start : found[1].end].endswith("Bob: It is 31.")


def test_a_third_speaker_begins_another_dialogue() -> None:
    two = "A B: How are you?\n\nC D: Well.\n\nA B: Good.\n\nC D: And you?\n\nA B: Well.\n\nC D: Good.\n\n"
    other = "E F: May I speak?\n\nC D: You may.\n\nE F: So I will.\n\nC D: Please do.\n"
    assert [len(messages) for _, messages in said(two + other)] == [6, 4]


@pytest.mark.parametrize(
    "text",
    [
        "Package: wool\nVersion: 1\n\nPackage: felt\nVersion: 2\n\nPackage: yarn\nVersion: 3\n",
        "Note: this is long.\n\nWarning: is it hot?\n",
        "What is it? A thing, they said. Why is it here?\n\nNobody knew.\n",
        "> A quotation in a text.\n\nWhat follows it.\n",
        "Q: A question without an answer?\n",
        "$ cd\n# this is a comment in a listing\n$ make all the things that there are\n",
        "",
    ],
    ids=["fields", "remarks", "rhetoric", "quotation", "unanswered", "comment", "empty"],
)
def test_what_only_looks_like_a_conversation_is_none(text: str) -> None:
    assert said(text) == []


MAIL = (
    "# Re: boats\n\nAnn wrote:\n\n> Can it swim?\n>> older\n> I doubt it.\n\nYes, it can.\n\n"
    "> And fly?\n\nNo.\n\n-- \nBob\n"
)


def test_a_reply_answers_what_it_quotes() -> None:
    assert said(MAIL) == [
        ("mail", [("user", "Can it swim?\nI doubt it."), ("assistant", "Yes, it can.")]),
        ("mail", [("user", "And fly?"), ("assistant", "No.")]),
    ]
    assert passages(MAIL)[1] == "> And fly?\n\nNo."


def test_a_heading_is_asked_for_under_that_of_the_document_and_is_synthetic() -> None:
    text = (
        "# Guide\n\nIt says how wool is made.\n\n## Shearing\n\nShear the sheep in spring.\n\n"
        "## 2. Why in spring?\n\nThen it is warm enough.\n"
    )
    found = find_conversations(text)
    assert [(item.kind, item.messages[0].content, item.synthetic) for item in found] == [
        ("section", "Guide", True),
        ("section", "Guide: Shearing", True),
        ("faq", "Why in spring?", False),
    ]
    assert found[1].messages[1].content == "Shear the sheep in spring."


def test_underlined_lines_are_headings() -> None:
    text = "Wool\n****\n\nIt is the hair of sheep.\n\nFelt\n====\n\nIt is made by pressing wool.\n"
    assert [messages for _, messages in said(text)] == [
        [("user", "Wool"), ("assistant", "It is the hair of sheep.")],
        [("user", "Wool: Felt"), ("assistant", "It is made by pressing wool.")],
    ]


def test_questions_on_lines_of_their_own_make_an_faq() -> None:
    text = "\n\n".join(f"{n}. Is {n} odd or is it even?\n\nIt is one of the two." for n in range(1, 4))
    assert [messages[0][1] for _, messages in said(text)] == [f"Is {n} odd or is it even?" for n in range(1, 4)]
    assert said("\n\n".join(text.split("\n\n")[:4])) == []


def test_code_has_no_conversations() -> None:
    assert said(QUESTIONS, "code") == []


CHAT = [
    Message("system", "Be brief."),
    Message("user", "Write it.\n\n    x = 1\nUser: me"),
    Message("assistant", "Q: no\n\n# not a heading\n\nDone."),
]


@pytest.mark.parametrize("synthetic", [False, True])
def test_a_written_conversation_is_read_again(synthetic: bool) -> None:
    text = conversation_text(CHAT, synthetic)
    assert find_conversations(text) == [Conversation("conversation", 0, len(text), tuple(CHAT), synthetic)]


def test_passages_do_not_overlap_and_are_in_order() -> None:
    text = "\n".join([QUESTIONS, INTERVIEW, "# One\n\nText of some length below it.\n\n# Two\n", QUESTIONS])
    found = find_conversations(text)
    assert all(one.end <= other.start for one, other in pairwise(found))
    assert {item.kind for item in found} == {"questions", "interview", "section"}
