"""The documentation site: hooks of MkDocs and files of the theme."""
