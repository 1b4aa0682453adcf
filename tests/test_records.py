"""Dataclasses and named tuples that cost a start little do what the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from typing import Any

import pytest

from jitgrad import records

pytestmark = pytest.mark.quick


@records.dataclass(frozen=True, slots=True)
class Slotted:
    """Fields without a dictionary."""

    a: int
    b: list[int] = dataclasses.field(default_factory=list)
    c: str = dataclasses.field(default="c", repr=False, compare=False)


@records.dataclass(frozen=True)
class Frozen:
    """Fields in a dictionary, checked."""

    a: int
    b: float = 2.0

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


@records.dataclass(frozen=True, eq=False, repr=False)
class Bare:
    """Compared by identity."""

    a: int


@records.dataclass(slots=True)
class Open:
    """Fields that change."""

    a: int
    b: list[int] = dataclasses.field(default_factory=list)


class Pair(records.NamedTuple):
    """A tuple with names and a method."""

    a: int
    b: int = 5

    def total(self) -> int:
        """Of both."""
        return self.a + self.b


def standard(cls: Any, **how: Any) -> Any:
    """The same class, made by the standard library."""
    fields = [
        (
            f.name,
            f.type,
            dataclasses.field(default=f.default, default_factory=f.default_factory, repr=f.repr, compare=f.compare),
        )
        for f in dataclasses.fields(cls)
    ]
    space = {name: vars(cls)[name] for name in ("__post_init__",) if name in vars(cls)}
    return dataclasses.make_dataclass(cls.__name__, fields, namespace=space, **how)


@pytest.mark.parametrize(
    ("cls", "how"),
    [(Slotted, {"frozen": True, "slots": True}), (Frozen, {"frozen": True}), (Open, {"slots": True}),
     (Bare, {"frozen": True, "eq": False, "repr": False})],
)  # fmt: skip
def test_a_class_is_as_the_standard_library_makes_it(cls: Any, how: dict[str, Any]) -> None:
    other = standard(cls, **how)
    some, same, unlike = cls(1), cls(a=1), cls(2)
    assert [getattr(some, f.name) for f in dataclasses.fields(cls)] == [
        getattr(other(1), f.name) for f in dataclasses.fields(other)
    ]
    assert (some == same) == (other(1) == other(1)) and (some == unlike) == (other(1) == other(2))
    assert some != other(1)
    assert (cls.__hash__ is None) == (other.__hash__ is None)
    if how.get("repr", True):
        assert repr(some) == repr(other(1))
    for wrong in ((), (1, 2, 3, 4)):
        with pytest.raises(TypeError) as ours:
            cls(*wrong)
        with pytest.raises(TypeError) as theirs:
            other(*wrong)
        assert str(ours.value).partition("(")[2] == str(theirs.value).partition("(")[2]
    assert cls.__match_args__ == other.__match_args__
    assert dataclasses.replace(some, a=2).a == 2
    for again in (copy.copy(some), copy.deepcopy(some), pickle.loads(pickle.dumps(some))):
        assert [getattr(again, f.name) for f in dataclasses.fields(cls)] == [
            getattr(some, f.name) for f in dataclasses.fields(cls)
        ]
    if how.get("frozen"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            some.a = 3
        with pytest.raises(dataclasses.FrozenInstanceError):
            del some.a
    else:
        some.a = 3
    assert hasattr(some, "__dict__") == (not how.get("slots", False))


def test_a_default_is_made_for_each_instance() -> None:
    assert Slotted(1).b is not Slotted(1).b
    assert Open(1).b is not Open(1).b


def test_what_is_not_compared_is_not_hashed() -> None:
    pair = Slotted(1, b=(), c="x"), Slotted(1, b=(), c="y")  # type: ignore[arg-type]
    assert pair[0] == pair[1] and len(set(pair)) == 1


def test_checks_behind_init_run_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            Frozen(-1)


def _new(frozen: bool, slots: bool) -> Any:
    @records.dataclass(frozen=frozen, slots=slots)
    class New:
        a: int
        b: list[int] = dataclasses.field(default_factory=list)
        c: int = 3

    return New


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_calls_are_alike_before_and_after_init_is_compiled(frozen: bool, slots: bool) -> None:
    New = _new(frozen, slots)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}), ((), {"b": []}), ((1, [], 3, 4), {}), ((1,), {"a": 1}), ((1,), {"d": 1}), ((1, [], 3), {"c": 3}),
    ]  # fmt: skip
    first = New.__init__
    for _ in range(2):
        for made in (New(1), New(a=1), New(1, c=3), New(1, [], 3), New(1, b=[], c=3), New(c=3, a=1, b=[])):
            assert (made.a, made.b, made.c) == (1, [], 3)
    assert New.__init__ is not first
    for args, kwargs in wrong:
        New = _new(frozen, slots)
        first = New.__init__
        with pytest.raises(TypeError) as before:
            New(*args, **kwargs)
        assert New.__init__ is not first
        with pytest.raises(TypeError) as after:
            New(*args, **kwargs)
        assert str(before.value) == str(after.value)


def test_fields_of_any_name_have_their_values() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Turned:
        f1: int
        f0: list[int] = dataclasses.field(default_factory=list)
        put_0: int = 3
        hash: int = 4

    @records.dataclass(frozen=True)
    class Plain:
        f1: int
        unset: list[int] = dataclasses.field(default_factory=list)
        put: int = 3
        f0: int = 4

    for cls in (Turned, Plain):
        made = cls(1, hash=5) if cls is Turned else cls(1, f0=5)
        names = [field.name for field in dataclasses.fields(cls)]
        assert [getattr(made, name) for name in names] == [1, [], 3, 5]
        assert made == cls(1, [], 3, 5) != cls(2, [], 3, 5)
        assert hash(cls(1, (), 3, 5)) == hash((1, (), 3, 5))  # type: ignore[arg-type]


def test_classes_with_as_many_fields_share_their_code() -> None:
    @records.dataclass(frozen=True, slots=True)
    class One:
        a: int
        b: int = 2

    @records.dataclass(frozen=True, slots=True)
    class Other:
        c: int
        d: int = 3

    for _ in range(records._FEW + 1):
        assert (One(1).b, Other(1).d) == (2, 3)
    assert One.__init__.__code__.co_code == Other.__init__.__code__.co_code
    before = records._code.cache_info().misses

    @records.dataclass(frozen=True, slots=True)
    class Third:
        e: int
        f: int

    assert all(Third(1, 2).f == 2 for _ in range(records._FEW + 1)) and records._code.cache_info().misses == before


def test_few_calls_compile_nothing() -> None:
    @records.dataclass(frozen=True)
    class New:
        some_name_of_its_own: int
        other: list[int] = dataclasses.field(default_factory=list, compare=False)

        def __post_init__(self) -> None:
            if self.some_name_of_its_own < 0:
                raise ValueError("negative")

    methods = New.__init__, New.__eq__, New.__hash__
    first, second = New(1), New(1, other=[1])
    assert first == second and hash(first) == hash(second) and (first == 1) is False
    with pytest.raises(ValueError, match="negative"):
        New(-1)
    assert (New.__init__, New.__eq__, New.__hash__) == methods


@pytest.mark.parametrize("name", ["__eq__", "__hash__"])
def test_comparison_is_compiled_when_it_is_often_asked_for(name: str) -> None:
    @records.dataclass(frozen=True)
    class New:
        a: int

    first = getattr(New, name)
    for _ in range(records._FEW):
        assert New(1) == New(1) != New(2) and hash(New(1)) == hash(New(1)) and New(1) != 1
    assert getattr(New, name) is not first


def test_methods_of_the_class_itself_stay() -> None:
    @records.dataclass(frozen=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    assert repr(Own(1)) == "own" and hash(Own(1)) == 7 and Own(1) == Own(1)


def test_an_instance_within_itself_has_a_text() -> None:
    some = Slotted(1)
    some.b.append(some)  # type: ignore[arg-type]
    assert repr(some) == "Slotted(a=1, b=[...])"


def test_named_tuples_are_as_the_standard_library_makes_them() -> None:
    class Other(typing.NamedTuple):
        """A tuple with names and a method."""

        a: int
        b: int = 5

    assert Pair(1) == Other(1) == (1, 5) and repr(Pair(1)) == repr(Other(1)).replace("Other", "Pair")
    assert Pair(1)._replace(a=2).total() == Pair(1).__replace__(a=2).total() == 7  # the latter: copy.replace of 3.13
    assert Pair._fields == Other._fields and Pair._field_defaults == Other._field_defaults
    assert Pair.__annotations__ == {"a": "int", "b": "int"} and Pair.__doc__ == Other.__doc__
    assert pickle.loads(pickle.dumps(Pair(1))) == Pair(1) and type(copy.copy(Pair(1))) is Pair
    assert not hasattr(Pair(1), "__dict__") and Pair.__slots__ == ()
    assert Pair(1)._asdict() == Other(1)._asdict() and Pair._make([1, 2]) == Pair(b=2, a=1) == (1, 2)
    assert (Pair(1).a, Pair(1).b, Pair.__match_args__) == (1, 5, Other.__match_args__)
    assert str(inspect.signature(Pair)) == "(a, b=5)"
    for made in (Pair, Other):
        with pytest.raises(TypeError, match="Expected 2 arguments, got 3"):
            made._make([1, 2, 3])
        with pytest.raises((ValueError, TypeError), match=r"unexpected field names: \['c'\]"):  # the latter: from 3.13
            made(1)._replace(c=1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
            made(1, c=2)
        with pytest.raises(AttributeError):
            made(1).a = 2
    with pytest.raises(TypeError, match="missing 1 required"):
        Pair()  # type: ignore[call-arg]
