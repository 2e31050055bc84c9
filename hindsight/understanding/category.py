"""The category of a memory, decided from its text when the caller named none.

Rules and word lists for English, kept in step with docs/categories.md; any other language is `world`. The order of the
questions is the rule that matters: a memory about memories may quote an opinion or an event, and an opinion may rest on
one, so the derived kind is asked for first.

The patterns read lower case and look for the edge of a word once, not for each alternative: then `re` sees at its first
letter that an alternative does not fit, which makes them three times as fast.
"""

from __future__ import annotations

import re

from hindsight.record import MemoryType

_READ = 600  # characters: the opening says what kind of memory it is
_SENTENCES = 3

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_SPEAKER = re.compile(
    r"^(?:[A-Z][\w.'-]{0,30}(?: [A-Z][\w.'-]{0,30})?:\s+"
    r"|(?:[Tt]he )?[A-Za-z]\w{0,30} (?:said|says|mentioned|mentions|stated|states) (?:that )?(?=\w+ ))"
)

_PEOPLE = r"(?:the )?(?:user|agent|assistant|client|customer)|he|she|they"
_ADVERB = r"(?:just|finally|also|already|recently|then|both|later|quickly|immediately|successfully|never|only)"
_IRREGULAR = (
    "went|ran|met|sent|had|got|found|made|took|saw|told|gave|wrote|bought|lost|left|came|began|broke|built|caught|"
    "chose|drank|drove|ate|fell|felt|flew|forgot|fought|grew|heard|held|kept|knew|led|lent|paid|read the|rode|rang|"
    "rose|said|sold|shot|showed|shook|shut down|sang|sat|slept|spoke|spent|stood|stole|swam|taught|threw|"
    "understood|woke|wore|won|did|rebuilt|set up|put|hit|cut|thought about|brought|became|dealt|dug|drew|hung|hid|"
    "hurt|laid|lay|lit|overslept|quit|sought|split|stuck|swept|tore|withdrew|reran|undid|redid|rewrote|upset"
)
_NOT_PAST = (
    r"(?:need|feed|seed|speed|indeed|hundred|bed|red|shed|embed|weed|breed|bleed|proceed|exceed|succeed|based|located|"
    r"named|licensed|limited|required|left-handed|related|supposed|married|used to|had to have)\b"
)
_PAST = rf"(?!{_NOT_PAST})(?:(?:{_IRREGULAR})|[a-z]{{2,}}ed)\b"
_PERFECT = rf"(?:(?:have|has|had|'ve|'d) )?(?:{_ADVERB} )*(?:had to |got to )?"

_DERIVED = re.compile(
    r"^\W*(?:key )?(?:pattern|summary|trend|recap|insight|observation|recurring|common (?:thread|theme)|theme)\b"
    r"|^(?:overall|in general|generally|as a rule|on average|typically|in (?:summary|conclusion|short)|usually|"
    r"to (?:sum|summari[sz]e|conclude)|looking back|reviewing|judging|all in all|consistently|tends to)\b"
    r"|\b(?:(?:in summary|to sum up|taken (?:together|as a whole)|more often than not|as a rule|over time|"
    r"in most cases|most of (?:his|her|their|the user's)|judging (?:from|by)|recurring|every time|each time|"
    r"so far (?:indicates?|suggests?)|points? to an?|"
    r"over the (?:past|last) (?:few |several |two |three )?(?:days|weeks?|months?|years?))\b"
    r"|it (?:seems|appears|looks like)\b|(?:seems?|appears?|tends?) to\b|looks like the user\b|apparently\b"
    r"|(?:across|from|based on|given|in) (?:(?:the|these|those|all|several|many|previous|past|earlier|last|recent|"
    r"his|her|their|prior|stored|\w+) ){0,3}(?:sessions|conversations|memories|chats|messages|interactions|notes)\b"
    r"|(?:memories|conversations|sessions|notes|chats|messages|logs|entries) (?:all )?(?:suggest|indicate|show|"
    r"reveal|imply|point to)"
    r"|(?:noticed|observed)(?: that| a pattern|:)|i conclude\b)"
)
_FREQUENCY = re.compile(
    r"\b(?:usually|often|frequently|repeatedly|generally|typically|rarely|consistently|regularly|habitually|whenever|"
    r"has mentioned|always (?=ask|want|pick|choose|avoid|follow|start|end|come|bring|reject|accept))\b"
)
_FIRST_PERSON = re.compile(r"^(?:i|i'm|i've|we|my|our|please)\b")

