"""Configuration of the documentation: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import libhamiregion

project = "libhamiregion"
author = "The libhamiregion authors"
copyright = "the libhamiregion authors"  # noqa: A001
release = version = libhamiregion.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "links",
    "offset_tables",
    "column_list",
    "command_help",
    "json_answers",
    "planted_faults",
]
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
# The theme's own for dark pages underlines module names, as if they were links.
pygments_dark_style = "github-dark"
html_title = f"libhamiregion {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# What is copied from a session runs as it is: without prompts and without what was answered.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True
copybutton_line_continuation_character = "\\"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# In docstrings `name` links to what it names, where that is documented, and is code otherwise.
default_role = "link-or-code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"PathLike": "str | os.PathLike[str]"}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

# Of signatures: no user makes one.
nitpick_ignore = [
    ("py:class", "libhamiregion.agent.acts.Act"),
    ("py:class", "libhamiregion.observation.rows.ContainerFacts"),
    ("py:class", "libhamiregion.observation.processes.Entry"),
    ("py:class", "libhamiregion.observation.processes.FileUser"),
    ("py:class", "libhamiregion.observation.processes.Mapping"),
    ("py:class", "libhamiregion.undo.C"),
]

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
