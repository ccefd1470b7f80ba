"""Parses the sources of the package: what each file defines, and what code refers to."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE: Final = "tailrace"

_RECORDS: Final = {"NamedTuple", "Protocol", "TypedDict"}
_ENUMS: Final = {"Enum", "Flag", "IntEnum", "IntFlag", "StrEnum"}
_TAKES_TYPES: Final = {"NewType", "TypeVar", "cast"}

Chain = tuple[str, ...]
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(eq=False)
class Scope:
    """The body of a module or of a class: what it defines, and the statements it runs."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    statements: list[ast.AST] = field(default_factory=list)


@dataclass(eq=False)
class Definition:
    """A name with everything that defines it: a property has several functions."""

    name: str
    kind: str
    module: Module
    owner: Definition | None
    nodes: list[ast.stmt] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    inner: Scope = field(default_factory=Scope)

    def bases(self) -> Iterator[Chain]:
        """The base classes, as they are written."""
        for node in self.nodes:
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                named = _chain(base.value if isinstance(base, ast.Subscript) else base)
                if named is not None:
                    yield named


@dataclass(eq=False)
class Module(Scope):
    """A file of the package."""

    name: str = ""
    path: Path = Path()
    main: list[ast.stmt] = field(default_factory=list)
    imports: dict[str, set[str]] = field(default_factory=dict)


# --- reading --------------------------------------------------------------------------------------


def read_package(root: Path) -> dict[str, Module]:
    """The modules of the package by their dotted names."""
    found = {}
    for path in sorted((root / "src" / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / "src").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts)] = _read_module(".".join(parts), path)
    return found


def _read_module(name: str, path: Path) -> Module:
    module = Module(name=name, path=path)
    tree = ast.parse(path.read_text("utf-8"))
    _sort(tree.body, module, module, None)
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        for known, target in _imported(node, package):
            module.imports.setdefault(known, set()).add(target)
    return module


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with its target."""
    if isinstance(node, ast.Import):
        for each in node.names:
            first = each.name.split(".")[0]
            yield (each.asname, each.name) if each.asname else (first, first)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
        source = ".".join((*above, *filter(None, [node.module])))
        for each in node.names:
            yield each.asname or each.name, f"{source}.{each.name}"


def _sort(body: list[ast.stmt], scope: Scope, module: Module, owner: Definition | None) -> None:
    """Separate the definitions of a body from its other statements."""
    before: list[Definition] = []
    for node in body:
        named = [] if owner and _is_field(node, owner) else list(_names(node))
        if not named and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for each in before:  # the text below a constant documents it
                each.lines |= _lines(node)
        before = [_define(name, node, scope, module, owner) for name in named]
        if isinstance(node, ast.If) and _is_main(node.test):
            module.main += node.body
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ast.iter_child_nodes(node):
                inner = part.body if isinstance(part, ast.ExceptHandler) else [part]
                _sort([each for each in inner if isinstance(each, ast.stmt)], scope, module, owner)
                scope.statements += [part] if isinstance(part, ast.expr | ast.withitem) else []
        elif not named and not isinstance(node, ast.Import | ast.ImportFrom):
            scope.statements.append(node)


def _define(
    name: str, node: ast.stmt, scope: Scope, module: Module, owner: Definition | None
) -> Definition:
    if name not in scope.definitions:
        full = f"{owner.name}.{name}" if owner else name
        scope.definitions[name] = Definition(full, _kind(node, owner), module, owner)
    found = scope.definitions[name]
    found.nodes.append(node)
    found.lines |= _lines(node)
    if isinstance(node, ast.ClassDef):
        _sort(node.body, found.inner, module, found)
    return found


def _kind(node: ast.stmt, owner: Definition | None) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    if isinstance(node, Function):
        marks = {last_part(mark) for mark in node.decorator_list}
        is_property = any(mark.endswith("property") for mark in marks)
        return "function" if owner is None else "property" if is_property else "method"
    return "constant" if owner is None else "attribute"


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.ClassDef | Function):
        yield node.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _names(target)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        yield from _names(node.target)
    elif isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from _names(each)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _is_field(node: ast.stmt, owner: Definition) -> bool:
    """Whether a statement of a class declares a field or a member of an enum."""
    kinds = {chain[-1] for chain in owner.bases()}
    if isinstance(node, ast.Assign):
        return bool(kinds & _ENUMS)
    if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
        return False
    (own, *_) = (each for each in owner.nodes if isinstance(each, ast.ClassDef))
    is_record = any(last_part(mark) == "dataclass" for mark in own.decorator_list)
    return node.value is None or is_record or bool(kinds & _RECORDS)


def _is_main(test: ast.expr) -> bool:
    return ast.unparse(test) == "__name__ == '__main__'"


def _lines(node: ast.stmt) -> set[int]:
    marks = node.decorator_list if isinstance(node, ast.ClassDef | Function) else []
    first = min([node.lineno, *(mark.lineno for mark in marks)])
    return set(range(first, (node.end_lineno or first) + 1))


def _chain(node: ast.AST) -> Chain | None:
    """A dotted name as its parts; None of anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        return None if before is None else (*before, node.attr)
    return None


