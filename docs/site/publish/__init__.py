"""The documentation as a site: the pages as they are in the repository, built by MkDocs and then checked.

Pure functions decide where a page is (`places`), how its text changes (`markdown`), what a page of a linked file shows
(`sources`) and what is wrong with the built pages (`check`). `stage` writes the pages; `make site` runs `__main__`.
"""
