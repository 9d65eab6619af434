"""Store the configuration of a run beside its results."""

from pathlib import Path

import yaml

Path(snakemake.output[0]).write_text(yaml.safe_dump(snakemake.params.config, sort_keys=True))  # noqa: F821