def last_part(node: ast.expr) -> str:
    """The last part of the name of what is used or called."""
    chain = _chain(node.func if isinstance(node, ast.Call) else node)
    return chain[-1] if chain else ""


# --- what code refers to --------------------------------------------------------------------------


class Uses(ast.NodeVisitor):
    """What code refers to: dotted names that it does not bind itself, attributes, and texts."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self.chains: set[Chain] = set()
        self.words: set[str] = set()
        self._bound: list[set[str]] = []

    def visit_Name(self, node: ast.Name) -> None:
        """A name of the module, unless it is bound locally or is being defined."""
        if self._bound or not isinstance(node.ctx, ast.Store):
            self._use((node.id,))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """An attribute that is read; one that is only written is not used."""
        chain = _chain(node)
        if isinstance(node.ctx, ast.Store):
            self.visit(node.value)
        elif chain is None:
            self.words.add(node.attr)
            self.visit(node.value)
        else:
            self._use(chain)

    def _use(self, chain: Chain) -> None:
        if any(chain[0] in bound for bound in self._bound):
            self.words.update(chain[1:])
        else:
            self.chains.add(chain)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A text may be the name of something."""
        if isinstance(node.value, str):
            self.words.add(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """A call; some take types as texts."""
        self.generic_visit(node)
        if last_part(node) in _TAKES_TYPES:
            for value in (*node.args, *(each.value for each in node.keywords)):
                self._visit_type(value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """A declaration."""
        self.generic_visit(node)
        self._visit_type(node.annotation)

    def visit_arg(self, node: ast.arg) -> None:
        """A parameter with its type."""
        self.generic_visit(node)
        self._visit_type(node.annotation)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class inside a function."""
        self.visit_head(node)
        for each in node.body:
            self.visit(each)

    def visit_head(self, node: ast.ClassDef) -> None:
        """The part before the body of a class."""
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        for base in node.bases:
            self._visit_type(base)

    def visit_FunctionDef(self, node: Function | ast.Lambda) -> None:
        """A function: it binds its parameters and whatever it assigns."""
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        if isinstance(node, ast.Lambda):
            self.visit(node.args)
        else:
            self.visit_signature(node)
        given = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        self._visit_within(given | _assigned(body), body)

    def visit_signature(self, node: Function) -> None:
        """The part before the body of a function."""
        for each in (node.args, *node.decorator_list, *filter(None, [node.returns])):
            self.visit(each)
        self._visit_type(node.returns)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef  # noqa: N815 - names of ast

    def visit_ListComp(self, node: Comprehension) -> None:
        """A comprehension: it binds its variables."""
        targets = [each.target for each in node.generators]
        self._visit_within(_assigned(targets), ast.iter_child_nodes(node))

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    def _visit_within(self, bound: set[str], nodes: Iterable[ast.AST]) -> None:
        self._bound.append(bound)
        for each in nodes:
            self.visit(each)
        self._bound.pop()

    def _visit_type(self, annotation: ast.AST | None) -> None:
        """Read the texts in an annotation, which refer to later definitions."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                self.visit(ast.parse(annotation.value, mode="eval"))
            except SyntaxError:
                return
        elif not isinstance(annotation, ast.Subscript) or last_part(annotation.value) != "Literal":
            for each in ast.iter_child_nodes(annotation) if annotation else ():
                self._visit_type(each)


def _assigned(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that code binds, without those of nested functions and of the module."""
    found: set[str] = set()
    shared: set[str] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Global):
            shared.update(node.names)
        elif isinstance(node, ast.ClassDef | Function):
            found.add(node.name)
        elif not isinstance(node, ast.Lambda | Comprehension | ast.alias):
            named = getattr(node, "name", None)  # of an exception, or of a pattern
            found.update(_names(node), [named] if isinstance(named, str) else [])
            todo += ast.iter_child_nodes(node)
    return found - shared
