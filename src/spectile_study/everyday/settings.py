"""The settings of a recording of everyday draws: config/everyday.yaml, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spectile_study.bench import sheets
from spectile_study.everyday.run import Settings


def settings(study: Path, changes: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of the study, those of the working directory's own file, and then `changes` in their place.

    Raises
    ------
    SheetError
        If there is no such key, or a value is wrong; one sentence.
    """
    own = Path("config/everyday.yaml")
    found: dict[str, Any] = {}
    for path in dict.fromkeys((study / own, own)):
        if path.exists():
            found |= yaml.safe_load(path.read_text()) or {}
    # Snakemake's command line gives numbers within a mapping as words.
    found |= {key: yaml.safe_load(item) if isinstance(item, str) else item for key, item in (changes or {}).items()}
    schema = sheets.load_schema(study / "workflow/schemas/everyday.schema.yaml")
    sheets.validate(found, schema, "the configuration of everyday draws")
    return Settings(**found | {"systems": tuple(found["systems"])})
