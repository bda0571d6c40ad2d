"""Makes the pages of the labs from their folders when the site is built: adding a lab needs no change here.

Of every lab two pages: the lab itself, which gives nothing away, and its solution. What a page shows of a run comes
from hooks/lab_runs.py, the table of all labs from hooks/catalogue.py. A lab that is not complete is a warning, and so
an error of a strict build.
"""

import difflib
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2
import lab_runs
import numpy as np
from catalogue import complete_labs, missing, needs, root_of
from lab_runs import Run
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from breakfix.catalog import Catalog, Lab
from breakfix.predict import right_choice
from breakfix.render import tables
from breakfix.render.figures import draw
from breakfix.render.terminal import number
from breakfix.verdict import PASSED
from breakfix.zygote import Engine

log = logging.getLogger("mkdocs.hooks.labs")

RUNGS = ("where to look", "what to measure", "which mechanism", "which API")
PRINTED_LINES = 14
CLAIM = re.compile(r"\b[AB]-[\dG.]+-\d\d\b")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every lab into the navigation, under `labs/index.md`."""
    section = next(entry for item in config.nav for entry in item.values() if isinstance(entry, list))
    assert section[0] == "labs/index.md", "mkdocs.yml: the first section of nav begins with labs/index.md"
    section[1:] = [_nav_entry(lab, config) for lab in complete_labs(root_of(config))]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Run what has changed and add the generated pages."""
    root = root_of(config)
    labs = complete_labs(root)
    runs = _runs(labs, root / ".cache" / "runs")
    _warn(root, labs, runs)
    pages = {}
    for lab in labs:
        walkthrough = _walkthrough(lab, config)
        pages[f"labs/{lab.id}/index.md"] = lab_page(lab, runs[lab.id], walkthrough)
        pages[f"labs/{lab.id}/solution.md"] = solution_page(lab, runs[lab.id])
        pages[f"labs/{lab.id}/run.json"] = runs[lab.id].to_json()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def lab_page(lab: Lab, run: Run, walkthrough: bool) -> str:
    """The lab as a learner meets it: nothing on it says why, or how to fix it."""
    preamble, sections = split(lab.readme())
    values = {"preamble": preamble.partition("\n")[2].replace(f"> {lab.alert}", "").strip(), "sections": sections}
    return _render("lab.md", lab, run, **values, walkthrough=walkthrough, rungs=RUNGS)


def solution_page(lab: Lab, run: Run) -> str:
    """Both files and their difference, then the solution's README with what the run measured."""
    text = (lab.solution_path / "README.md").read_text("utf-8").replace("{alert}", lab.alert)
    heading, _, body = text.partition("\n")
    evidence = _render("evidence.md", lab, run, all_figures=False)
    body = linked(body)
    return _render("solution.md", lab, run, heading=heading, body=body.replace("{evidence}", evidence), diff=diff(lab))


def linked(text: str) -> str:
    """The ids of claims as links into the ledger."""
    return CLAIM.sub(r"[\g<0>](../../claims.md#\g<0>)", text)


def split(text: str) -> tuple[str, dict[str, str]]:
    """What stands before a README's first `## ` heading, and its sections by heading; fenced code is left alone."""
    parts, heading, fence = {"": []}, "", ""
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        if line.startswith("## ") and not fence:
            heading = line.removeprefix("## ").strip()
            parts[heading] = []
        else:
            parts[heading].append(line)
    joined = {name: "\n".join(lines).strip() for name, lines in parts.items()}
    return joined.pop(""), joined


def diff(lab: Lab) -> str:
    """From the broken to the fixed file, as difflib sees it."""
    old, new = (path.read_text("utf-8").splitlines() for path in (lab.starter, lab.solution))
    return "\n".join(difflib.unified_diff(old, new, f"broken/{lab.editable}", f"fixed/{lab.editable}", lineterm=""))


def figure(lab: Lab, run: Run) -> str:
    """The lab's figure, as HTML to stand in a page."""
    sides = {side: {k: _numbers(v) for k, v in found.items()} for side, found in run.evidence.items()}
    svg = draw(lab, sides["broken"], sides["fixed"])
    caption = lab.figure.get("title", "")
    return f'<figure class="lab-figure" tabindex="0">{svg}<figcaption>{caption}</figcaption></figure>'