_HOLDS = (
    r"(?:think|believe|feel|guess|suspect|doubt|reckon|suppose|consider|find|prefer to think|am convinced|'m convinced|"
    r"would say|'d say|would argue|'d argue|don't think|do not think|don't believe|do not believe|agree|disagree|bet)"
)
_BELIEF = re.compile(
    rf"\b(?:i(?:(?: (?:really|honestly|still|personally|just|also|strongly|firmly|do))* |(?='))(?:{_HOLDS})\b"
    r"|(?:thinks|believes|feels that|reckons|considers|doubts|finds (?!out)|is convinced|are convinced|disagrees)\b"
    r"|in (?:my|his|her|their|our) (?:humble )?(?:opinion|view|eyes)\b|of the opinion\b|my (?:view|opinion|take) is\b"
    r"|(?:imo|imho|no contest)\b)"
    r"|^(?:honestly|frankly|personally|to me|for me|clearly|unfortunately|arguably)\b"
)
_JUDGING = (
    "good|great|bad|nice|nicer|awful|terrible|horrible|wonderful|amazing|awesome|fantastic|excellent|brilliant|lovely|"
    "loveliest|beautiful|ugly|boring|confusing|confused|cheap|overpriced|overrated|underrated|elegant|clumsy|pleasant|"
    "unpleasant|annoying|useless|useful|pointless|charming|weak|poor|poorly|mediocre|disappointing|impressive|unfair|"
    "fair|ridiculous|silly|stupid|smart|clever|easy|easier|hard to|difficult|unnecessary|cluttered|slow|delicious|"
    "tasty|unhappy|acceptable|unrealistic|overkill|superior|inferior|perfect|fun|funny|interesting|important|"
    "comfortable|attractive|sloppy|bloated|ideal|wise|wrong|too"
)
_JUDGEMENT = re.compile(
    r"\b(?:(?:better|worse|worst|nicer|superior|inferior|overrated|underrated|overkill|masterpiece|not worth|"
    r"worth the)\b|best\b(?! (?:friend|man|before|regards|wishes|buy|practice))"
    r"|(?:we|you|they|one|it|people|nobody|everyone|this|that|he|she|i) (?:should|shouldn't|should not|ought)\b"
    r"|would be (?:better|wise|nice|great|a mistake)\b|more \w+ than\b|far (?:more|less|too)\b|deserves?\b"
    r"|(?:a|an|the) (?:\w+ )?(?:mistake|pleasure|shame|disaster|waste|bad idea|good idea|great idea|terrible idea|"
    r"nightmare|joke|fan of|delight)\b|feels like\b|nobody needs\b|probably\b)"
    rf"|(?:\b(?:is|are|was|were|looks?|feels?|seems?|sounds?|tastes?|be)|'s|n't)(?: \w+ly| so| very| really| quite"
    rf"| a bit| way| much| far| rather| just| not| too| more| most| pretty)* (?:{_JUDGING})\b"
)

_DONE = re.compile(
    rf"\b(?:(?:i|we|{_PEOPLE})(?: |(?='(?:ve|d)))(?:all )?{_PERFECT}{_PAST}"
    r"|(?:i|we) (?:was|were) (?!born\b)(?:\w+ed|given|told|sent|shown|asked)\b)"
    rf"|^(?:{_ADVERB} )?{_PAST}(?! by\b)(?!:)"
)
_HAPPENED = re.compile(
    rf"(?:^|[,;:] )(?:[A-Z][\w'-]+(?: (?:and )?[A-Z][\w'-]+)?|(?i:the|our|my|his|her|their|an?)"
    rf"(?: (?!(?:is|are|was|were|be|been|has|have|that|which|who)\b)[\w'-]+){{1,3}}?) (?:{_ADVERB} )*{_PAST}",
)
_HISTORY = re.compile(r"\b(?:in|since|until|by|around) (?:the )?(?:1\d{3}|20\d\d)s?\b")


def category_of(text: str) -> MemoryType:
    """The type of a memory whose caller gave none: `world` when nothing speaks for another, or the text isn't English.

    Only the first three sentences, at most 600 characters, are read. Never raises.
    """
    sentences = _SENTENCE_END.split(text[:_READ].strip())[:_SENTENCES]
    whole = " ".join(sentences)
    spoken = [_SPEAKER.sub("", sentence, count=1) for sentence in sentences]
    if _derived(whole):
        return MemoryType.OBSERVATION
    if any(_BELIEF.search(sentence.lower()) for sentence in spoken):
        return MemoryType.OPINION
    return _plain(spoken)


def _derived(text: str) -> bool:
    """Whether the text speaks about other memories; "I often run" is a fact about the speaker, so it does not."""
    if _DERIVED.search(text.lower()):
        return True
    said = _SPEAKER.sub("", text, count=1).lower()
    return not _FIRST_PERSON.match(said) and _FREQUENCY.search(said) is not None


def _plain(sentences: list[str]) -> MemoryType:
    """An event, else a judgement, else a fact: the first sentence that is not a mere fact decides."""
    for sentence in sentences:
        if _event(sentence):
            return MemoryType.EXPERIENCE
        if _JUDGEMENT.search(sentence.lower()):
            return MemoryType.OPINION
    return MemoryType.WORLD


def _event(sentence: str) -> bool:
    """Whether the sentence tells what somebody did; "won the prize in 1903" is history, which is about the world."""
    if _DONE.search(sentence.lower()):
        return True
    return _HAPPENED.search(sentence) is not None and not _HISTORY.search(sentence)
