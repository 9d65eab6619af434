"""Write the address of the repository, and that of the site if it has one, wherever metadata have a place for it.

    python docs/address.py https://example.org/group/spectile https://example.org/docs/spectile

Metadata that had other addresses get these, so that a repository or a site may move.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def placed(text: str, behind: str, lines: list[str]) -> str:
    """Return a text that has these lines behind a given one; they replace those of the same keys."""
    for line in lines:
        text = re.sub(rf"^{re.escape(re.split('[:=]', line)[0])}[:=].*\n", "", text, flags=re.MULTILINE)
    head, found, rest = text.partition(f"{behind}\n")
    if not found:
        raise SystemExit(f"no line is {behind!r}: docs/address.py does not know this file any more")
    return head + found + "".join(f"{line}\n" for line in lines) + rest


def written(repository: str, site: str) -> dict[str, str]:
    """Return the files with the addresses in them."""
    urls = {
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": site,
    }
    inline = ["urls = { " + ", ".join(f'{key} = "{url}"' for key, url in urls.items()) + " }"]
    authors = 'authors = [{ name = "The spectile developers" }]'
    lines = {
        "pyproject.toml": ("[project.urls]", [f'{key} = "{url}"' for key, url in urls.items()]),
        "src/spectile_study/pyproject.toml": (authors, inline),
        "src/spectile_cubins/pyproject.toml": (authors, inline),
        "CITATION.cff": ("license: BSD-3-Clause", [f'repository-code: "{repository}"', f'url: "{site}"']),
        "codemeta.json": (
            '  "name": "spectile",',
            [
                f'  "codeRepository": "{repository}",',
                f'  "issueTracker": "{repository}/issues",',
                f'  "url": "{site}",',
            ],
        ),
        "envs/conda/recipe.yaml": (
            "about:",
            [f'  homepage: "{site}"', f'  repository: "{repository}"', f'  documentation: "{site}"'],
        ),
    }
    files = {name: placed((ROOT / name).read_text(encoding="utf-8"), *what) for name, what in lines.items()}
    # What an index shows has pictures and links of its own: one replacement each, in this order.
    leads = iter((rf"![\1]({repository}/raw/main/\2)", rf"[\1]({repository}/blob/main/\2)"))
    files["pyproject.toml"] = re.sub(
        r"^replacement = .*$",
        lambda _: f"replacement = '{next(leads)}'",
        files["pyproject.toml"],
        count=2,
        flags=re.MULTILINE,
    )
    return files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", help="where the repository is browsed")
    parser.add_argument("site", nargs="?", help="where the site is read (default: the repository)")
    given = parser.parse_args()
    addresses = [(address or given.repository).rstrip("/") for address in (given.repository, given.site)]
    for address in addresses:
        if not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)*", address):
            parser.error(f"{address!r} is no address: give one that begins with https:// and has no quotes or blanks")
    for name, text in written(*addresses).items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(name)
