"""claims/ledger.jsonl: every claim once, evidence that exists, verdicts like the labs', a page that counts."""

import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from breakfix.catalog import Catalog

ROOT = Path(__file__).parents[2]
if not find_spec("mkdocs"):
    pytest.skip("the site needs breakfix[site]", allow_module_level=True)
if not (ROOT / "claims").is_dir():
    pytest.skip("the ledger is in a checkout only", allow_module_level=True)

sys.path.insert(0, str(ROOT / "hooks"))
import claims_page  # noqa: E402

sys.path.pop(0)
Claim = claims_page.Claim

CLAIMS = claims_page.read(ROOT)
BY_ID = {claim.id: claim for claim in CLAIMS}
LABS = {lab.id: lab for lab in Catalog.read(ROOT)}
ID = r"[AB]-[\dG.]+-\d\d"
NOT_OURS = re.compile(r"\bfacts\b|fact file|\bhelpers?\b|\bsessions?\b|machine here|\(e\d+\)|exp/|\bagent")


def test_every_claim_stands_once_and_is_whole():
    assert len(CLAIMS) == 379
    assert len(BY_ID) == len(CLAIMS)
    for claim in CLAIMS:
        assert re.fullmatch(ID, claim.id)
        assert claim.verdict in claims_page.SIGNS, claim.id
        assert claim.claim.endswith("."), claim.id
        assert claim.truth.endswith((".", "...")), claim.id
        assert claim.lab is None or re.fullmatch(r"lab\d\d", claim.lab), claim.id


def test_they_are_in_the_order_of_the_articles():
    assert [c.article for c in CLAIMS] == sorted(c.article for c in CLAIMS)
    for section in dict.fromkeys(c.section for c in CLAIMS):
        numbers = [int(c.id[-2:]) for c in CLAIMS if c.section == section]
        assert numbers == list(range(1, len(numbers) + 1)), section


def test_nothing_in_it_speaks_of_how_it_was_made():
    text = (ROOT / claims_page.LEDGER).read_text("utf-8")
    assert NOT_OURS.findall(text) == []


def test_evidence_exists():
    missing = {c.id: [name for name in c.runs if not claims_page.exists(name, ROOT, LABS)] for c in CLAIMS}
    assert {name: lacks for name, lacks in missing.items() if lacks} == {}


def test_a_name_that_leads_nowhere_is_found():
    for name in (
        "lab01/test_no_such",
        "lab01/wrong/no_such",
        "lab99/test_x",
        "unit/test_ledger/test_no_such",
        "unit/x/y",
    ):
        assert not claims_page.exists(name, ROOT, LABS)


def test_every_test_of_a_claim_belongs_to_one():
    named = {name for claim in CLAIMS for name in claim.runs}
    files = [p for p in (ROOT / "tests" / "unit").glob("test_ledger_*.py") if p.stem != "test_ledger_times"]
    tests = {f"unit/{p.stem}/{t}" for p in files for t in claims_page._functions(p) if t.startswith("test_")}
    assert len(tests) > 90
    assert tests - named == set()


def test_what_is_called_refuted_was_run_or_looked_up():
    assert [c.id for c in CLAIMS if c.verdict == "refuted" and not c.evidence] == []


# --------------------------------------------------------------------------------------------- the labs' own verdicts

WORDS = {
    "holds": r"\bholds?\b",
    "partly": r"\bpartly\b|\bincomplete\b|\bplausible\b|\bwith its limits\b",
    "refuted": r"\brefuted\b",
    "needs-gpu": r"\bneeds? (a )?GPUs?\b|\bnot run\b|\bconfirmed on CUDA\b",
    "unverified": r"\bunverified\b",
    "opinion": r"\bopinion\b",
}


def said(text: str) -> dict[str, str]:
    """By id, what the paragraph says after it, up to the next ids; ids of one sentence share its word."""
    text = re.sub(rf"({ID})((?:, -\d\d)+)", lambda m: m[1] + m[2].replace(" -", f" {m[1][:-2]}"), text)
    found, waiting = {}, []
    parts = re.split(rf"\(([^()]*{ID}[^()]*)\)", text)
    for inside, after in zip(parts[1::2], parts[2::2], strict=True):
        waiting += re.findall(ID, inside)
        sentence, *further = re.split(r"\.(?= |$)", after, maxsplit=1)
        words = f"{inside} {sentence}"
        if any(re.search(pattern, words) for pattern in WORDS.values()):
            found |= dict.fromkeys(waiting, words)
            waiting = []
        elif further:
            waiting = []
    return found


