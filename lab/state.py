"""The options of the running lab, in a file of its state directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lab.topology import Lab, Site

_OPTIONS = ("size", "plugin", "internal", "registry")


def write_lab(lab: Lab) -> None:
    """Write the options of a lab into its state directory."""
    (lab.root / "lab.json").write_text(json.dumps({name: getattr(lab, name) for name in _OPTIONS}) + "\n")


def read_lab(site: Site) -> Lab:
    """Return the lab whose state directory the site's link names. Raises OSError."""
    options = json.loads((site.run_dir / "lab.json").read_text())
    return Lab(site, site.run_dir.resolve(), Path(sys.executable).parent, **options)