def conditions(run: Run) -> str:
    """Where a run's figures come from, in one line."""
    versions = run.fixed.versions
    packages = " · ".join(f"{name} {versions[name]}" for name in ("torch", "python") if name in versions)
    return f"{run.date} · {run.device_name}, {versions.get('machine', '')} · {packages} · seed {run.fixed.seed}"


def printed(run: Run) -> str:
    """The beginning and the end of what the starter prints."""
    lines = run.prints.splitlines()
    if len(lines) <= PRINTED_LINES + 1:
        return run.prints
    head, tail = lines[: PRINTED_LINES - 4], lines[-4:]
    return "\n".join([*head, f"... {len(lines) - PRINTED_LINES} more lines ...", *tail])


def answer(run: Run, prediction: dict[str, Any]) -> str:
    """The choice that the run bears out, and what it measured; nothing where that was not measured."""
    found = run.evidence["broken"]
    if prediction.get("evidence") not in found:
        return ""
    value, choice = number(found[prediction["evidence"]]), right_choice(prediction, found)
    return value if choice in (None, value) else f"{choice} (measured: {value})"


def _render(template: str, lab: Lab, run: Run, **values: Any) -> str:
    rows = tables.rows(run.broken, run.fixed)
    shared = {
        "lab": lab, "run": run, "rows": rows, "table": tables.markdown, "deciding": tables.deciding, "needs": needs,
        "figure": figure, "conditions": conditions, "printed": printed, "answer": answer, "records": _records(lab),
        "code": lab_runs.lab_code(lab), "rows_of": tables.rows,
    }  # fmt: skip
    return _template(template).render({"all_figures": True} | shared | values)


def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    strict = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=loader, keep_trailing_newline=True, **strict).get_template(f"{name}.jinja")


def _numbers(value: Any) -> Any:
    """Evidence from JSON: lists become arrays, and "nan" a number again."""
    return np.array(value, dtype=np.float64) if isinstance(value, list) else value


def _records(lab: Lab) -> list[Run]:
    """The runs on GPUs that are kept in records/."""
    paths = sorted((lab.root / "records").glob(f"{lab.id}.cuda*.json"))
    return [Run.from_json(path.read_text("utf-8")) for path in paths]


def _warn(root: Path, labs: list[Lab], runs: dict[str, Run]) -> None:
    catalog = Catalog.read(root)
    for folder, error in catalog.bad.items():
        log.warning("%s has no page: %s", folder, error)
    for lab in catalog:
        if lacks := missing(lab):
            log.warning("%s has no page: %s missing", lab.id, ", ".join(lacks))
    for lab in labs:
        run = runs[lab.id]
        if run.ran and (run.broken.state == PASSED or run.fixed.state != PASSED):
            log.warning("%s: broken %s, fixed %s\n%s", lab.id, run.broken.state, run.fixed.state, run.fixed.detail)


def _runs(labs: list[Lab], folder: Path) -> dict[str, Run]:
    """By lab; as many at a time as there are cores, since no figure that decides depends on time."""
    runs = {lab.id: lab_runs.kept(lab, folder) for lab in labs}
    missing = [lab for lab in labs if runs[lab.id] is None]
    if missing:
        with Engine() as engine, ThreadPoolExecutor(os.cpu_count()) as pool:
            engine.start(*missing)
            made = pool.map(lambda lab: lab_runs.make(lab, engine, folder), missing)
            runs |= {run.lab: run for run in made}
    return runs


def _walkthrough(lab: Lab, config: MkDocsConfig) -> bool:
    return Path(config.docs_dir, "walkthroughs", f"{lab.id}.py").is_file()


def _nav_entry(lab: Lab, config: MkDocsConfig) -> dict[str, Any]:
    pages: list[Any] = [f"labs/{lab.id}/index.md", {f"{lab.id}: solution": f"labs/{lab.id}/solution.md"}]
    if _walkthrough(lab, config):
        pages.append({f"{lab.id}: walkthrough": f"walkthroughs/{lab.id}.ipynb"})
    return {f"{lab.id} · {lab.title}": pages}