def _articles(lab) -> str:
    path = lab.solution_path / "README.md"
    return path.read_text("utf-8").partition("## What the articles say")[2] if path.is_file() else ""


def verdicts(lab) -> dict[str, str]:
    """What a solution's README says of claims."""
    found = {}
    for paragraph in re.split(r"\n\* |\n\n", _articles(lab)):
        found |= said(" ".join(paragraph.split()))
    return found


def test_a_paragraph_is_read_as_a_person_reads_it():
    text = '"one" (A-2.1-01), "two" (A-2.1-02): partly. It holds at times. "Three" (B-5.G-03): refuted, see above.'
    assert {i: w.split()[-1] for i, w in said(text).items() if i[0] == "A"} == {
        "A-2.1-01": "partly",
        "A-2.1-02": "partly",
    }
    assert "refuted" in said(text)["B-5.G-03"]
    assert set(said("(A-5.2-03, -04, -05): refuted.")) == {"A-5.2-03", "A-5.2-04", "A-5.2-05"}


SAID = [(lab.id, i, words) for lab in LABS.values() for i, words in verdicts(lab).items()]


def test_ledger_and_labs_have_the_same_verdicts():
    unknown = [(lab, i) for lab, i, _ in SAID if i not in BY_ID]
    assert unknown == [], "a lab names claims that the ledger does not have"
    differ = [(lab, i, BY_ID[i].verdict, words) for lab, i, words in SAID if not agrees(BY_ID[i].verdict, words)]
    assert differ == [], "settle it by what the lab measures, in its README and in the ledger"


def agrees(verdict: str, words: str) -> bool:
    return bool(re.search(WORDS[verdict], words))


def test_another_verdict_is_found():
    assert agrees("partly", "(A-1-01): partly. It")
    assert not agrees("holds", "(A-1-01): partly. It")
    assert not agrees("refuted", "(A-1-01): holds")


def test_most_of_what_labs_say_is_compared():
    named = {i for lab in LABS.values() for i in re.findall(ID, _articles(lab))}
    assert len({i for _, i, _ in SAID}) > 0.85 * len(named) > 150


# ----------------------------------------------------------------------------------------------------------- the page


def test_the_page_has_every_claim_and_its_counts_are_right():
    text = claims_page.page(CLAIMS, LABS)
    rows = re.findall(rf'^\| <a id="({ID})"></a>\1 \|.*?\| ([^|]*) \|.*\|$', text, re.M)
    assert [i for i, _ in rows] == [claim.id for claim in CLAIMS]
    totals = Counter(verdict for _, verdict in rows)
    for verdict, sign in claims_page.SIGNS.items():
        line = re.search(rf"^\| {re.escape(sign)} \| (\d+) \| (\d+) \| (\d+) \|", text, re.M)
        a, b, both = map(int, line.groups())
        assert both == a + b == totals[sign] == sum(c.verdict == verdict for c in CLAIMS)
        assert a == sum(c.verdict == verdict and c.id[0] == "A" for c in CLAIMS)


def test_a_claim_without_evidence_says_so():
    bare = Claim("A-1-01", "It is.", "holds", "It is.", "mechanism", "lab99", ())
    assert claims_page.shown(bare, LABS) == (
        "no running evidence yet: lab99 is not written yet; the lab: lab99 (not written yet)"
    )
    assert claims_page.NONE_YET in claims_page.shown(Claim(*list(vars(bare).values())[:5], None, ()), LABS)
    run = Claim(
        *list(vars(bare).values())[:5],
        "lab01",
        ("lab01/test_losses", "lab01/wrong/sgd", "unit/test_x/test_y", "bench/x/y_z"),
    )
    assert claims_page.shown(run, LABS) == (
        "[lab01](labs/lab01/index.md): *losses*, the wrong fix *sgd*; the test *y*; timed, not graded: *y z*"
    )


def test_words_in_a_cell_are_no_markup():
    assert claims_page.cell("a | b *c* _d_ <e>") == "a &#124; b &#42;c&#42; &#95;d&#95; &#60;e&#62;"
