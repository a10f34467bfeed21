"""The files of the repository, and which of them are pages."""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILT = (".git", "build", "out", "node_modules", "__pycache__")


def files(root):
    """Paths of all files, new ones too; where there is no git, all but build outputs."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if listed.returncode == 0 and listed.stdout:
        paths = set(listed.stdout.decode().split("\0")) - {""}
        return sorted(path for path in paths if os.path.lexists(os.path.join(root, path)))
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in BUILT]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


def pages(paths):
    """Every README.md, the Markdown files of the root, and docs/. Dated records (reports/evidence) stay as they were."""
    return [path for path in paths if path.endswith(".md") and
            (path.startswith("docs/") or os.path.basename(path) == "README.md" or "/" not in path)]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()
