"""Whether a result is right, by its own errors and limits: when it is measured, and whenever its record is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["contradiction", "wrong"]


def wrong(errors: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    """Return in words why a result with these errors is wrong; nothing where it is right.

    Parameters
    ----------
    errors : mapping
        Errors against the reference, by name.
    limits : mapping
        The largest that each may be; an error without a limit is only told.
    """
    if not errors:
        return "no error was computed"
    unknown = [f"no {name} was computed" for name in limits if name not in errors]
    above = [
        f"{name} = {float(errors[name]):.3g} (allowed {float(limit):.3g})"
        for name, limit in limits.items()
        if name in errors and not float(errors[name]) <= float(limit)
    ]
    above += [f"{name} is not a number" for name, value in errors.items() if math.isnan(float(value))]
    return "; ".join(above or unknown[:1])


def contradiction(record: Mapping[str, Any]) -> str:
    """Return in words where a record that fits the schema contradicts itself; nothing where it does not.

    A method stands once; one with the status ``ok`` has errors within its own limits, and samples unless its clock is
    ``none``.
    """
    names = [method["method"] for method in record["methods"]]
    for method in record["methods"]:
        name = method["method"]
        if names.count(name) > 1:
            return f"the method {name} stands {names.count(name)} times"
        if method["status"] != "ok":
            continue
        why = wrong(method["errors"], method["limits"])
        if why:
            return f"the method {name} is ok and its result is wrong: {why}"
        if bool(method["samples_s"]) == (method["clock"] == "none"):
            return f"the method {name} is ok with the clock {method['clock']} and {len(method['samples_s'])} samples"
    return ""
