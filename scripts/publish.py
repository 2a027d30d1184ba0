"""A run as a folder to publish; called by publish.sh.

Every file is written by the verbs of dustmap, so that each can be verified. Folders
become tar archives, which `dustmap fetch` unpacks.
"""

from __future__ import annotations

import json
import re
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import yaml

from pipelines.base.errors import InputError
from pipelines.cli.reporting import NEW, OVERWRITE, reporting
from pipelines.export.exporters import export_run
from pipelines.export.options import ExportOptions
from pipelines.formats.citation import cited_papers, doi_of
from pipelines.maps.provenance import provenance
from pipelines.run.folder import read_run
from pipelines.storage.atomic import atomic_directory
from pipelines.storage.digests import digest_of

FILES = {
    "map.zarr.tar": "density, its samples and integrated extinction, zarr v3 "
    "(`tar xf`, then `dustmap.open_map` or xarray)",
    "map.fits": "density cube: mean, std, quantiles, support",
    "map.healpix.fits": "integrated extinction at a few distances, HEALPix, NESTED",
    "CITATION.cff": "whom to cite",
}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=NEW)
@click.option("--title", required=True)
@click.option(
    "--author", "authors", multiple=True, required=True, help="Family, Given."
)
@click.option("--version", default="1.0", show_default=True, help="Of the map.")
@click.option("--doi", default="", help="Reserved for it, 10.5281/zenodo.NUMBER.")
@click.option("--url", default="", help="Where the files will be, for the registry.")
@click.option("--license", "licence", default="CC-BY-4.0", show_default=True)
@OVERWRITE
@reporting
def publish(run: Path, folder: Path, overwrite: bool, **about: Any) -> None:
    """Make FOLDER of RUN: all that a journal and Zenodo want."""
    if about["doi"] and not about["doi"].startswith("10."):
        raise InputError(f"a DOI begins with 10., got {about['doi']!r}")
    about["date"] = datetime.now(UTC).date()
    fitted = read_run(run)
    meta = provenance(fitted)
    with atomic_directory(folder, overwrite=overwrite) as made:
        targets = {
            "zarr": [made / "map.zarr"],
            "fits": [made / "map.fits"],
            "healpix": [made / "map.healpix.fits"],
        }
        samples = len(fitted.posterior.samples) or None
        done = export_run(run, targets, ExportOptions(samples=samples))
        archive(made / "map.zarr")
        (made / "CITATION.cff").write_text(citation(meta["citation"], about))
        sums = {path.name: digest_of(path).sha256 for path in sorted(made.iterdir())}
        readme = readme_of(fitted.facts, done, meta, about, sums)
        (made / "README.md").write_text(readme)
        sums["README.md"] = digest_of(made / "README.md").sha256
        lines = [f"{value}  {name}\n" for name, value in sorted(sums.items())]
        (made / "SHA256SUMS").write_text("".join(lines))
        text = json.dumps(zenodo(meta["citation"], about), indent=2, ensure_ascii=False)
        (made / ".zenodo.json").write_text(text + "\n")
        (made / "maps.toml").write_text(registry(folder.name, about, sums))
    for path in sorted(folder.iterdir()):
        click.echo(str(path))
    for work in meta["citation"].get("catalogues", []):
        if not work.get("references"):
            click.echo(
                f"no paper is named for {work['title']}: name it by `references` in "
                "the preset, and ingest and fit again",
                err=True,
            )
    if not about["doi"]:
        click.echo("no --doi: reserve one and call again with --overwrite", err=True)


def archive(path: Path) -> None:
    """A folder as NAME.tar, the same bytes for the same content."""

    def plain(item: tarfile.TarInfo) -> tarfile.TarInfo:
        item.mtime, item.uid, item.gid, item.uname, item.gname = 0, 0, 0, "", ""
        return item

    with tarfile.open(path.with_name(path.name + ".tar"), "w") as tar:
        for file in sorted(path.rglob("*")):
            tar.add(
                file, path.name / file.relative_to(path), recursive=False, filter=plain
            )
            if file.is_file():
                file.unlink()
    for inner in sorted(path.rglob("*"), reverse=True):
        inner.rmdir()
    path.rmdir()


