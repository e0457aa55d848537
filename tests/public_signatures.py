"""The signatures of public names, compared with those of the last release.

The names are those that have a page in the API. `python -m tests.public_signatures` writes their
signatures to `public_signatures.txt`, as a step of a release. Annotations are left out: they change
no call.
"""

import importlib.util
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASED = Path(__file__).with_suffix(".txt")


def current() -> dict[str, str]:
    """{name: signature} of what has a page in the API, and of the methods on that page."""
    spec = importlib.util.spec_from_file_location("api", ROOT / "docs" / "extensions" / "api.py")
    api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api)
    signatures = {}
    for name in sorted(api.public_names()):
        public = api.found(name)
        signatures[name] = signature(public)
        if inspect.isclass(public):
            methods = dict(api.own_members(public))
            if getattr(public, "call", None) and public.call.__module__.startswith("tfattn"):
                methods["call"] = True
            for method, called in methods.items():
                signatures[f"{name}.{method}"] = signature(getattr(public, method)) * called
    return signatures


def signature(public: object) -> str:
    """Its arguments with their defaults, in words that are the same on each version of Python."""
    if not callable(public):
        return ""
    if inspect.isclass(public):  # a tuple with names has its arguments in `__new__`
        public = public.__init__ if public.__init__ is not object.__init__ else public.__new__
    found = inspect.signature(public)
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_plain(parameter))
        for parameter in found.parameters.values()
        if parameter.name not in ("self", "_cls")
    ]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


class _Verbatim(str):
    __repr__ = str.__str__


def _plain(parameter):
    default = parameter.default
    if default is parameter.empty or not hasattr(default, "__name__"):
        return default
    return _Verbatim(default.__name__)  # of a function or a class, without its address


def released() -> dict[str, str]:
    """The same at the last release."""
    lines = RELEASED.read_text(encoding="utf-8").splitlines()
    return dict(re.fullmatch(r"([\w.]+)(.*)", line).groups() for line in lines)


def unreleased_lines() -> set[str]:
    """The names that have a line under `### Signatures` of the changelog's section `Unreleased`."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = changelog.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    lines = section.partition("\n### Signatures\n")[2].partition("\n### ")[0]
    return set(re.findall(r"^- `tfattn\.([\w.]+)`", lines, flags=re.MULTILINE))


def main() -> None:
    """Writes the signatures of today."""
    lines = (f"{name}{arguments}\n" for name, arguments in sorted(current().items()))
    RELEASED.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
