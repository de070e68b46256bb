"""Conversations in the text of a document: dialogues, interviews, questions and answers, mails, and headings.

Each is a passage of the text, in characters, and its messages. A form is recognised by several signs at once, because
what is taken for a conversation is learnt as one: a list of fields, such as `Name: value`, has names and colons too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
KINDS = ("conversation", "questions", "dialogue", "interview", "mail", "faq", "section")

LONGEST_NAME, LONGEST_HEADING = 40, 200
SHORTEST_ANSWER, LONGEST_ANSWER = 20, 2_000  # characters below a heading or a question; longer ones are chapters
MOST_MESSAGES = 32  # of a conversation, an even number; a template renders it anew for every answer
FEWEST_TURNS = 4  # of a dialogue whose speakers have names
SPEECH_SHARE = 0.6  # of the turns of a dialogue end as sentences do
FEWEST_QUESTIONS = 3  # questions on lines of their own, which make a document an FAQ
SYNTHETIC = "Synthetic: yes"  # first line of a conversation that a program wrote
INDENT = "    "  # of the further lines of a message, see `conversation_text`

ROLES = {
    **dict.fromkeys(("user", "human", "prompter", "instruction"), USER),
    **dict.fromkeys(("assistant", "gpt", "bot", "model", "ai", "chatgpt"), ASSISTANT),
    "system": SYSTEM,
}
_TURN = re.compile(
    r"(?:\*\*|__)?(\w[\w.'\u2019 -]{0,39}?)(?:\*\*|__)?\s?:(?:\*\*|__)?[ \t]+(?=\S)|([QAFR])[.)][ \t]+(?=\S)"
)
_CAST = re.compile(
    r"([A-Z\u00c0-\u00de](?:[A-Z\u00c0-\u00de]|[ .'\u2019-](?! )){1,29}?)\.?$"
)  # a speaker of a play, on a line of its own
_ASKS = frozenset(("q", "question", "frage", "f", "pregunta", "p", "domanda", "d", "vraag"))
_ANSWERS = frozenset(("a", "answer", "antwort", "respuesta", "r", "reponse", "r\u00e9ponse", "risposta", "antwoord"))
_NUMBER = re.compile(r"^(?:[QqFf]?\s?(?:\d{1,3}[.)])*\d{1,3}[.):]?\s+|[-*]\s+)")
_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*)")
_UNDERLINE = re.compile(r"([=\-~^*+#\"'`])\1{2,}[ \t]*$")
_ENDS_SENTENCE = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]['\")\]\u201d\u2019\u00bb*_]*$")
_QUESTION = re.compile(r"[?\uff1f\u061f]['\")\]\u201d\u2019\u00bb*_]*$")
_QUOTED = re.compile(r">[ \t]?(?!>)")
_WROTE = re.compile(
    r"(?:wrote|writes|said|schrieb|schreibt|geschrieben|a \u00e9crit|escribi\u00f3|ha scritto|schreef)\b.{0,80}:\s*$",
    re.I,
)
_REPLY = re.compile(r"#\s*(?:re|aw|sv|antw|r\u00e9f?|res|rif)\s*(?:\[\d+\])?\s*:", re.I)


class Message(NamedTuple):
    """Words of one side; `role` is `user`, `assistant` or `system`."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """A conversation in a text, which ends with an answer.

    Attributes:
        kind: one of `KINDS`.
        start, length: its passage in the text, in characters.
        synthetic: True if nobody asked: a program wrote it, or its question is a heading.
    """

    kind: str
    start: int
    length: int
    messages: tuple[Message, ...]
    synthetic: bool = False

    @property
    def end(self) -> int:
        """End of the passage."""
        return self.start + self.length


class _Line(NamedTuple):
    text: str  # without white space at its end
    start: int
    end: int


class _Turn(NamedTuple):
    speaker: str
    content: str
    start: int
    end: int


def find_conversations(text: str, kind: str = "text") -> list[Conversation]:
    """Return the conversations in a document, in order; none overlaps another.

    Args:
        kind: kind of the document; in code only nothing is looked for, as its colons and headings mean other things.
    """
    if kind == "code":
        return []
    lines = _lines(text)
    found: list[Conversation] = []
    for find in (_conversation, _spoken, _mails, _headed, _asked):
        apart: list[Conversation] = []
        for item in find(lines):
            if _is_apart(item, found) and (not apart or apart[-1].end <= item.start):
                apart.append(item)
        found = sorted([*found, *apart], key=lambda item: item.start)
    return found


def conversation_text(messages: Sequence[Message], synthetic: bool = False) -> str:
    """Return messages as a text from which `find_conversations` reads them again."""
    lines = [SYNTHETIC] if synthetic else []
    lines += [f"{role.capitalize()}: " + content.strip().replace("\n", f"\n{INDENT}") for role, content in messages]
    return "\n\n".join(lines)


def _lines(text: str) -> list[_Line]:
    found, start = [], 0
    for line in text.split("\n"):
        found.append(_Line(line.rstrip(), start, start + len(line)))
        start += len(line) + 1
    return found


def _is_apart(item: Conversation, found: Sequence[Conversation]) -> bool:
    """Return True if no passage of others, which are in order, overlaps that of a conversation."""
    place = bisect_left(found, item.end, key=lambda other: other.start)
    return not place or found[place - 1].end <= item.start


def _made(
    kind: str, start: int, end: int, messages: Sequence[tuple[str, str]], synthetic: bool = False
) -> Iterator[Conversation]:
    """Yield the conversation if each side says something and an answer ends it."""
    said = [Message(role, content.strip()) for role, content in messages[:MOST_MESSAGES]]
    while said and said[-1].role != ASSISTANT:
        said.pop()
    if len(said) > 1 and all(one.content for one in said):
        yield Conversation(kind, start, end - start, tuple(said), synthetic)


# what a program wrote down: `conversation_text`


def _conversation(lines: Sequence[_Line]) -> Iterator[Conversation]:
    """Yield a document that is one conversation with named roles."""
    first = next((line for line in lines if line.text), None)
    if first is None:
        return
    synthetic = first.text == SYNTHETIC
    turns: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.text == SYNTHETIC and not turns:
            continue
        head = None if line.text.startswith(INDENT) else _TURN.match(line.text)
        role = ROLES.get((head[1] or "").casefold()) if head is not None else None
        if role is not None and head is not None:
            turns.append((role, [line.text[head.end() :]]))
        elif not line.text or line.text.startswith(INDENT):
            if turns:
                turns[-1][1].append(line.text.removeprefix(INDENT))
        else:
            return
    messages = [(role, "\n".join(content)) for role, content in turns]
    yield from _made("conversation", first.start, lines[-1].end, messages, synthetic)


# what people say to each other


def _spoken(lines: Sequence[_Line]) -> Iterator[Conversation]:
    """Yield questions and answers, interviews and dialogues, in which each turn begins with its speaker."""
    for run in _runs(list(_turns(lines))):
        named = [turn.speaker.casefold().rstrip("0123456789 ") for turn in run]
        if all(name in _ASKS | _ANSWERS for name in named):
            yield from _questions(run, named)
        elif _is_speech(run):
            yield from _dialogues(run)


def _turns(lines: Sequence[_Line]) -> Iterator[_Turn | None]:
    """Yield the turns, and None where something else stands between them.

    A turn has the lines up to an empty one, an answer all paragraphs up to the next question.
    """
    number = 0
    while number < len(lines):
        line = lines[number]
        head, cast = _TURN.match(line.text), _CAST.match(line.text)
        after = lines[number + 1].text if number + 1 < len(lines) else ""
        if head is not None:
            speaker, content = (head[1] or head[2]).strip(), [line.text[head.end() :]]
        elif cast is not None and after and not _CAST.match(after) and not _UNDERLINE.match(after):
            speaker, content = cast[1].strip(" ."), []
        else:
            if line.text:
                yield None
            number += 1
            continue
        first = number + 1
        number = next(
            (place for place in range(first, len(lines)) if not lines[place].text or _begins(lines, place)), len(lines)
        )
        if speaker.casefold() in _ANSWERS:
            until = next((place for place in range(number, len(lines)) if _begins(lines, place)), len(lines))
            asks = _TURN.match(lines[until].text) if until < len(lines) else None
            if asks is not None and (asks[1] or asks[2]).casefold() in _ASKS:
                number = until
        content += [item.text for item in lines[first:number]]
        end = next(item.end for item in reversed(lines[first - 1 : number]) if item.text)
        yield _Turn(speaker, "\n".join(content).strip(), line.start, end)


def _begins(lines: Sequence[_Line], number: int) -> bool:
    """Return True if a line begins a turn, or is a heading."""
    text = lines[number].text
    return bool(_TURN.match(text) or _HEADING.match(text) or (_CAST.match(text) and not lines[number - 1].text))


def _runs(turns: Sequence[_Turn | None]) -> Iterator[list[_Turn]]:
    """Yield consecutive turns in which two sides alternate; one who speaks twice says one thing."""
    run: list[_Turn] = []
    sides: set[str] = set()
    for turn in [*_joined(turns), None]:
        if turn is not None and (len(sides) < 2 or turn.speaker in sides):
            run.append(turn)
            sides.add(turn.speaker)
        else:
            if len(run) > 1:
                yield run
            run = [] if turn is None else [*run[-1:], turn]
            sides = {item.speaker for item in run}


def _joined(turns: Sequence[_Turn | None]) -> Iterator[_Turn | None]:
    """Yield turns, of which those that follow one another of one speaker are one."""
    for _, own in groupby(turns, key=lambda turn: turn and turn.speaker):
        same = list(own)
        first, last = same[0], same[-1]
        if first is None or last is None:
            yield None
        else:
            content = "\n".join(turn.content for turn in same if turn is not None)
            yield _Turn(first.speaker, content, first.start, last.end)


def _questions(run: Sequence[_Turn], names: Sequence[str]) -> Iterator[Conversation]:
    for (asked, answered), (one, other) in zip(pairwise(run), pairwise(names), strict=True):
        if one in _ASKS and other in _ANSWERS:
            yield from _made(
                "questions", asked.start, answered.end, [(USER, asked.content), (ASSISTANT, answered.content)]
            )


def _is_speech(run: Sequence[_Turn]) -> bool:
    """Return True if turns read like speech: whole sentences, among them a question."""
    ends = [bool(_ENDS_SENTENCE.search(turn.content)) for turn in run]
    asks = any(_QUESTION.search(turn.content) for turn in run)
    return len(run) >= FEWEST_TURNS and asks and sum(ends) >= SPEECH_SHARE * len(run)


def _dialogues(run: Sequence[_Turn]) -> Iterator[Conversation]:
    """Yield a dialogue of two sides; in an interview the side that asks is the user, else the one that begins."""
    asking = dict.fromkeys(dict.fromkeys(turn.speaker for turn in run), 0)
    for turn in run:
        asking[turn.speaker] += bool(_QUESTION.search(turn.content))
    first, second = asking
    user = second if asking[second] > asking[first] else first
    n_turns = sum(turn.speaker == user for turn in run)
    is_interview = asking[user] >= SPEECH_SHARE * n_turns and asking[user] > 2 * min(asking.values())
    said = run[run[0].speaker != user :]
    said = said[: len(said) - (said[-1].speaker == user)]  # the last word is an answer
    for begin in range(0, len(said), MOST_MESSAGES):
        some = said[begin : begin + MOST_MESSAGES]
        messages = [(USER if turn.speaker == user else ASSISTANT, turn.content) for turn in some]
        yield from _made("interview" if is_interview else "dialogue", some[0].start, some[-1].end, messages)


# replies to mails


def _mails(lines: Sequence[_Line]) -> Iterator[Conversation]:
    """Yield quoted passages of a mail with the reply below each."""
    first = next((line.text for line in lines if line.text), "")
    is_reply = bool(_REPLY.match(first))
    quoted: list[_Line] = []
    reply: list[_Line] = []
    for line in [*lines, None]:
        is_quote = line is not None and line.text.startswith(">")
        if line is None or (is_quote and reply):
            if quoted and any(item.text for item in reply):
                yield from _reply(quoted, reply)
            quoted, reply = [], []
        if line is None:
            return
        if is_quote and is_reply:
            quoted.append(line)
        elif is_quote:
            continue  # a quotation in another text
        elif quoted and line.text == "--":
            yield from _reply(quoted, reply)
            quoted, reply = [], []
        elif quoted:
            reply.append(line)
        elif _WROTE.search(line.text):
            is_reply = True


def _reply(quoted: Sequence[_Line], reply: Sequence[_Line]) -> Iterator[Conversation]:
    asked = "\n".join(line.text[match.end() :] for line in quoted if (match := _QUOTED.match(line.text)))
    answered = [line for line in reply if not _WROTE.search(line.text)]
    said = [line for line in answered if line.text]
    if said:
        content = "\n".join(line.text for line in answered)
        yield from _made("mail", quoted[0].start, said[-1].end, [(USER, asked), (ASSISTANT, content)])


class Mail(NamedTuple):
    """A message of a thread; `body` has its own words, without quotes and signature, and `end` is where they end."""

    subject: str  # without the signs of a reply
    is_reply: bool
    start: int
    end: int
    body: str


def mail_of(text: str) -> Mail | None:
    """Return a document as a message of a thread, whose subject is its heading; None without one, or without words."""
    lines = _lines(text)
    heading = _HEADING.match(lines[0].text)
    if heading is None:
        return None
    subject, is_reply = lines[0].text, False
    while reply := _REPLY.match(subject):
        subject, is_reply = f"# {subject[reply.end() :].strip()}", True
    own: list[_Line] = []
    for line in lines[1:]:
        if line.text == "--":
            break
        if not line.text.startswith(">") and not _WROTE.search(line.text):
            own.append(line)
    said = [line for line in own if line.text]
    if not said:
        return None
    body = "\n".join(line.text for line in own).strip()
    return Mail(subject.casefold(), is_reply, said[0].start, said[-1].end, body)


def answered(question: Mail, reply: Mail) -> Conversation:
    """Return a message with the reply in another document, in which the passage is."""
    messages = Message(USER, question.body), Message(ASSISTANT, reply.body)
    return Conversation("mail", reply.start, reply.end - reply.start, messages)


# headings and what stands below them


class _Heading(NamedTuple):
    title: str
    depth: str  # marks of one depth are equal
    first: int  # number of its first line
    below: int  # number of the first line below it


def _headings(lines: Sequence[_Line]) -> Iterator[_Heading]:
    """Yield headings of Markdown, and lines that are underlined.

    A line between others that begins with # is a comment, as in the listings of manuals.
    """
    for number, line in enumerate(lines):
        after = lines[number + 1].text if number + 1 < len(lines) else ""
        is_apart = not after and (not number or not lines[number - 1].text)
        if is_apart and (heading := _HEADING.match(line.text)):
            yield _Heading(heading[1].strip(" #"), line.text.partition(" ")[0], number, number + 1)
        elif (
            line.text
            and not line.text[0].isspace()
            and (under := _UNDERLINE.match(after))
            and len(after) >= 0.8 * len(line.text)
            and (not number or not lines[number - 1].text or _UNDERLINE.match(lines[number - 1].text))
        ):
            yield _Heading(line.text, under[1], number, number + 2)


def _headed(lines: Sequence[_Line]) -> Iterator[Conversation]:
    """Yield headings with the text up to the next one; the user asks for a heading under that of the document."""
    headings = list(_headings(lines))
    title = headings[0] if headings else None
    for heading, end in zip(headings, [*(item.first for item in headings[1:]), len(lines)], strict=False):
        body = lines[heading.below : end]
        while body and (not body[-1].text or _UNDERLINE.match(body[-1].text)):  # a line above the next heading
            body = body[:-1]
        content = "\n".join(line.text for line in body).strip()
        name = heading.title
        if len(name) > LONGEST_HEADING or not SHORTEST_ANSWER <= len(content) <= LONGEST_ANSWER:
            continue
        if not any(map(str.isalpha, name)):
            continue
        asks = bool(_QUESTION.search(name))
        number = _NUMBER.match(name)
        question = name[number.end() :] if asks and number else name
        if not asks and title is not None and heading is not title and heading.depth != title.depth:
            question = f"{title.title}: {name}"
        kind, start = "faq" if asks else "section", lines[heading.first].start
        yield from _made(kind, start, body[-1].end, [(USER, question), (ASSISTANT, content)], synthetic=not asks)


def _asked(lines: Sequence[_Line]) -> Iterator[Conversation]:
    """Yield questions on a paragraph of their own with the text below, in a document with several."""
    blocks: list[tuple[int, int]] = []  # of lines, without empty ones between
    for number, line in enumerate(lines):
        if not line.text:
            continue
        if blocks and blocks[-1][1] == number:
            blocks[-1] = blocks[-1][0], number + 1
        else:
            blocks.append((number, number + 1))
    texts = [" ".join(line.text.strip() for line in lines[first:end]) for first, end in blocks]
    asks = [
        bool(_QUESTION.search(text)) and len(text) <= LONGEST_HEADING and bool(_NUMBER.match(text) or end - first == 1)
        for text, (first, end) in zip(texts, blocks, strict=True)
    ]
    stops = {place for place, (first, _) in enumerate(blocks) if asks[place] or _HEADING.match(lines[first].text)}
    if sum(asks) < FEWEST_QUESTIONS:
        return
    for place in (place for place, is_question in enumerate(asks) if is_question):
        until = next((other for other in range(place + 1, len(blocks)) if other in stops), len(blocks))
        if until == place + 1:
            continue
        start, end = lines[blocks[place][0]].start, lines[blocks[until - 1][1] - 1].end
        content = "\n".join(line.text for line in lines[blocks[place + 1][0] : blocks[until - 1][1]])
        question = _NUMBER.sub("", texts[place], count=1)
        if SHORTEST_ANSWER <= len(content) <= LONGEST_ANSWER:
            yield from _made("faq", start, end, [(USER, question), (ASSISTANT, content)])