def citation(block: dict[str, Any], about: dict[str, Any]) -> str:
    """Make CITATION.cff (1.2.0) of the map; program and papers are its references."""
    software = block["software"]
    program = {key: value for key, value in software.items() if key != "name"}
    program |= {
        "type": "software",
        "authors": [{"name": n} for n in software["authors"]],
    }
    references = [program, *block["references"]]
    for _, paper in cited_papers(block):
        found = re.match(r"(.+?) (\d{4}), ", paper)
        known = {
            "type": "article" if found else "data",
            "title": paper,
            "authors": [{"name": found[1] if found else "not stated"}],
            "year": int(found[2]) if found else None,
            "doi": doi_of(paper),
        }
        reference = {key: value for key, value in known.items() if value}
        # A paper may stand for several catalogues.
        if reference not in references:
            references.append(reference)
    content = {
        "cff-version": "1.2.0",
        "message": "If you use this map, please cite it and its references.",
        "type": "dataset",
        "title": about["title"],
        "authors": [person(author) for author in about["authors"]],
        "version": about["version"],
        "date-released": about["date"],
        "license": about["licence"],
        **({"doi": about["doi"]} if about["doi"] else {}),
        "references": references,
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def person(author: str) -> dict[str, str]:
    """Return a name as CITATION.cff has it."""
    family, _, given = author.partition(", ")
    return {"family-names": family, **({"given-names": given} if given else {})}


def zenodo(block: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Metadata that Zenodo reads."""
    papers = [p for w in block["catalogues"] for p in w.get("references", [])]
    related = [
        {"identifier": doi, "relation": "isDerivedFrom", "scheme": "doi"}
        for doi in map(doi_of, papers)
        if doi
    ]
    return {
        "title": about["title"],
        "upload_type": "dataset",
        "description": "Three-dimensional map of interstellar dust with uncertainty, "
        f"made by dustmap {block['software']['version']}; see README.md.",
        "creators": [{"name": author} for author in about["authors"]],
        "version": about["version"],
        "publication_date": str(about["date"]),
        "license": about["licence"],
        "keywords": ["interstellar dust", "extinction", "three-dimensional map"],
        **({"doi": about["doi"]} if about["doi"] else {}),
        **({"related_identifiers": related} if related else {}),
    }


def registry(name: str, about: dict[str, Any], sums: dict[str, str]) -> str:
    """Entries of a registry for `dustmap fetch`."""
    base = (about["url"] or "file:///WHERE/THE/FILES/ARE").rstrip("/")
    who = f"{'; '.join(about['authors'])} {about['date'].year}, {about['title']}"
    doi = f", doi:{about['doi']}" if about["doi"] else ""
    entries = []
    for suffix, file in (("", "map.zarr.tar"), ("-fits", "map.fits")):
        values = {
            "url": f"{base}/{file}",
            "sha256": sums[file],
            "citation": who + doi,
            "description": f"{about['title']}, {file}",
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        entries.append("\n".join([f'[maps."{name}{suffix}"]', *lines, ""]))
    return "\n".join(entries)


def readme_of(
    facts: dict[str, str],
    done: Any,
    meta: dict[str, Any],
    about: dict[str, Any],
    sums: dict[str, str],
) -> str:
    """What the folder is, in Markdown."""
    facts = {name: value for name, value in facts.items() if name != "run"}
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    files = [
        f"| `{name}` | {FILES[name]} | `{value[:12]}…` |"
        for name, value in sums.items()
        if name in FILES
    ]
    catalogues = [
        f"- {work['title']}" for work in meta["citation"].get("catalogues", [])
    ] or ["- not stated"]
    return "\n".join(
        [
            f"# {about['title']}",
            "",
            f"{'; '.join(about['authors'])}, version {about['version']}, "
            f"{about['date']}, license {about['licence']}"
            + (f", https://doi.org/{about['doi']}" if about["doi"] else ""),
            "",
            "A three-dimensional map of interstellar dust with uncertainty: extinction "
            f"density in {done.map.band or 'an unnamed band'}, heliocentric Galactic "
            "Cartesian coordinates in pc, x towards l = 0, y towards l = 90 deg, z "
            "towards the north Galactic pole. Where `support` is 0 no star's sight "
            "line passes, and the map is its prior.",
            "",
            "| | |",
            "|---|---|",
            *rows,
            *[f"| note | {note} |" for note in done.notes],
            "",
            "| file | content | SHA-256 |",
            "|---|---|---|",
            *files,
            "",
            "`sha256sum -c SHA256SUMS` checks the files.",
            "",
            "Made from:",
            "",
            *catalogues,
            "",
            "Whom to cite stands in CITATION.cff.",
            "",
        ]
    )


if __name__ == "__main__":
    publish()
